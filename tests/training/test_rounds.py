"""Rounds: looks at all images between steps and at the end, and what an evaluation takes from them."""

from collections.abc import Sequence

import pytest
import torch
from tiny_training import StartRun, Tiny, saved_weights

from unida.methods.base import Losses, Phase, Problem, Round, SourceBatch, Sweep, TargetBatch, Turn
from unida.training.batches import over_test_views


class Rounds(Tiny):
    """Remembers when it was called and what it was given."""

    at_end = False

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.register_buffer("centre", torch.zeros(4))
        self.called: list[int] = []

    def phases(self) -> Sequence[Phase]:
        work = Round(self.find_centre, every=5, at_end=self.at_end)
        turns = (Turn(self.training_step, self.groups()),)
        return (Phase(turns, round=work, sweeps=("source", "target")),)

    def find_centre(self, step: int, sweep: Sweep) -> None:
        assert not self.training
        source, target = sweep("source"), sweep("target")
        assert len(source) == self.problem.num_source and len(target) == self.problem.num_target
        assert not source.requires_grad and not target.requires_grad
        self.called.append(step)
        self.centre = source.mean(dim=0) + target.mean(dim=0)

    def training_step(self, source: SourceBatch, target: TargetBatch, step: int) -> Losses:
        losses = super().training_step(source, target, step)
        losses["pull"] = 0.1 * (self.features(target.images) - self.centre).square().mean()
        return losses


class RoundsAtEnd(Rounds):
    at_end = True


class DiesAfterARound(Rounds):
    def training_step(self, source: SourceBatch, target: TargetBatch, step: int) -> Losses:
        if step == 8:
            raise KeyboardInterrupt
        return super().training_step(source, target, step)


@pytest.mark.parametrize("saved", [7, 5])
def test_rounds_come_at_their_interval_and_a_resumed_run_ends_alike(start: StartRun, saved: int) -> None:
    whole = start(kind=Rounds, folder="whole", checkpoint_every=saved)
    whole.run()
    assert isinstance(whole.method, Rounds)
    assert whole.method.called == [0, 5, 10]
    with pytest.raises(KeyboardInterrupt):
        start(kind=DiesAfterARound, folder="cut", checkpoint_every=saved).run()
    rest = start(kind=Rounds, folder="cut", checkpoint_every=saved)
    assert rest.done == saved
    rest.run()
    assert isinstance(rest.method, Rounds)
    assert rest.method.called == [10], "what the round of step 5 learnt came with the checkpoint"
    expected = saved_weights(whole)
    for name, tensor in saved_weights(rest).items():
        assert torch.equal(tensor, expected[name]), name


@pytest.mark.parametrize(("steps", "called"), [(12, [0, 5, 10, 12]), (10, [0, 5, 10]), (3, [0, 3])])
def test_a_round_at_the_end_is_of_the_last_weights(start: StartRun, steps: int, called: list[int]) -> None:
    training = start(kind=RoundsAtEnd, steps=steps)
    training.run()
    method = training.method
    assert isinstance(method, RoundsAtEnd)
    assert method.called == called
    centre = saved_weights(training)["centre"]  # found before the checkpoint was written
    assert torch.equal(centre, method.centre)
    method.eval()
    stream = training.stream
    with torch.no_grad():
        means = [
            over_test_views(method.features, d.pixels, stream.inputs).mean(dim=0)
            for d in (stream.source, stream.target)
        ]
        features = over_test_views(method.features, stream.target.pixels, stream.inputs)
    assert torch.equal(centre, means[0] + means[1])
    known = training.features_of(stream.target.pixels)  # for an evaluation that comes next
    assert known is not None and torch.equal(known, features)
    assert training.features_of(stream.source.pixels) is None


def test_features_that_a_later_step_has_made_old_are_not_handed_on(start: StartRun) -> None:
    training = start(kind=Rounds, steps=6)
    training.run()
    assert isinstance(training.method, Rounds) and training.method.called == [0, 5]
    assert training.features_of(training.stream.target.pixels) is None
