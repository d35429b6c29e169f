"""Points to cluster, and what makes a clustering."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from unida.clustering.kmeans import Clusters


def mixture(count: int, d: int, groups: int, noise: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Unit features (N, d) around some directions, and which direction each belongs to."""
    rng = np.random.default_rng(seed)
    directions = rng.standard_normal((groups, d))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    members = np.concatenate([np.arange(groups), rng.integers(groups, size=count - groups)])
    points = directions[members] + noise * rng.standard_normal((count, d)) / np.sqrt(d)
    return F.normalize(torch.from_numpy(points).float(), dim=1), torch.from_numpy(members)


def uniform(count: int, d: int) -> Tensor:
    return torch.rand(count, d, generator=torch.Generator().manual_seed(0))


def assert_is_a_clustering(clusters: Clusters, features: Tensor) -> None:
    """Every point at its nearest centre, every centre the mean of its points, every cluster used."""
    centres, assignment = clusters.centres.double(), clusters.assignment
    distances = torch.cdist(features.double(), centres).square()
    own = distances.gather(1, assignment[:, None]).squeeze(1)
    torch.testing.assert_close(own, distances.amin(dim=1), rtol=1e-3, atol=1e-5)
    for k in range(len(centres)):
        torch.testing.assert_close(features[assignment == k].double().mean(dim=0), centres[k], rtol=1e-4, atol=1e-4)
    assert assignment.unique().tolist() == list(range(len(centres)))
    assert clusters.inertia == pytest.approx(own.sum().item(), rel=1e-3, abs=1e-4)
