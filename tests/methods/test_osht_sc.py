"""The re-implementation of OSHT-SC: its steps against loops, and what its abstract promises."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from few_steps import Batches, Looking, decided, phases_of, with_wanted
from torch import nn

from unida.losses.pseudo_labels import NO_LABEL
from unida.methods import METHODS
from unida.methods.base import Problem, TargetBatch
from unida.methods.listing import method_lines
from unida.methods.osht_sc import OSHTSC, STRONG
from unida.methods.osht_sc_options import OSHTSCOptions

C, K, STEPS, LATER = 4, 3, 40, 20  # the target's part begins at step 20


def made_up(backbone: nn.Module, steps: int = STEPS, **options: Any) -> OSHTSC:
    torch.manual_seed(2)
    problem = Problem(C, num_source=12, num_target=10, steps=steps)
    return OSHTSC(backbone, problem, OSHTSCOptions(**{"bottleneck": 6, "unknown_outputs": K, **options}))  # type: ignore[arg-type]


@pytest.fixture
def method(toy_backbone: nn.Module) -> OSHTSC:
    return made_up(toy_backbone).train()


class NoSource(Looking):
    """A sweep over the target that has no source to give."""

    def __init__(self, method: OSHTSC, target: TargetBatch) -> None:
        self.method, self.of = method, {"target": target}


def labelled(method: OSHTSC, batches: Batches) -> OSHTSC:
    """After the first round of the target's part."""
    work = phases_of(method)[1].round
    assert work is not None
    with torch.no_grad():
        work.work(LATER, NoSource(method.eval(), batches[1]))
    return method.train()


def softmax(row: np.ndarray) -> np.ndarray:
    return np.asarray(np.exp(row) / np.exp(row).sum())


def logits_of(method: OSHTSC, images: torch.Tensor) -> np.ndarray:
    with torch.no_grad():
        return method.head(method.features(images)).joined.double().numpy()


def test_the_source_step_is_a_smoothed_cross_entropy_of_known_outputs(method: OSHTSC, batches: Batches) -> None:
    loss = method.source_step(*batches, 0)["closed"]
    expected = []
    for row, label in zip(logits_of(method, batches[0].images)[:, :C], batches[0].labels.tolist(), strict=True):
        wanted = np.full(C, 0.1 / C)
        wanted[label] += 0.9
        expected.append(-(wanted * np.log(softmax(row))).sum())
    assert loss.item() == pytest.approx(np.mean(expected), rel=1e-5)


def test_pseudo_labels_are_of_the_surest_and_of_the_least_sure(method: OSHTSC, batches: Batches) -> None:
    with torch.no_grad():
        for part in (method.bottleneck, method.head.known):
            part.weight.mul_(20)  # entropies of all sizes, several best classes
    labelled(method, batches)
    known = logits_of(method.eval(), batches[1].images)[:, :C]
    entropies = np.array([-(softmax(row) * np.log(softmax(row))).sum() for row in known])
    expected = np.full(10, NO_LABEL)
    for k in np.unique(known.argmax(axis=1)):
        order = sorted(np.flatnonzero(known.argmax(axis=1) == k), key=lambda n: entropies[n])
        ordered = entropies[order]
        if len(order) < 2:
            continue
        cut = min(range(1, len(order)), key=lambda n: n * ordered[:n].var() + (len(ordered) - n) * ordered[n:].var())
        low, high = ordered[:cut], ordered[cut:]
        count = min((low <= low.mean() + 1e-9).sum(), (high >= high.mean() - 1e-9).sum())
        expected[order[:count]], expected[order[-count:]] = k, C
    assert method.pseudo_labels.tolist() == expected.tolist()
    assert C in expected and NO_LABEL in expected


def test_the_target_step_is_the_slow_one(method: OSHTSC, batches: Batches) -> None:
    method.pseudo_labels.copy_(torch.tensor([1, C, NO_LABEL, 0, C, NO_LABEL, NO_LABEL, 3, C, 2]))
    with torch.no_grad():
        for part in (method.bottleneck, method.head.known, method.head.negative):
            part.weight.mul_(10)  # answers that differ
    source, target = with_wanted(method, batches, LATER)
    losses = method.target_step(source, target, LATER)
    views = (target.images, target.extra[STRONG].images)
    weak, strong = (np.array([softmax(row) for row in logits_of(method, images)]) for images in views)
    costs = []
    for p, label in zip(weak, method.pseudo_labels.tolist(), strict=True):
        if label != NO_LABEL:
            costs.append(-math.log(p[C:].sum() if label == C else p[label]))
    joint = sum(np.outer(p, q) + np.outer(q, p) for p, q in zip(weak, strong, strict=True)) / (2 * len(weak))
    information = (joint * np.log(joint / np.outer(joint.sum(axis=1), joint.sum(axis=0)))).sum()
    expected = {"pseudo": np.mean(costs), "consistency": -0.3 * information}
    assert {name: loss.item() for name, loss in losses.items()} == pytest.approx(expected, rel=1e-4)
    assert information > 0.01
    assert method.watched["labelled"]().item() == pytest.approx(0.7)


def test_without_a_pseudo_label_consistency_is_learnt_alone(method: OSHTSC, batches: Batches) -> None:
    losses = method.target_step(*with_wanted(method, batches, LATER), LATER)
    assert losses["pseudo"].item() == 0
    sum(losses.values()).backward()  # type: ignore[union-attr]
    assert all(p.grad is None or p.grad.isfinite().all() for p in method.parameters())


def test_the_sources_hypothesis_stays(method: OSHTSC) -> None:
    """On the source, unknown outputs do not learn; on the target, known ones do not."""
    names = {id(p): name for name, p in method.named_parameters()}
    source, target = (
        {names[id(p)] for group in phase.turns[0].groups for p in group.parameters} for phase in phases_of(method)
    )
    assert source ^ target == {f"head.{part}.{kind}" for part in ("known", "negative") for kind in ("weight", "bias")}
    assert {"head.known.weight", "bottleneck.weight", "backbone.conv.weight"} <= source
    assert {"head.negative.weight", "bottleneck.weight", "backbone.conv.weight"} <= target


@pytest.mark.parametrize(("steps", "first", "every"), [(10_000, 5000, 500), (300, 150, 15), (8, 4, 1), (1, 0, 1)])
def test_its_schedule_scales_with_the_run(toy_backbone: nn.Module, steps: int, first: int, every: int) -> None:
    method = made_up(toy_backbone, steps)
    source, target = method.phases()
    assert (source.target, source.sweeps, target.source, target.sweeps) == (False, ("source",), None, ("target",))
    assert method.adaptation == range(first, steps)
    assert target.round is not None and target.round.every == every
    assert [want.name for want in method.wants(steps - 1)] == [STRONG]
    assert not first or not method.wants(first - 1)


def test_an_image_is_unknown_if_an_unknown_output_is_the_largest(method: OSHTSC) -> None:
    z = torch.randn(200, 6, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        best = method.head(z).joined.argmax(dim=1)
        assert torch.equal(decided(method, method.score(z)), best.clamp(max=C))
    assert 10 < (best >= C).sum() < 190
    assert made_up(method.backbone, unknown_outputs=0).head.negative.out_features == C


def test_it_says_that_it_is_a_re_implementation() -> None:
    card = METHODS["osht-sc"]
    assert card.title.startswith("Re-implementation from its abstract") and "no code is public" in card.paper
    assert f"  {card.title}" in method_lines()
