"""Pseudo-labels against loops: votes, their history, the prior, confident images and mutual information."""

import itertools
import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from unida.losses.pseudo_labels import (
    KNOWN,
    NEITHER,
    NO_LABEL,
    UNKNOWN,
    confident_labels,
    confident_sides,
    early_votes,
    labelled_cross_entropy,
    most_frequent,
    mutual_information,
    open_cross_entropy,
    prior_loss,
    two_sides,
    with_votes,
)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return 3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def softmax(row: np.ndarray) -> np.ndarray:
    return np.asarray(np.exp(row) / np.exp(row).sum())


def assert_gradient_is_slow(loss: Tensor, given: Tensor, slow: Callable[[np.ndarray], float]) -> None:
    """The gradient against differences of the slow version."""
    (gradient,) = torch.autograd.grad(loss, given)
    values, found = given.detach().numpy().copy(), np.zeros(given.shape)
    for place in np.ndindex(*values.shape):
        for sign in (1, -1):
            moved = values.copy()
            moved[place] += sign * 1e-5
            found[place] += sign * slow(moved) / 2e-5
    np.testing.assert_allclose(gradient.numpy(), found, atol=1e-5)


# ---- GDA -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.0, 0.5, 0.7])
@pytest.mark.parametrize("count", [1, 2, 7, 12])
def test_the_least_sure_images_of_a_batch_vote_unknown(count: int, share: float) -> None:
    logits = drawn(count, 5)
    entropies = []
    for row in logits.numpy():
        p = softmax(row[:4])
        entropies.append(-sum(x * math.log(x + 1e-6) for x in p))
    threshold = sorted(entropies, reverse=True)[int(share * count)]
    expected = [4 if h > threshold else int(row.argmax()) for h, row in zip(entropies, logits.numpy(), strict=True)]
    assert early_votes(logits, share).tolist() == expected
    assert sum(h > threshold for h in entropies) == int(share * count)


def test_images_that_are_all_alike_vote_with_their_largest_output() -> None:
    assert early_votes(torch.zeros(4, 3) + torch.tensor([0.0, 1.0, 0.0]), 0.5).tolist() == [1] * 4
    assert early_votes(torch.tensor([[1e4, 0.0, 0.0], [0.0, 0.0, 2e4]]), 0.5).tolist() == [0, 2]  # the last output


def test_a_vote_pushes_out_the_oldest_one() -> None:
    history = torch.tensor([[1, 2, 3], [4, NO_LABEL, NO_LABEL], [5, 6, 7]])
    before = history.clone()
    moved = with_votes(history, torch.tensor([1, 0, 1]), torch.tensor([8, 0, 9]))
    assert moved.tolist() == [[0, 1, 2], [9, 4, NO_LABEL], [5, 6, 7]]  # image 1 came twice: its last vote
    assert torch.equal(history, before)


def test_the_most_frequent_vote_wins_and_of_several_the_newest() -> None:
    history = torch.randint(-1, 4, (300, 7), generator=torch.Generator().manual_seed(0))
    for votes, found in zip(history.tolist(), most_frequent(history).tolist(), strict=True):
        counts = Counter(vote for vote in votes if vote != NO_LABEL)
        most = max(counts.values(), default=0)
        assert found == next((vote for vote in votes if counts[vote] == most and vote != NO_LABEL), NO_LABEL)
    assert most_frequent(torch.tensor([[NO_LABEL] * 3, [NO_LABEL, NO_LABEL, 2]])).tolist() == [NO_LABEL, 2]


def test_the_prior_loss_is_the_slow_one() -> None:
    logits, prior = drawn(6, 4).requires_grad_(), torch.tensor([0.2, 0.1, 0.3, 0.4], dtype=torch.float64)

    def slow(rows: np.ndarray) -> float:
        mean = np.mean([softmax(row) for row in rows], axis=0)
        return float(-sum(share * math.log(p) for share, p in zip(prior.tolist(), mean, strict=True)))

    loss = prior_loss(logits, prior)
    assert loss.item() == pytest.approx(slow(logits.detach().numpy()), rel=1e-5)
    assert_gradient_is_slow(loss, logits, slow)
    even = torch.full((4,), 0.25)
    assert prior_loss(torch.zeros(3, 4), even).item() == pytest.approx(math.log(4))  # its least


def test_images_without_a_label_cost_nothing() -> None:
    logits = drawn(3, 4)
    losses = [-math.log(softmax(row)[label]) for row, label in zip(logits.numpy(), (2, 0, 3), strict=True)]
    labels = torch.tensor([2, NO_LABEL, 3])
    assert labelled_cross_entropy(logits, labels).item() == pytest.approx((losses[0] + losses[2]) / 3, rel=1e-5)
    assert labelled_cross_entropy(logits, torch.full((3,), NO_LABEL)).item() == 0


# ---- OSHT-SC ---------------------------------------------------------------------------------------------------------


