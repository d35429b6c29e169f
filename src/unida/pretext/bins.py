"""Pretext classes that hold several numbers of images.

With few or very unequal classes, mosaics of three and of four images show the same things, and their word histograms
have the same entropy: the task cannot be learnt, and harms the features that it shares with the goal. SPA's authors
name this as their limitation and suggest to merge entropy bins.
"""

import itertools

import numpy as np

from unida.errors import UserError

MERGED_OVERLAP = 0.8  # of two neighbouring numbers' entropies: above it they can hardly be distinguished


def parse_bins(text: str, cells: int) -> tuple[int, ...]:
    """ "1,2-3,4" → (0, 1, 1, 2): the class of each number of images 1…cells. "none" and "auto": a class each."""
    if text in ("none", "auto"):
        return tuple(range(cells))
    table: list[int] = []
    try:
        for number, group in enumerate(text.split(",")):
            first, dash, last = group.partition("-")
            start, end = int(first), int(last if dash else first)
            if not len(table) + 1 == start <= end <= cells:
                raise ValueError
            table += [number] * (end - start + 1)
        if len(table) != cells or table[-1] == 0:
            raise ValueError
    except ValueError:
        raise UserError(
            f"--spa.bins {text!r} must list 1 to {cells} in order, in two groups or more, such as "
            f"1,2-{cells}; or be auto or none"
        ) from None
    return tuple(table)


def merge_overlapping(entropies: np.ndarray, instances: np.ndarray, cells: int) -> tuple[int, ...]:
    """Merge neighbouring numbers of images whose histogram entropies overlap too much, the worst pair first.

    At least two classes are left: with one there would be nothing to learn.

    Args:
        entropies: (N,) of the word histograms of N mosaics.
        instances: (N,) int, how many images each is made of, 1…cells.
    """
    groups = [[number] for number in range(1, cells + 1)]
    while len(groups) > 2:
        samples = [entropies[np.isin(instances, group)] for group in groups]
        overlaps = [overlap(one, other) for one, other in itertools.pairwise(samples)]
        worst = int(np.argmax(overlaps))
        if overlaps[worst] <= MERGED_OVERLAP:
            break
        groups[worst : worst + 2] = [groups[worst] + groups[worst + 1]]
    return tuple(number for number, group in enumerate(groups) for _ in group)


def overlap(one: np.ndarray, other: np.ndarray) -> float:
    """1 − the largest gap between two samples' distribution functions (Kolmogorov–Smirnov): 1 if alike, 0 if apart.

    An empty sample overlaps with everything: there is no reason for a class of its own.
    """
    if not len(one) or not len(other):
        return 1.0
    values = np.concatenate([one, other])
    below_one = np.searchsorted(np.sort(one), values, side="right") / len(one)
    below_other = np.searchsorted(np.sort(other), values, side="right") / len(other)
    return float(1 - np.abs(below_one - below_other).max())
