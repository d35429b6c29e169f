"""k-means with one careful seeding, on the features' device.

On a CPU, the result depends on the features and a seed alone. On a GPU, sums of the same numbers in another order may
differ in their last bits, and k-means may find other clusters.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from unida.errors import UserError
from unida.support.random import generator

MAX_ITERATIONS = 300  # of Lloyd's algorithm; scikit-learn's default, which DCC uses
SMALL_ITERATIONS = 10  # for small clusters, which are merged later
ROUNDING = 1e-6  # squared distances below this part of the squared lengths are rounding errors in float32


class Clusters(NamedTuple):
    centres: Tensor  # (K, d) means, of any length
    assignment: Tensor  # (N,) int64: the nearest centre; each has at least one point
    inertia: float  # Σ squared distance of each point to its centre

    def moved(self, shift: Tensor) -> "Clusters":
        """The clusters of points that lie `shift` (d,) away from these."""
        return self._replace(centres=self.centres + shift)


@torch.no_grad()
def kmeans(features: Tensor, num_clusters: int, seed: int) -> Clusters:
    """k-means from scratch: one careful seeding (`seedings`), then Lloyd's algorithm until no point changes.

    There are fewer clusters if there are fewer different points.

    Args:
        features: (N, d), N ≥ 1.
        seed: of the random draws.
    """
    points, shift = centred(features)
    return lloyd(points, seedings(points, [num_clusters], seed)[0]).moved(shift)


@torch.no_grad()
def kmeans_from(features: Tensor, centres: Tensor) -> Clusters:
    """k-means that continues from given centres.

    Args:
        features: (N, d), N ≥ 1.
        centres: (K, d), for instance those of the last clustering, or a memory of prototypes.
    """
    points, shift = centred(features)
    return lloyd(points, centres.to(points) - shift).moved(shift)


def centred(features: Tensor) -> tuple[Tensor, Tensor]:
    """The features minus their mean, and the mean. Distances stay the same, with smaller rounding errors."""
    if not bool(features.isfinite().all()):
        raise UserError("the features to cluster are not finite: training diverged; lower --lr")
    points = features.float()
    shift = points.mean(dim=0)
    return points - shift, shift


def seedings(points: Tensor, counts: Sequence[int], seed: int) -> list[Tensor]:
    """Centres to start k-means from, for several numbers of clusters at once.

    Many small clusters are made first. Then they are merged two by two, always the pair that raises the inertia least
    (Ward, 1963). Each number of clusters on the way has its seeding: one hierarchy for all. After Lloyd's algorithm,
    the inertia is about that of the best of ten k-means++ seedings (benchmarks/clustering.py): no restarts are needed.

    A simpler start, the centres of the last K and a few points drawn by k-means++, fails in many dimensions: a
    single point is farther from its neighbours than their mean is, so a new centre attracts nothing but itself.

    Args:
        points: (N, d).
        counts: numbers of clusters wanted.

    Returns:
        A (K, d) tensor for each count; K is lower than the count if there are fewer different points.
    """
    draw = generator(seed, "k-means")
    many = 2 * max(counts) + 100
    small = lloyd(points, spread_points(points, many, draw), SMALL_ITERATIONS)
    sizes = torch.bincount(small.assignment)
    counts = [min(count, len(sizes)) for count in counts]
    merged = ward_groups(small.centres.cpu().double().numpy(), sizes.cpu().numpy(), set(counts))
    groups = {K: torch.from_numpy(merged[K]).to(points.device)[small.assignment] for K in merged}
    return [means(points, groups[K], K)[0] for K in counts]


def spread_points(points: Tensor, count: int, draw: np.random.Generator) -> Tensor:
    """k-means++ (Arthur & Vassilvitskii, 2007): points drawn one by one, by squared distance to those before.

    Args:
        points: (N, d).

    Returns:
        (≤ count, d): fewer if every point equals a drawn one.
    """
    lengths = points.square().sum(dim=1)
    chosen = [points[int(draw.integers(len(points)))]]
    residual = torch.full_like(lengths, float("inf"))
    for position in draw.random(count - 1):
        residual = squared_distances(points, lengths, chosen[-1]).minimum(residual)
        cumulative = residual.cpu().double().cumsum(dim=0)  # device before dtype: some devices have no float64
        if not cumulative[-1] > 0:
            break
        # The first point whose cumulative share exceeds the position: never one at distance 0.
        index = torch.searchsorted(cumulative, position * cumulative[-1:], right=True)
        chosen.append(points[min(int(index), len(points) - 1)])
    return torch.stack(chosen)


def squared_distances(points: Tensor, lengths: Tensor, centre: Tensor) -> Tensor:
    """(N,) to one centre; points that equal it up to float32's rounding have the distance 0.

    Args:
        lengths: (N,) squared lengths of the points.
    """
    scale = lengths + centre.square().sum()
    distances = torch.addmv(scale, points, centre, alpha=-2)
    return distances.where(distances > ROUNDING * scale, 0)


def ward_groups(centres: np.ndarray, sizes: np.ndarray, counts: set[int]) -> dict[int, np.ndarray]:
    """The groups of clusters after some merges of `ward_merges`.

    Args:
        centres: (M, d).
        sizes: (M,) points of each.
        counts: numbers of groups wanted, each ≤ M.

    Returns:
        For each count, the (M,) group 0…count−1 of every cluster.
    """
    group = np.arange(len(centres))
    merges = ward_merges(centres, sizes)
    found = {}
    for left in range(len(centres), min(counts) - 1, -1):
        if left in counts:
            found[left] = np.unique(group, return_inverse=True)[1]
        if left > min(counts):
            i, j = next(merges)
            group[group == j] = i
    return found


def ward_merges(centres: np.ndarray, sizes: np.ndarray) -> Iterator[tuple[int, int]]:
    """Merge clusters two by two, always the pair that raises the inertia least (Ward, 1963), until one is left.

    Merging i and j raises it by ‖c_i − c_j‖² n_i n_j / (n_i + n_j). It runs on the host: it is a chain of tiny steps.

    Args:
        centres: (M, d).
        sizes: (M,) points of each.

    Yields:
        (i, j), M−1 times: j joins i, and is gone.
    """
    M, n = len(centres), sizes.astype(np.float64)
    lengths = np.square(centres).sum(axis=1)
    cost = np.maximum(lengths[:, None] + lengths - 2 * centres @ centres.T, 0) * n[:, None] * n / (n[:, None] + n)
    np.fill_diagonal(cost, np.inf)
    partner = cost.argmin(axis=1)  # the cheapest for each
    for _ in range(M - 1):
        i = int(cost[np.arange(M), partner].argmin())
        j = int(partner[i])
        yield i, j
        # Lance & Williams' recurrence; infinite costs (with itself, or with a merged cluster) stay infinite.
        merged = ((n[i] + n) * cost[i] + (n[j] + n) * cost[j] - n * cost[i, j]) / (n[i] + n[j] + n)
        cost[i], cost[:, i], cost[j], cost[:, j] = merged, merged, np.inf, np.inf
        n[i] += n[j]
        # A merged cluster is never cheaper to join than the cheaper of its two parts, so the others keep their partner.
        stale = np.flatnonzero((partner == i) | (partner == j))
        partner[stale] = cost[stale].argmin(axis=1)
        partner[i], partner[j] = cost[i].argmin(), j


def lloyd(points: Tensor, centres: Tensor, max_iterations: int = MAX_ITERATIONS) -> Clusters:
    """Assign points to the nearest centre, move centres to the mean of their points, until no point changes.

    A centre without points moves to the point that is farthest from its own centre. If no point differs from its
    centre, the empty cluster is dropped.

    Args:
        points: (N, d).
        centres: (K, d) to begin with.
    """
    lengths = points.square().sum(dim=1)
    assignment, affinity = nearest(points, centres)
    for _ in range(max_iterations):
        before = assignment
        centres, sizes = means(points, assignment, len(centres))
        empty = (sizes == 0).nonzero().squeeze(1)
        if len(empty):
            farthest = (lengths - 2 * affinity).topk(min(len(empty), len(points))).indices
            centres[empty[: len(farthest)]] = points[farthest]
        assignment, affinity = nearest(points, centres)
        if torch.equal(assignment, before):
            break
    used, assignment = assignment.unique(return_inverse=True)
    centres = centres[used]
    return Clusters(centres, assignment, float((points - centres[assignment]).square().sum()))


def nearest(points: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """(N,) index of each point's nearest centre, and (N,) its x·c − ½‖c‖², which is largest for the nearest."""
    affinity = torch.addmm(-0.5 * centres.square().sum(dim=1), points, centres.T)
    largest = affinity.max(dim=1)
    return largest.indices, largest.values


def means(points: Tensor, groups: Tensor, num_groups: int) -> tuple[Tensor, Tensor]:
    """(G, d) mean of each group's points, zeros for an empty group; and (G,) how many points it has.

    Args:
        points: (N, d).
        groups: (N,) ids 0…G−1.
    """
    sizes = torch.bincount(groups, minlength=num_groups)
    sums = points.new_zeros(num_groups, points.shape[1]).index_add_(0, groups, points)
    return sums / sizes.clamp(min=1)[:, None], sizes
