"""The re-implementation of Zhu & Li: its step against loops, and what its abstract promises."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from few_steps import Batches, decided, take_steps, with_wanted
from torch import nn

from unida.losses.memory_areas import COMMON, UNCERTAIN, UNKNOWN
from unida.methods import METHODS
from unida.methods.base import Problem
from unida.methods.listing import method_lines
from unida.methods.zhu import STRONG, Zhu
from unida.methods.zhu_options import ZhuOptions

T, IMAGES, RHO = 0.05, 14, math.log(4) / 2


def made_up(backbone: nn.Module, **options: Any) -> Zhu:
    torch.manual_seed(2)
    return Zhu(backbone, Problem(4, num_target=IMAGES), ZhuOptions(**options))  # type: ignore[arg-type]


@pytest.fixture
def method(toy_backbone: nn.Module) -> Zhu:
    """Its classifier is softer than in a run, so that the toy's images lie in all areas."""
    return made_up(toy_backbone, margin=0.2)


def shown(method: Zhu, batches: Batches, step: int, *indices: int) -> Batches:
    """The same images of the target as others of it, with what the method wants."""
    source, target = with_wanted(method, batches, step)
    return source, target._replace(indices=torch.tensor(indices))


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max())
    return np.asarray(powers / powers.sum())


def entropy_of(logits: np.ndarray) -> float:
    p = softmax(logits)
    return float(-(p * np.log(p + 1e-5)).sum())


def area_of(logits: np.ndarray, margin: float) -> int:
    entropy = entropy_of(logits)
    return COMMON if entropy < RHO - margin else UNKNOWN if entropy > RHO + margin else UNCERTAIN


class Slow:
    """A step from the features on, in NumPy and float64."""

    def __init__(self) -> None:
        self.memory: dict[int, np.ndarray] = {}  # images that were not seen are not in it
        self.centres: dict[int, np.ndarray] = {}
        self.areas_met: set[int] = set()

    def losses(self, method: Zhu, batches: Batches) -> dict[str, float]:
        source, target = batches
        rows = method.classifier.weight.detach().double().numpy()
        rows = rows / np.linalg.norm(rows, axis=1, keepdims=True) / T
        images = (source.images, target.images, target.extra[STRONG].images)
        with torch.no_grad():
            features = [method.features(it).double().numpy() for it in images]
        of_source, weak, strong = (f / np.linalg.norm(f, axis=1, keepdims=True) for f in features)
        labels, indices = source.labels.numpy(), target.indices.tolist()
        for k in np.unique(labels):
            mean = of_source[labels == k].mean(axis=0)
            moved = 0.9 * self.centres.get(k, 0) + 0.1 * mean / np.linalg.norm(mean)
            self.centres[k] = moved / np.linalg.norm(moved)
        self.memory |= dict(zip(indices, weak, strict=True))
        near, alike = [], []
        for n, feature, other in zip(indices, weak, strong, strict=True):
            near.append(entropy_of(np.array(self.neighbours(rows, n, feature, method.options.margin)) / T))
            p, q = softmax(rows @ feature), softmax(rows @ other)
            alike.append((p * np.log(p / q)).sum())
        closed = [-np.log(softmax(rows @ f)[label]) for f, label in zip(of_source, labels, strict=True)]
        return {
            "closed": float(np.mean(closed)),
            "neighbours": float(0.05 * np.mean(near)),
            "consistency": float(0.05 * np.mean(alike)),
        }

    def neighbours(self, rows: np.ndarray, n: int, feature: np.ndarray, margin: float) -> list[float]:
        """Cosines to all that the image may be drawn to."""
        own = area_of(rows @ feature, margin)
        self.areas_met.add(own)
        found = [] if own == UNKNOWN else [feature @ centre for centre in self.centres.values()]
        for other, row in self.memory.items():
            if other != n and (own == UNCERTAIN or area_of(rows @ row, margin) == own):
                found.append(feature @ row)
        return found


TURNS = ((3, 1, 4, 13, 5, 9, 2, 6, 8, 7), (0, 10, 11, 12, 3, 1, 4, 13, 5, 9), (9, 5, 13, 4, 1, 3, 12, 11, 10, 0))


def test_several_steps_are_the_slow_ones(method: Zhu, batches: Batches) -> None:
    slow, optimiser = Slow(), torch.optim.SGD(method.parameters(), lr=0.02)
    for step, indices in enumerate(TURNS):
        given = shown(method, batches, step, *indices)
        expected = slow.losses(method, given)
        losses = method.training_step(*given, step=step)
        assert {name: loss.item() for name, loss in losses.items()} == pytest.approx(expected, rel=1e-3)
        for n, row in slow.memory.items():
            np.testing.assert_allclose(method.memory.rows[n].numpy(), row, atol=1e-5)
        for k, centre in slow.centres.items():
            np.testing.assert_allclose(method.centres[k].numpy(), centre, atol=1e-5)
        sum(losses.values()).backward()  # type: ignore[union-attr]
        optimiser.step()
        optimiser.zero_grad()
    assert slow.areas_met == {COMMON, UNCERTAIN, UNKNOWN}
    assert min(expected.values()) > 1e-4  # none of them is idle


