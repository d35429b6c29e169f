"""STA's binary classifiers, rankings and chosen images, against plain loops."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from unida.losses.separation import binary_heads_loss, chosen_by_rank, known_ranks, weighted_entropy


def made_up(rows: int = 6, columns: int = 4) -> tuple[np.ndarray, Tensor]:
    logits = 2 * np.random.default_rng(0).normal(size=(rows, columns))
    return logits, torch.tensor(logits, dtype=torch.float32, requires_grad=True)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def assert_gradient(loss: Tensor, given: Tensor, slow: Callable[[np.ndarray], float], at: np.ndarray) -> None:
    (gradient,) = torch.autograd.grad(loss, [given])
    for place in np.ndindex(*at.shape):
        moved = [at.copy(), at.copy()]
        moved[0][place] += 1e-5
        moved[1][place] -= 1e-5
        expected = (slow(moved[0]) - slow(moved[1])) / 2e-5
        assert float(gradient[place]) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("epsilon", [1e-12, 0.05])  # STA's, and one that can be seen
def test_binary_losses_are_summed_over_classifiers(epsilon: float) -> None:
    logits, given = made_up()
    labels = [0, 3, 1, 1, 2, 0]

    def slow(x: np.ndarray) -> float:
        total = 0.0
        for row, label in zip(x, labels, strict=True):
            for k, value in enumerate(row):
                right = sigmoid(value) if k == label else 1 - sigmoid(value)
                total -= math.log(right + epsilon)
        return total / len(x)

    loss = binary_heads_loss(given, torch.tensor(labels), epsilon)
    assert loss.item() == pytest.approx(slow(logits), rel=1e-5)
    assert_gradient(loss, given, slow, logits)


def test_classifiers_that_are_surely_wrong_have_finite_losses() -> None:
    given = torch.tensor([[-1e4, 1e4]], requires_grad=True)
    loss = binary_heads_loss(given, torch.tensor([0]))
    loss.backward()
    assert loss.item() == pytest.approx(2 * 12 * math.log(10), rel=1e-5)
    assert given.grad is not None and given.grad.isfinite().all()
    assert binary_heads_loss(given.detach().bfloat16(), torch.tensor([0])).dtype == torch.float32


def test_ranks_are_the_largest_or_the_sum_of_probabilities() -> None:
    logits, given = made_up()
    p = [[sigmoid(value) for value in row] for row in logits]
    np.testing.assert_allclose(known_ranks(given.detach(), "max"), [max(row) for row in p], rtol=1e-6)
    np.testing.assert_allclose(known_ranks(given.detach(), "sum"), [sum(row) for row in p], rtol=1e-6)
    few_or_one = torch.tensor([[0.0, 0.0, 0.0], [3.0, -9.0, -9.0]])  # the two rankings disagree
    assert known_ranks(few_or_one, "max").argmax() == 1 and known_ranks(few_or_one, "sum").argmax() == 0
    sure = known_ranks(torch.tensor([[20.0, 0.0], [21.0, 0.0]]), "max")
    assert sure[0] < sure[1]  # in float32 both are 1


@pytest.mark.parametrize(("images", "n"), [(10, 2), (4, 2), (3, 1), (2, 1), (1, 0)])
def test_the_highest_and_the_lowest_are_chosen_and_none_twice(images: int, n: int) -> None:
    ranks = torch.randperm(images, generator=torch.Generator().manual_seed(0)).double()
    losses = torch.rand(images, generator=torch.Generator().manual_seed(1))
    weights = chosen_by_rank(ranks, 2)
    order = sorted(range(images), key=lambda i: float(ranks[i]))
    for column, chosen in ((0, order[images - n :]), (1, order[:n])):
        assert weights[:, column].nonzero().flatten().tolist() == sorted(chosen)
        mean = sum(float(losses[i]) for i in chosen) / n if n else 0
        assert (weights[:, column] * losses).mean().item() == pytest.approx(mean)


def test_of_equal_images_none_is_chosen_twice() -> None:
    weights = chosen_by_rank(torch.zeros(5), 2)
    assert (weights > 0).sum(dim=0).tolist() == [2, 2] and not (weights > 0).all(dim=1).any()


def test_the_entropy_is_weighted_and_divided_by_the_number_of_images() -> None:
    logits, given = made_up()
    weights = np.array([0.0, 1.0, 0.5, 0.1, 0.9, 0.3])

    def slow(x: np.ndarray) -> float:
        total = 0.0
        for w, row in zip(weights, x, strict=True):
            p = np.exp(row) / np.exp(row).sum()
            total += w * -(p * np.log(p + 1e-20)).sum()
        return total / len(x)

    w = torch.tensor(weights, dtype=torch.float32, requires_grad=True)
    loss = weighted_entropy(given, w)
    assert loss.item() == pytest.approx(slow(logits), rel=1e-5)
    assert_gradient(loss, given, slow, logits)
    assert not torch.autograd.grad(weighted_entropy(given, w), [w, given], allow_unused=True)[0]
    assert weighted_entropy(torch.tensor([[1e4, -1e4]]), torch.ones(1)).item() == 0
