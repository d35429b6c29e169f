"""Reversed gradients and weighted domain losses, against slow versions."""

import math

import numpy as np
import pytest
import torch

from unida.losses.adversarial import domain_loss, min_max, over_mean, reversal_ramp, reverse_gradient


def test_gradients_are_reversed_and_values_are_not() -> None:
    inputs = torch.tensor([1.0, -2.0], requires_grad=True)
    reversed_inputs = reverse_gradient(inputs, 0.25)
    assert torch.equal(reversed_inputs, inputs)
    (reversed_inputs * torch.tensor([3.0, 5.0])).sum().backward()
    assert torch.equal(inputs.grad, torch.tensor([-0.75, -1.25]))  # type: ignore[arg-type]


def test_the_ramp_goes_from_0_to_1() -> None:
    assert reversal_ramp(0) == 0
    assert reversal_ramp(0.5) == pytest.approx(math.tanh(2.5))  # 2σ(x) − 1 = tanh(x / 2)
    assert reversal_ramp(3) == pytest.approx(1)


def test_the_domain_loss_is_a_weighted_cross_entropy() -> None:
    draw = np.random.default_rng(0)
    source, target = draw.normal(size=7) * 3, draw.normal(size=4) * 3
    w_s, w_t = draw.random(7), draw.random(4)

    def sigmoid(x: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-x))

    slow = np.mean([-w * np.log(p) for w, p in zip(w_s, sigmoid(source), strict=True)])
    slow += np.mean([-w * np.log(1 - p) for w, p in zip(w_t, sigmoid(target), strict=True)])
    given = [torch.tensor(x, requires_grad=True) for x in (source, target, w_s, w_t)]
    loss = domain_loss(*given)
    assert loss.item() == pytest.approx(slow, rel=1e-5)
    loss.backward()
    assert given[0].grad is not None and given[0].grad.numpy() == pytest.approx(
        w_s * (sigmoid(source) - 1) / 7, abs=1e-6
    )
    assert given[2].grad is None  # weights are constants
    ones = domain_loss(given[0], given[1], torch.ones(7), torch.ones(4))
    assert torch.equal(domain_loss(given[0], given[1]), ones)


def test_saturated_discriminators_give_finite_losses() -> None:
    extreme = torch.tensor([1e4, -1e4])
    assert domain_loss(extreme, extreme).isfinite()


def test_weights_of_a_constant_batch_are_finite() -> None:
    assert torch.equal(min_max(torch.tensor([2.0, 4.0, 3.0])), torch.tensor([0.0, 1.0, 0.5]))
    assert torch.equal(min_max(torch.full((3,), 0.7)), torch.zeros(3))
    assert torch.equal(over_mean(torch.tensor([1.0, 3.0])), torch.tensor([0.5, 1.5]))
    assert torch.equal(over_mean(torch.zeros(3)), torch.zeros(3))
