"""SPA on top of a method with several phases, one of them without the source."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from few_steps import Batches, Looking, phases_of, total
from tiny_spa import PROBLEM, SIZE, WORDS, every_preset, make_backbone, make_batches, state
from torch import Tensor

from unida.methods.base import Losses, Phase, SourceBatch, Sweep, TargetBatch, Turn
from unida.methods.ovanet import OVANet
from unida.methods.ovanet_options import OVANetOptions
from unida.methods.spa.backbone import WordBackbone
from unida.methods.spa.method import PRETEXT, SPA
from unida.methods.spa.options import SPAOptions, resolve

STEPS = 10


class TwoPhases(OVANet):
    """First OVANet on both domains, then something on the target alone; a start of its own before each."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.started: list[tuple[str, Tensor]] = []

    def phases(self) -> tuple[Phase, ...]:
        return (
            Phase((Turn(self.training_step, self.groups()),), "both", share=0.6, start=self.note("both")),
            Phase((), "between", share=0.0, start=self.note("between")),
            Phase((Turn(self.alone, self.groups(), decay=0.0),), "alone", share=0.4, source=None),
        )

    def note(self, name: str) -> Any:
        def start(sweep: Sweep) -> None:
            words: Any = self.backbone
            self.started.append((name, words.vocabulary.prototypes.detach().clone()))

        return start

    def alone(self, source: SourceBatch, target: TargetBatch, step: int) -> Losses:
        assert not len(source.images)
        features = self.features(target.images)
        return {"target": self.closed(features).square().mean() + self.one_vs_all(features).square().mean()}


def build(preset: str, **choices: Any) -> tuple[SPA, TwoPhases]:
    given = {f"spa_{name}": value for name, value in choices.items()}
    options = resolve(
        SPAOptions(spa=True, spa_preset=preset, spa_pretext="on", spa_vocabulary=WORDS, **given)  # type: ignore[arg-type]
    )
    words: Any = WordBackbone(make_backbone(), options)
    under = TwoPhases(words, replace(PROBLEM, steps=STEPS), OVANetOptions())
    return SPA(under, options), under


@pytest.fixture(scope="module")
def batches() -> Batches:
    return make_batches()


def test_words_are_found_once_before_the_methods_own_start(batches: Batches) -> None:
    method, under = build("best")
    before = method.prototypes.detach().clone()
    phases = phases_of(method)
    assert [phase.name for phase in phases] == ["both", "between", "alone"]
    assert [phase.share for phase in phases] == [0.6, 0.0, 0.4]
    found = None
    for phase in phases:
        if phase.start is not None:
            with torch.no_grad():
                phase.start(Looking(method.eval(), batches))
        found = state(method) if found is None else found
    assert [name for name, _ in under.started] == ["both", "between"]
    for _, seen in under.started:
        assert torch.equal(seen, method.prototypes) and not torch.equal(seen, before)
    assert found is not None
    assert all(torch.equal(tensor, found[name]) for name, tensor in method.state_dict().items())
    assert phases[2].start is None


@every_preset
@pytest.mark.parametrize("updates", ["turns", "joint"])
def test_a_phase_without_the_source_has_the_losses_of_the_target(preset: str, updates: str, batches: Batches) -> None:
    method, _ = build(preset, updates=updates, entropy_of="both")
    first, between, last = phases_of(method)
    assert not between.turns
    assert last.source is None and first.source == "balanced"
    domains = {step: {want.domain for want in method.wants(step) if want.name == PRETEXT} for step in range(STEPS)}
    assert domains == {step: {"source", "target"} if step < 6 else {"target"} for step in range(STEPS)}
    nothing = torch.zeros(0, dtype=torch.int64)
    source, target = SourceBatch(torch.empty(0, 3, SIZE, SIZE), nothing, nothing), batches[1]
    losses: Losses = {}
    for turn in last.turns:
        assert turn.decay == 0.0  # as the method's own turn in this phase
        of_turn = method(turn.losses, source, target, 7)
        method.zero_grad()
        total(of_turn).backward()
        assert all(p.grad is not None for group in turn.groups for p in group.parameters)
        losses |= of_turn
    assert losses.keys() == {"target", "words", "count"} and all(loss.isfinite() for loss in losses.values())
    assert [turn.name for turn in last.turns] == (["goal", "pretext"] if updates == "turns" else ["goal"])
