"""One-vs-all losses (Saito & Saenko, OVANet, ICCV 2021). All are computed in float32, also under autocast."""

import torch
import torch.nn.functional as F
from torch import Tensor

from unida.losses.entropy import entropy_of_logs


def split_one_vs_all(logits: Tensor) -> Tensor:
    """(B, 2C) head outputs → (B, 2, C): channel 0 says "not this class", channel 1 "is this class"."""
    return logits.float().unflatten(1, (2, -1))


def one_vs_all_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """½ [ mean −log p_y + mean max_{j≠y} −log(1 − p_j) ]: the right class and the hardest wrong one.

    The ½ is in OVANet's code, not in its paper. p_j is the softmax over the two channels of class j, so
    −log p_j = softplus(not − is); the softplus form needs no epsilon (the reference adds 1e-8 inside its logs).

    Args:
        logits: (B, 2, C).
        labels: (B,) class ids.
    """
    margin = logits[:, 1].float() - logits[:, 0].float()  # (B, C): log-odds of "is this class"
    positive = F.softplus(-margin.gather(1, labels[:, None]).squeeze(1))
    others = margin.scatter(1, labels[:, None], float("-inf"))
    negative = F.softplus(others.amax(dim=1))  # softplus grows with the margin: the largest is the hardest
    return 0.5 * (positive.mean() + negative.mean())


def one_vs_all_entropy(logits: Tensor) -> Tensor:
    """Mean over samples and classes of the binary entropy of (p_k, 1 − p_k), in nats.

    Args:
        logits: (B, 2, C).
    """
    log_p = F.log_softmax(logits.float(), dim=1)
    return entropy_of_logs(log_p, dim=1).mean()


def probability_not_class(logits: Tensor, labels: Tensor) -> Tensor:
    """P("not class y") of the one-vs-all classifier of each sample's own class y.

    Args:
        logits: (B, 2, C).
        labels: (B,) class ids.

    Returns:
        (B,) in 0…1.
    """
    margin = logits[:, 1].float() - logits[:, 0].float()
    return torch.sigmoid(-margin.gather(1, labels[:, None]).squeeze(1))
