"""UAN against what its authors' released code does, rule by rule."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from few_steps import Batches, decided
from slow_parts import cross_entropy, domain_loss, entropy, is_source, linear, numbers, scaled, slow_gradient, softmax
from torch import Tensor, nn

from unida.config import complete, config_from_options
from unida.errors import UserError
from unida.methods import METHODS
from unida.methods.base import Problem
from unida.methods.uan import UAN
from unida.methods.uan_options import UANOptions
from unida.models.discriminator import Discriminator

STEPS, NECK, CLASSES = 300, 3, 4


def made_up(backbone: nn.Module, **options: float) -> UAN:
    """With small discriminators, as the slow version is slow."""
    torch.manual_seed(2)
    method = UAN(backbone, Problem(CLASSES, steps=STEPS), UANOptions(**{"bottleneck": NECK, **options}))  # type: ignore[arg-type]
    method.adversary, method.onlooker = (Discriminator(NECK, hidden=16) for _ in range(2))
    return method


@pytest.fixture
def method(toy_backbone: nn.Module) -> UAN:
    """Without dropout and with fixed statistics: what a step computes can be followed."""
    return made_up(toy_backbone).eval()


def ramp(step: int, call: int) -> float:
    """Of the published run's place: 20,000 steps, two calls in each."""
    calls = (2 * step + call) * 20_000 / STEPS
    return 2 / (1 + math.exp(-10 * calls / 10_000)) - 1


def slow_weights(method: UAN, z_s: np.ndarray, z_t: np.ndarray) -> tuple[list[float], list[float]]:
    w_s = [entropy(softmax(linear(method.classifier, z) / 10)) - is_source(method.onlooker, z) for z in z_s]
    w_t = [is_source(method.onlooker, z) - entropy(softmax(linear(method.classifier, z))) for z in z_t]
    return scaled(w_s), scaled(w_t)


def features_of(method: UAN, batches: Batches) -> tuple[np.ndarray, np.ndarray]:
    with torch.no_grad():
        return numbers(method.source_features(batches[0].images)), numbers(method.features(batches[1].images))


def test_the_losses_are_the_papers_sum(method: UAN, batches: Batches) -> None:
    z_s, z_t = features_of(method, batches)
    seen = {name: [is_source(made, z) for z in rows] for name, made, rows in _domains(method, z_s, z_t)}
    expected = {
        "closed": cross_entropy([linear(method.classifier, z) for z in z_s], batches[0].labels.tolist()),
        "adversarial": domain_loss(seen["D s"], seen["D t"], *slow_weights(method, z_s, z_t)),
        "onlooker": domain_loss(seen["D' s"], seen["D' t"], [1.0] * len(z_s), [1.0] * len(z_t)),
    }
    found = {name: loss.item() for name, loss in method.training_step(*batches, step=0).items()}
    assert found == pytest.approx(expected, rel=1e-5)


def _domains(method: UAN, z_s: np.ndarray, z_t: np.ndarray) -> list[tuple[str, nn.Module, np.ndarray]]:
    pairs = (("D", method.adversary), ("D'", method.onlooker))
    return [(f"{name} {domain}", made, z) for name, made in pairs for domain, z in (("s", z_s), ("t", z_t))]  # type: ignore[misc]


@pytest.mark.parametrize("step", [0, 40])
def test_gradients_are_the_slow_ones_reversed_by_the_ramp(method: UAN, batches: Batches, step: int) -> None:
    """Of z, where all losses meet: classification as it is, D's part turned around, D′'s part not at all."""
    z_s, z_t = features_of(method, batches)
    w_s, w_t = slow_weights(method, z_s, z_t)  # constants
    labels = batches[0].labels.tolist()

    def of_source(z: np.ndarray) -> float:
        closed = cross_entropy([linear(method.classifier, row) for row in z], labels)
        return closed - ramp(step, 0) * domain_loss([is_source(method.adversary, row) for row in z], [0.5], w_s, [0.0])

    def of_target(z: np.ndarray) -> float:
        return -ramp(step, 1) * domain_loss([0.5], [is_source(method.adversary, row) for row in z], [0.0], w_t)

    leaves = [torch.tensor(z, dtype=torch.float32, requires_grad=True) for z in (z_s, z_t)]
    method.source_features, method.features = (lambda images: leaves[0]), (lambda images: leaves[1])  # type: ignore[method-assign, assignment, misc]
    torch.stack(list(method.training_step(*batches, step).values())).sum().backward()
    for leaf, slow, at in zip(leaves, (of_source, of_target), (z_s, z_t), strict=True):
        np.testing.assert_allclose(leaf.grad, slow_gradient(slow, at), atol=1e-5)  # type: ignore[arg-type]
    assert ramp(0, 0) == 0 < ramp(0, 1) < ramp(40, 0)


