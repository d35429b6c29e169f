"""Domain consensus clustering (Li et al., DCC, CVPR 2021): how many clusters has the target, and which are classes?

The target is clustered with k-means for growing K. A target cluster and a source class match if each is the other's
nearest; how far their images agree with that match is the consensus score, and it chooses K. Nothing here sees a target
label. Distances are computed on the features' device. On a CPU, the result depends on the features and a seed alone; on
a GPU, sums of the same numbers in another order may differ in their last bits, and k-means may take another way.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from unida.data.sampling import generator
from unida.errors import UserError

MAX_ITERATIONS = 300  # of Lloyd's algorithm; scikit-learn's default, which DCC uses
SMALL_ITERATIONS = 10  # of clusters that are only to be merged
ROUNDING = 1e-6  # squared distances below this part of the squared lengths are rounding errors in float32


class Clusters(NamedTuple):
    centres: Tensor  # (K, d) means, of any length
    assignment: Tensor  # (N,) int64: the nearest centre; each has at least one point
    inertia: float  # Σ squared distance of each point to its centre

    def moved(self, shift: Tensor) -> "Clusters":
        """The clusters of points that lie `shift` (d,) away from these."""
        return self._replace(centres=self.centres + shift)


class Consensus(NamedTuple):
    pairs: Tensor  # (P, 2) int64: source class, target cluster; by class
    scores: Tensor  # (P,) in 0…1
    score: float  # their mean; 0 without a pair


class Search(NamedTuple):
    clusters: Clusters  # for the K that was chosen
    consensus: Consensus  # of these
    tried: tuple[tuple[int, float], ...]  # every (K, consensus score), in the order of trying

    @property
    def num_clusters(self) -> int:
        return len(self.clusters.centres)


@torch.no_grad()
def kmeans(features: Tensor, num_clusters: int, seed: int) -> Clusters:
    """k-means from scratch: one careful seeding (`seedings`), then Lloyd's algorithm until no point changes.

    Fewer clusters come back if there are fewer different points than asked for.

    Args:
        features: (N, d), N ≥ 1.
        seed: of the random draws.
    """
    points, shift = centred(features)
    return lloyd(points, seedings(points, [num_clusters], seed)[0]).moved(shift)


@torch.no_grad()
def kmeans_from(features: Tensor, centres: Tensor) -> Clusters:
    """k-means that goes on from given centres.

    Args:
        features: (N, d), N ≥ 1.
        centres: (K, d), for instance those of the last clustering, or a memory of prototypes.
    """
    points, shift = centred(features)
    return lloyd(points, centres.to(points) - shift).moved(shift)


def centred(features: Tensor) -> tuple[Tensor, Tensor]:
    """The features around their mean, and the mean: distances stay as they are, and lose less to rounding."""
    if not bool(features.isfinite().all()):
        raise UserError("the features to cluster are not finite: training diverged; lower --lr")
    points = features.float()
    shift = points.mean(dim=0)
    return points - shift, shift


def seedings(points: Tensor, counts: Sequence[int], seed: int) -> list[Tensor]:
    """Centres to start k-means from, for several numbers of clusters at once.

    Many small clusters are made first, then merged two by two where it raises the inertia least (Ward, 1963). Every
    number on the way down has its seeding: one hierarchy for all. After Lloyd's algorithm, the inertia is about that of
    the best of ten k-means++ seedings (benchmarks/clustering.py), so there are no restarts.

    The obvious warm start, the centres of the K before and a few points drawn by k-means++, fails in many dimensions: a
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
        (≤ count, d): it ends when every point lies on a drawn one.
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
    """(N,) to one centre; points that float32 cannot tell from it have the distance 0.

    Args:
        lengths: (N,) squared lengths of the points.
    """
    scale = lengths + centre.square().sum()
    distances = torch.addmv(scale, points, centre, alpha=-2)
    return distances.where(distances > ROUNDING * scale, 0)