def test_an_image_alone_in_the_unknown_area_has_no_neighbour(toy_backbone: nn.Module, batches: Batches) -> None:
    method = made_up(toy_backbone, entropy_threshold=0.0, margin=0.0)  # everything is unknown
    source, target = with_wanted(method, batches, 0)
    extra = {STRONG: target.extra[STRONG]._replace(images=target.extra[STRONG].images[:2])}
    alone = target._replace(images=target.images[:2], indices=torch.tensor([6, 6]), extra=extra)
    losses = method.training_step(source, alone, step=0)
    assert losses["neighbours"].item() == 0
    sum(losses.values()).backward()  # type: ignore[union-attr]
    assert all(p.grad is None or p.grad.isfinite().all() for p in method.parameters())
    assert [number().item() for number in method.watched.values()] == [0.0, 1.0]  # common, unknown


def test_areas_of_the_memory_follow_the_classifier(method: Zhu, batches: Batches) -> None:
    given = with_wanted(method, batches, 0)
    method.training_step(*given, step=0)
    before = method._areas(method.classifier(method.memory.rows))
    with torch.no_grad():
        method.classifier.weight.mul_(-1)
    assert not torch.equal(method._areas(method.classifier(method.memory.rows)), before)


def test_the_strong_view_follows_the_weak_one(method: Zhu, batches: Batches) -> None:
    """And each of three passes has statistics of its own."""
    source, target = with_wanted(method, batches, 0)
    method.training_step(source, target, step=0)["consistency"].backward()
    images = (source.images, target.images, target.extra[STRONG].images)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(method.backbone.seen, images, strict=True))
    assert method.backbone.conv.weight.grad.abs().max() > 0  # type: ignore[union-attr]
    method.zero_grad()
    same = target._replace(extra={STRONG: target.extra[STRONG]._replace(images=target.images)})
    loss = method.training_step(source, same, step=0)["consistency"]
    loss.backward()
    assert loss.item() == pytest.approx(0, abs=1e-6)
    assert method.classifier.weight.grad.abs().max() < 1e-6  # type: ignore[union-attr]


def test_weights_weigh_their_own_loss(toy_backbone: nn.Module, batches: Batches) -> None:
    def losses(**options: float) -> dict[str, float]:
        method = made_up(toy_backbone, **options)
        return {n: loss.item() for n, loss in method.training_step(*with_wanted(method, batches, 0), 0).items()}

    usual = losses()
    assert losses(cluster_weight=0.1) == pytest.approx({**usual, "neighbours": 2 * usual["neighbours"]}, rel=1e-4)
    assert losses(consistency_weight=0.2) == pytest.approx({**usual, "consistency": 4 * usual["consistency"]}, rel=1e-4)


def test_an_image_is_unknown_if_its_entropy_is_above_half_of_log_c(method: Zhu) -> None:
    with torch.no_grad():
        method.classifier.weight.mul_(0.6)  # softer: entropies on both sides
    scores = method.score(torch.randn(300, 8, generator=torch.Generator().manual_seed(0)))
    entropies = torch.tensor([-sum(p * math.log(p) for p in row) for row in scores.logits.softmax(dim=1).tolist()])
    expected = torch.where(entropies > RHO, 4, scores.logits.argmax(dim=1))
    assert torch.equal(decided(method, scores), expected) and 20 < (expected == 4).sum() < 280


def test_a_target_smaller_than_a_batch_is_fine(method: Zhu, batches: Batches) -> None:
    small = Zhu(method.backbone, Problem(4, num_target=5), ZhuOptions())
    losses = take_steps(small, shown(small, batches, 0, *(list(range(5)) * 2)), steps=3)
    assert all(math.isfinite(value) for step in losses for value in step.values())


def test_it_says_that_it_is_a_re_implementation() -> None:
    card = METHODS["zhu"]
    assert card.title.startswith("Re-implementation from its abstract")
    assert f"  {card.title}" in method_lines()
    assert "re-implementation" in ((Zhu.__module__ and __import__(Zhu.__module__, fromlist=["Zhu"]).__doc__) or "")
    assert dataclasses.asdict(ZhuOptions()) == {
        "cluster_weight": 0.05,
        "consistency_weight": 0.05,
        "temperature": 0.05,
        "entropy_threshold": 0.5,
        "margin": 0.5,
        "centre_momentum": 0.9,
        "memory_momentum": 0.0,
    }
