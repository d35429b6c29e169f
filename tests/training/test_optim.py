"""The optimiser against the formulas of its papers, in float64 and by hand."""

import numpy as np
import pytest
import torch
from tiny_training import make_method

from unida.config import TrainingOptions
from unida.training.optim import build_optimiser, inverse_decay, set_learning_rate


@pytest.mark.parametrize(
    ("step", "steps", "factor"),
    [
        (0, 10_000, 1.0),
        (1_000, 10_000, 2**-0.75),
        (5_000, 10_000, 6**-0.75),
        (9_999, 10_000, (1 + 9.999) ** -0.75),
        (30, 300, 2**-0.75),  # the schedule spans the run, however short
        (0, 1, 1.0),
    ],
)
def test_schedule_is_the_published_formula(step: int, steps: int, factor: float) -> None:
    assert inverse_decay(step, steps) == pytest.approx(factor, rel=1e-9)


def test_both_groups_follow_the_schedule_from_their_own_rate() -> None:
    optimiser = build_optimiser(make_method(), TrainingOptions(lr=0.02, backbone_lr=0.003))
    for step in (0, 7, 3, 99):  # from the initial rate each time: asking twice must not decay twice
        set_learning_rate(optimiser, step, 100)
        factor = (1 + 10 * step / 100) ** -0.75
        assert [g["lr"] for g in optimiser.param_groups] == pytest.approx([0.003 * factor, 0.02 * factor])


def test_two_groups_hold_every_parameter_once() -> None:
    method = make_method()
    groups = build_optimiser(method, TrainingOptions()).param_groups
    assert len(groups) == 2
    assert {id(p) for p in groups[0]["params"]} == {id(p) for p in method.backbone.parameters()}
    assert {id(p) for p in groups[1]["params"]} == {id(p) for p in method.head.parameters()}  # type: ignore[union-attr]
    assert sum(len(g["params"]) for g in groups) == len(list(method.parameters()))


def test_frozen_parameters_are_left_out() -> None:
    method = make_method()
    frozen = next(method.backbone.parameters()).requires_grad_(False)
    groups = build_optimiser(method, TrainingOptions()).param_groups
    assert all(p is not frozen for group in groups for p in group["params"])


def test_backbone_learns_at_a_tenth_by_default() -> None:
    groups = build_optimiser(make_method(), TrainingOptions(lr=0.05)).param_groups
    assert [group["lr"] for group in groups] == pytest.approx([0.005, 0.05])


def test_update_is_nesterov_sgd_with_l2() -> None:
    method = make_method()
    options = TrainingOptions(lr=0.1, backbone_lr=0.02, momentum=0.8, weight_decay=0.01)
    optimiser = build_optimiser(method, options)
    parameters = list(method.parameters())
    rates = [0.02 if any(p is b for b in method.backbone.parameters()) else 0.1 for p in parameters]
    expected = [p.detach().double().numpy().copy() for p in parameters]
    velocity = [np.zeros_like(e) for e in expected]
    rng = np.random.default_rng(0)
    for _ in range(3):
        for i, parameter in enumerate(parameters):
            gradient = rng.normal(size=parameter.shape)
            parameter.grad = torch.from_numpy(gradient).float()
            gradient = gradient + 0.01 * expected[i]
            velocity[i] = 0.8 * velocity[i] + gradient
            expected[i] = expected[i] - rates[i] * (gradient + 0.8 * velocity[i])
        optimiser.step()
    for parameter, value in zip(parameters, expected, strict=True):
        np.testing.assert_allclose(parameter.detach().numpy(), value, rtol=1e-5, atol=1e-6)


def test_no_momentum_is_plain_sgd() -> None:
    method = make_method()
    optimiser = build_optimiser(method, TrainingOptions(lr=0.1, momentum=0, weight_decay=0))
    before = method.head.weight.detach().clone()  # type: ignore[union-attr]
    for _ in range(2):
        for parameter in method.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimiser.step()
    torch.testing.assert_close(method.head.weight, before - 0.2)  # type: ignore[union-attr]
