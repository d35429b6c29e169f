"""DANN against what TLlib's version for open sets does, rule by rule."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from few_steps import Batches, decided
from slow_parts import cross_entropy, domain_loss, is_source, linear, numbers, slow_gradient, softmax
from torch import Tensor, nn

from unida.config import complete, config_from_options
from unida.errors import UserError
from unida.methods.base import Problem
from unida.methods.dann import DANN
from unida.methods.dann_options import DANNOptions
from unida.models.discriminator import Discriminator

NECK, CLASSES, STEPS = 3, 4, 300


def made_up(backbone: Any, **options: Any) -> DANN:
    """With a small discriminator without BatchNorm, which the slow version can follow image by image."""
    torch.manual_seed(2)
    method = DANN(backbone, Problem(CLASSES, steps=STEPS), DANNOptions(**{"bottleneck": NECK, **options}))
    method.discriminator = Discriminator(NECK, hidden=6, dropout=0)
    return method


@pytest.fixture
def method(toy_backbone: nn.Module) -> DANN:
    """With fixed statistics."""
    return made_up(toy_backbone).eval()


def slow_losses(method: DANN, z_s: np.ndarray, z_t: np.ndarray, labels: list[int]) -> dict[str, float]:
    of_source, of_target = ([is_source(method.discriminator, z) for z in rows] for rows in (z_s, z_t))
    ones = [1.0] * len(z_s), [1.0] * len(z_t)
    return {
        "closed": cross_entropy([linear(method.classifier, z) for z in z_s], labels),  # over C + 1
        "adversarial": 0.5 * domain_loss(of_source, of_target, *ones),
    }


def test_both_domains_pass_at_once_and_share_statistics(toy_backbone: Any, batches: Batches) -> None:
    """The losses of a step in training mode, where BatchNorm has the means and variances of both domains together."""
    method = made_up(toy_backbone).train()
    found = {name: loss.item() for name, loss in method.training_step(*batches, step=0).items()}
    seen: list[Tensor] = method.backbone.seen  # type: ignore[assignment]
    images = torch.cat([batches[0].images, batches[1].images])
    assert len(seen) == 1 and torch.equal(seen[0], images)
    layers: Any = method.bottleneck
    with torch.no_grad():
        features = numbers(toy_backbone(images))
    values = np.array([linear(layers[0], row) for row in features])
    z = np.maximum((values - values.mean(axis=0)) / np.sqrt(values.var(axis=0) + layers[1].eps), 0)
    assert found == pytest.approx(slow_losses(method, z[:12], z[12:], batches[0].labels.tolist()), rel=1e-4)


@pytest.mark.parametrize("step", [0, 20])
def test_gradients_are_the_slow_ones_reversed_by_the_ramp(method: DANN, batches: Batches, step: int) -> None:
    """The exponent is that of the same place in TLlib's 10,000 steps, where it is t / 1000."""
    labels = batches[0].labels.tolist()
    z = abs(np.random.default_rng(0).normal(size=(22, NECK)))
    ramp = 2 / (1 + math.exp(-(step * 10_000 / STEPS) / 1000)) - 1

    def goal(rows: np.ndarray) -> float:
        losses = slow_losses(method, rows[:12], rows[12:], labels)
        return losses["closed"] - ramp * losses["adversarial"]

    leaf = torch.tensor(z, dtype=torch.float32, requires_grad=True)
    method.bottleneck.forward = lambda features: leaf  # type: ignore[method-assign, assignment, misc]
    losses = method.training_step(*batches, step)
    torch.stack(list(losses.values())).sum().backward()
    np.testing.assert_allclose(leaf.grad, slow_gradient(goal, z), atol=1e-5)  # type: ignore[arg-type]
    assert (ramp > 0) == (step > 0)
    assert method.discriminator.layers[-1].weight.grad.any()  # D learns from the first step on


def test_a_weight_scales_the_loss_of_the_discriminator(toy_backbone: nn.Module, batches: Batches) -> None:
    once, thrice = (made_up(toy_backbone, domain_weight=w).eval().training_step(*batches, step=5) for w in (1.0, 3.0))
    assert thrice["adversarial"].item() == pytest.approx(3 * once["adversarial"].item(), rel=1e-6)
    assert thrice["closed"].item() == once["closed"].item()


