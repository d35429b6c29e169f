"""Spreading scores over neighbours: every line of the module's docstring against a slow version of it."""

import math

import numpy as np
import pytest
import torch
from made_scores import made_scores, scored_of
from numpy.typing import NDArray
from torch import Tensor

from unida.answering import together
from unida.answering.alone import Scored
from unida.answering.neighbours import Nearest, nearest
from unida.answering.options import AnsweringOptions
from unida.answering.target import TargetAnswers
from unida.answering.together import (
    around_half,
    default_neighbours,
    how_much_alone,
    mutual_weights,
    spread_scores,
)

Array = NDArray[np.float64]


def slow_directions(scored: Scored) -> tuple[Array, Array]:
    """z of the docstring, rounded to 16 bits as it is kept, and the mean."""
    points = scored.directions.numpy().astype(np.float64)
    centre = points.mean(axis=0)
    z = points - centre
    z /= np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1e-12)
    return z.astype(np.float16).astype(np.float64), centre


def slow_weights(z: Array, k: int) -> Array:
    """(N, N) w, from the ranks of all pairs."""
    count = len(z)
    rank = np.zeros((count, count), dtype=int)
    for i in range(count):
        others = sorted((j for j in range(count) if j != i), key=lambda j: -float(z[i] @ z[j]))
        for place, j in enumerate(others):
            rank[i, j] = place + 1
    w = np.zeros((count, count))
    for i in range(count):
        for j in range(count):
            r = max(rank[i, j], rank[j, i])
            if i != j and r <= k:
                w[i, j] = 1 - (r - 1) / k
    return w


def slow_own_weight(w: Array, p: Array) -> float:
    """λ = 0.1 + 50 o², at most 20, a pair counting by how sure both images are."""
    agree = disagree = 0.0
    for i in range(len(w)):
        for j in range(len(w)):
            says = w[i, j] * p[i].max() * p[j].max()
            if p[i].argmax() == p[j].argmax():
                agree += says
            else:
                disagree += says
    if agree + disagree == 0:
        return 1.0
    return min(0.1 + 50 * (disagree / max(agree, 1e-4 * (agree + disagree))) ** 2, 20)


def slow_moved(u: float, t: float) -> float:
    """σ(logit u − logit t)."""
    u, t = min(max(u, 1e-4), 1 - 1e-4), min(max(t, 1e-4), 1 - 1e-4)
    return 1 / (1 + math.exp(-(math.log(u / (1 - u)) - math.log(t / (1 - t)))))


def slow_own(scored: Scored, threshold: float) -> Array:
    """A row per image: its probabilities, its vote, its unknown score around ½."""
    rows = []
    for p, u in zip(scored.probabilities.tolist(), scored.unknown.tolist(), strict=True):
        rows.append([*p, *(float(c == p.index(max(p))) for c in range(len(p))), slow_moved(u, threshold)])
    return np.array(rows)


def slow_entropy(p: Array) -> float:
    """As a share of the largest one."""
    return -sum(x * math.log(x) for x in p / p.sum() if x > 0) / math.log(len(p))


def slow_final(spread: Array, classes: int) -> tuple[Array, Array]:
    """Class probabilities, and a third each of u, the entropy of q and that of v."""
    probabilities, unknown = [], []
    for row in spread:
        q, v, u = row[:classes], row[classes : 2 * classes], row[2 * classes]
        probabilities.append(q / q.sum())
        unknown.append((u + slow_entropy(q) + slow_entropy(v)) / 3)
    return np.array(probabilities), np.array(unknown)


def slow_together(scored: Scored, k: int, threshold: float) -> tuple[Array, Array, Array, float]:
    """Probabilities, unknown scores, (q, v, u) and λ, by a dense solution of the equation."""
    w = slow_weights(slow_directions(scored)[0], k)
    own_weight = slow_own_weight(w, scored.probabilities.double().numpy())
    spread = np.linalg.solve(np.diag(own_weight + w.sum(axis=1)) - w, own_weight * slow_own(scored, threshold))
    return (*slow_final(spread, scored.probabilities.shape[1]), spread, own_weight)


