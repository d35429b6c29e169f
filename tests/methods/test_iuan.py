"""I-UAN's rules against a slow version of them."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from few_steps import Batches, decided
from slow_parts import cross_entropy, domain_loss, is_source, linear, margin, numbers, scaled, slow_gradient, softmax
from torch import Tensor, nn

from unida.config import complete, config_from_options
from unida.errors import UserError
from unida.methods.base import Problem
from unida.methods.iuan import IUAN
from unida.methods.iuan_options import IUANOptions
from unida.models.discriminator import Discriminator

STEPS, NECK, CLASSES = 300, 3, 4


def made_up(backbone: nn.Module, **options: float) -> IUAN:
    """With a small discriminator, as the slow version is slow."""
    torch.manual_seed(2)
    method = IUAN(backbone, Problem(CLASSES, steps=STEPS), IUANOptions(**{"bottleneck": NECK, **options}))  # type: ignore[arg-type]
    method.discriminator = Discriminator(NECK, hidden=16)
    return method.eval()


def logits_of(method: IUAN, z: np.ndarray) -> np.ndarray:
    return linear(method.classifier, 2 * z / np.sqrt((z**2).sum()))


class Slow:
    """A run's running margins, and each step's losses."""

    def __init__(self, method: IUAN, cut: float = 1.0) -> None:
        self.method, self.cut = method, cut
        self.m, self.r = [0.0] * CLASSES, 0

    def step(self, batches: Batches) -> dict[str, float]:
        method, labels = self.method, batches[0].labels.tolist()
        with torch.no_grad():
            z_s = numbers(method.source_features(batches[0].images))
            z_t = numbers(method.features(batches[1].images))
        rows, p_t = [logits_of(method, z) for z in z_s], [softmax(logits_of(method, z)) for z in z_t]
        accuracy = np.mean([row.argmax() == label for row, label in zip(rows, labels, strict=True)])
        now = []
        for c in range(CLASSES):
            own = [margin(p) for p in p_t if p.argmax() == c]
            now.append((self.m[c] * self.r + sum(own) / (len(own) + 1e-6)) / (self.r + 1))
        if accuracy > method.options.accuracy_gate:
            self.m, self.r = now, self.r + 1
        w_s = [w if w >= self.cut else 0.0 for w in scaled([now[label] for label in labels], 1e-10)]
        w_t = scaled([p.max() for p in p_t], 1e-10)
        of_source, of_target = ([is_source(method.discriminator, z) for z in rows] for rows in (z_s, z_t))
        return {"closed": cross_entropy(rows, labels), "adversarial": domain_loss(of_source, of_target, w_s, w_t)}


def later(batches: Batches, step: int) -> Batches:
    """Other target images: other margins."""
    images = batches[1].images.roll(step, dims=3) * (1 + 0.2 * step)
    return batches[0], batches[1]._replace(images=images)


@pytest.mark.parametrize("cut", [0.0, 1.0])
@pytest.mark.parametrize("gate", [0.0, 1.0])
def test_losses_and_margins_of_several_steps(
    toy_backbone: nn.Module, batches: Batches, cut: float, gate: float
) -> None:
    method = made_up(toy_backbone, cut=cut, accuracy_gate=gate)
    slow = Slow(method, cut)
    for step in range(4):
        expected = slow.step(later(batches, step))
        found = {name: loss.item() for name, loss in method.training_step(*later(batches, step), step).items()}
        assert found == pytest.approx(expected, rel=1e-5)
        assert method.margins.tolist() == pytest.approx(slow.m, abs=1e-5) and int(method.records) == slow.r
    assert slow.r == (4 if gate == 0 else 0)  # nothing is better than an accuracy of 1
    assert len({*slow.m}) > 1 or gate == 1


@pytest.mark.parametrize("step", [0, 40])
def test_gradients_are_the_slow_ones_reversed_by_the_ramp(toy_backbone: nn.Module, batches: Batches, step: int) -> None:
    """Of z, where all losses meet: classification as it is, D's part turned around, the weights constants."""
    method = made_up(toy_backbone, accuracy_gate=0.0, cut=0.0)
    with torch.no_grad():
        z_s = numbers(method.source_features(batches[0].images))
        z_t = numbers(method.features(batches[1].images))
    labels = batches[0].labels.tolist()
    p_t = [softmax(logits_of(method, z)) for z in z_t]
    now = []
    for c in range(CLASSES):
        own = [margin(p) for p in p_t if p.argmax() == c]
        now.append(sum(own) / (len(own) + 1e-6))
    w_s, w_t = scaled([now[label] for label in labels], 1e-10), scaled([p.max() for p in p_t], 1e-10)

    def ramp(call: int) -> float:
        """Of the published run's place: 20,000 steps, two calls in each."""
        return 2 / (1 + math.exp(-10 * (2 * step + call) * 20_000 / STEPS / 10_000)) - 1

    def of_source(z: np.ndarray) -> float:
        closed = cross_entropy([logits_of(method, row) for row in z], labels)
        return closed - ramp(0) * domain_loss([is_source(method.discriminator, row) for row in z], [0.5], w_s, [0.0])

    def of_target(z: np.ndarray) -> float:
        return -ramp(1) * domain_loss([0.5], [is_source(method.discriminator, row) for row in z], [0.0], w_t)

    leaves = [torch.tensor(z, dtype=torch.float32, requires_grad=True) for z in (z_s, z_t)]
    method.source_features, method.features = (lambda images: leaves[0]), (lambda images: leaves[1])  # type: ignore[method-assign, assignment, misc]
    torch.stack(list(method.training_step(*batches, step).values())).sum().backward()
    for leaf, slow, at in zip(leaves, (of_source, of_target), (z_s, z_t), strict=True):
        np.testing.assert_allclose(leaf.grad, slow_gradient(slow, at), atol=1e-5)  # type: ignore[arg-type]


