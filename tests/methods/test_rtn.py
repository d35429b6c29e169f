"""RTN against its formulas, computed one image at a time: losses, quadruples and rules."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from few_steps import Batches, decided, phases_of
from slow_parts import cross_entropy, linear, numbers, softmax
from torch import Tensor, nn

from unida.config import complete, config_from_options
from unida.errors import UserError
from unida.methods.base import Problem
from unida.methods.rtn import RTN, some_quadruples
from unida.methods.rtn_options import RTNOptions

STEPS, NECK, CLASSES = 300, 5, 4


def made_up(backbone: nn.Module, **options: Any) -> RTN:
    torch.manual_seed(2)
    method = RTN(backbone, Problem(CLASSES, steps=STEPS, seed=3), RTNOptions(bottleneck=NECK, **options))  # type: ignore[arg-type]
    for layer in method.residual:  # a residual that can be seen
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight)
            nn.init.normal_(layer.bias)
    return method.eval()  # fixed statistics: what a step computes can be followed


@pytest.fixture
def method(toy_backbone: nn.Module) -> RTN:
    return made_up(toy_backbone)


def slow_logits(method: RTN, images: Tensor) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """z and f_T of each image."""
    first: Any = method.bottleneck[0]
    with torch.no_grad():
        z = [np.maximum(linear(first, row), 0) for row in numbers(method.backbone(images))]
    return z, [linear(method.classifier, row) for row in z]


def kernels(products: list[np.ndarray]) -> np.ndarray:
    distances = np.array([[((x - y) ** 2).sum() for x in products] for y in products])
    mean = distances.sum() / (len(products) * (len(products) - 1))
    return sum(np.exp(-distances / (mean * width)) for width in (0.25, 0.5, 1, 2, 4))  # type: ignore[no-any-return]


@pytest.mark.parametrize("quadruples", [False, True])
@pytest.mark.parametrize(("step", "ramp"), [(0, 0.0), (15, math.tanh(2.5)), (30, math.tanh(5)), (299, math.tanh(5))])
def test_the_losses_are_the_papers(
    toy_backbone: nn.Module, batches: Batches, quadruples: bool, step: int, ramp: float
) -> None:
    """The entropy's weight rises over a tenth of the run, and then stays."""
    method = made_up(toy_backbone, quadruples=quadruples, mmd_weight=0.7)
    z_s, f_s = slow_logits(method, batches[0].images)
    z_t, f_t = slow_logits(method, batches[1].images)
    first, second = method.residual[0], method.residual[2]
    of_source = [f + linear(second, np.maximum(linear(first, f), 0)) for f in f_s]  # type: ignore[arg-type]
    k = kernels([np.outer(z, f).ravel() for z, f in zip(z_s + z_t, f_s + f_t, strict=True)])
    n = len(z_s)
    mmd = k[:n, :n].mean() + k[n:, n:].mean() - 2 * k[:n, n:].mean()
    if quadruples:
        places = some_quadruples(n, len(z_t), 3, step).tolist()
        mmd = np.mean([k[a, b] + k[n + c, n + d] - k[a, n + d] - k[b, n + c] for a, b, c, d in places])
    entropies = [-(softmax(f) * np.log(softmax(f))).sum() for f in f_t]
    expected = {
        "closed": cross_entropy(of_source, batches[0].labels.tolist()),
        "entropy": 0.1 * ramp * float(np.mean(entropies)),
        "mmd": 0.7 * float(mmd),
    }
    found = {name: loss.item() for name, loss in method.training_step(*batches, step).items()}
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_each_loss_reaches_its_own_parts(method: RTN, batches: Batches) -> None:
    parts = {"f": method.backbone.conv.weight, "f_T": method.classifier.weight, "residual": method.residual[0].weight}
    reached = {}
    for name in ("closed", "entropy", "mmd"):
        method.zero_grad()
        method.training_step(*batches, step=9)[name].backward()
        reached[name] = {part for part, weight in parts.items() if weight.grad is not None and weight.grad.any()}  # type: ignore[union-attr]
    assert reached == {"closed": {"f", "f_T", "residual"}, "entropy": {"f", "f_T"}, "mmd": {"f", "f_T"}}


