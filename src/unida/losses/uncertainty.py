"""How sure is an ensemble of heads of an image? Scores and weights of CMU. All are float32, also under autocast."""

import torch
import torch.nn.functional as F
from torch import Tensor

from unida.losses.adversarial import min_max
from unida.losses.transferability import normalised_entropy, prediction_margin

OLD_SHARE = 0.01  # of the old bounds when a batch moves them (CMU's later code)
TINY = torch.finfo(torch.float32).tiny
ROUNDING = 1e-6  # scores that differ by less are equal


def ensemble_margin(logits: Tensor) -> Tensor:
    """(K, B, C) logits of K heads → (B,) mean over heads of p₁ − p₂, the two largest probabilities."""
    return prediction_margin(logits).mean(dim=0)


def ensemble_entropy(logits: Tensor) -> Tensor:
    """(K, B, C) → (B,) mean over heads of the entropy as a share of log C."""
    return normalised_entropy(logits).mean(dim=0)


def ensemble_disagreement(logits: Tensor) -> Tensor:
    """(K, B, C), K at least 2 → (B,) mean over classes of the deviation of a probability over heads (divides by K−1).

    CMU calls it consistency; it is high where heads differ.
    """
    return F.softmax(logits.float(), dim=2).std(dim=0).mean(dim=1)


def within(values: Tensor, lowest: Tensor, highest: Tensor) -> Tensor:
    """(B,) min-max with bounds measured elsewhere, clamped to 0…1: new images may lie outside. Finite if low = high."""
    return ((values - lowest) / (highest - lowest).clamp_min(TINY)).clamp(0, 1)


def known_score(margin: Tensor, entropy: Tensor) -> Tensor:
    """s = (margin + 1 − entropy) / 2, of numbers in 0…1: high if the heads are sure (CMU's later code)."""
    return (margin + 1 - entropy) / 2


def moved_bound(old: Tensor, new: Tensor) -> Tensor:
    """() a running bound of the batches' scores: 0.01 old + 0.99 new (CMU's later code)."""
    return OLD_SHARE * old + (1 - OLD_SHARE) * new


def weights_of_batch(scores: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """(B,) w_t, min-max of scores with running bounds (CMU's later code), in −1…2.

    As bounds keep a hundredth of the old ones, a weight can be a little below 0 or above 1. In the later code it has no
    limit if scores are almost equal; the limits here matter only if scores differ by less than about a hundredth.
    """
    return ((scores - lower) / (upper - lower).clamp_min(ROUNDING)).clamp(-1, 2)


def shared_classes(probabilities: Tensor, scores: Tensor, confident: float, cut: float) -> Tensor:
    """Which classes do sure target images look like? (C,) 1 or 0 for each class of the source.

    The mean probability vector of the sure images, min-max over classes, is compared with the cut. So the class with
    the least of it always gets 0, and the one with the most gets 1. If all have the same, all get 1.

    Args:
        probabilities: (N, C) of target images.
        scores: (N,) of the same images.
        confident: images with this score or a higher one are sure; if there are none, those with the highest are.
        cut: a class needs more than this.
    """
    mean = probabilities[scores >= scores.max().clamp(max=confident)].mean(dim=0)
    if bool(mean.max() == mean.min()):
        return torch.ones_like(mean)
    return (min_max(mean) > cut).float()
