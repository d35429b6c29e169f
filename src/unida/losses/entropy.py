"""Entropies, in nats."""

import torch
from torch import Tensor


def entropy(probabilities: Tensor) -> Tensor:
    """−Σ p log p over the last dimension; 0 log 0 = 0."""
    return torch.special.entr(probabilities).sum(dim=-1)


def entropy_of_logs(log_p: Tensor, dim: int = -1) -> Tensor:
    """−Σ p log p over a dimension, from log p, which keeps small probabilities exact."""
    return (log_p.exp() * -log_p).sum(dim=dim)  # not −Σ: it gives "-0.0" if all is certain
