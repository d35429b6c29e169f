"""A memory that is divided by entropy into areas, and clustering inside them. Float32, also under autocast.

Ours, from the abstract of Zhu & Li (ICDM 2021), which gives no formula: `unida.methods.zhu` says what is known.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from unida.losses.neighbourhood import softmax_entropy

COMMON, UNCERTAIN, UNKNOWN = 0, 1, 2
NOT_A_NEIGHBOUR = -1e9  # a similarity whose exp is 0; with −∞, an image without neighbours would give NaN


def areas(entropies: Tensor, threshold: float, margin: float) -> Tensor:
    """COMMON below ρ − m, UNKNOWN above ρ + m, UNCERTAIN between.

    Args:
        entropies: (N,) in nats.
        threshold: ρ.
        margin: m.

    Returns:
        (N,) int64.
    """
    found = torch.full_like(entropies, UNCERTAIN, dtype=torch.int64)
    found[entropies < threshold - margin] = COMMON
    found[entropies > threshold + margin] = UNKNOWN
    return found


def neighbourhoods(area: Tensor, memory_area: Tensor, num_centres: int) -> Tensor:
    """Which centres and which images of the memory an image may be drawn to.

    COMMON: the source's centres and the common area. UNKNOWN: the unknown area. UNCERTAIN: everything.

    Args:
        area: (B,) of the batch's images.
        memory_area: (N,) of the images in the memory.

    Returns:
        (B, num_centres + N) bool, centres first.
    """
    to_centres = (area != UNKNOWN)[:, None].expand(-1, num_centres)
    to_memory = (area[:, None] == memory_area[None]) | (area == UNCERTAIN)[:, None]
    return torch.cat([to_centres, to_memory], dim=1)


def clustering_in_neighbourhoods(similarities: Tensor, allowed: Tensor) -> Tensor:
    """Mean entropy of each image's softmax over its neighbourhood: it is drawn to its nearest neighbour there.

    An image without neighbours counts as 0.

    Args:
        similarities: (B, M) cosines over a temperature.
        allowed: (B, M) bool.

    Returns:
        Scalar.
    """
    entropies = softmax_entropy(similarities.masked_fill(~allowed, NOT_A_NEIGHBOUR))
    return (entropies * allowed.any(dim=1)).mean()


def consistency(weak_logits: Tensor, strong_logits: Tensor) -> Tensor:
    """Mean KL(p_weak ‖ p_strong); no gradient flows into the weak view's prediction.

    Args:
        weak_logits: (B, C).
        strong_logits: (B, C).

    Returns:
        Scalar.
    """
    weak, strong = (F.log_softmax(logits, dim=1) for logits in (weak_logits.detach(), strong_logits))
    return F.kl_div(strong, weak, log_target=True, reduction="batchmean")


@torch.no_grad()
def moved_centres(centres: Tensor, features: Tensor, labels: Tensor, momentum: float) -> Tensor:
    """The centres after a batch: c_k ← normalise(μ c_k + (1 − μ) b_k), b_k the normalised mean of its features.

    A centre that was never set takes the batch's. Classes that the batch does not show stay, and so does a class whose
    features sum to zero.

    Args:
        centres: (C, d) unit rows, or zeros where none was seen.
        features: (B, d) of unit length, with labels (B,).
        momentum: μ.

    Returns:
        (C, d); the given centres are not changed.
    """
    sums = torch.zeros_like(centres).index_add_(0, labels, features.to(centres.dtype))
    moved = F.normalize(momentum * centres + (1 - momentum) * F.normalize(sums, dim=1), dim=1)
    return torch.where(sums.any(dim=1, keepdim=True), moved, centres)
