"""Colours as classes: the bins of the ab plane that a screen can show (Zhang et al. 2016)."""

from functools import cache
from itertools import product

import numpy as np
import torch
from torch import Tensor

from unida.recipes.lab import srgb_to_lab

STEP = 10  # of the grid, in units of a and b
REACH = 130  # the grid ends there; colours of sRGB lie within −108…98
NEAREST = 5  # bins of a soft encoding
SIGMA = 5.0
UNIFORM = 0.5  # λ: how much of the uniform distribution is mixed in before rare colours get their weights


@cache
def bins_in_gamut() -> np.ndarray:
    """(313, 2) int64, the points of the grid that are used, by a and then b.

    The rule: colours of sRGB fill a part of the plane; take its convex hull; take each square of the grid that the hull
    meets; its four corners are bins. So every colour lies between bins. This gives the published 313 points.
    (Points inside the hull alone would be 233.)
    """
    levels = np.linspace(0, 1, 18)
    cube = torch.tensor(list(product(levels, repeat=3)), dtype=torch.float64)
    colours = srgb_to_lab(cube[:, :, None, None])[:, 1:, 0, 0].numpy()
    angle = np.linspace(0, 2 * np.pi, 720, endpoint=False)
    towards = np.stack([np.cos(angle), np.sin(angle)])  # (2, 720)
    farthest = (colours @ towards).max(axis=0) + STEP * np.abs(towards).sum(axis=0)  # of the hull with squares around
    line = np.arange(-REACH, REACH + 1, STEP)
    grid = np.array(list(product(line, line)))
    return grid[(grid @ towards <= farthest).all(axis=1)]


@cache
def soft_table() -> tuple[Tensor, Tensor]:
    """For all a and b from −128 to 127: (65536, 5) the nearest bins, the nearest first, and their shares.

    A share falls with the distance as a Gaussian does; the five sum to 1. Of bins that are equally near, the first
    comes first.
    """
    line = torch.arange(-128.0, 128.0)
    points, bins = torch.cartesian_prod(line, line), torch.from_numpy(bins_in_gamut()).float()
    squares = (points**2).sum(dim=1)[:, None] - 2 * points @ bins.T + (bins**2).sum(dim=1)  # whole numbers, exact
    first = torch.arange(len(bins)) / 512  # below 1: decides between equal distances alone
    near = (squares + first).topk(NEAREST, largest=False).indices
    shares = torch.softmax(-squares.gather(1, near) / (2 * SIGMA**2), dim=1)
    return near, shares


def rebalanced(share: Tensor) -> Tensor:
    """(Q,) weights that make rare colours count as well: 1 / ((1 − λ) p + λ / Q), whose mean over all pixels is 1."""
    weights = 1 / ((1 - UNIFORM) * share + UNIFORM / len(share))
    return weights / (share * weights).sum()
