"""Answers made up at random, and what would have been right."""

import numpy as np
import torch
from torch import Tensor

Samples = tuple[Tensor, Tensor, Tensor, Tensor]


def random_samples(
    seed: int, n: int = 300, n_source: int = 7, n_private: int = 4, n_scores: int | None = 12
) -> Samples:
    """Unbalanced classes, mostly right answers; `n_scores` distinct score values make ties."""
    rng = np.random.default_rng(seed)
    weights = rng.random(n_source + n_private) + 0.05
    weights[[1, 4]] = 0  # source-private: two, as with just one the legacy HOS would equal the true one
    truth = rng.choice(n_source + n_private, size=n, p=weights / weights.sum())
    closed = np.where(rng.random(n) < 0.7, truth, rng.integers(0, n_source, n)) % n_source
    score = rng.normal(size=n) + 1.2 * (truth >= n_source)
    if n_scores is not None:
        score = np.round(score * n_scores / 6)
    prediction = np.where(score + rng.normal(size=n) > 1, n_source, closed)
    return tuple(torch.from_numpy(values) for values in (truth, prediction, closed, score))  # type: ignore[return-value]