def dense(index: Tensor, weight: Tensor) -> Array:
    w = np.zeros((len(index), len(index)))
    for i, (others, weights) in enumerate(zip(index.tolist(), weight.tolist(), strict=True)):
        for j, value in zip(others, weights, strict=True):
            w[i, j] = value
    return w


@pytest.mark.parametrize("block", [1, 2**23])
@pytest.mark.parametrize("k", [1, 2, 6, 39])
def test_images_have_a_say_if_each_is_near_the_other(k: int, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "BLOCK", block)
    z, _ = slow_directions(made_scores(40))
    index = nearest(torch.from_numpy(z).half(), k).others
    w = dense(index, mutual_weights(index))
    np.testing.assert_allclose(w, slow_weights(z, k), atol=1e-6)
    assert (w == w.T).all() and (np.diag(w) == 0).all()
    assert w.max() == 1 and (k == 39 or (w == 0).any(axis=1).all())


def test_the_larger_rank_counts() -> None:
    """0 and 1 are nearest to each other; 2 has both, but only 1 has 2, as its second; 3 chooses two who have others."""
    index = torch.tensor([[1, 3], [0, 2], [1, 0], [2, 1]], dtype=torch.int32)
    assert mutual_weights(index).tolist() == [[1.0, 0.0], [1.0, 0.5], [0.5, 0.0], [0.0, 0.0]]


def test_an_image_counts_less_where_neighbours_agree() -> None:
    index = torch.tensor([[1, 2], [0, 2], [0, 1], [0, 1]], dtype=torch.int32)
    weight = torch.tensor([[1.0, 0.5], [1.0, 0.25], [0.5, 0.25], [0.0, 0.0]])

    def of(*closed: int) -> float:
        probabilities = torch.full((4, 4), 0.2 / 3)
        probabilities[torch.arange(4), torch.tensor(closed)] = 0.8
        return how_much_alone(index, weight, probabilities)

    # 0 and 1 agree, with weight 1 in both directions; of 3.5 in all.
    assert of(2, 2, 3, 2) == 20.0  # 0.1 + 50 · (1.5 / 2)² is more than the most
    assert of(2, 2, 2, 1) == pytest.approx(0.1)  # all agree: the least
    assert of(0, 1, 2, 3) == 20.0  # none agree: the most
    weight = torch.zeros(4, 2)
    assert of(2, 2, 2, 2) == 1.0  # there are no pairs


def test_a_pair_that_is_unsure_says_less() -> None:
    index, weight = torch.tensor([[1], [0], [3], [2]], dtype=torch.int32), torch.ones(4, 1)
    agreeing, unsure = [[0.9, 0.1], [0.9, 0.1]], [[0.5, 0.4], [0.4, 0.5]]
    # Two pairs: 2 · 0.81 that agree, 2 · 0.25 that do not.
    found = how_much_alone(index, weight, torch.tensor([*agreeing, *unsure]))
    assert found == pytest.approx(0.1 + 50 * (0.25 / 0.81) ** 2)


@pytest.mark.parametrize("threshold", [0.5, 0.2])
@pytest.mark.parametrize(("count", "k", "classes"), [(12, 3, 2), (60, 5, 4), (60, 59, 3)])
def test_scores_are_the_steady_state_of_the_equation(count: int, k: int, classes: int, threshold: float) -> None:
    scored = made_scores(count, classes=classes, seed=count)
    probabilities, unknown, spread, own_weight = slow_together(scored, k, threshold)
    found = spread_scores(scored, k, threshold)
    assert found.kept().own_weight == pytest.approx(own_weight, rel=1e-5)
    np.testing.assert_allclose(found.probabilities, probabilities, atol=2e-4)
    np.testing.assert_allclose(found.unknown, unknown, atol=2e-4)
    assert (found.probabilities.dtype, found.unknown.dtype) == (torch.float32, torch.float32)
    assert np.abs(probabilities - scored.probabilities.numpy()).max() > 0.01  # something was spread
    # What is kept of it for new images, in 16 bits.
    np.testing.assert_allclose(found.kept().spread.float(), spread, atol=1e-3)
    z, centre = slow_directions(scored)
    np.testing.assert_allclose(found.kept().centre, centre, atol=1e-6)
    np.testing.assert_allclose(found.kept().directions.float(), z, atol=1e-3)
    cosines = -np.sort(-(z @ z.T - 9 * np.eye(count)), axis=1)[:, :k]
    np.testing.assert_allclose(found.kept().cosines.float(), cosines, atol=1e-3)


