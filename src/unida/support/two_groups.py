"""Two groups of numbers, known and unknown images: each is a normal distribution, fitted by EM with a prior.

The prior says where both groups are before an image is seen, as if n = 30 + N/20 of the N images of each kind had said
so. docs/studies/together.md says how n was chosen.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

PRIOR_IMAGES, PRIOR_SHARE = 30.0, 0.05  # of n
ROUNDS = 100


def fit(
    x: Tensor,
    means_before: Sequence[float],
    widths_before: Sequence[float],
    images: Tensor | None = None,
) -> tuple[Tensor, Tensor, float]:
    """(N,) → means (2,), widths (2,) and the share of the second, by EM.

    Args:
        means_before: of both groups, where EM starts, and is held to.
        widths_before: the same.
        images: (N,) how many images each x stands for; one by default.
    """
    images = torch.ones_like(x) if images is None else images.to(x)
    total = float(images.sum())
    prior, spread = x.new_tensor(means_before), x.new_tensor(widths_before)
    means, widths, shares = prior, spread, x.new_tensor([0.5, 0.5])
    before = PRIOR_IMAGES + PRIOR_SHARE * total
    for _ in range(ROUNDS):
        belongs = images[:, None] * (shares.log() + log_densities(x, means, widths)).softmax(dim=1)
        count = belongs.sum(dim=0)
        shares = (count + 1) / (total + 2)
        means = (belongs.T @ x + before * prior) / (count + before)
        around = (belongs * (x[:, None] - means).square()).sum(dim=0)
        widths = ((around + before * spread.square()) / (count + before)).sqrt()
    return means, widths, float(shares[1])


def log_densities(x: Tensor, means: Tensor, widths: Tensor) -> Tensor:
    """(N,), (2,), (2,) → (N, 2), up to a constant."""
    return -widths.log() - ((x[:, None] - means) / widths).square() / 2


def equal_densities(means: Tensor, widths: Tensor) -> float:
    """The place between the means where both densities are equal. If one covers the other, the nearest mean."""
    places = torch.linspace(float(means[0]), float(means[1]), 2001, dtype=means.dtype)
    density = log_densities(places, means, widths)
    is_unknown = density[:, 1] > density[:, 0]
    return float(places[int(is_unknown.to(torch.uint8).argmax())] if is_unknown.any() else means.max())