def test_each_loss_reaches_its_own_parts(method: UAN, batches: Batches) -> None:
    parts = {
        "z": method.bottleneck.weight,
        "classifier": method.classifier.weight,
        "D": method.adversary.layers[0].weight,
        "D'": method.onlooker.layers[0].weight,
    }
    reached = {}
    for name in ("closed", "adversarial", "onlooker"):
        method.zero_grad()
        method.training_step(*batches, step=9)[name].backward()
        reached[name] = {part for part, weight in parts.items() if weight.grad is not None and weight.grad.any()}  # type: ignore[union-attr]
    assert reached == {"closed": {"z", "classifier"}, "adversarial": {"z", "D"}, "onlooker": {"D'"}}


def test_weights_are_noisy_in_training_alone(method: UAN, batches: Batches) -> None:
    """D′ has dropout; the same features get other weights each time."""
    method.train().backbone.eval()
    first, second = (method.training_step(*batches, step=0)["onlooker"].item() for _ in range(2))
    assert first != second
    method.eval()
    features = method.features(batches[1].images)
    assert torch.equal(method.score(features).unknown, method.score(features).unknown)


def test_as_released_takes_the_softmax_twice(toy_backbone: nn.Module, batches: Batches) -> None:
    once, twice = (made_up(toy_backbone, as_released=flag).eval() for flag in (False, True))
    z_s, _ = features_of(once, batches)
    labels = batches[0].labels.tolist()
    expected = cross_entropy([softmax(linear(once.classifier, z)) for z in z_s], labels)
    losses = [made.training_step(*batches, step=5) for made in (once, twice)]
    assert losses[1]["closed"].item() == pytest.approx(expected, rel=1e-5)
    assert losses[0]["closed"].item() != pytest.approx(expected, rel=1e-3)
    assert all(losses[0][name].item() == losses[1][name].item() for name in ("adversarial", "onlooker"))


def test_an_image_is_unknown_if_its_weight_is_below_w_0(method: UAN) -> None:
    features = 3 * torch.randn(200, NECK, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        method.classifier.weight.mul_(3)
        method.onlooker.layers[-1].weight.mul_(60)
        scores = method.score(features)
    weights = np.array(
        [is_source(method.onlooker, z) - entropy(softmax(linear(method.classifier, z))) for z in numbers(features)]
    )
    np.testing.assert_allclose(scores.unknown, (1 - weights) / 2, atol=1e-5)
    clear = abs(weights + 0.5) > 1e-5
    is_unknown = (decided(method, scores) == CLASSES).numpy()
    assert (is_unknown[clear] == (weights < -0.5)[clear]).all() and 10 < is_unknown.sum() < 190
    assert method.unknown_threshold == 0.75


def test_the_domains_pass_the_backbone_apart(method: UAN, batches: Batches) -> None:
    method.training_step(*batches, step=0)
    seen: list[Tensor] = method.backbone.seen  # type: ignore[assignment]
    assert len(seen) == 2
    assert torch.equal(seen[0], batches[0].images) and torch.equal(seen[1], batches[1].images)


def test_a_batch_of_equal_images_has_finite_losses_and_gradients(method: UAN, batches: Batches) -> None:
    source, target = batches
    same = [batch._replace(images=torch.ones_like(batch.images)) for batch in (source, target)]
    losses = method.training_step(*same, step=20)  # type: ignore[arg-type]
    torch.stack(list(losses.values())).sum().backward()
    assert losses["adversarial"].item() == 0  # no weight stands out
    assert all(p.grad is None or p.grad.isfinite().all() for p in method.parameters())


def test_defaults_are_the_released_codes_for_office31(toy_backbone: nn.Module) -> None:
    method = UAN(toy_backbone, Problem(CLASSES), UANOptions())  # type: ignore[arg-type]
    assert all(made.layers[0].weight.shape == (1024, 256) for made in (method.adversary, method.onlooker))
    expected = {"bottleneck": 256, "weight_threshold": -0.5, "as_released": False}
    assert dataclasses.asdict(UANOptions()) == expected
    config = complete(config_from_options({"method": "uan", "train": "all"}), has_gpu=True)
    assert (config.training.lr, config.training.steps, config.training.batch_size) == (1e-3, 20_000, 36)
    assert config.training.backbone_lr == pytest.approx(1e-4)
    assert METHODS["uan"].lr == 1e-3
    (phase,) = method.phases()
    (turn,) = phase.turns
    assert (turn.decay, phase.source, phase.target) == (10, "balanced", True)


@pytest.mark.parametrize(("option", "value"), [("bottleneck", 0), ("weight_threshold", -1.5)])
def test_numbers_that_cannot_work_are_refused_by_name(option: str, value: float) -> None:
    with pytest.raises(UserError, match=f"--{option.replace('_', '-')} is {value}"):
        config_from_options({"method": "uan", option: value})