def test_without_any_pair_each_image_keeps_its_own_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """No image has one that has it too: each is the next one's nearest, in a ring."""
    scored = made_scores(12)
    ring = torch.arange(1, 13, dtype=torch.int32)[:, None] % 12
    monkeypatch.setattr(together, "nearest", lambda directions, k: Nearest(ring, torch.zeros(12, 1)))
    found = spread_scores(scored, 1, 0.5)
    assert found.kept().own_weight == 1.0
    torch.testing.assert_close(found.probabilities, scored.probabilities)


def test_the_order_of_images_does_not_matter() -> None:
    scored = made_scores(80)
    order = torch.from_numpy(np.random.default_rng(1).permutation(80))
    plain, mixed = spread_scores(scored, 6, 0.5), spread_scores(scored.rows(order), 6, 0.5)
    torch.testing.assert_close(mixed.probabilities, plain.probabilities[order], atol=1e-4, rtol=0)
    torch.testing.assert_close(mixed.unknown, plain.unknown[order], atol=1e-4, rtol=0)


def test_groups_that_are_far_apart_do_not_change_each_other() -> None:
    rng = np.random.default_rng(0)
    points = np.repeat([[5.0, 0, 0, 0], [-5.0, 0, 0, 0]], 20, axis=0) + rng.normal(size=(40, 4))
    weights, unknown = 1 + rng.random((40, 3)), rng.random(40)
    other_weights, other_unknown = weights.copy(), unknown.copy()
    other_weights[:20] **= 8  # as before, but surer: the best class stays, and with it λ
    other_unknown[:20] = 1 - other_unknown[:20]
    plain = spread_scores(scored_of(points, weights, unknown), 5, 0.5)
    other = spread_scores(scored_of(points, other_weights, other_unknown), 5, 0.5)
    assert plain.kept().own_weight == other.kept().own_weight
    torch.testing.assert_close(plain.probabilities[20:], other.probabilities[20:], atol=1e-4, rtol=0)
    torch.testing.assert_close(plain.unknown[20:], other.unknown[20:], atol=1e-4, rtol=0)
    assert ((plain.unknown[:20] - other.unknown[:20]).abs() > 0.01).any()


def test_an_image_that_nobody_is_near_to_answers_alone() -> None:
    """It has neighbours, but they have nearer ones."""
    rng = np.random.default_rng(0)
    points = np.concatenate([[[0, 0, 6.0]], np.repeat([[5.0, 0, 0], [-5.0, 0, 0]], 15, axis=0)])
    points[1:] += 0.5 * rng.normal(size=(30, 3))
    scored = scored_of(points, 0.1 + rng.random((31, 3)), rng.random(31))
    found = spread_scores(scored, 3, 0.5)
    p, u = scored.probabilities[0], scored.unknown[0]
    torch.testing.assert_close(found.probabilities[0], p, atol=1e-5, rtol=0)
    entropy = -float((p * p.log()).sum()) / math.log(3)
    assert float(found.unknown[0]) == pytest.approx((float(u) + entropy) / 3, abs=1e-5)  # one vote: no disagreement
    changed = (found.probabilities[1:] - scored.probabilities[1:]).abs().amax(dim=1) > 1e-3
    assert changed.sum() > 20  # most others are not alone


@pytest.mark.parametrize(
    ("count", "k"), [(0, 0), (1, 0), (9, 0), (10, 1), (60, 6), (100, 6), (1000, 11), (20_000, 24), (10**6, 63)]
)
def test_neighbours_by_default(count: int, k: int) -> None:
    assert default_neighbours(count) == k