def test_the_cut_has_the_largest_variance_between_its_sides() -> None:
    values = drawn(40).abs()
    values[:20] += 4

    def within(cut: float) -> float:
        sides = values[values < cut], values[values >= cut]
        return float(sum((side - side.mean()).square().sum() for side in sides))

    ordered = sorted(values.tolist())
    slow = min(((a + b) / 2 for a, b in itertools.pairwise(ordered)), key=within)
    assert two_sides(values) == pytest.approx(slow)
    assert two_sides(torch.full((5,), 0.3)) is None and two_sides(torch.tensor([0.3])) is None
    assert two_sides(torch.tensor([1.0, 0.0])) == 0.5


def test_images_beyond_the_mean_of_their_side_are_confident() -> None:
    entropies = torch.tensor([0.1, 0.9, 0.2, 0.7, 0.3, 0.95])
    expected = [KNOWN, UNKNOWN, KNOWN, NEITHER, NEITHER, UNKNOWN]  # sides 0.1 0.2 0.3 and 0.7 0.9 0.95
    assert confident_sides(entropies).tolist() == expected
    many = torch.tensor([0.1, 0.2, 0.3, 0.9, 0.9, 0.9, 0.95, 0.97, 0.98])  # two are sure below, three above
    assert confident_sides(many).tolist() == [KNOWN, KNOWN, *[NEITHER] * 5, UNKNOWN, UNKNOWN]
    assert confident_sides(torch.full((4,), 0.5)).tolist() == [NEITHER] * 4
    assert confident_sides(torch.tensor([0.6])).tolist() == [NEITHER]
    assert confident_sides(torch.tensor([0.2, 0.4])).tolist() == [KNOWN, UNKNOWN]


def test_each_class_has_its_own_confident_images() -> None:
    logits = drawn(60, 4)
    logits[:, 1] *= 0.3  # a class that is hard to be sure of
    labels, best = confident_labels(logits), logits.argmax(dim=1)
    entropies = torch.tensor([-sum(p * math.log(p) for p in softmax(row)) for row in logits.numpy()])
    for k in range(4):
        (places,) = torch.where(best == k)
        sides = confident_sides(entropies[places]).tolist()
        names = {KNOWN: k, UNKNOWN: 4, NEITHER: NO_LABEL}
        assert labels[places].tolist() == [names[side] for side in sides]
        assert sides.count(KNOWN) == sides.count(UNKNOWN) > 0
    assert confident_labels(torch.zeros(5, 3)).tolist() == [NO_LABEL] * 5


def test_unknown_is_all_unknown_outputs_together() -> None:
    logits, labels = drawn(4, 5).requires_grad_(), torch.tensor([1, 3, NO_LABEL, 0])  # three classes

    def slow(rows: np.ndarray) -> list[float]:
        p = [softmax(row) for row in rows]
        return [-math.log(p[0][1]), -math.log(p[1][3] + p[1][4]), 0.0, -math.log(p[3][0])]

    losses = open_cross_entropy(logits[:, :3], logits[:, 3:], labels)
    assert losses.tolist() == pytest.approx(slow(logits.detach().numpy()), rel=1e-5)
    assert_gradient_is_slow(losses.sum(), logits, lambda rows: sum(slow(rows)))


def slow_information(p: np.ndarray, q: np.ndarray) -> float:
    K, total = p.shape[1], 0.0
    joint = np.array(
        [
            [np.mean([a[i] * b[j] + a[j] * b[i] for a, b in zip(p, q, strict=True)]) / 2 for j in range(K)]
            for i in range(K)
        ]
    )
    for i in range(K):
        for j in range(K):
            total += joint[i, j] * math.log(joint[i, j] / (joint[i].sum() * joint[:, j].sum()))
    return total


def test_mutual_information_is_the_slow_one() -> None:
    one, other = drawn(6, 4).requires_grad_(), drawn(6, 4, seed=1)

    def slow(rows: np.ndarray) -> float:
        p, q = (np.array([softmax(row) for row in given]) for given in (rows, other.numpy()))
        return slow_information(p, q)

    found = mutual_information(one, other)
    assert found.item() == pytest.approx(slow(one.detach().numpy()), rel=1e-4)
    assert_gradient_is_slow(found, one, slow)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(mutual_information(one, other), found)


def test_answers_that_are_equal_certain_and_even_have_the_most_information() -> None:
    certain = 1e3 * torch.eye(4)
    assert mutual_information(certain, certain).item() == pytest.approx(math.log(4), rel=1e-5)
    for poorer in (torch.zeros(4, 4), 1e3 * torch.eye(4)[[0, 0, 0, 0]]):  # no idea; all the same
        assert mutual_information(poorer, poorer).item() == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize("scale", [0.0, 1e4])
def test_saturated_and_constant_batches_give_finite_numbers(scale: float) -> None:
    logits = (scale * torch.eye(3)[[0, 0, 1, 0]]).requires_grad_()
    labels = torch.tensor([2, 1, NO_LABEL, 0])
    losses = [
        prior_loss(logits, torch.full((3,), 1 / 3)),
        labelled_cross_entropy(logits, labels),
        open_cross_entropy(logits[:, :2], logits[:, 2:], labels).sum(),
        mutual_information(logits, logits.flip(0)),
    ]
    for loss in losses:
        (gradient,) = torch.autograd.grad(loss, logits)
        assert loss.isfinite() and gradient.isfinite().all()
