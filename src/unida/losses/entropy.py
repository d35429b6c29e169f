"""Entropies, in nats."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def entropy(probabilities: Tensor) -> Tensor:
    """−Σ p log p over the last dimension; 0 log 0 = 0."""
    return torch.special.entr(probabilities).sum(dim=-1)


def entropy_of_logs(log_p: Tensor, dim: int = -1) -> Tensor:
    """−Σ p log p over a dimension, from log p, which keeps small probabilities exact."""
    return (log_p.exp() * -log_p).sum(dim=dim)  # not −Σ: it gives "-0.0" if all is certain


def share_of_largest_entropy(logits: Tensor) -> Tensor:
    """(B, C) → (B,) in 0…1: the entropy of the softmax over log C. C is at least 2."""
    entropies = entropy_of_logs(F.log_softmax(logits, dim=1), dim=1)
    return (entropies / math.log(logits.shape[1])).clamp(max=1)  # rounding can lift an even distribution above 1