@pytest.mark.parametrize("threshold", [0.0, 0.05, 0.5, 0.8, 1.0])
def test_the_methods_threshold_comes_to_lie_at_a_half(threshold: float) -> None:
    scores = torch.tensor([0.0, 1e-6, 0.01, 0.05, 0.3, 0.5, 0.8, 0.95, 1.0])
    moved = around_half(scores, threshold)
    assert ((moved >= 0) & (moved <= 1)).all() and (moved.diff() >= 0).all()
    np.testing.assert_allclose(moved, [slow_moved(u, threshold) for u in scores.tolist()], atol=2e-4)
    assert float(around_half(torch.tensor([threshold]), threshold)) == pytest.approx(0.5, abs=1e-6)


def test_with_one_class_only_the_unknown_score_is_spread() -> None:
    scored = made_scores(30, classes=1)
    found = spread_scores(scored, 4, 0.5)
    assert (found.probabilities == 1).all()
    w = slow_weights(slow_directions(scored)[0], 4)
    own_weight = 0.1  # all name the same class
    expected = np.linalg.solve(np.diag(own_weight + w.sum(axis=1)) - w, own_weight * scored.unknown.double().numpy())
    np.testing.assert_allclose(found.unknown, expected, atol=2e-4)


@pytest.mark.parametrize("classes", [1, 3])
def test_no_score_is_above_one_so_nothing_is_unknown_if_so_told(classes: int) -> None:
    """A mean of ones may round to more than one."""
    every = made_scores(300, classes=classes)
    every = Scored(every.directions, every.probabilities, torch.ones(300))
    target = TargetAnswers(every.rows(torch.arange(50)), 0.5, AnsweringOptions(neighbours=49, no_unknown=True))
    assert target.kept is not None
    for unknown in (target.answers.unknown_score, target.kept.join(every.rows(torch.arange(50, 300)))[1]):
        assert unknown.min() >= 0 and unknown.max() <= target.rule.threshold


def slow_join(kept: Scored, spread: Array, k: int, own_weight: float, new: Scored) -> tuple[Array, Array]:
    """Each new image as if it were added: its rank among all others, and theirs, from all cosines."""
    z, centre = slow_directions(kept)
    between = z @ z.T
    rows = []
    for direction, own in zip(new.directions.double(), slow_own(new, 0.5), strict=True):
        mine = direction.numpy() - centre
        mine /= np.linalg.norm(mine)
        cosine = z @ mine
        top = own_weight * own
        bottom = own_weight
        for j in range(len(z)):
            forth = 1 + sum(cosine[i] > cosine[j] for i in range(len(z)))
            nearer = [between[j, i] for i in range(len(z)) if i != j]
            back = 1 + sum(value > cosine[j] for value in nearer)
            assert max(forth, back) > k or min(abs(cosine[j] - value) for value in nearer) > 2e-4  # no ties by rounding
            weight = max(0.0, 1 - (max(forth, back) - 1) / k)
            top = top + weight * spread[j]
            bottom += weight
        rows.append(top / bottom)
    return slow_final(np.array(rows), new.probabilities.shape[1])


@pytest.mark.parametrize("block", [1, 2**23])
def test_a_new_image_joins_by_its_neighbours(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "BLOCK", block)
    every = made_scores(48, seed=3)
    target, new = every.rows(torch.arange(40)), every.rows(torch.arange(40, 48))
    *_, spread, own_weight = slow_together(target, 4, 0.5)
    kept = spread_scores(target, 4, 0.5).kept()
    probabilities, unknown = kept.join(new)
    expected = slow_join(target, spread, 4, own_weight, new)
    np.testing.assert_allclose(probabilities, expected[0], atol=1e-3)
    np.testing.assert_allclose(unknown, expected[1], atol=1e-3)
    assert (probabilities - new.probabilities).abs().max() > 0.01  # they were not alone
    one = kept.join(new.rows(torch.tensor([5])))  # who else is new does not matter
    torch.testing.assert_close(one[0][0], probabilities[5])
    torch.testing.assert_close(one[1][0], unknown[5])