def ward_groups(centres: np.ndarray, sizes: np.ndarray, counts: set[int]) -> dict[int, np.ndarray]:
    """Merge clusters two by two, always the pair that raises the inertia least (Ward, 1963).

    Merging i and j raises it by ‖c_i − c_j‖² n_i n_j / (n_i + n_j). On the host: a chain of tiny steps.

    Args:
        centres: (M, d).
        sizes: (M,) points of each.
        counts: numbers of groups wanted, each ≤ M.

    Returns:
        For each count, the (M,) group 0…count−1 of every cluster.
    """
    M, n = len(centres), sizes.astype(np.float64)
    lengths = np.square(centres).sum(axis=1)
    cost = np.maximum(lengths[:, None] + lengths - 2 * centres @ centres.T, 0) * n[:, None] * n / (n[:, None] + n)
    np.fill_diagonal(cost, np.inf)
    partner = cost.argmin(axis=1)  # the cheapest for each
    group = np.arange(M)
    found = {}
    for left in range(M, min(counts) - 1, -1):
        if left in counts:
            found[left] = np.unique(group, return_inverse=True)[1]
        if left == 1:
            break
        i = int(cost[np.arange(M), partner].argmin())
        j = int(partner[i])
        # Lance & Williams' recurrence; what is infinite (itself, or merged away) stays so.
        merged = ((n[i] + n) * cost[i] + (n[j] + n) * cost[j] - n * cost[i, j]) / (n[i] + n[j] + n)
        cost[i], cost[:, i], cost[j], cost[:, j] = merged, merged, np.inf, np.inf
        n[i] += n[j]
        group[group == j] = i
        # Merging makes no pair cheaper than its two halves were, so the others keep their partner.
        stale = np.flatnonzero((partner == i) | (partner == j))
        partner[stale] = cost[stale].argmin(axis=1)
        partner[i], partner[j] = cost[i].argmin(), j
    return found


def lloyd(points: Tensor, centres: Tensor, max_iterations: int = MAX_ITERATIONS) -> Clusters:
    """Assign points to the nearest centre, move centres to the mean of their points, until no point changes.

    A centre that lost all its points goes to the point that is farthest from its own centre; if no point differs from
    its centre, the empty cluster is dropped.

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


def source_centres(features: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Normalised mean of the normalised features of each class; a row of zeros for a class without images.

    Args:
        features: (N, d), of any length.
        labels: (N,) ids 0…C−1.

    Returns:
        (C, d).
    """
    return F.normalize(means(F.normalize(features.float(), dim=1), labels, num_classes)[0], dim=1)


@torch.no_grad()
def consensus(
    source_features: Tensor,
    source_labels: Tensor,
    source_centres: Tensor,
    target_features: Tensor,
    target_assignment: Tensor,
    target_centres: Tensor,
) -> Consensus:
    """Match classes with clusters by mutual nearest centres (cosine), and measure how far their images agree.

    A pair's score is the mean of two fractions: the images of the target cluster whose nearest source centre is the
    class, and the images of the source class whose nearest target centre is the cluster. The consensus score is the
    mean over pairs, and 0 if there is none (the reference divides by zero).

    A class or cluster without images never matches. Such a cluster is never the nearest; such a class is a centre of
    zeros, nearer (cosine 0) than every centre at an obtuse angle, as in the reference (DCC's `--unused-logits`).

    Args:
        source_features: (N_s, d), of any length.
        source_labels: (N_s,) ids 0…C−1.
        source_centres: (C, d), of any length.
        target_features: (N_t, d), of any length.
        target_assignment: (N_t,) ids 0…K−1.
        target_centres: (K, d), of any length.
    """
    C, K = len(source_centres), len(target_centres)
    class_sizes = torch.bincount(source_labels, minlength=C)
    cluster_sizes = torch.bincount(target_assignment, minlength=K)
    classes, clusters = F.normalize(source_centres.float(), dim=1), F.normalize(target_centres.float(), dim=1)
    no_class = (class_sizes == 0) | ~classes.any(dim=1)
    classes = classes.masked_fill(no_class[:, None], 0)
    no_cluster = (cluster_sizes == 0) | ~clusters.any(dim=1)
    never = float("-inf")

    similarity = classes @ clusters.T  # (C, K)
    to_cluster = similarity.masked_fill(no_cluster, never).argmax(dim=1)  # (C,)
    to_class = similarity.argmax(dim=0)  # (K,)
    mutual = to_class[to_cluster] == torch.arange(C, device=to_class.device)
    matched = mutual & ~no_class & ~no_cluster[to_cluster]

    # An image agrees if its nearest centre in the other domain is the one its own group points to.
    nearest_cluster = (source_features.float() @ clusters.T).masked_fill(no_cluster, never).argmax(dim=1)
    nearest_class = (target_features.float() @ classes.T).argmax(dim=1)
    source_agrees = share_of_each(nearest_cluster == to_cluster[source_labels], source_labels, class_sizes)
    target_agrees = share_of_each(nearest_class == to_class[target_assignment], target_assignment, cluster_sizes)

    class_ids = matched.nonzero().squeeze(1)
    cluster_ids = to_cluster[class_ids]
    scores = (source_agrees[class_ids] + target_agrees[cluster_ids]) / 2
    score = float(scores.mean()) if len(scores) else 0.0
    return Consensus(torch.stack([class_ids, cluster_ids], dim=1), scores, score)