def test_quadruples_are_of_different_images_and_every_image_has_its_turn() -> None:
    drawn = torch.cat([some_quadruples(6, 4, seed=0, step=step) for step in range(60)])
    s1, s2, t1, t2 = drawn.T
    assert len(drawn) == 360 and not (s1 == s2).any() and not (t1 == t2).any()
    assert {*zip(s1.tolist(), s2.tolist(), strict=True)} == {(a, b) for a in range(6) for b in range(6) if a != b}
    assert set(t2.tolist()) == {0, 1, 2, 3}
    assert torch.equal(some_quadruples(6, 4, 0, 7), some_quadruples(6, 4, 0, 7))
    assert some_quadruples(1, 1, 0, 0).tolist() == [[0, 0, 0, 0]]


def test_the_residual_is_near_zero_at_the_start_and_no_part_of_an_answer(toy_backbone: nn.Module) -> None:
    method = RTN(toy_backbone, Problem(CLASSES), RTNOptions())  # type: ignore[arg-type]
    assert all(layer.bias.abs().max() == 0 for layer in method.residual if isinstance(layer, nn.Linear))
    assert method.residual[0].weight.abs().max() < 0.05 and method.bottleneck[0].out_features == 256
    features = torch.randn(5, 256)
    assert torch.equal(method.score(features).logits, method.classifier(features))


@pytest.mark.parametrize(
    ("options", "is_known"),
    [
        ({"least_probability": 0.7}, lambda p: p.max() >= 0.7),
        ({"rejection": "entropy", "entropy_threshold": 0.6}, lambda p: -(p * np.log(p)).sum() <= 0.6 * math.log(4)),
    ],
)
def test_rules_for_unknown_images(toy_backbone: nn.Module, options: dict[str, Any], is_known: Any) -> None:
    method = made_up(toy_backbone, **options)
    features = 4 * torch.randn(200, NECK, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        scores = method.score(features)
    expected = np.array([is_known(softmax(linear(method.classifier, z))) for z in numbers(features)])
    assert ((decided(method, scores) < CLASSES).numpy() == expected).all() and 20 < expected.sum() < 180


@pytest.mark.parametrize("options", [{"least_probability": 0.0}, {"rejection": "entropy", "entropy_threshold": 1.0}])
def test_a_rule_can_be_switched_off(toy_backbone: nn.Module, options: dict[str, Any]) -> None:
    method = made_up(toy_backbone, **options)
    features = torch.cat([torch.zeros(1, NECK), torch.randn(50, NECK)])
    assert (decided(method, method.score(features)) < CLASSES).all()


def test_equal_images_have_finite_losses_and_gradients(method: RTN, batches: Batches) -> None:
    source, target = (batch._replace(images=torch.ones_like(batch.images)) for batch in batches)
    losses = method.training_step(source, target, step=20)  # type: ignore[arg-type]
    torch.stack(list(losses.values())).sum().backward()
    assert losses["mmd"].item() == pytest.approx(0, abs=1e-6)
    assert all(p.grad is None or p.grad.isfinite().all() for p in method.parameters())


def test_defaults_are_the_papers_and_the_released_codes(method: RTN) -> None:
    expected = {"mmd_weight": 0.3, "quadruples": False, "entropy_weight": 0.1, "bottleneck": 256}
    rule = {"rejection": "max-prob", "least_probability": 0.8, "entropy_threshold": 0.5}
    assert dataclasses.asdict(RTNOptions()) == expected | rule
    config = complete(config_from_options({"method": "rtn", "train": "all"}), has_gpu=True)
    assert (config.training.lr, config.training.steps) == (0.01, 20_000)
    assert config.training.backbone_lr == pytest.approx(1e-3)
    (phase,) = phases_of(method)
    assert [turn.decay for turn in phase.turns] == [20]
    assert phase.source == "shuffled"  # its lists are shuffled, not balanced
    assert method.unknown_threshold == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"mmd_weight": -1}, "--mmd-weight is -1.0: it must be"),
        ({"entropy_threshold": 0.4}, "--entropy-threshold has no effect without --rejection entropy: leave it out"),
        (
            {"rejection": "entropy", "least_probability": 0.4},
            "--least-probability has no effect without --rejection max",
        ),
    ],
)
def test_what_cannot_work_is_refused_by_name(options: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        config_from_options({"method": "rtn", **options})
