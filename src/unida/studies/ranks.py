"""Spearman's rank correlation, with an interval."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from unida.support.random import generator

RESAMPLED = 1000


class Correlation(NamedTuple):
    value: float  # −1…1
    low: float  # the middle 95 % of the resampled values
    high: float
    points: int


def rank_correlation(runs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> Correlation | None:
    """The mean of the runs' rank correlations, and its interval. None if no run has three points that differ.

    The interval is a bootstrap over the points of each run. Points of one run follow each other and are not
    independent, so it is rather too narrow.

    Args:
        runs: (x, y) of each run.
    """
    usable = [(np.asarray(x, float), np.asarray(y, float)) for x, y in runs if len(x) > 2]
    values = [_spearman(x[None], y[None]) for x, y in usable]
    usable = [run for run, value in zip(usable, values, strict=True) if np.isfinite(value).all()]
    if not usable:
        return None
    mean = float(np.mean([value for value in values if np.isfinite(value).all()]))
    drawn = np.nanmean([_resampled(x, y, number) for number, (x, y) in enumerate(usable)], axis=0)
    low, high = np.nanpercentile(drawn, [2.5, 97.5])
    return Correlation(mean, float(low), float(high), sum(len(x) for x, _ in usable))


def _resampled(x: np.ndarray, y: np.ndarray, run: int) -> np.ndarray:
    """(RESAMPLED,) correlations of points drawn with repetition; 0 where all drawn points have the same value."""
    picked = generator(0, "bootstrap", run).integers(len(x), size=(RESAMPLED, len(x)))
    return np.nan_to_num(_spearman(x[picked], y[picked]))


def _spearman(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """(B, N) twice → (B,): the correlation of ranks, ties at their mean rank; NaN if all values are equal."""
    from scipy.stats import rankdata  # loads slowly

    one, other = (rankdata(values, axis=1) - (values.shape[1] + 1) / 2 for values in (x, y))
    with np.errstate(invalid="ignore"):
        result: np.ndarray = (one * other).sum(1) / np.sqrt((one**2).sum(1) * (other**2).sum(1))
    return result
