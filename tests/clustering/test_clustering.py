"""k-means against scikit-learn, everything else against slow loops."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from torch import Tensor

from unida import clustering
from unida.clustering import (
    Clusters,
    Consensus,
    consensus,
    falls,
    kmeans,
    kmeans_from,
    search_number_of_clusters,
    source_centres,
    spread_points,
    ward_groups,
)
from unida.errors import UserError

Domains = tuple[Tensor, Tensor, Tensor, Tensor]


def mixture(count: int, d: int, groups: int, noise: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Unit features (N, d) around some directions, and which direction each belongs to."""
    rng = np.random.default_rng(seed)
    directions = rng.standard_normal((groups, d))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    members = np.concatenate([np.arange(groups), rng.integers(groups, size=count - groups)])
    points = directions[members] + noise * rng.standard_normal((count, d)) / np.sqrt(d)
    return F.normalize(torch.from_numpy(points).float(), dim=1), torch.from_numpy(members)


def uneven(seed: int = 0) -> Tensor:
    """Five large groups and twenty of four points each."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((25, 16))
    members = np.repeat(np.arange(25), [100] * 5 + [4] * 20)
    return torch.from_numpy(centres[members] + 0.3 * rng.standard_normal((len(members), 16))).float()


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


@pytest.mark.parametrize("count", [1, 2, 7, 20, 60])
@pytest.mark.parametrize(
    "features",
    [mixture(800, 64, 20, 2.0)[0], mixture(500, 8, 12, 0.5)[0], uniform(800, 64), uneven()],
    ids=["mixture", "narrow mixture", "noise", "uneven"],
)
def test_kmeans_is_as_good_as_ten_restarts_of_scikit_learn(features: Tensor, count: int) -> None:
    clusters = kmeans(features, count, seed=0)
    assert len(clusters.centres) == count
    assert_is_a_clustering(clusters, features)
    reference = KMeans(count, n_init=10, random_state=0).fit(features.numpy())
    assert clusters.inertia <= 1.01 * reference.inertia_


@pytest.mark.parametrize("count", [2, 7, 20, 60])
def test_kmeans_is_as_good_as_scikit_learn_on_flat_noise(count: int) -> None:
    """No structure and two dimensions: every seeding ends elsewhere, so means are compared, one restart each."""
    features = uniform(600, 2)
    ours = np.mean([kmeans(features, count, seed).inertia for seed in range(10)])
    fits = [KMeans(count, n_init=1, random_state=seed).fit(features.numpy()) for seed in range(10)]
    assert ours <= 1.01 * np.mean([fit.inertia_ for fit in fits])


def test_kmeans_finds_separate_groups() -> None:
    features, members = mixture(400, 64, 15, 0.3)
    assignment = kmeans(features, 15, seed=3).assignment
    table = torch.bincount(members * 15 + assignment, minlength=225).view(15, 15)
    assert torch.equal((table > 0).sum(dim=0), torch.ones(15, dtype=torch.long))


def test_kmeans_depends_on_its_seed_alone() -> None:
    features = uniform(300, 16)
    first = kmeans(features, 9, seed=1)
    torch.manual_seed(123)
    state = torch.get_rng_state()
    again = kmeans(features, 9, seed=1)
    assert torch.equal(first.assignment, again.assignment) and torch.equal(first.centres, again.centres)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(first.assignment, kmeans(features, 9, seed=2).assignment)


def test_kmeans_takes_features_far_from_the_origin() -> None:
    features, _ = mixture(300, 16, 8, 1.0)
    near, far = kmeans(features, 8, seed=0), kmeans(features + 1000, 8, seed=0)
    assert far.inertia == pytest.approx(near.inertia, rel=0.01)
    assert_is_a_clustering(far._replace(centres=far.centres.double() - 1000), (features + 1000).double() - 1000)


@pytest.mark.parametrize("d", [1, 16, 256, 2048])
def test_kmeans_gives_no_more_clusters_than_different_points(d: int) -> None:
    different = torch.randn(5, d, generator=torch.Generator().manual_seed(1)) + torch.arange(5)[:, None]
    for copies in (1, 7):
        features = different.repeat(copies, 1)
        clusters = kmeans(features, 12, seed=0)
        assert len(clusters.centres) == 5
        assert clusters.inertia == pytest.approx(0, abs=1e-5)
        assert_is_a_clustering(clusters, features)


def test_kmeans_of_equal_points_is_one_cluster() -> None:
    for features in (torch.ones(20, 8), torch.zeros(20, 8), torch.ones(1, 8)):
        clusters = kmeans(features, 4, seed=0)
        assert clusters.assignment.tolist() == [0] * len(features)
        torch.testing.assert_close(clusters.centres, features[:1])


def test_one_cluster_is_the_mean() -> None:
    features = uniform(50, 3)
    torch.testing.assert_close(kmeans(features, 1, seed=0).centres[0], features.mean(dim=0))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_features_that_are_not_finite_are_refused(bad: float) -> None:
    features = uniform(10, 3)
    features[4, 1] = bad
    with pytest.raises(UserError, match="not finite"):
        kmeans(features, 2, seed=0)
    with pytest.raises(UserError, match="not finite"):
        kmeans_from(features, features[:2])


def test_kmeans_goes_on_from_where_it_was() -> None:
    features = uniform(300, 16)
    first = kmeans(features, 9, seed=1)
    again = kmeans_from(features, first.centres)
    assert torch.equal(first.assignment, again.assignment)
    torch.testing.assert_close(first.centres, again.centres)


def test_kmeans_keeps_the_order_of_given_centres() -> None:
    features, members = mixture(400, 64, 10, 0.5)
    prototypes = torch.stack([F.normalize(features[members == k].mean(dim=0), dim=0) for k in range(10)])
    order = torch.tensor([3, 9, 0, 1, 8, 2, 7, 4, 6, 5])
    assert torch.equal(order[kmeans_from(features, prototypes[order]).assignment], members)


def test_a_centre_without_points_goes_to_the_farthest_point() -> None:
    features = torch.tensor([[0.0], [0.1], [0.2], [9.0], [10.0], [10.1]])
    clusters = kmeans_from(features, torch.tensor([[0.1], [1000.0], [10.0]]))
    assert_is_a_clustering(clusters, features)
    assert clusters.assignment.tolist() == [0, 0, 0, 1, 2, 2]


def test_many_centres_without_points_all_find_some() -> None:
    features = uniform(200, 8)
    clusters = kmeans_from(features, torch.cat([features[:3], torch.full((20, 8), 50.0)]))
    assert len(clusters.centres) == 23
    assert_is_a_clustering(clusters, features)


def test_more_given_centres_than_different_points() -> None:
    features = torch.tensor([[0.0, 0.0], [0.0, 0.0], [4.0, 0.0], [0.0, 4.0]])
    clusters = kmeans_from(features, torch.randn(9, 2, generator=torch.Generator().manual_seed(0)))
    assert len(clusters.centres) == 3
    assert_is_a_clustering(clusters, features)


def test_drawn_points_differ_and_are_spread() -> None:
    features, members = mixture(300, 32, 10, 0.1)
    features = torch.cat([features, features])
    drawn = spread_points(features, 10, np.random.default_rng(0))
    assert len(drawn.unique(dim=0)) == 10
    nearest = torch.cdist(drawn, features[:300]).argmin(dim=1)
    assert len(members[nearest].unique()) >= 9  # points drawn evenly would miss about a third of the groups


@pytest.mark.parametrize("d", [1, 16, 256, 2048])
def test_drawing_ends_when_every_point_is_drawn(d: int) -> None:
    different = torch.randn(5, d, generator=torch.Generator().manual_seed(1)) + torch.arange(5)[:, None]
    drawn = spread_points(different.repeat(7, 1), 100, np.random.default_rng(0))
    assert sorted(map(tuple, drawn.tolist())) == sorted(map(tuple, different.tolist()))


class Lowest(np.random.Generator):
    """Every draw is the lowest one possible."""

    def integers(self, *_: object) -> int:  # type: ignore[override]
        return 0

    def random(self, size: int) -> np.ndarray:  # type: ignore[override]
        return np.zeros(size)


def test_the_lowest_draw_is_no_point_that_is_there_already() -> None:
    points = torch.tensor([[0.0], [0.0], [1.0], [1.0], [2.0]])
    assert spread_points(points, 3, Lowest(np.random.PCG64())).squeeze(1).tolist() == [0, 1, 2]


def test_merging_is_the_slow_formula() -> None:
    """Every merge is the one that raises the inertia least, found by trying all pairs."""
    rng = np.random.default_rng(0)
    points = rng.standard_normal((60, 3))
    members = np.concatenate([np.arange(20), rng.integers(20, size=40)])
    centres = np.stack([points[members == k].mean(axis=0) for k in range(20)])
    found = ward_groups(centres, np.bincount(members), set(range(1, 21)))

    def inertia(parts: list[list[int]]) -> float:
        chosen = [points[np.isin(members, part)] for part in parts]
        return sum(float(np.square(p - p.mean(axis=0)).sum()) for p in chosen)

    parts = [[k] for k in range(20)]
    while len(parts) > 1:
        assert partition(found[len(parts)]) == {frozenset(part) for part in parts}
        pairs = [(i, j) for i in range(len(parts)) for j in range(i)]
        merged = [
            [*(p for k, p in enumerate(parts) if k not in pair), parts[pair[0]] + parts[pair[1]]] for pair in pairs
        ]
        parts = min(merged, key=inertia)
    assert found[1].tolist() == [0] * 20


def partition(groups: np.ndarray) -> set[frozenset[int]]:
    return {frozenset(np.flatnonzero(groups == g).tolist()) for g in range(groups.max() + 1)}


def test_source_centres_are_normalised_means_of_normalised_features() -> None:
    features = torch.randn(40, 6, generator=torch.Generator().manual_seed(0)) * torch.arange(1, 41)[:, None]
    labels = torch.arange(40) % 3
    centres = source_centres(features, labels, 5)
    for k in range(3):
        rows = [f / f.norm() for f, label in zip(features, labels, strict=True) if label == k]
        mean = sum(rows[1:], rows[0]) / len(rows)
        torch.testing.assert_close(centres[k], mean / mean.norm())
    assert torch.equal(centres[3:], torch.zeros(2, 6))


def slow_consensus(
    source: np.ndarray,
    labels: np.ndarray,
    classes: np.ndarray,
    target: np.ndarray,
    assignment: np.ndarray,
    clusters: np.ndarray,
) -> list[tuple[int, int, float]]:
    """(class, cluster, score) of every pair, by loops."""

    def cosine(a: np.ndarray, b: np.ndarray) -> float:
        return float(a @ b / max(np.linalg.norm(a), 1e-12) / max(np.linalg.norm(b), 1e-12))

    there_s = [c for c in range(len(classes)) if (labels == c).any() and classes[c].any()]
    there_t = [k for k in range(len(clusters)) if (assignment == k).any() and clusters[k].any()]
    classes = np.where(np.isin(np.arange(len(classes)), there_s)[:, None], classes, 0)  # zeros are at a right angle
    every, pairs = range(len(classes)), []
    for c in there_s:
        for k in there_t:
            best_cluster = max(there_t, key=lambda other: cosine(classes[c], clusters[other]))
            best_class = max(every, key=lambda other: cosine(classes[other], clusters[k]))
            if (best_class, best_cluster) != (c, k):
                continue
            in_cluster = [max(every, key=lambda s: cosine(x, classes[s])) == c for x in target[assignment == k]]
            in_class = [max(there_t, key=lambda t: cosine(x, clusters[t])) == k for x in source[labels == c]]
            pairs.append((c, k, float(np.mean(in_cluster) + np.mean(in_class)) / 2))
    return pairs


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    num_classes=st.integers(1, 8),
    num_clusters=st.integers(1, 12),
    images=st.integers(1, 40),
    empty=st.booleans(),
)
def test_consensus_is_the_slow_formula(
    seed: int, num_classes: int, num_clusters: int, images: int, empty: bool
) -> None:
    rng = np.random.default_rng(seed)
    d = 5
    source, target = rng.standard_normal((images, d)), rng.standard_normal((images + 3, d))
    labels, assignment = rng.integers(num_classes, size=images), rng.integers(num_clusters, size=images + 3)
    classes, clusters = rng.standard_normal((num_classes, d)), rng.standard_normal((num_clusters, d))
    if empty:
        classes[0], clusters[-1] = 0, 0
    arrays = (source, labels, classes, target, assignment, clusters)
    result = consensus(*(torch.from_numpy(a) for a in arrays))
    expected = slow_consensus(*arrays)
    assert result.pairs.tolist() == [[c, k] for c, k, _ in expected]
    assert result.scores.tolist() == pytest.approx([score for *_, score in expected], abs=1e-6)
    mean = np.mean([score for *_, score in expected]) if expected else 0
    assert result.score == pytest.approx(mean, abs=1e-6)


def test_equal_domains_agree_fully() -> None:
    features, members = mixture(200, 32, 6, 0.3)
    centres = source_centres(features, members, 6)
    renamed = torch.tensor([4, 2, 0, 5, 1, 3])
    result = consensus(features, members, centres, features, renamed[members], 3 * centres[renamed.argsort()])
    assert result.pairs.tolist() == [[k, int(renamed[k])] for k in range(6)]
    assert result.scores.tolist() == [1.0] * 6 and result.score == 1.0


def test_no_pair_is_a_score_of_zero() -> None:
    nothing = torch.zeros(3, 4)
    features, ids = uniform(5, 4), torch.tensor([0, 0, 1, 1, 2])
    for classes, clusters in ((nothing, features[:3]), (features[:3], nothing), (nothing, nothing)):
        result = consensus(features, ids, classes, features, ids, clusters)
        assert result.pairs.shape == (0, 2) and result.scores.shape == (0,) and result.score == 0


def test_a_class_without_images_attracts_what_is_at_an_obtuse_angle_and_never_matches() -> None:
    """The target is at an obtuse angle to the only real class, and so nearer to a row of zeros."""
    source, target = torch.tensor([[1.0, 0.1], [1.0, -0.1]]), torch.tensor([[-0.2, 1.0], [-0.3, 1.0]])
    assignment = torch.tensor([0, 0])
    for labels, count, pairs in ((torch.tensor([0, 0]), 1, [[0, 0]]), (torch.tensor([1, 1]), 3, [])):
        result = consensus(source, labels, source_centres(source, labels, count), target, assignment, target[:1])
        assert result.pairs.tolist() == pairs and result.score == len(pairs)


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([3, 2, 1], False),
        ([3, 2, 1, 0], True),
        ([1, 1, 1, 1], True),
        ([3, 2, 1, 2], False),
        ([1, 3, 2, 1], False),
        ([1, 3, 2, 1, 1], True),
        ([4, 3, 2, 1, 2, 1], False),
    ],
)
def test_three_drops_in_a_row(scores: list[float], expected: bool) -> None:
    assert falls(scores, 3) is expected


def two_domains(groups: int = 12, shared: int = 8) -> Domains:
    """Source features, labels and centres of `shared` classes; target features of more groups, these among them."""
    target, _ = mixture(480, 64, groups, 0.6)
    source, members = mixture(400, 64, groups, 0.6)  # the same seed and so the same directions; other noise
    keep = members < shared
    source, labels = source[keep], members[keep]
    return source, labels, source_centres(source, labels, shared), target


def test_search_finds_the_number_of_groups() -> None:
    found = search_number_of_clusters(*two_domains(), start=4, interval=4, maximum=40, seed=0)
    assert found.num_clusters == 12
    assert len(found.consensus.pairs) == 8 and found.consensus.score > 0.98
    assert [K for K, _ in found.tried] == [4 + 4 * i for i in range(len(found.tried))]
    assert dict(found.tried)[12] == found.consensus.score == max(score for _, score in found.tried)
    assert_is_a_clustering(found.clusters, two_domains()[3])


def test_search_is_repeatable() -> None:
    first, again = (search_number_of_clusters(*two_domains(), start=3, interval=3, maximum=30, seed=7) for _ in "ab")
    assert first.tried == again.tried
    assert torch.equal(first.clusters.assignment, again.clusters.assignment)


def scripted(monkeypatch: pytest.MonkeyPatch, scores: list[float]) -> None:
    """Let the consensus scores of the search be these, one after the other."""
    rest = iter(scores)

    def next_score(*_: Tensor) -> Consensus:
        return Consensus(torch.zeros(0, 2, dtype=torch.long), torch.zeros(0), next(rest))

    monkeypatch.setattr(clustering, "consensus", next_score)


@pytest.mark.parametrize(
    ("scores", "chosen", "tried"),
    [
        ([0.1, 0.5, 0.4, 0.6, 0.5], 8, 5),  # to the end: the best
        ([0.1, 0.6, 0.4, 0.6, 0.5], 4, 5),  # the first of two that are equal
        ([0.1, 0.5, 0.4, 0.3, 0.2], 4, 5),  # three drops: the one before them
        ([0.5, 0.5, 0.5, 0.5], 2, 4),  # equal counts as a drop
        ([0.9, 0.5, 0.4, 0.3], 2, 4),
        ([0.0, 0.0, 0.0, 0.0], 2, 4),
    ],
)
def test_search_chooses_and_stops(
    monkeypatch: pytest.MonkeyPatch, scores: list[float], chosen: int, tried: int
) -> None:
    domains = two_domains()
    scripted(monkeypatch, scores)
    found = search_number_of_clusters(*domains, start=2, interval=2, maximum=10, seed=0)
    assert found.num_clusters == chosen
    assert found.tried == tuple((2 + 2 * i, scores[i]) for i in range(tried))


def test_search_falls_back_to_the_last_peak_not_the_highest(monkeypatch: pytest.MonkeyPatch) -> None:
    domains = two_domains()
    scripted(monkeypatch, [0.9, 0.2, 0.5, 0.4, 0.3, 0.2])
    assert search_number_of_clusters(*domains, start=2, interval=2, maximum=20, seed=0).num_clusters == 6


def test_search_begins_above_its_maximum_with_one_clustering() -> None:
    found = search_number_of_clusters(*two_domains(), start=9, interval=5, maximum=6, seed=0)
    assert [K for K, _ in found.tried] == [9] and found.num_clusters == 9


def test_search_ends_when_every_point_is_a_cluster() -> None:
    source, labels, centres, target = two_domains()
    few = target[:7].repeat(2, 1)
    found = search_number_of_clusters(source, labels, centres, few, start=2, interval=4, maximum=100, seed=0)
    assert [K for K, _ in found.tried] == [2, 6, 7]
    one = search_number_of_clusters(source, labels, centres, few[:1], start=8, interval=4, maximum=40, seed=0)
    assert [K for K, _ in one.tried] == [1] and one.clusters.assignment.tolist() == [0]


def test_clustering_keeps_no_graph() -> None:
    source, labels, centres, target = two_domains()
    target.requires_grad_()
    found = search_number_of_clusters(source, labels, centres, target, start=4, interval=4, maximum=8, seed=0)
    assert not found.clusters.centres.requires_grad and not found.consensus.scores.requires_grad
