"""Weighted cross-entropy against plain loops."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from unida.losses.cross_entropy import weighted_cross_entropy


def slow_loss(logits: np.ndarray, labels: np.ndarray, weights: np.ndarray, epsilon: float) -> float:
    total = 0.0
    for row, label in zip(logits, labels, strict=True):
        p = np.exp(row - row.max()) / np.exp(row - row.max()).sum()
        total += weights[label] * -np.log(p[label] + epsilon)
    return total / len(logits)


def slow_gradient(logits: np.ndarray, labels: np.ndarray, weights: np.ndarray, epsilon: float) -> np.ndarray:
    """By differences."""
    gradient = np.zeros_like(logits)
    for place in np.ndindex(*logits.shape):
        up, down = logits.copy(), logits.copy()
        up[place] += 1e-6
        down[place] -= 1e-6
        losses = [slow_loss(moved, labels, weights, epsilon) for moved in (up, down)]
        gradient[place] = (losses[0] - losses[1]) / 2e-6
    return gradient


@pytest.mark.parametrize("epsilon", [0.0, 1e-12, 0.05])  # ROS's, and one that can be seen
def test_it_is_the_weighted_sum_over_the_number_of_images(epsilon: float) -> None:
    draw = np.random.default_rng(0)
    logits, labels, weights = draw.normal(size=(6, 4)) * 2, draw.integers(4, size=6), np.array([1.0, 1.0, 0.5, 7.0])
    given = torch.tensor(logits, dtype=torch.float32, requires_grad=True)
    loss = weighted_cross_entropy(given, torch.from_numpy(labels), torch.tensor(weights).float(), epsilon)
    assert loss.item() == pytest.approx(slow_loss(logits, labels, weights, epsilon), rel=1e-5)
    loss.backward()
    assert given.grad is not None
    np.testing.assert_allclose(given.grad, slow_gradient(logits, labels, weights, epsilon), atol=1e-5)
    by_weights = F.cross_entropy(given, torch.from_numpy(labels), torch.tensor(weights).float())
    assert loss.item() != pytest.approx(by_weights.item(), rel=0.05)  # torch divides by the sum of weights


def test_images_have_weights_too_without_a_gradient() -> None:
    logits, labels = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 3, 1])
    weights = torch.tensor([3.0, 0.0, 0.5], requires_grad=True)
    each = F.cross_entropy(logits, labels, reduction="none")
    found = weighted_cross_entropy(logits, labels, image_weights=weights)
    torch.testing.assert_close(found, (3 * each[0] + 0.5 * each[2]) / 3)
    assert not found.requires_grad


def test_without_weights_it_is_torchs() -> None:
    logits, labels = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 2, 1, 1, 0])
    torch.testing.assert_close(weighted_cross_entropy(logits, labels), F.cross_entropy(logits, labels))


@pytest.mark.parametrize("scale", [1e4, -1e4])
def test_an_image_that_is_surely_right_or_wrong_is_finite(scale: float) -> None:
    logits = torch.tensor([[scale, 0.0], [scale, 0.0]], requires_grad=True)
    loss = weighted_cross_entropy(logits, torch.tensor([0, 0]), torch.tensor([200.0, 1.0]), epsilon=1e-12)
    loss.backward()
    assert loss.item() == pytest.approx(0 if scale > 0 else 200 * 12 * np.log(10), abs=1e-3)
    assert logits.grad is not None and logits.grad.abs().max() < 1e-5


def test_it_is_float32_under_autocast() -> None:
    assert weighted_cross_entropy(torch.randn(4, 3).bfloat16(), torch.tensor([0, 1, 2, 0])).dtype == torch.float32
