"""OSBP against what TLlib's version does, rule by rule."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from few_steps import Batches, decided
from slow_parts import cross_entropy, linear, numbers, slow_gradient, softmax
from torch import Tensor, nn

from unida.config import complete, config_from_options
from unida.errors import UserError
from unida.methods.base import Problem
from unida.methods.osbp import OSBP
from unida.methods.osbp_options import OSBPOptions

NECK, CLASSES = 5, 4


def made_up(backbone: Any, **options: Any) -> OSBP:
    torch.manual_seed(2)
    method = OSBP(backbone, Problem(CLASSES, steps=300), OSBPOptions(**{"bottleneck": NECK, **options}))
    for layer in method.bottleneck:  # BatchNorm that does something
        if isinstance(layer, nn.BatchNorm1d):
            nn.init.uniform_(layer.weight, 0.5, 2.0)
            nn.init.normal_(layer.bias)
            nn.init.normal_(layer.running_mean)  # type: ignore[arg-type]
    return method


@pytest.fixture
def method(toy_backbone: nn.Module) -> OSBP:
    """Without dropout and with fixed statistics: what a step computes can be followed."""
    return made_up(toy_backbone).eval()


def slow_z(method: OSBP, row: np.ndarray) -> np.ndarray:
    """Of one image: Linear, BatchNorm with kept statistics and ReLU, twice."""
    layers: Any = method.bottleneck
    for first, norm in ((layers[0], layers[1]), (layers[4], layers[5])):
        row = (linear(first, row) - numbers(norm.running_mean)) / np.sqrt(numbers(norm.running_var) + norm.eps)
        row = np.maximum(row * numbers(norm.weight) + numbers(norm.bias), 0)
    return row


def slow_boundary(rows: list[np.ndarray], t: float = 0.5) -> float:
    p = [softmax(row)[CLASSES] for row in rows]
    return float(np.mean([-t * math.log(x + 1e-6) - (1 - t) * math.log(1 - x + 1e-6) for x in p]))


@pytest.mark.parametrize("boundary", [0.5, 0.8])
def test_the_losses_are_the_papers_sum(toy_backbone: nn.Module, batches: Batches, boundary: float) -> None:
    method = made_up(toy_backbone, boundary=boundary).eval()
    source, target = batches
    with torch.no_grad():
        f_s, f_t = numbers(method.features(source.images)), numbers(method.features(target.images))
    answers = [[linear(method.classifier, slow_z(method, row)) for row in rows] for rows in (f_s, f_t)]
    expected = {
        "closed": cross_entropy(answers[0], source.labels.tolist()),
        "boundary": slow_boundary(answers[1], boundary),
    }
    found = {name: loss.item() for name, loss in method.training_step(*batches, step=0).items()}
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("step", [0, 200])
def test_the_classifier_goes_to_the_boundary_and_features_leave_it(method: OSBP, batches: Batches, step: int) -> None:
    """Gradients of z_t are turned around, with the coefficient 1 in every step; all others are as they are."""
    draw = np.random.default_rng(0)
    z = {"source": abs(draw.normal(size=(12, NECK))), "target": abs(draw.normal(size=(10, NECK)))}
    labels, bias = batches[0].labels.tolist(), numbers(method.classifier.bias)

    def closed(z_s: np.ndarray) -> float:
        return cross_entropy([linear(method.classifier, row) for row in z_s], labels)

    def boundary(z_t: np.ndarray, weight: np.ndarray) -> float:
        return slow_boundary([weight @ row + bias for row in z_t])

    weight = numbers(method.classifier.weight)
    leaves = {domain: torch.tensor(rows, dtype=torch.float32, requires_grad=True) for domain, rows in z.items()}
    method._z = lambda features, domain: leaves[domain]  # type: ignore[method-assign]
    losses = method.training_step(*batches, step)
    losses["boundary"].backward()
    expected = slow_gradient(lambda w: boundary(z["target"], w), weight)
    np.testing.assert_allclose(method.classifier.weight.grad, expected, atol=1e-5)  # type: ignore[arg-type]
    assert leaves["source"].grad is None
    expected = -slow_gradient(lambda rows: boundary(rows, weight), z["target"])
    np.testing.assert_allclose(leaves["target"].grad, expected, atol=1e-5)  # type: ignore[arg-type]
    losses["closed"].backward()
    np.testing.assert_allclose(leaves["source"].grad, slow_gradient(closed, z["source"]), atol=1e-5)  # type: ignore[arg-type]


def test_an_image_is_unknown_if_that_is_the_largest_output(method: OSBP) -> None:
    features = 3 * torch.randn(200, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        outputs = method.classifier(method.bottleneck(features))
        method.classifier.bias.sub_(outputs.mean(dim=0))  # so that every output is the largest one for some images
        scores = method.score(features)
    answers = np.array([linear(method.classifier, slow_z(method, row)) for row in numbers(features)])
    expected = answers.argmax(axis=1)  # the last is "unknown"
    np.testing.assert_array_equal(decided(method, scores), expected)
    assert 10 < (expected == CLASSES).sum() < 190
    np.testing.assert_allclose(scores.logits, answers[:, :CLASSES], atol=1e-4)


def test_the_domains_pass_apart_and_dropout_is_for_training_alone(method: OSBP, batches: Batches) -> None:
    method.train()
    first = method.training_step(*batches, step=0)
    seen: list[Tensor] = method.backbone.seen  # type: ignore[assignment]
    assert len(seen) == 2
    assert torch.equal(seen[0], batches[0].images) and torch.equal(seen[1], batches[1].images)
    assert first["closed"].item() != method.training_step(*batches, step=0)["closed"].item()
    features = method.eval().features(batches[1].images)
    assert torch.equal(method.score(features).unknown, method.score(features).unknown)


def test_a_batch_of_equal_images_has_finite_losses_and_gradients(method: OSBP, batches: Batches) -> None:
    same = [batch._replace(images=torch.ones_like(batch.images)) for batch in batches]
    losses = method.train().training_step(*same, step=20)  # type: ignore[arg-type]
    torch.stack(list(losses.values())).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in method.parameters())


def test_defaults_are_tllibs_for_office31(toy_backbone: Any) -> None:
    method = OSBP(toy_backbone, Problem(CLASSES), OSBPOptions())
    kinds = [nn.Linear, nn.BatchNorm1d, nn.ReLU, nn.Dropout]
    assert [type(layer) for layer in method.bottleneck] == 2 * kinds
    layers: Any = method.bottleneck
    assert layers[0].weight.shape == (256, 8) and layers[4].weight.shape == (256, 256)
    assert layers[3].p == layers[7].p == 0.5 and method.classifier.weight.shape == (CLASSES + 1, 256)
    assert dataclasses.asdict(OSBPOptions()) == {"boundary": 0.5, "bottleneck": 256}
    config = complete(config_from_options({"method": "osbp", "train": "all"}), has_gpu=True)
    assert (config.training.lr, config.training.steps) == (1e-3, 10_000)
    assert config.training.backbone_lr == pytest.approx(1e-4)
    (phase,) = method.phases()
    (turn,) = phase.turns
    assert (turn.decay, phase.source, phase.target) == (3, "shuffled", True)


@pytest.mark.parametrize(("option", "value"), [("boundary", 0.0), ("boundary", 1.0), ("bottleneck", 0)])
def test_numbers_that_cannot_work_are_refused_by_name(option: str, value: float) -> None:
    with pytest.raises(UserError, match=f"--{option} is {value}"):
        config_from_options({"method": "osbp", option: value})
