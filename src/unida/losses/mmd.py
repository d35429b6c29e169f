"""Maximum mean discrepancy: how far apart are two sets of images? (DAN and RTN, Long et al.)

Float32, also under autocast.
"""

import torch
from torch import Tensor

NUM_KERNELS = 5  # DAN, RTN and CAN, code
KERNEL_FACTOR = 2.0  # each kernel is twice as wide as the one before it; same sources
SMALLEST_BANDWIDTH = 1e-5  # of one kernel, so that equal images do not divide by zero (CAN, code)


def squared_mmd(source: Tensor, target: Tensor) -> Tensor:
    """MMD² over all pairs: mean k(s, s') + mean k(t, t') − 2 mean k(s, t).

    The kernel is a sum of Gaussians exp(−‖x − y‖² / γ) with γ = m · {¼, ½, 1, 2, 4}, where m is the mean squared
    distance between two different images of the union. m gets no gradient (RTN's code). Means run over all pairs, an
    image with itself included: the biased estimate, which is never negative.

    Args:
        source: (n, d); target: (n′, d).

    Returns:
        Scalar.
    """
    kernels, n = _kernels(source, target), len(source)
    return kernels[:n, :n].mean() + kernels[n:, n:].mean() - 2 * kernels[:n, n:].mean()


def quadruple_mmd(source: Tensor, target: Tensor, quadruples: Tensor) -> Tensor:
    """MMD² estimated from some images: mean of k(s₁, s₂) + k(t₁, t₂) − k(s₁, t₂) − k(s₂, t₁) (RTN's code).

    It can be negative. The kernel is that of `squared_mmd`.

    Args:
        source: (n, d); target: (n′, d).
        quadruples: (q, 4) int64: places of s₁ ≠ s₂ in the source and of t₁ ≠ t₂ in the target.

    Returns:
        Scalar.
    """
    kernels, n = _kernels(source, target), len(source)
    s1, s2, t1, t2 = quadruples.unbind(dim=1)
    t1, t2 = t1 + n, t2 + n
    return (kernels[s1, s2] + kernels[t1, t2] - kernels[s1, t2] - kernels[s2, t1]).mean()


def outer_products(features: Tensor, logits: Tensor) -> Tensor:
    """(B, d), (B, C) → (B, d C): every feature times every logit. RTN compares domains by these."""
    wide = torch.promote_types(features.dtype, torch.float32)
    return (features.to(wide)[:, :, None] * logits.to(wide)[:, None, :]).flatten(1)


def squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """(…, n, d), (…, m, d) → (…, n, m), from differences: ‖x‖² + ‖y‖² − 2xy would lose near points to rounding."""
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist").square()


def bandwidths(mean: Tensor) -> Tensor:
    """(…) mean squared distances → (…, kernels) widths of the kernels."""
    powers = torch.arange(NUM_KERNELS, device=mean.device) - NUM_KERNELS // 2
    return (mean[..., None] * KERNEL_FACTOR**powers).clamp(min=SMALLEST_BANDWIDTH)


def _kernels(source: Tensor, target: Tensor) -> Tensor:
    """(n + n′, n + n′) sums over kernels, of every two images of the union."""
    union = torch.cat([source, target])
    union = union.to(torch.promote_types(union.dtype, torch.float32))
    distances, N = squared_distances(union, union), len(union)
    widths = bandwidths(distances.detach().sum() / (N * (N - 1)))
    return (-distances / widths[:, None, None]).exp().sum(dim=0)