def answered(method: DANN) -> tuple[np.ndarray, np.ndarray]:
    """The answers to 300 images, and the C + 1 outputs of the classifier."""
    features = 3 * torch.randn(300, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        method.classifier.weight.mul_(6)
        outputs = numbers(method.classifier(method.bottleneck(features)))
        return decided(method, method.score(features)).numpy(), outputs


@pytest.mark.parametrize("threshold", [0.9, 0.6])
def test_max_prob_puts_the_threshold_in_the_dummys_place(toy_backbone: nn.Module, threshold: float) -> None:
    """The known probabilities are not renormalised; the dummy itself is never the answer."""
    found, outputs = answered(made_up(toy_backbone, probability_threshold=threshold).eval())
    p = np.array([softmax(row) for row in outputs])
    clear = abs(p[:, :CLASSES].max(axis=1) - threshold) > 1e-5
    p[:, CLASSES] = threshold
    np.testing.assert_array_equal(found[clear], p.argmax(axis=1)[clear])
    assert clear.sum() > 290 and 30 < (found == CLASSES).sum() < 270


def test_entropy_is_over_the_classes_without_the_dummy(toy_backbone: nn.Module) -> None:
    method = made_up(toy_backbone, rejection="entropy", entropy_threshold=0.4).eval()
    found, outputs = answered(method)
    shares = []
    for row in outputs:
        p = softmax(row[:CLASSES])
        shares.append(sum(-x * math.log(x) for x in p if x > 0) / math.log(CLASSES))
    expected = np.where(np.array(shares) > 0.4, CLASSES, outputs[:, :CLASSES].argmax(axis=1))
    clear = abs(np.array(shares) - 0.4) > 1e-5
    np.testing.assert_array_equal(found[clear], expected[clear])
    assert clear.sum() > 290 and 30 < (found == CLASSES).sum() < 270 and method.unknown_threshold == 0.4


def test_with_a_threshold_at_its_end_no_image_is_unknown(toy_backbone: nn.Module) -> None:
    """For targets without unknown images."""
    for options in ({"probability_threshold": 0.0}, {"rejection": "entropy", "entropy_threshold": 1.0}):
        found, _ = answered(made_up(toy_backbone, **options).eval())
        assert found.max() < CLASSES


def test_a_batch_of_equal_images_has_finite_losses_and_gradients(toy_backbone: Any, batches: Batches) -> None:
    method = DANN(toy_backbone, Problem(CLASSES, steps=STEPS), DANNOptions(bottleneck=NECK))
    same = [batch._replace(images=torch.ones_like(batch.images)) for batch in batches]
    losses = method.training_step(*same, step=20)  # type: ignore[arg-type]
    torch.stack(list(losses.values())).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in method.parameters())


def test_defaults_are_tllibs_for_office31(toy_backbone: Any) -> None:
    method = DANN(toy_backbone, Problem(CLASSES), DANNOptions())
    assert [type(layer) for layer in method.bottleneck] == [nn.Linear, nn.BatchNorm1d, nn.ReLU]
    assert method.classifier.weight.shape == (CLASSES + 1, 256)
    kinds = [nn.Linear, nn.BatchNorm1d, nn.ReLU]
    assert [type(layer) for layer in method.discriminator.layers] == [*kinds, *kinds, nn.Linear]
    assert method.discriminator.layers[0].weight.shape == (1024, 256)
    options = {"rejection": "max-prob", "probability_threshold": 0.9, "entropy_threshold": 0.5}
    assert dataclasses.asdict(DANNOptions()) == {**options, "domain_weight": 1.0, "bottleneck": 256}
    assert method.unknown_threshold == pytest.approx(0.1)
    config = complete(config_from_options({"method": "dann", "train": "all"}), has_gpu=True)
    assert (config.training.lr, config.training.steps) == (2e-3, 10_000)
    assert config.training.backbone_lr == pytest.approx(2e-4)
    assert complete(config_from_options({"method": "dann"}), has_gpu=False).training.lr == 1e-2  # 300 steps
    (phase,) = method.phases()
    (turn,) = phase.turns
    assert (turn.decay, phase.source, phase.target) == (10, "shuffled", True)


@pytest.mark.parametrize(
    ("option", "value"), [("probability_threshold", 1.5), ("entropy_threshold", -0.1), ("domain_weight", -1.0)]
)
def test_numbers_that_cannot_work_are_refused_by_name(option: str, value: float) -> None:
    with pytest.raises(UserError, match=f"--{option.replace('_', '-')} is {value}"):
        config_from_options({"method": "dann", option: value})
