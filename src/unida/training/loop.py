"""The training loop. It knows no method's name: it takes batches, sums losses, steps, logs and saves."""

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unida.config import Config, fingerprint_of
from unida.data.pixels import Pixels
from unida.errors import UserError
from unida.methods.base import Losses, Method, Phase, SourceBatch, TargetBatch, Turn, spans
from unida.support.fabric import Fabric
from unida.support.processes import share_buffers, share_parameters
from unida.support.progress import progress
from unida.support.random import torch_seed
from unida.support.signals import Interrupted, stop_requested
from unida.training.batches import AllImages, BatchStream, images_shown
from unida.training.checkpoint import Checkpoint, Progress, save_checkpoint
from unida.training.devices import expect_unused_parameters
from unida.training.logging import MetricsLog
from unida.training.optim import build_optimiser, covers_all, learning_rates, set_learning_rate

log = logging.getLogger("unida")


class TrainingDiverged(UserError):
    """A loss is not a finite number any more."""


class Training:
    """One run of a method up to the configured number of steps, from the folder's checkpoint if there is one.

    Args:
        phases: of the method.
        folder: for the checkpoint and the log; None keeps neither.
        evaluate: called on the evaluation interval, on every process, with the number of steps taken.
    """

    def __init__(
        self,
        fabric: Fabric,
        method: Method,
        phases: Sequence[Phase],
        stream: BatchStream,
        config: Config,
        folder: Path | None = None,
        evaluate: Callable[[int], dict[str, float | None]] | None = None,
    ) -> None:
        self.fabric, self.method, self.phases, self.stream, self.config = fabric, method, phases, stream, config
        self.evaluate = evaluate
        steps, checkpoint_every = config.training.steps, config.output.checkpoint_every
        assert steps is not None and checkpoint_every is not None  # complete
        self.checkpoint_every = checkpoint_every
        self.spans = spans(phases, steps)
        self.steps = self.spans[-1].stop  # none, if all that there is to learn is solved when phases start
        expect_unused_parameters(fabric, not all(covers_all(turn, method) for phase in phases for turn in phase.turns))
        self.wrapped = fabric.setup_module(method)
        self.scaler = getattr(fabric.strategy.precision, "scaler", None)
        self.place = -1  # position of the current phase in `phases`
        self.optimisers: dict[str, Any] = {}  # of its turns
        self.learning: list[nn.Parameter] = []
        self.latest: dict[str, Losses] = {}  # the last losses of each turn
        self.checkpoint = None if folder is None else folder / "checkpoint" / "resume.safetensors"
        self.saved_step: int | None = None  # step of the last checkpoint
        self.done = 0  # steps taken
        self.seconds_before = 0.0  # that the run took before it was resumed
        self._restore()
        self.metrics = MetricsLog(folder, self.done) if folder is not None and fabric.is_global_zero else None
        self.started = time.monotonic()
        self.seconds = 0.0  # spent in steps and rounds by this process, without evaluation and checkpoints
        self.images_here = 0  # shown to the network in these seconds, by all processes
        self.steps_here = 0
        self._swept: Tensor | None = None  # the target's features, if a round has just computed them

    @property
    def phase(self) -> Phase:
        return self.phases[self.place]

    @property
    def span(self) -> range:
        return self.spans[self.place]

    def run(self) -> None:
        self.method.train()
        try:
            self._run()
        finally:
            if self.metrics is not None:
                self.metrics.close()

    def _run(self) -> None:
        visible = self.fabric.is_global_zero
        with stop_requested() as stop, progress("training", self.steps, self.done, visible) as report:
            self.enter_phases()
            while self.done < self.steps:
                self.take_step()
                if self._logging_now(self.done):
                    report(self.done, self._log())
                if self._evaluating_now():  # before the checkpoint: a run killed in between evaluates again
                    self._evaluate()
                stopping = self._asking_others(self.done) and self._agreed(stop.is_set())
                if self._saving_now(self.done) or stopping:
                    self._save()
                if stopping and self.done < self.steps:
                    raise Interrupted(f"stopped after step {self.done} of {self.steps}; the run is saved")
                self.enter_phases()

    def enter_phases(self) -> None:
        """Begin the next phase if the current one is over; a phase without steps begins and ends at once."""
        while self.place + 1 < len(self.phases) and (self.place < 0 or self.done >= self.span.stop):
            self.enter_next_phase()

    def enter_next_phase(self) -> None:
        """Its start, its optimisers and its first round."""
        began = time.perf_counter()
        self.place += 1
        phase, number, of = self.phase, self.place + 1, len(self.phases)
        if of > 1:
            log.info("phase %d of %d: %s, %d steps", number, of, phase.name, len(self.span))
        if phase.start is not None:
            self._look_at_images(phase.start)
        self._set_optimisers()
        if phase.round is not None:
            self.take_round()
        self.seconds += time.perf_counter() - began

    def _set_optimisers(self) -> None:
        self.latest = {}
        self.learning = [p for p in self.method.parameters() if p.requires_grad]
        built = [build_optimiser(turn, self.config.training) for turn in self.phase.turns]
        ready = [self.fabric.setup_optimizers(optimiser) for optimiser in built]
        self.optimisers = {turn.name: optimiser for turn, optimiser in zip(self.phase.turns, ready, strict=True)}

    def take_step(self, with_round: bool = True) -> None:
        """A step of the current phase, and the round that is due after it."""
        start, step = time.perf_counter(), self.done
        self._swept = None
        wants = self.method.wants(step)
        batch = self.stream.batch(step, self.phase, wants)
        for turn in self.phase.turns:  # for all turns, due or not: the log reports them
            set_learning_rate(self.optimisers[turn.name], step - self.span.start, len(self.span), turn.decay)
        due = [turn for turn in self.phase.turns if turn.due is None or turn.due(step)]
        for turn in due:
            self.latest[turn.name] = self._take_turn(turn, batch, step, is_first=turn is due[0])
        self.done += 1
        if with_round and self._round_now():  # before evaluation and checkpoint, which use its results
            self.take_round()
        self.images_here += images_shown(*batch, wants, self.fabric.world_size)
        self.steps_here += 1
        self.seconds += time.perf_counter() - start

    def _take_turn(self, turn: Turn, batch: tuple[SourceBatch, TargetBatch], step: int, is_first: bool) -> Losses:
        training, optimiser = self.config.training, self.optimisers[turn.name]
        purpose = "step" if turn is self.phase.turns[0] else f"step {turn.name}"  # dropout and the like
        torch.manual_seed(torch_seed(training.seed, purpose, step, self.fabric.global_rank))
        losses: Losses = self.wrapped(turn.losses, *batch, step)
        self.fabric.backward(torch.stack(list(losses.values())).sum())
        # Reading a loss waits for the device. On one CPU that costs nothing; elsewhere only the logged steps are read.
        alone_on_cpu = self.fabric.device.type == "cpu" and self.fabric.world_size == 1
        if alone_on_cpu or self._logging_now(step + 1) or self._saving_now(step + 1):
            self._refuse_non_finite(losses, step, is_first)
        if training.clip_norm is not None:
            self.fabric.clip_gradients(self.wrapped, optimiser, max_norm=training.clip_norm, error_if_nonfinite=False)
        optimiser.step()
        for parameter in self.learning:  # all: a turn's gradients reach parameters that are not its own
            parameter.grad = None
        return {name: loss.detach() for name, loss in losses.items()}

    def features_of(self, pixels: Pixels) -> Tensor | None:
        """(N, d) of these images, if a round has just computed them: evaluation need not compute them again.

        Not with several processes: they evaluate in other batches, so a resumed run would differ in the last bits.
        """
        if self._swept is None or self.fabric.world_size > 1:
            return None
        theirs, ours = ([file.digest for file in p.files] for p in (pixels, self.stream.target.pixels))
        return self._swept if theirs == ours else None

    def images_per_second(self) -> float:
        """Images that steps of all processes show to the network; those of rounds are not counted."""
        return self.images_here / self.seconds if self.seconds else 0.0

    def _round_now(self) -> bool:
        work, done = self.phase.round, self.done - self.span.start
        if work is None:
            return False
        return work.at_end if done == len(self.span) else done % work.every == 0

    def take_round(self) -> None:
        work = self.phase.round
        assert work is not None
        self._swept = self._look_at_images(lambda sweep: work.work(self.done, sweep)).target_features

    @torch.no_grad()
    def _look_at_images(self, work: Callable[[AllImages], None]) -> AllImages:
        """Every process does all the work, from equal statistics. Then all continue with the main one's results."""
        self.method.eval()
        share_buffers(self.fabric, self.method)
        sweep = self.stream.sweep(self.method, self.phase)
        with self.fabric.autocast():
            work(sweep)
        share_buffers(self.fabric, self.method)
        share_parameters(self.fabric, self.method)
        self.method.train()
        return sweep

    def _logging_now(self, done: int) -> bool:
        return done % self.config.output.log_every == 0 or done == self.steps

    def _saving_now(self, done: int) -> bool:
        return done % self.checkpoint_every == 0 or done == self.steps

    def _asking_others(self, done: int) -> bool:
        """To agree, processes wait for each other: only when logging. A single process does not wait."""
        return self.fabric.world_size == 1 or self._logging_now(done)

    def _log(self) -> str:
        """Write the last losses of each turn (the mean over processes). Returns them as a note for the progress bar."""
        losses = {name: loss for of_turn in self.latest.values() for name, loss in of_turn.items()}
        watched = {name: number().float() for name, number in self.method.watched.items()}
        if not losses and not watched:
            return ""
        mean = self._all_reduce(torch.stack([*losses.values(), *watched.values()]), "mean").tolist()
        numbers = dict(zip(losses, mean, strict=False))
        several = len(self.phases) > 1
        if self.metrics is not None:
            rates = learning_rates(next(iter(self.optimisers.values())))
            seen = dict(zip(watched, mean[len(losses) :], strict=True))
            phase: dict[str, Any] = {"phase": self.phase.name} if several else {}
            total = {"total": sum(numbers.values())}
            self.metrics.write(self.done, "train", {**phase, **numbers, **total, **rates, **seen})
        shown = [f"{name} {value:.3f}" for name, value in numbers.items()]
        return "  ".join([*([self.phase.name] if several else []), *shown, f"{self.images_per_second():.0f} img/s"])

    def _evaluating_now(self) -> bool:
        every = self.config.output.eval_every
        return self.evaluate is not None and every > 0 and self.done % every == 0 and self.done < self.steps

    def _evaluate(self) -> None:
        assert self.evaluate is not None
        numbers = self.evaluate(self.done)
        if self.metrics is not None:
            self.metrics.write(self.done, "evaluation", numbers)

    def _refuse_non_finite(self, losses: Losses, step: int, is_first: bool) -> None:
        finite = torch.stack(list(losses.values())).isfinite()
        if self._agreed(not bool(finite.all())):
            name = next((n for n, ok in zip(losses, finite.tolist(), strict=True) if not ok), "of another process")
            # In the step's first turn, the weights are those before this step. In a later turn they are not: a run
            # resumed from them would take the earlier turns a second time.
            if is_first and not self._agreed(not self._state_is_finite()):
                self._write_checkpoint()
            raise self._diverged(f"loss {name!r} is not finite at step {step + 1}")

    def _state_is_finite(self) -> bool:
        """Weights and buffers: a forward pass that overflows ruins BatchNorm's statistics before any weight."""
        return all(bool(tensor.isfinite().all()) for tensor in self.method.state_dict().values())

    def _diverged(self, what: str) -> TrainingDiverged:
        kept = "nothing is saved"
        if self.saved_step is not None:
            kept = f"the weights after step {self.saved_step} are kept in {self.checkpoint}"
        return TrainingDiverged(
            f"{what}; {kept}. Start again with a lower --lr (now {self.config.training.lr}), --clip-norm 1 or "
            "--precision 32"
        )

    def _agreed(self, mine: bool) -> bool:
        """True on every process if it is true on any."""
        if self.fabric.world_size == 1:
            return mine
        flag = torch.tensor(float(mine), device=self.fabric.device)
        return bool(self._all_reduce(flag, "sum") > 0)

    def _all_reduce(self, numbers: Tensor, operation: str) -> Tensor:
        reduced = self.fabric.all_reduce(numbers, reduce_op=operation)
        assert isinstance(reduced, Tensor)
        return reduced

    def _save(self) -> None:
        """Never replaces a good checkpoint by a bad one: a finite loss may have had a gradient that was not finite."""
        if self._agreed(not self._state_is_finite()):
            raise self._diverged(f"a weight is not finite after step {self.done}")
        self._write_checkpoint()

    def _write_checkpoint(self) -> None:
        if self.fabric.is_global_zero and self.checkpoint is not None:
            state = Progress(
                step=self.done,
                phase=self.place,
                seconds=self.seconds_before + time.monotonic() - self.started,
                scaler=self.scaler.state_dict() if self.scaler is not None else {},
                losses={turn: {n: float(v) for n, v in losses.items()} for turn, losses in self.latest.items()},
                run=fingerprint_of(self.config),
            )
            save_checkpoint(self.checkpoint, self.method, self.optimisers, state)
        self.saved_step = self.done
        self.fabric.barrier()

    def _restore(self) -> None:
        if self.checkpoint is None or not self.checkpoint.exists():
            return
        saved = Checkpoint(self.checkpoint)
        state = saved.progress
        if state.run != fingerprint_of(self.config):
            raise UserError(f"{self.checkpoint} belongs to another run: put this run's own file back, or start again")
        saved.restore_method(self.method)
        self.done = self.saved_step = state.step
        self.place, self.seconds_before = state.phase, state.seconds
        self._set_optimisers()
        saved.restore_optimisers(self.optimisers)
        device = self.fabric.device
        self.latest = {
            turn: {n: torch.tensor(v, device=device) for n, v in losses.items()}
            for turn, losses in state.losses.items()
        }
        if self.scaler is not None and state.scaler:
            self.scaler.load_state_dict(state.scaler)
        log.info("resumed after step %d of %d", self.done, self.steps)
