"""A threshold for unknown scores that is found on the target, without labels.

    x = logit(unknown score), moved so that the published rule is at 0; made narrower if its width is above 2
    x is known ~ N(μ_K, σ_K) or unknown ~ N(μ_U, σ_U), with shares 1 − π and π: fitted by EM
    before any image is seen: μ_K = −1.1, σ_K = 1, μ_U = 0.9, σ_U = 0.6, as if n images of each kind had said so,
        n = 30 + N/20
    threshold: where the two densities are equal, whatever π is; but if there may be no unknown image at all, at
        most as many images are called unknown as may be

- The prior's own threshold is the published rule. With few images, or where one kind is missing, it stays near it.
- Densities are compared, not densities times shares: a rare unknown image is worth as much as a common known one, which
  is what HOS asks for, and the threshold does not move with the share.
- Known images are the wider group: easy and hard classes are in it.

docs/studies/together.md says how the numbers of the prior were chosen, how the rule does at each share of unknown
images, and what else was tried.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from unida.support.two_groups import equal_densities, fit, log_densities

EDGE = 1e-4  # scores this near 0 or 1 count as such
MEANS, WIDTHS = (-1.1, 0.9), (1.0, 0.6)  # of the prior
WIDEST = 2.0  # a wider spread of x is scaled down to this: some methods' scores are nearly all 0 or 1
SOME = 2**16  # scores at a time
APART = 2.5  # distance of two clear groups, in widths
LIKELY = 1.92  # log-likelihood that a share may lose and still be believed: half of χ²(1) at 95 %


@dataclass(frozen=True)
class Found:
    """A threshold and what it is based on.

    Attributes:
        threshold: for the unknown score.
        share: of unknown images that is believed, and the range in which it may lie.
        is_clear: whether known and unknown images are two clear groups.
    """

    threshold: float
    share: float
    lowest: float
    highest: float
    is_clear: bool

    def note(self) -> str:
        """For people: which share is believed, and how sure that is."""
        span = f"{100 * self.lowest:.0f} to {100 * self.highest:.0f} %"
        if self.is_clear:
            return f"two clear groups: about {100 * self.share:.0f} % of the target is unknown ({span})"
        return f"no clear groups: {span} of the target may be unknown"

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def find_threshold(unknown: Tensor, published: float = 0.5, alike: float = 1.0) -> Found:
    """The threshold for these scores.

    Args:
        unknown: (N,) scores in 0…1.
        published: the method's own threshold for them.
        alike: images that speak with one voice, because their scores were spread; 1 if each speaks for itself.
    """
    limit = math.log(max(published, EDGE) / max(1 - published, EDGE))
    x = unknown.double().clamp(EDGE, 1 - EDGE).logit() - limit
    scale = max(1.0, float((x - x.mean()).square().mean().sqrt()) / WIDEST)
    x = x / scale
    means, widths, share = fit(x, MEANS, WIDTHS)
    threshold = float(torch.sigmoid(torch.tensor(scale * equal_densities(means, widths) + limit)))
    lowest, highest = believed_shares(x, means, widths, alike)
    if lowest == 0:  # perhaps nothing is unknown: do no harm
        threshold = max(threshold, threshold_of_share(unknown, highest))
    distance = float((means[1] - means[0]) / (widths.square().mean().sqrt()))
    return Found(threshold, share, lowest, highest, distance >= APART and lowest > 0 and highest < 1)


def threshold_of_share(unknown: Tensor, share: float) -> float:
    """The threshold that this share of the scores lies above; equal scores count as below."""
    falling, count = unknown.sort(descending=True).values, round(share * len(unknown))
    return float(falling[count]) if count < len(falling) else -1.0


def believed_shares(x: Tensor, means: Tensor, widths: Tensor, alike: float) -> tuple[float, float]:
    """The shares whose likelihood is not much below the best one's, the two groups being as they are."""
    shares = torch.linspace(0, 1, 101, dtype=x.dtype)
    likelihood = torch.zeros_like(shares)
    for part in x.split(SOME):
        densities = log_densities(part, means, widths)
        mixed = torch.logaddexp(densities[:, :1] + (1 - shares).log(), densities[:, 1:] + shares.log())  # (B, 101)
        likelihood += mixed.sum(dim=0) / alike
    believed = shares[likelihood >= likelihood.max() - LIKELY]
    return float(believed.min()), float(believed.max())
