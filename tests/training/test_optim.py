"""The optimiser against the formulas of its papers, in float64 and by hand."""

import numpy as np
import pytest
import torch
from tiny_training import make_method, make_options, optimiser_of
from torch import nn

from unida.methods.base import Group, Turn
from unida.training.optim import build_optimiser, covers_all, inverse_decay, learning_rates, set_learning_rate


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
    optimiser = optimiser_of(make_method(), lr=0.02, backbone_lr=0.003)
    for step in (0, 7, 3, 99):  # from the initial rate each time: asking twice must not decay twice
        set_learning_rate(optimiser, step, 100)
        factor = (1 + 10 * step / 100) ** -0.75
        assert [g["lr"] for g in optimiser.param_groups] == pytest.approx([0.003 * factor, 0.02 * factor])


def test_two_groups_hold_every_parameter_once() -> None:
    method = make_method()
    groups = optimiser_of(method).param_groups
    assert len(groups) == 2
    assert {id(p) for p in groups[0]["params"]} == {id(p) for p in method.backbone.parameters()}
    assert {id(p) for p in groups[1]["params"]} == {id(p) for p in method.head.parameters()}  # type: ignore[union-attr]
    assert sum(len(g["params"]) for g in groups) == len(list(method.parameters()))


def test_frozen_parameters_are_left_out() -> None:
    method = make_method()
    frozen = next(method.backbone.parameters()).requires_grad_(False)
    groups = optimiser_of(method).param_groups
    assert all(p is not frozen for group in groups for p in group["params"])


def test_backbone_learns_at_a_tenth_by_default() -> None:
    groups = optimiser_of(make_method(), lr=0.05).param_groups
    assert [group["lr"] for group in groups] == pytest.approx([0.005, 0.05])


def test_update_is_nesterov_sgd_with_l2() -> None:
    method = make_method()
    optimiser = optimiser_of(method, lr=0.1, backbone_lr=0.02, momentum=0.8, weight_decay=0.01)
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
    optimiser = optimiser_of(method, lr=0.1, momentum=0, weight_decay=0)
    before = method.head.weight.detach().clone()  # type: ignore[union-attr]
    for _ in range(2):
        for parameter in method.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimiser.step()
    torch.testing.assert_close(method.head.weight, before - 0.2)  # type: ignore[union-attr]


@pytest.mark.parametrize("decay", [0.0, 3.0])
def test_a_turn_may_decay_less_or_not_at_all(decay: float) -> None:
    optimiser = optimiser_of(make_method(), lr=0.02, backbone_lr=0.003)
    for step in (0, 30, 99):
        set_learning_rate(optimiser, step, 100, decay)
        factor = (1 + decay * step / 100) ** -0.75
        assert [g["lr"] for g in optimiser.param_groups] == pytest.approx([0.003 * factor, 0.02 * factor])


def plain_turn(*groups: Group, optimiser: str = "sgd") -> Turn:
    return Turn(lambda source, target, step: {}, groups, optimiser=optimiser)  # type: ignore[arg-type]


def test_a_group_learns_at_its_own_rate_times_its_scale() -> None:
    layers = [nn.Linear(2, 2) for _ in range(3)]
    parts = [list(layer.parameters()) for layer in layers]
    turn = plain_turn(Group(parts[0], scale=0.5), Group(parts[1], pretrained=True, scale=3.0), Group(parts[2]))
    optimiser = build_optimiser(turn, make_options(lr=0.02, backbone_lr=0.004))
    assert [group["lr"] for group in optimiser.param_groups] == pytest.approx([0.01, 0.012, 0.02])
    set_learning_rate(optimiser, 1, 10)
    assert [group["lr"] for group in optimiser.param_groups] == pytest.approx(
        [rate * 2**-0.75 for rate in (0.01, 0.012, 0.02)]
    )
    rates = learning_rates(optimiser)  # for the log: the first of each kind
    assert rates == pytest.approx({"lr_new": 0.01 * 2**-0.75, "lr_backbone": 0.012 * 2**-0.75})


def test_adam_is_the_published_formula_without_decay_of_weights() -> None:
    """Kingma & Ba, algorithm 1, with its defaults: β = 0.9 and 0.999, ε = 1e-8."""
    parameter = nn.Parameter(torch.tensor([1.0, -2.0, 3.0]))
    optimiser = build_optimiser(plain_turn(Group([parameter]), optimiser="adam"), make_options(lr=0.1))
    value, first, second = parameter.detach().double().numpy().copy(), np.zeros(3), np.zeros(3)
    rng = np.random.default_rng(0)
    for step in range(1, 4):
        gradient = rng.normal(size=3)
        parameter.grad = torch.from_numpy(gradient).float()
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        value -= 0.1 * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
        optimiser.step()
    np.testing.assert_allclose(parameter.detach().numpy(), value, rtol=1e-5)


def test_whether_a_turn_updates_all_that_can_learn() -> None:
    """If it does not, processes that share the work must not wait for the other gradients."""
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    every, some = list(module.parameters()), list(module[0].parameters())
    assert covers_all(plain_turn(Group(some), Group(every[2:])), module)
    assert not covers_all(plain_turn(Group(some)), module)
    module[1].requires_grad_(False)
    assert covers_all(plain_turn(Group(some)), module)
