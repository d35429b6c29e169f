"""Contrastive domain discrepancy: from CAN (Kang et al., CVPR 2019), and part of DCC (Li et al., CVPR 2021).

Computed in float32, also under autocast.
"""

import torch
from torch import Tensor

from unida.losses.mmd import bandwidths, squared_distances

SMALLEST_RATIO, LARGEST_RATIO = 1e-5, 1e5  # of a squared distance over a bandwidth (CAN and DCC, code)


def contrastive_domain_discrepancy(source: Tensor, target: Tensor, num_matched: int | None = None) -> Tensor:
    """Pull a class's two domains together, push different classes apart: intra − inter.

    With MMD²(i, j) between source class i and target class j,

        intra = Σ_i MMD²(i, i) / M,    inter = Σ_{i≠j} MMD²(i, j) / (M (M − 1)),

    where M is the number of matched classes. A batch shows C of them, so the loss is smaller than a mean over the
    batch, as in the reference. It can be negative. With M = 1 there is nothing to push apart: intra alone.

    Each block is a class of its own. In the reference, a class may come twice in a batch; it is then pushed away from
    itself (DCC's `--repeat-classes`).

    Args:
        source: (C, n, d) features, n images of each of C classes.
        target: (C, n, d) features, of clusters matched to these classes, in the same order.
        num_matched: M ≥ 1; by default the number of classes in the batch.

    Returns:
        Scalar.
    """
    C = len(source)
    M = C if num_matched is None else num_matched
    if source.shape != target.shape or source.ndim != 3:
        raise ValueError(f"source {tuple(source.shape)} and target {tuple(target.shape)} must both be (C, n, d)")
    mmd = class_pair_mmd(source, target)
    intra = mmd.diagonal().sum()
    if M == 1:
        return intra
    inter = mmd.sum() - intra
    return intra / M - inter / (M * (M - 1))


def class_pair_mmd(source: Tensor, target: Tensor) -> Tensor:
    """MMD² between every source class i and every target class j: mean k(s, s') + mean k(t, t') − 2 mean k(s, t).

    The kernel is a sum of Gaussians exp(−‖x − y‖² / γ) with γ = γ_ij · {¼, ½, 1, 2, 4}, where γ_ij is the mean squared
    distance between two different images of source class i and target class j together. It gets no
    gradient, as in CAN. Means run over all pairs, an image with itself included (the biased estimate). Every ratio
    ‖x − y‖² / γ is kept within 1e-5 … 1e5, as in the reference: an image with itself counts 5 exp(−1e-5), not 5.

    Args:
        source: (C, n, d).
        target: (C, n, d).

    Returns:
        (C, C).
    """
    wide = torch.promote_types(source.dtype, torch.float32)
    source, target = source.to(wide), target.to(wide)
    n = source.shape[1]
    within_source = squared_distances(source, source)  # (C, n, n)
    within_target = squared_distances(target, target)
    across = squared_distances(source[:, None], target[None])  # (C, C, n, n)

    total = sum_of(within_source)[:, None] + sum_of(within_target)[None] + 2 * sum_of(across)
    widths = bandwidths(total.detach() / (2 * n * (2 * n - 1)))  # (C, C, kernels); 2n images, each with 2n − 1 others

    def mean_kernel(distances: Tensor) -> Tensor:
        """(C or 1, C or 1, n, n) distances → (C, C)."""
        ratios = (distances[..., None, :, :] / widths[..., None, None]).clamp(SMALLEST_RATIO, LARGEST_RATIO)
        return (-ratios).exp().mean(dim=(-2, -1)).sum(dim=-1)

    same = mean_kernel(within_source[:, None]) + mean_kernel(within_target[None])
    return same - 2 * mean_kernel(across)


def sum_of(distances: Tensor) -> Tensor:
    """(…, n, m) → (…)."""
    return distances.sum(dim=(-2, -1))
