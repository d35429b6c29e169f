"""The loop: schedule, clipping, precision, interruption, and what happens when a loss is not a number any more."""

import dataclasses
import math
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny_training import StartRun, Tiny, lines_of, saved, saved_step, saved_weights
from torch import Tensor

from unida.cli import main
from unida.data.glyphs import write_glyphs
from unida.errors import UserError
from unida.methods import METHODS
from unida.methods.base import Losses, Method, Phase, SourceBatch, TargetBatch, Turn
from unida.methods.ovanet import OVANet
from unida.support.signals import Interrupted
from unida.training.loop import TrainingDiverged


def state_of(method: Method) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in method.state_dict().items()}


class TurnsBad(Tiny):
    """Goes wrong at the step (counted from 0) and in the way that the class attributes say."""

    bad_step = 6
    way = "loss"

    def training_step(self, source: SourceBatch, target: TargetBatch, step: int) -> Losses:
        if step == self.bad_step and self.way == "overflow":
            source = source._replace(images=source.images * float("inf"))
        losses = super().training_step(source, target, step)
        if step == self.bad_step:
            if self.way == "loss":
                losses["spread"] = losses["spread"] * float("nan")
            elif self.way == "gradient":
                losses["spread"] = (self.head.weight.sum() * 0).abs().sqrt()  # 0, with a gradient of 0 · ∞
        return losses


def bad(**attributes: Any) -> type[TurnsBad]:
    return type("Bad", (TurnsBad,), attributes)


def test_losses_rates_and_total_are_logged_by_step(start: StartRun) -> None:
    training = start(steps=10, log_every=3, lr=0.02)
    training.run()
    lines = lines_of(training)
    assert [line["step"] for line in lines] == [3, 6, 9, 10]
    for line in lines:
        factor = (1 + 10 * (line["step"] - 1) / 10) ** -0.75  # the first step is taken at the full rate
        assert (line["lr_backbone"], line["lr_new"]) == pytest.approx((0.002 * factor, 0.02 * factor))
        assert line["total"] == pytest.approx(line["closed"] + line["spread"])
    assert saved_step(training) == 10


def test_a_non_finite_loss_stops_the_run_and_keeps_good_weights(start: StartRun) -> None:
    healthy = start(kind=Tiny, folder="healthy", checkpoint_every=1)
    healthy.enter_phases()
    while healthy.done < 6:
        healthy.take_step()
    training = start(kind=TurnsBad)
    with pytest.raises(
        TrainingDiverged, match=r"loss 'spread' is not finite at step 7; the weights after step 6 are .*\.safetensors"
    ) as caught:
        training.run()
    assert "\n" not in str(caught.value)
    assert all(option in str(caught.value) for option in ("--lr", "--clip-norm", "--precision"))
    assert saved_step(training) == 6
    weights = saved_weights(training)
    assert all(tensor.isfinite().all() for tensor in weights.values())
    for name, parameter in healthy.method.named_parameters():
        assert torch.equal(weights[name], parameter), name
    assert [line["step"] for line in lines_of(training)] == list(range(1, 7))


def test_statistics_that_overflowed_do_not_replace_the_checkpoint_before(start: StartRun) -> None:
    training = start(kind=bad(way="overflow"))
    with pytest.raises(TrainingDiverged, match="loss 'closed' is not finite at step 7"):
        training.run()
    assert saved_step(training) == 4
    assert all(tensor.isfinite().all() for tensor in saved_weights(training).values())


class BadSecondTurn(Tiny):
    """Two updates in a step, the second of which goes wrong."""

    def phases(self) -> list[Phase]:
        return [Phase([Turn(self.training_step, self.groups()), Turn(self.again, self.groups(), "pretext")])]

    def again(self, source: SourceBatch, target: TargetBatch, step: int) -> Losses:
        bad = float("nan") if step == 6 else 1.0
        return {f"pretext {name}": bad * loss for name, loss in self.training_step(source, target, step).items()}


def test_weights_between_two_turns_of_a_step_are_not_saved(start: StartRun) -> None:
    """A resumed run would take the first turn a second time."""
    training = start(kind=BadSecondTurn)
    reported = "loss 'pretext closed' is not finite at step 7; the weights after step 4 are kept in"
    with pytest.raises(TrainingDiverged, match=reported):
        training.run()
    assert saved_step(training) == 4


def test_without_a_good_checkpoint_none_is_promised(start: StartRun) -> None:
    training = start(kind=bad(way="overflow", bad_step=0))
    with pytest.raises(TrainingDiverged, match="at step 1; nothing is saved"):
        training.run()
    assert training.checkpoint is not None and not training.checkpoint.exists()