def test_a_new_image_far_from_all_answers_alone() -> None:
    rng = np.random.default_rng(0)
    points = np.repeat([[5.0, 0, 0, 0], [-5.0, 0, 0, 0]], 20, axis=0) + 0.3 * rng.normal(size=(40, 4))
    kept = spread_scores(scored_of(points, 0.1 + rng.random((40, 3)), rng.random(40)), 4, 0.5).kept()
    new = scored_of(np.array([[0, 5.0, 0, 0]]), np.array([[0.6, 0.3, 0.1]]), np.array([0.7]))
    torch.testing.assert_close(kept.join(new)[0], new.probabilities, atol=1e-6, rtol=0)


def test_of_a_large_target_a_sample_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    every = made_scores(130, seed=1)
    target, new = every.rows(torch.arange(120)), every.rows(torch.arange(120, 130))
    whole = spread_scores(target, 6, 0.3)
    every_row = whole.kept()
    monkeypatch.setattr(together, "LIMIT", 40)
    found = spread_scores(target, 6, 0.3)
    assert torch.equal(found.probabilities, whole.probabilities) and torch.equal(found.unknown, whole.unknown)
    kept = found.kept()
    assert [len(part) for part in (kept.directions, kept.spread, kept.cosines)] == [40, 40, 40]
    rows = (kept.directions[:, None] == every_row.directions).all(dim=2).to(torch.uint8).argmax(dim=1)
    assert (rows.diff() > 0).all()  # images of the target, each once
    assert torch.equal(kept.directions, every_row.directions[rows])
    assert torch.equal(kept.spread, every_row.spread[rows])
    # Their neighbours are those among the sample, fewer of them: a tenth of 40.
    z = kept.directions.double()
    cosines = (z @ z.T).fill_diagonal_(-9).sort(dim=1, descending=True).values[:, :4]
    torch.testing.assert_close(kept.cosines.double(), cosines, atol=1e-3, rtol=0)
    probabilities, unknown = kept.join(new)
    assert unknown.isfinite().all() and (probabilities - new.probabilities).abs().max() > 0.01
    torch.testing.assert_close(probabilities.sum(dim=1), torch.ones(10))


def pieces(count: int) -> Scored:
    """Triples of images, each triple in a direction of its own."""
    rng = np.random.default_rng(0)
    points = np.repeat(np.eye(count // 3), 3, axis=0) + 0.001 * rng.normal(size=(count, count // 3))
    return scored_of(points, 0.1 + rng.random((count, 3)), rng.random(count))


def copies(count: int, of: int) -> Scored:
    one = made_scores(of)
    return one.rows(torch.arange(count) % of)


ODD = {
    "one image": made_scores(1),
    "two images": made_scores(2),
    "five images": made_scores(5),
    "thirty images": made_scores(30),
    "all alike": copies(30, of=1),
    "three, ten times each": copies(30, of=3),
    "pieces": pieces(30),
    "no direction": scored_of(np.zeros((20, 4)), np.ones((20, 3)), np.linspace(0, 1, 20)),
    "certain": scored_of(
        np.random.default_rng(0).normal(size=(20, 4)), np.eye(3)[np.arange(20) % 3], np.arange(20) % 2.0
    ),
}


@pytest.mark.parametrize("neighbours", [None, 1, 2, 1000])
@pytest.mark.parametrize("case", ODD)
def test_odd_targets_have_answers(case: str, neighbours: int | None) -> None:
    """For all images, and for one that joins later."""
    scored = ODD[case]
    answered = TargetAnswers(scored, 0.5, AnsweringOptions(neighbours=neighbours))
    found = [(answered.answers.probability, answered.answers.unknown_score)]
    if answered.kept is not None:
        probabilities, unknown = answered.kept.join(made_like(scored))
        found.append((probabilities.amax(dim=1), unknown))
    for probability, unknown in found:
        assert ((probability >= 1 / 3 - 1e-6) & (probability <= 1)).all()
        assert ((unknown >= 0) & (unknown <= 1)).all()
    assert len(answered.answers.prediction) == len(scored)
    assert 0 <= answered.rule.threshold <= 1


def made_like(scored: Scored) -> Scored:
    width = scored.directions.shape[1]
    return scored_of(np.ones((1, width)), np.array([[0.2, 0.5, 0.3]]), np.array([0.5]))
