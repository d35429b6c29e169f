"""STA's separation of known from unknown target images: binary classifiers, their ranking, and who is chosen by it.

Float32, also under autocast; rankings are made in float64, where fewer sure images are equal.
"""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from unida.losses.entropy import entropy_of_logs

Ranking = Literal["max", "sum"]


def binary_heads_loss(logits: Tensor, labels: Tensor, epsilon: float = 1e-12) -> Tensor:
    """Mean over images of Σ_k −log(p_k + ε) if k is the image's class, else −log(1 − p_k + ε), with p = σ(logits).

    A sum over the C classifiers, not a mean (STA's code).

    Args:
        logits: (B, C), one for each classifier.
        labels: (B,) int64 in 0…C−1.
        epsilon: ε > 0 (STA's code: 1e-12).
    """
    is_class = F.one_hot(labels, logits.shape[1]).bool()
    log_right = F.logsigmoid(torch.where(is_class, logits.float(), -logits.float()))
    return -torch.logaddexp(log_right, log_right.new_tensor(math.log(epsilon))).sum(dim=1).mean()


def known_ranks(logits: Tensor, ranking: Ranking) -> Tensor:
    """(B, C) of the binary classifiers → (B,) float64, high for images that look known.

    Args:
        ranking: max: the largest of the C probabilities (STA_max, the paper's); sum: their sum (released code).
    """
    p = torch.sigmoid(logits.double())
    return p.amax(dim=1) if ranking == "max" else p.sum(dim=1)


def chosen_by_rank(ranks: Tensor, count: int) -> Tensor:
    """(B,) → (B, 2) float32: weights of the n images with the highest ranks, and of the n with the lowest.

    A chosen image has the weight B / n, any other 0. So the mean over the batch of weighted losses is the mean of the
    chosen images' losses. n is `count`, or half of the batch if that is less: no image is chosen twice.
    """
    B = len(ranks)
    n = min(count, B // 2)
    order = ranks.argsort(stable=True)
    weights = torch.zeros(B, 2, device=ranks.device)
    weights[order[B - n :], 0] = B / max(n, 1)
    weights[order[:n], 1] = B / max(n, 1)
    return weights


def weighted_entropy(logits: Tensor, weights: Tensor) -> Tensor:
    """Mean over images of w · H(softmax(logits)): divided by their number, not by the sum of weights.

    Args:
        logits: (B, K).
        weights: (B,) without gradients.
    """
    return (weights.detach() * entropy_of_logs(F.log_softmax(logits.float(), dim=1))).mean()