def test_a_gradient_that_is_not_finite_does_not_replace_the_checkpoint_before(start: StartRun) -> None:
    training = start(kind=bad(way="gradient"), checkpoint_every=1)
    with pytest.raises(TrainingDiverged, match="a weight is not finite after step 7"):
        training.run()
    assert saved_step(training) == 6
    assert all(tensor.isfinite().all() for tensor in saved_weights(training).values())


class OnADevice:
    """A fabric that says it works on a device where reading a number means waiting."""

    def __init__(self, fabric: Any) -> None:
        self.fabric = fabric
        self.device = torch.device("cuda")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.fabric, name)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every time a tensor is read on the host."""
    seen: list[str] = []
    for name in ("item", "tolist", "__bool__", "__float__", "__int__", "cpu", "numpy"):
        original = getattr(Tensor, name)

        def counted(tensor: Tensor, *arguments: Any, _name: str = name, _original: Any = original) -> Any:
            seen.append(_name)
            return _original(tensor, *arguments)

        monkeypatch.setattr(Tensor, name, counted)
    return seen


def test_steps_that_are_not_logged_wait_for_nothing(start: StartRun, reads: list[str]) -> None:
    training = start(wrap=OnADevice, steps=12, log_every=4, checkpoint_every=6, clip_norm=1.0)
    by_step: dict[int, list[str]] = {}
    take_step = training.take_step

    def counted_step() -> None:
        reads.clear()
        take_step()
        by_step[training.done] = list(reads)

    training.take_step = counted_step  # type: ignore[method-assign, assignment]
    training.run()
    assert {done for done, seen in by_step.items() if seen} == {4, 6, 8, 12}  # logged, or saved


def test_a_bad_loss_between_two_logged_steps_is_found_before_it_is_saved(start: StartRun) -> None:
    """On a device not every loss is read: the checkpoint must not take what nobody looked at."""
    training = start(kind=bad(bad_step=4), wrap=OnADevice, log_every=100, checkpoint_every=3)
    with pytest.raises(TrainingDiverged, match="step 6"):
        training.run()
    assert saved_step(training) == 3
    assert all(tensor.isfinite().all() for tensor in saved_weights(training).values())


class Steep(Tiny):
    def training_step(self, source: SourceBatch, target: TargetBatch, step: int) -> Losses:
        return {"steep": sum(100.0 * parameter.sum() for parameter in self.parameters())}  # type: ignore[dict-item]


@pytest.mark.parametrize(("clip", "length"), [(2.0, 2.0), (None, None), (1e9, None)])
def test_gradients_are_clipped_to_the_norm_over_all_weights(
    start: StartRun, clip: float | None, length: float | None
) -> None:
    training = start(kind=Steep, steps=1, lr=0.01, backbone_lr=0.01, momentum=0.0, weight_decay=0.0, clip_norm=clip)
    before = torch.cat([p.detach().flatten().double() for p in training.method.parameters()])
    training.run()
    after = torch.cat([p.detach().flatten().double() for p in training.method.parameters()])
    unclipped = 100 * math.sqrt(len(before))
    assert ((before - after).norm() / 0.01).item() == pytest.approx(length or unclipped, rel=1e-3)


def test_mixed_precision_stays_finite_and_takes_losses_in_full_precision(start: StartRun) -> None:
    seen: set[tuple[str, torch.dtype]] = set()

    class Noting(Tiny):
        def training_step(self, source: SourceBatch, target: TargetBatch, step: int) -> Losses:
            seen.add(("layer", self.head(self.features(source.images)).dtype))
            losses = super().training_step(source, target, step)
            seen.update(("loss", loss.dtype) for loss in losses.values())
            return losses

    training = start(kind=Noting, precision="bf16-mixed")
    training.run()
    assert seen == {("layer", torch.bfloat16), ("loss", torch.float32)}
    assert all(p.dtype == torch.float32 and p.isfinite().all() for p in training.method.parameters())
    assert all(math.isfinite(line["total"]) for line in lines_of(training))


class StopsAt(Tiny):
    stop_step, number = 5, signal.SIGINT

    def training_step(self, source: SourceBatch, target: TargetBatch, step: int) -> Losses:
        if step == self.stop_step:
            signal.raise_signal(self.number)  # to this thread: the process may have others by now
        return super().training_step(source, target, step)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_after_the_step_and_the_rest_ends_as_if_nothing_had_been(
    start: StartRun, number: signal.Signals
) -> None:
    whole = start(folder="whole")
    whole.run()
    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    first = start(kind=type("Stops", (StopsAt,), {"number": number}))
    with pytest.raises(Interrupted, match="stopped after step 6 of 12; the run is saved"):
        first.run()
    assert saved_step(first) == 6
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == handlers
    rest = start()
    assert rest.done == 6
    rest.run()
    for name, tensor in state_of(whole.method).items():
        assert torch.equal(tensor, rest.method.state_dict()[name]), name
    assert lines_of(rest) == lines_of(whole)
    found, expected = saved(rest).tensors, saved(whole).tensors  # momentum too
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)


def test_the_checkpoint_of_another_run_is_refused(start: StartRun) -> None:
    first = start(steps=4)
    first.run()
    with pytest.raises(UserError, match=r"resume\.safetensors belongs to another run: put this run's own file back"):
        start(steps=4, lr=0.5)
    assert start(steps=4).done == 4


def test_a_second_ctrl_c_stops_at_once(start: StartRun) -> None:
    class Impatient(Tiny):
        def training_step(self, source: SourceBatch, target: TargetBatch, step: int) -> Losses:
            if step == 2:
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGINT)
                raise AssertionError("the step continued")
            return super().training_step(source, target, step)

    with pytest.raises(KeyboardInterrupt):
        start(kind=Impatient).run()


class Killed(Tiny):
    def training_step(self, source: SourceBatch, target: TargetBatch, step: int) -> Losses:
        if step == 7:
            raise KeyboardInterrupt
        return super().training_step(source, target, step)


def test_lines_that_the_checkpoint_does_not_know_are_written_again_once(start: StartRun) -> None:
    """A kill between two checkpoints leaves lines of steps that will be taken again, and perhaps half a line."""
    whole = start(folder="whole")
    whole.run()
    first = start(kind=Killed)
    with pytest.raises(KeyboardInterrupt):
        first.run()
    assert saved_step(first) == 4 and len(lines_of(first)) == 7
    assert first.metrics is not None
    with first.metrics.path.open("a") as file:
        file.write('{"step": 8, "kind": "tra')
    rest = start()
    rest.run()
    assert lines_of(rest) == lines_of(whole)


def test_evaluation_comes_at_its_interval_and_not_twice_at_the_end(start: StartRun) -> None:
    asked: list[int] = []

    def evaluate(step: int) -> dict[str, float | None]:
        asked.append(step)
        return {"hos": 0.5, "unknown": None}

    training = start(evaluate=evaluate, eval_every=4, log_every=100)
    training.run()
    assert asked == [4, 8]  # the evaluation after the last step is the run's own
    evaluations = [line for line in lines_of(training) if line["kind"] == "evaluation"]
    assert evaluations == [{"step": s, "kind": "evaluation", "hos": 0.5, "unknown": None} for s in (4, 8)]


def test_evaluating_does_not_change_what_is_trained(start: StartRun) -> None:
    def draw_much(step: int) -> dict[str, float | None]:
        torch.rand(1000)
        return {"hos": None}

    plain, evaluated = start(folder="plain"), start(folder="evaluated", evaluate=draw_much, eval_every=1)
    plain.run()
    evaluated.run()
    for name, tensor in state_of(plain.method).items():
        assert torch.equal(tensor, evaluated.method.state_dict()[name]), name


class TurnsNan(OVANet):
    def training_step(self, source: SourceBatch, target: TargetBatch, step: int) -> Losses:
        losses = super().training_step(source, target, step)
        return {**losses, "entropy": losses["entropy"] * (float("nan") if step == 2 else 1.0)}


def test_a_divergence_ends_the_command_with_one_line_and_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(METHODS, "ovanet", dataclasses.replace(METHODS["ovanet"], code=f"{__name__}:TurnsNan"))
    data = write_glyphs(tmp_path / "d", shared=2, source_private=0, target_private=0, per_class=2, size=40)
    options = {"--backbone": "test_resnet", "--weights": "none", "--image-size": 40, "--crop": 32}
    options |= {"--batch-size": 2, "--steps": 5, "--train": "tail", "--regime": "published"}
    options |= {"--source": data.source, "--target": data.target, "--out": tmp_path / "run", "--cache": tmp_path / "c"}
    with pytest.raises(SystemExit) as end:
        main(["adapt", *(str(word) for pair in options.items() for word in pair)])
    assert end.value.code == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert len(errors) == 1
    assert errors[0].startswith("error: loss 'entropy' is not finite at step 3; the weights after step 2 are kept in ")
    weights = load_file(tmp_path / "run" / "checkpoint" / "resume.safetensors")
    assert all(tensor.isfinite().all() for tensor in weights.values())
    assert not (tmp_path / "run" / "checkpoint" / "model.safetensors").exists()