def share_of_each(agrees: Tensor, groups: Tensor, sizes: Tensor) -> Tensor:
    """(G,) fraction of each group's members that agree; 0 for an empty group."""
    hits = torch.bincount(groups[agrees], minlength=len(sizes))
    return hits / sizes.clamp(min=1)


@torch.no_grad()
def search_number_of_clusters(
    source_features: Tensor,
    source_labels: Tensor,
    source_centres: Tensor,
    target_features: Tensor,
    *,
    start: int,
    interval: int,
    maximum: int,
    seed: int,
    drops: int = 3,
) -> Search:
    """Cluster the target for K = start, start + interval, … ≤ maximum, and choose K by the consensus score.

    The first K with the highest score is chosen. The search stops early when the score has not risen `drops` times in a
    row, that is when each of the last `drops` scores is at most the one before it; then the K before these drops is
    chosen (current − drops · interval), as in the reference, even if a K still earlier scored higher: the last peak
    that the score fell from, not the highest.

    One hierarchy gives the seeding of every K (`seedings`), where the reference seeds ten times from scratch for each.
    Its silhouette score is left out: nothing uses the value.

    Args:
        source_features: (N_s, d), of any length.
        source_labels: (N_s,) ids 0…C−1.
        source_centres: (C, d), see `source_centres`.
        target_features: (N_t, d); normalised in DCC.
        start: the number of source classes at the first clustering of a run, `interval` later on (DCC, code).
        interval: 2 for Office-31, 5 for Office-Home (DCC, code).
        maximum: three times the source classes for Office-31, five times for Office-Home (DCC, code).
        drops: 3 (DCC, code: four values in a row).
    """
    points, shift = centred(target_features)
    counts = range(start, max(start, maximum) + 1, interval)
    found: list[tuple[Clusters, Consensus]] = []
    chosen: int | None = None
    for count, seeds in zip(counts, seedings(points, counts, seed), strict=True):
        clusters = lloyd(points, seeds).moved(shift)
        agreement = consensus(
            source_features, source_labels, source_centres, target_features, clusters.assignment, clusters.centres
        )
        found.append((clusters, agreement))
        if falls([agreement.score for _, agreement in found], drops):
            chosen = len(found) - 1 - drops
            break
        if len(seeds) < count:  # every different point is a cluster: larger counts are the same again
            break
    if chosen is None:
        chosen = max(range(len(found)), key=lambda i: found[i][1].score)  # the first of the best
    tried = tuple((len(clusters.centres), agreement.score) for clusters, agreement in found)
    return Search(*found[chosen], tried)


def falls(scores: list[float], drops: int) -> bool:
    """Whether each of the last `drops` scores is at most the one before it."""
    last = scores[-1 - drops :]
    return len(last) > drops and all(after <= before for before, after in pairwise(last))
