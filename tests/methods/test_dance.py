"""DANCE against what its authors' released code does, rule by rule."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from few_steps import Batches, decided, take_steps, turn_of
from torch import Tensor, nn

from unida.config import complete, config_from_options
from unida.losses.neighbourhood import neighbourhood_clustering, similarities_to_others
from unida.methods import METHODS
from unida.methods.base import Problem, Scores
from unida.methods.dance import DANCE
from unida.methods.dance_options import DANCEOptions
from unida.training.optim import build_optimiser

T, IMAGES = 0.05, 14


def made_up(backbone: nn.Module, classes: int = 4, **options: Any) -> DANCE:
    torch.manual_seed(2)
    return DANCE(backbone, Problem(classes, num_target=IMAGES), DANCEOptions(**options))  # type: ignore[arg-type]


@pytest.fixture
def method(toy_backbone: nn.Module) -> DANCE:
    return made_up(toy_backbone)


def entropy_of(logits: list[float]) -> float:
    powers = np.exp(np.array(logits) - max(logits))
    p = powers / powers.sum()
    return float(-(p * np.log(p + 1e-5)).sum())


class Slow:
    """The released step, from the features on, in NumPy and float64. The memory is written after the losses."""

    def __init__(self) -> None:
        self.memory = np.zeros((IMAGES, 8))

    def losses(self, method: DANCE, batches: Batches) -> dict[str, float]:
        source, target = batches
        rows = method.classifier.weight.detach().double().numpy()
        rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        with torch.no_grad():
            of_source, of_target = (method.features(it.images).double().numpy() for it in batches)
        of_source, of_target = (f / np.linalg.norm(f, axis=1, keepdims=True) for f in (of_source, of_target))
        closed, near, apart, seen = [], [], [], target.indices.tolist()
        for feature, label in zip(of_source, source.labels.tolist(), strict=True):
            logits = rows @ feature / T
            closed.append(np.log(np.exp(logits).sum()) - logits[label])
        for i, feature in enumerate(of_target):
            logits = rows @ feature / T
            to_memory = [-1 if n in seen else feature @ row for n, row in enumerate(self.memory)]
            to_batch = [-1 if j == i else feature @ other for j, other in enumerate(of_target)]
            near.append(entropy_of([*logits, *(cosine / T for cosine in (*to_memory, *to_batch))]))
            apart.append(-max(abs(entropy_of(list(logits)) - math.log(4) / 2), 0.5))
        for n, feature in zip(seen, of_target, strict=True):
            self.memory[n] = feature
        return {
            "closed": float(np.mean(closed)),
            "neighbours": float(0.05 * np.mean(near)),
            "separation": float(0.05 * np.mean(apart)),
        }


def shown(batches: Batches, *indices: int) -> Batches:
    """The same images of the target as others of it."""
    return batches[0], batches[1]._replace(indices=torch.tensor(indices))


TURNS = ((3, 1, 4, 13, 5, 9, 2, 6, 8, 7), (0, 10, 11, 12, 3, 1, 4, 13, 5, 9), (9, 5, 13, 4, 1, 3, 12, 11, 10, 0))


def test_losses_and_memory_of_several_steps_are_the_released_ones(method: DANCE, batches: Batches) -> None:
    slow, optimiser = Slow(), torch.optim.SGD(method.parameters(), lr=0.02)
    for step, indices in enumerate(TURNS):
        given = shown(batches, *indices)
        expected = slow.losses(method, given)
        losses = method.training_step(*given, step=step)
        assert {name: loss.item() for name, loss in losses.items()} == pytest.approx(expected, rel=2e-4)
        np.testing.assert_allclose(method.memory.rows.numpy(), slow.memory, atol=1e-5)
        sum(losses.values()).backward()  # type: ignore[union-attr]
        optimiser.step()
        optimiser.zero_grad()
    assert min(abs(value) for value in expected.values()) > 0.001  # none of them is idle


def test_the_memory_starts_with_zeros_and_a_step_fills_its_own_rows(method: DANCE, batches: Batches) -> None:
    assert not method.memory.rows.any()
    method.training_step(*batches, step=0)
    assert method.memory.rows.any(dim=1).tolist() == [True] * 10 + [False] * 4
    assert not any(key.startswith("memory") for key in method.state_dict() if not key.startswith(method.run_only))


def test_eta_weighs_the_losses_of_the_target(toy_backbone: nn.Module, batches: Batches) -> None:
    def losses(**options: float) -> dict[str, float]:
        return {n: loss.item() for n, loss in made_up(toy_backbone, **options).training_step(*batches, step=0).items()}

    usual, doubled = losses(), losses(target_weight=0.1)
    expected = {name: value * (1 if name == "closed" else 2) for name, value in usual.items()}
    assert doubled == pytest.approx(expected, rel=1e-5)
    assert losses(margin=1.5)["separation"] == pytest.approx(-0.05 * 1.5)  # no entropy is that far away


def test_the_memory_has_its_momentum(toy_backbone: nn.Module, batches: Batches) -> None:
    method = made_up(toy_backbone, memory_momentum=0.5)
    method.training_step(*batches, step=0)
    before = method.memory.rows.clone()
    others = batches[1]._replace(images=1 - batches[1].images)
    method.training_step(batches[0], others, step=1)
    with torch.no_grad():
        new = nn.functional.normalize(method.features(others.images), dim=1)
    torch.testing.assert_close(method.memory.rows[:10], nn.functional.normalize(before[:10] + new, dim=1))


def test_class_rows_have_unit_length_whenever_a_step_uses_them(method: DANCE, batches: Batches) -> None:
    lengths: list[Tensor] = []
    method.classifier.register_forward_pre_hook(lambda head, _: lengths.append(head.weight.detach().norm(dim=1)))
    take_steps(method, batches, steps=3)
    assert len(lengths) == 6  # source and target, three times
    for length in lengths:
        torch.testing.assert_close(length, torch.ones(4))
    assert (method.classifier.weight.detach().norm(dim=1) - 1).abs().max() > 1e-4  # not after the last step


def test_scoring_does_not_normalise_rows(method: DANCE) -> None:
    with torch.no_grad():
        method.classifier.weight.mul_(3)
    before = method.classifier.weight.detach().clone()
    features = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    scores = method.score(features)
    assert torch.equal(method.classifier.weight, before)
    for feature, logits in zip(features, scores.logits, strict=True):
        torch.testing.assert_close(logits, before @ feature / feature.norm() / T)


def test_an_image_is_unknown_if_its_entropy_is_above_half_of_log_c(method: DANCE) -> None:
    features = torch.randn(400, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        method.classifier.weight.mul_(0.6)  # softer: entropies on both sides
    scores = method.score(features)
    entropies = torch.tensor([-sum(p * math.log(p) for p in row) for row in scores.logits.softmax(dim=1).tolist()])
    expected = torch.where(entropies > math.log(4) / 2, 4, scores.logits.argmax(dim=1))
    assert torch.equal(decided(method, scores), expected)
    assert 20 < (expected == 4).sum() < 380
    order = entropies.argsort()
    assert (scores.unknown[order].diff() >= -1e-6).all()  # the score rises with the entropy


def test_certain_images_are_known_and_no_nan(method: DANCE) -> None:
    with torch.no_grad():
        method.classifier.weight.mul_(1e6)
    scores = method.score(torch.randn(5, 8))
    assert scores.unknown.tolist() == [0.0] * 5  # the released test has 0 · log 0 here
    half = Scores(torch.zeros(1, 4), torch.tensor([0.5]))
    assert decided(method, half).tolist() == [0]  # exactly ρ is known


@pytest.mark.parametrize(
    ("classes", "rho"), [(10, 1.15), (20, 1.49), (31, 1.71), (15, 1.354), (65, 2.09), (9, 1.09), (6, 0.895)]
)
def test_the_threshold_is_that_of_the_released_configs(toy_backbone: nn.Module, classes: int, rho: float) -> None:
    assert made_up(toy_backbone, classes=classes).threshold == pytest.approx(rho, abs=0.01)
    changed = made_up(toy_backbone, classes=classes, entropy_threshold=0.25)
    assert changed.threshold == pytest.approx(rho / 2, abs=0.01) and changed.unknown_threshold == 0.25


def test_the_domains_pass_the_backbone_apart_and_share_kept_statistics(method: DANCE, batches: Batches) -> None:
    method.training_step(*batches, step=0)
    seen = method.backbone.seen
    assert len(seen) == 2
    assert torch.equal(seen[0], batches[0].images) and torch.equal(seen[1], batches[1].images)
    running = torch.zeros(8)
    with torch.no_grad():
        for images in seen:
            running = 0.9 * running + 0.1 * method.backbone.conv(images).mean(dim=(0, 2, 3))  # type: ignore[operator]
    torch.testing.assert_close(method.backbone.norm.running_mean, running)


@pytest.mark.parametrize("loss", ["neighbours", "separation"])
def test_gradients_of_the_target_reach_backbone_and_classes(method: DANCE, batches: Batches, loss: str) -> None:
    method.training_step(*batches, step=0)[loss].backward()
    for part in (method.classifier.weight, method.backbone.conv.weight):
        assert part.grad is not None and part.grad.abs().max() > 0


def test_an_image_is_moved_as_a_neighbour_of_others_too(method: DANCE, batches: Batches) -> None:
    """Gradients flow to both images of a pair in the batch."""
    features = nn.functional.normalize(method.features(batches[1].images), dim=1)
    method.classifier.normalise_rows()
    memory, indices = torch.zeros(IMAGES, 8), batches[1].indices
    similarities = similarities_to_others(features, indices, features, indices, memory, T)
    (0.05 * neighbourhood_clustering(method.classifier(features), similarities)).backward()
    expected = method.backbone.conv.weight.grad.clone()  # type: ignore[union-attr]
    method.zero_grad()
    method.training_step(*batches, step=0)["neighbours"].backward()
    torch.testing.assert_close(method.backbone.conv.weight.grad, expected, rtol=1e-4, atol=1e-8)


def test_a_batch_that_shows_one_image_twice_is_fine(method: DANCE, batches: Batches) -> None:
    """A target smaller than a batch: the two views are no neighbours."""
    small = DANCE(method.backbone, Problem(4, num_target=5), DANCEOptions())
    losses = take_steps(small, shown(batches, *(list(range(5)) * 2)), steps=3)
    assert all(math.isfinite(value) for step in losses for value in step.values())
    assert torch.equal(small.memory.rows.norm(dim=1).round(decimals=4), torch.ones(5))


def test_defaults_are_the_released_codes(method: DANCE) -> None:
    assert dataclasses.asdict(DANCEOptions()) == {
        "target_weight": 0.05,
        "temperature": 0.05,
        "entropy_threshold": 0.5,
        "margin": 0.5,
        "memory_momentum": 0.0,
    }
    (phase,), card = method.phases(), METHODS["dance"]
    (turn,) = phase.turns
    assert (card.lr, card.steps) == (0.01, 10_000)
    assert (turn.optimiser, turn.decay, phase.source, phase.target) == ("sgd", 10, "balanced", True)
    config = complete(config_from_options({"method": "dance", "regime": "published"}), has_gpu=True)
    optimiser = build_optimiser(turn_of(method), config.training)
    assert [group["lr"] for group in optimiser.param_groups] == pytest.approx([0.001, 0.01])
