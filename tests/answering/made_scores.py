"""Targets that are drawn: directions in groups, and scores to go with them."""

import numpy as np
import torch
from numpy.typing import NDArray

from unida.answering.alone import Scored

FIELDS = ("prediction", "closed", "probability", "unknown_score")


def made_scores(count: int, groups: int = 4, classes: int = 3, noise: float = 0.5, seed: int = 0) -> Scored:
    """Images in `groups`; one group in two looks like a class, the other is unknown. Scores are noisy."""
    rng = np.random.default_rng(seed)
    group = rng.integers(groups, size=count)
    points = rng.normal(size=(groups, 12))[group] + noise * rng.normal(size=(count, 12))
    is_unknown = group % 2 == 1
    logits = 1.5 * rng.normal(size=(count, classes))
    logits[np.arange(count), group % classes] += np.where(is_unknown, 0, 2)
    unknown = 1 / (1 + np.exp(-(np.where(is_unknown, 1.0, -1.0) + rng.normal(size=count))))
    return scored_of(points, np.exp(logits), unknown)


def scored_of(points: NDArray[np.floating], weights: NDArray[np.floating], unknown: NDArray[np.floating]) -> Scored:
    """From points of any length, and class weights of any sum."""
    directions = points / np.maximum(np.linalg.norm(points, axis=1, keepdims=True), 1e-12)
    probabilities = weights / weights.sum(axis=1, keepdims=True)
    return Scored(
        torch.from_numpy(directions).half(), torch.from_numpy(probabilities).float(), torch.from_numpy(unknown).float()
    )