def test_the_margins_of_a_step_count_in_it_even_if_they_are_not_kept(toy_backbone: nn.Module, batches: Batches) -> None:
    """The gate is closed and nothing was ever kept: weights are still those of this batch."""
    method = made_up(toy_backbone, accuracy_gate=1.0, cut=0.0)
    one, other = (method.training_step(*later(batches, step), 0)["adversarial"].item() for step in (0, 3))
    assert one != other and not method.margins.any()


def test_behind_a_closed_gate_only_the_classifier_learns(toy_backbone: nn.Module, batches: Batches) -> None:
    for gate, learns in ((1.0, False), (0.0, True)):
        method = made_up(toy_backbone, accuracy_gate=gate, cut=0.0)
        losses = method.training_step(*batches, step=100)
        losses["adversarial"].backward(retain_graph=True)
        weights: list[Tensor] = [method.discriminator.layers[0].weight, method.bottleneck.weight]  # type: ignore[list-item]
        for weight in weights:  # there is a gradient to share between processes, but it is 0
            assert weight.grad is not None and bool(weight.grad.any()) == learns
        assert method.watched["gate"]().item() == learns
        losses["closed"].backward()
        assert method.classifier.weight.grad is not None and method.classifier.weight.grad.any()


def test_exactly_six_of_ten_does_not_open_the_gate(toy_backbone: nn.Module, batches: Batches) -> None:
    method = made_up(toy_backbone)
    source, target = batches
    for right, is_open in ((6, False), (7, True)):
        with torch.no_grad():
            guesses = method.logits(method.source_features(source.images[:10])).argmax(dim=1)
        labels = torch.where(torch.arange(10) < right, guesses, (guesses + 1) % CLASSES)
        before = int(method.records)
        method.training_step(source._replace(images=source.images[:10], labels=labels), target, 0)
        assert int(method.records) - before == is_open


def test_the_length_of_a_feature_changes_no_answer(toy_backbone: nn.Module) -> None:
    method = made_up(toy_backbone)
    features = torch.randn(20, NECK, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(method.score(features).logits, method.score(9 * features).logits)
    assert method.score(torch.zeros(2, NECK)).unknown.isfinite().all()


def test_an_image_is_unknown_if_its_largest_probability_is_below_one_half(toy_backbone: nn.Module) -> None:
    method = made_up(toy_backbone)
    features = torch.randn(200, NECK, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        method.classifier.weight.mul_(2)
        scores = method.score(features)
    largest = np.array([softmax(logits_of(method, z)).max() for z in numbers(features)])
    np.testing.assert_allclose(scores.unknown, 1 - largest, atol=1e-5)
    is_unknown = (decided(method, scores) == CLASSES).numpy()
    assert (is_unknown == (largest < 0.5)).all() and 10 < is_unknown.sum() < 190


def test_a_batch_of_one_class_has_finite_losses(toy_backbone: nn.Module, batches: Batches) -> None:
    method = made_up(toy_backbone, accuracy_gate=0.0)
    source, target = batches
    losses = method.training_step(source._replace(labels=torch.zeros_like(source.labels)), target, 10)
    torch.stack(list(losses.values())).sum().backward()
    assert all(loss.isfinite() for loss in losses.values())
    assert all(p.grad is None or p.grad.isfinite().all() for p in method.parameters())


def test_defaults_are_the_released_codes_for_office31() -> None:
    assert dataclasses.asdict(IUANOptions()) == {
        "bottleneck": 256,
        "radius": 2.0,
        "accuracy_gate": 0.6,
        "cut": 1.0,
        "confidence": 0.5,
    }
    config = complete(config_from_options({"method": "iuan", "train": "all"}), has_gpu=True)
    assert (config.training.lr, config.training.steps) == (1e-2, 20_000)


@pytest.mark.parametrize(("option", "value"), [("radius", 0.0), ("accuracy_gate", 1.5), ("cut", -1.0)])
def test_numbers_that_cannot_work_are_refused_by_name(option: str, value: float) -> None:
    with pytest.raises(UserError, match=f"--{option.replace('_', '-')} is {value}"):
        config_from_options({"method": "iuan", option: value})
