"""Weights and scores of UAN and I-UAN against NumPy, one image at a time in float64."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from unida.losses.adversarial import ramp_by_calls
from unida.losses.transferability import (
    EPSILON,
    batch_weights,
    class_margins,
    normalised_entropy,
    prediction_margin,
    rejection_score,
    rejection_threshold,
    uan_source_weight,
    uan_target_weight,
)

LOGITS = np.random.default_rng(0).normal(size=(7, 4)) * 2
DOMAIN = np.random.default_rng(1).normal(size=7) * 3
EXTREME = torch.tensor([[1e4, -1e4, 0.0], [0.0, 0.0, 0.0], [-1e4, -1e4, 1e4]])


def softmax(row: np.ndarray) -> np.ndarray:
    powers = np.exp(row - row.max())
    return powers / powers.sum()


def slow_entropy(row: np.ndarray, temperature: float = 1.0) -> float:
    p = softmax(row / temperature)
    return sum(-x * math.log(x + 1e-10) for x in p) / math.log(len(row))


def slow_gradient(function: Callable[[np.ndarray], float], at: np.ndarray, h: float = 1e-5) -> np.ndarray:
    """By central differences."""
    found = np.zeros_like(at)
    for place in np.ndindex(at.shape):
        step = np.zeros_like(at)
        step[place] = h
        found[place] = (function(at + step) - function(at - step)) / (2 * h)
    return found


@pytest.mark.parametrize("temperature", [1.0, 10.0])
def test_the_entropy_is_a_share_of_log_c(temperature: float) -> None:
    logits = torch.tensor(LOGITS, requires_grad=True)
    found = normalised_entropy(logits, temperature)
    expected = [slow_entropy(row, temperature) for row in LOGITS]
    assert found.tolist() == pytest.approx(expected, abs=1e-5)
    found.sum().backward()
    slow = [slow_gradient(lambda row: slow_entropy(row, temperature), row) for row in LOGITS]
    np.testing.assert_allclose(logits.grad, np.stack(slow), atol=1e-5)


def test_uans_weights() -> None:
    d = 1 / (1 + np.exp(-DOMAIN))
    w_s = [slow_entropy(row, 10) - x for row, x in zip(LOGITS, d, strict=True)]
    w_t = [x - slow_entropy(row) for row, x in zip(LOGITS, d, strict=True)]
    logits, domain = torch.tensor(LOGITS), torch.tensor(DOMAIN)
    assert uan_source_weight(logits, domain).tolist() == pytest.approx(w_s, abs=1e-5)
    assert uan_target_weight(logits, domain).tolist() == pytest.approx(w_t, abs=1e-5)


def test_saturated_inputs_give_finite_weights_in_their_range() -> None:
    domain = torch.tensor([1e4, -1e4, 0.0])
    for weights in (uan_source_weight(EXTREME, domain), uan_target_weight(EXTREME, domain)):
        assert weights.isfinite().all() and weights.abs().max() <= 1
    assert uan_target_weight(EXTREME, domain).tolist() == pytest.approx([1, -1, 0.5])
    assert prediction_margin(EXTREME).tolist() == [1, 0, 1]


@pytest.mark.parametrize("epsilon", [0.0, EPSILON])
def test_weights_of_a_batch_are_1_on_average(epsilon: float) -> None:
    low, high = DOMAIN.min(), DOMAIN.max()
    scaled = [(x - low) / (high - low + epsilon) for x in DOMAIN]
    expected = [x / (np.mean(scaled) + epsilon) for x in scaled]
    assert batch_weights(torch.tensor(DOMAIN), epsilon).tolist() == pytest.approx(expected, abs=1e-5)
    assert batch_weights(torch.full((5,), 0.3), epsilon).tolist() == [0] * 5
    assert batch_weights(torch.tensor([0.3]), epsilon).tolist() == [0]


def test_margins_are_averaged_by_predicted_class() -> None:
    margins, classes = [], []
    for row in LOGITS:
        second, first = np.sort(softmax(row))[-2:]
        margins.append(first - second)
        classes.append(int(row.argmax()))
    found = prediction_margin(torch.tensor(LOGITS))
    assert found.tolist() == pytest.approx(margins, abs=1e-5)
    expected = []
    for c in range(6):  # two more classes than there are logits: nobody is predicted as them
        own = [m for m, k in zip(margins, classes, strict=True) if k == c]
        expected.append(sum(own) / (len(own) + 1e-6))
    means = class_margins(found, torch.tensor(classes), 6)
    assert means.tolist() == pytest.approx(expected, abs=1e-5) and means[-2:].tolist() == [0, 0]


@pytest.mark.parametrize(("limit", "low", "high"), [(-0.5, -1, 1), (0.5, 0, 1), (0.7, 0, 1), (-1, -1, 1), (1.0, 0, 1)])
def test_a_score_is_above_the_threshold_exactly_if_the_value_is_below_the_limit(
    limit: float, low: float, high: float
) -> None:
    at = torch.tensor(limit)
    down, up = (torch.nextafter(at, torch.tensor(float(end))) for end in (low, high))
    values = torch.cat([torch.linspace(low, high, 101), torch.stack([down, at, up])])
    scores, threshold = rejection_score(values, limit, low, high), rejection_threshold(limit, low, high)
    assert torch.equal(scores > threshold, values < at)
    assert scores.min() >= 0 and scores.max() <= 1
    order = values.argsort()
    assert (scores[order].diff() <= 0).all()
    assert scores.tolist() == pytest.approx(((high - values) / (high - low)).tolist(), abs=1e-6)


def test_the_ramp_counts_calls_of_the_published_run() -> None:
    for step in (0, 1, 999, 5000):
        for found, call in zip(ramp_by_calls(step, 20_000, 20_000), (2 * step, 2 * step + 1), strict=True):
            assert found == pytest.approx(2 / (1 + math.exp(-10 * call / 10_000)) - 1)
    # A run of 300 steps is at its middle where the published one is.
    assert ramp_by_calls(150, 300, 20_000)[0] == pytest.approx(ramp_by_calls(10_000, 20_000, 20_000)[0])
    assert ramp_by_calls(3, 300, 20_000)[0] == pytest.approx(ramp_by_calls(200, 20_000, 20_000)[0])
