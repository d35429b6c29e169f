"""Losses and scores of classifiers with an unknown class, against slow versions."""

import math

import numpy as np
import pytest
import torch

from unida.losses.unknown_class import boundary_loss, unknown_class_score


def slow_boundary_loss(answers: np.ndarray, boundary: float) -> float:
    total = 0.0
    for row in answers:
        powers = [math.exp(value) for value in row]
        p = powers[-1] / sum(powers)
        total += -boundary * math.log(p + 1e-6) - (1 - boundary) * math.log(1 - p + 1e-6)
    return total / len(answers)


@pytest.mark.parametrize("boundary", [0.5, 0.2])
def test_the_boundary_loss_and_its_gradient_are_the_slow_ones(boundary: float) -> None:
    answers = 4 * np.random.default_rng(0).normal(size=(6, 4))
    given = torch.tensor(answers, dtype=torch.float32, requires_grad=True)
    loss = boundary_loss(given, boundary)
    loss.backward()
    assert loss.item() == pytest.approx(slow_boundary_loss(answers, boundary), rel=1e-5)
    slow = np.zeros_like(answers)
    for place in np.ndindex(answers.shape):
        moved = np.zeros_like(answers)
        moved[place] = 1e-5
        slow[place] = slow_boundary_loss(answers + moved, boundary) - slow_boundary_loss(answers - moved, boundary)
    np.testing.assert_allclose(given.grad, slow / 2e-5, atol=1e-5)  # type: ignore[arg-type]


def test_it_is_least_where_the_probability_is_the_boundary() -> None:
    probabilities = torch.arange(0.05, 1.0, 0.05)
    answers = torch.stack([torch.zeros_like(probabilities), torch.logit(probabilities)], dim=1)
    losses = torch.stack([boundary_loss(row[None], 0.3) for row in answers])
    assert probabilities[losses.argmin()].item() == pytest.approx(0.3)


def test_answers_that_are_far_too_sure_cost_a_finite_amount() -> None:
    """Both logarithms end at log 1e-6, and nothing pulls beyond."""
    sure = torch.tensor([[0.0, 0.0, 1e4], [1e4, 0.0, 0.0], [-1e4, -1e4, 1e4]], requires_grad=True)
    loss = boundary_loss(sure)
    loss.backward()
    assert loss.item() == pytest.approx(-0.5 * math.log(1e-6), rel=1e-4)
    assert sure.grad is not None and sure.grad.isfinite().all()
    assert boundary_loss(torch.zeros(3, 2)).item() == pytest.approx(math.log(2), rel=1e-5)
    assert boundary_loss(torch.zeros(3, 2, dtype=torch.bfloat16)).dtype == torch.float32


def test_the_score_is_above_one_half_exactly_if_unknown_is_the_largest_output() -> None:
    answers = torch.randn(500, 4, generator=torch.Generator().manual_seed(0))
    answers[0] = torch.tensor([1.0, 0.0, 0.0, 1.0])  # level: the first of the largest wins, which is known
    answers[1] = torch.tensor([0.1, 0.0, 0.0, 0.1]).nextafter(torch.tensor([0.0, 0.0, 0.0, 1.0]))  # by a last bit
    answers[2:4] = torch.tensor([[1e4, 0.0, 0.0, -1e4], [-1e4, 0.0, 0.0, 1e4]])
    scores = unknown_class_score(answers)
    assert torch.equal(scores > 0.5, answers.argmax(dim=1) == 3)
    assert scores.min() >= 0 and scores.max() <= 1
    p = np.exp(answers[4:].double().numpy())
    p /= p.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(scores[4:], p[:, 3] / (p[:, 3] + p[:, :3].max(axis=1)), atol=1e-6)
