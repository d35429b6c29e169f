"""Domain consensus clustering (Li et al., DCC, CVPR 2021): how many clusters has the target, and which are classes?

The target is clustered with k-means for growing K. A target cluster and a source class match if each is the other's
nearest. The consensus score measures how far their images agree with that match. It chooses K.
`unida.clustering.strangeness` asks whether they are near, too. Nothing here sees a target label.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from unida.clustering.kmeans import Clusters, centred, lloyd, means, seedings


class Consensus(NamedTuple):
    pairs: Tensor  # (P, 2) int64: source class, target cluster; by class
    scores: Tensor  # (P,) in 0…1
    score: float  # their mean; 0 without a pair


class Search(NamedTuple):
    clusters: Clusters  # for the K that was chosen
    consensus: Consensus  # of these
    tried: tuple[tuple[int, float], ...]  # every (K, consensus score), in the order of trying


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
def cluster_by_each(features: Tensor, counts: Sequence[int], seed: int) -> list[Clusters]:
    """k-means for several numbers of clusters, from one hierarchy of seedings.

    Args:
        features: (N, d).
        counts: numbers of clusters; there are fewer if there are fewer different points.
    """
    points, shift = centred(features)
    return [lloyd(points, seeds).moved(shift) for seeds in seedings(points, counts, seed)]


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

    The first K with the highest score is chosen. The search stops early when each of the last `drops` scores is at most
    the one before it. Then the K before these drops is chosen (current − drops · interval), as in the reference, even
    if an earlier K scored higher: the last peak, not the highest.

    One hierarchy gives the seeding of every K (`seedings`); the reference seeds ten times from scratch for each K. The
    reference's silhouette score is left out: nothing uses it.

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
