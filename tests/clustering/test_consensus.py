"""Which clusters are classes, and how many there are: against slow loops."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_points import assert_is_a_clustering, mixture, uniform
from torch import Tensor

from unida.clustering import consensus as consensus_module
from unida.clustering.consensus import Consensus, consensus, falls, search_number_of_clusters, source_centres

Domains = tuple[Tensor, Tensor, Tensor, Tensor]


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
    assert len(found.clusters.centres) == 12
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

    monkeypatch.setattr(consensus_module, "consensus", next_score)


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
    assert len(found.clusters.centres) == chosen
    assert found.tried == tuple((2 + 2 * i, scores[i]) for i in range(tried))


def test_search_falls_back_to_the_last_peak_not_the_highest(monkeypatch: pytest.MonkeyPatch) -> None:
    domains = two_domains()
    scripted(monkeypatch, [0.9, 0.2, 0.5, 0.4, 0.3, 0.2])
    found = search_number_of_clusters(*domains, start=2, interval=2, maximum=20, seed=0)
    assert len(found.clusters.centres) == 6


def test_search_begins_above_its_maximum_with_one_clustering() -> None:
    found = search_number_of_clusters(*two_domains(), start=9, interval=5, maximum=6, seed=0)
    assert [K for K, _ in found.tried] == [9] and len(found.clusters.centres) == 9


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
