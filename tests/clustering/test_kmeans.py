"""k-means against scikit-learn, its seeding against slow loops."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from made_points import assert_is_a_clustering, mixture, uniform
from sklearn.cluster import KMeans
from torch import Tensor

from unida.clustering.kmeans import kmeans, kmeans_from, spread_points, ward_groups
from unida.errors import UserError


def uneven(seed: int = 0) -> Tensor:
    """Five large groups and twenty of four points each."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((25, 16))
    members = np.repeat(np.arange(25), [100] * 5 + [4] * 20)
    return torch.from_numpy(centres[members] + 0.3 * rng.standard_normal((len(members), 16))).float()


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


def test_kmeans_continues_from_where_it_was() -> None:
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
