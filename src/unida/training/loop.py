"""The training loop. It knows no method's name: it takes batches, sums losses, steps, logs and saves."""

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor

from unida.config import Config
from unida.data.cache import Pixels
from unida.data.sampling import torch_seed
from unida.errors import UserError
from unida.methods.base import Method, SourceBatch, TargetBatch
from unida.processes import share_buffers, share_parameters
from unida.progress import progress
from unida.training.batches import BatchStream, Looking, images_shown
from unida.training.checkpoint import load_checkpoint, save_checkpoint
from unida.training.logging import MetricsLog
from unida.training.optim import build_optimisers, set_learning_rate

log = logging.getLogger("unida")


class Interrupted(Exception):
    """The user pressed Ctrl-C (or a scheduler sent SIGTERM). The run is saved and can be resumed."""


class TrainingDiverged(UserError):
    """A loss is not a finite number any more."""


class Training:
    """One run of a method, from the folder's checkpoint if there is one to the configured number of steps.

    Args:
        evaluate: called on the evaluation interval, on every process, with the number of steps taken.
    """

    def __init__(
        self,
        fabric: Fabric,
        method: Method,
        stream: BatchStream,
        config: Config,
        folder: Path,
        evaluate: Callable[[int], dict[str, float | None]] | None,
    ) -> None:
        self.fabric, self.method, self.stream, self.config, self.folder = (
            fabric,
            method,
            stream,
            config,
            folder,
        )
        self.evaluate = evaluate
        steps, checkpoint_every = config.training.steps, config.output.checkpoint_every
        assert steps is not None and checkpoint_every is not None  # resolved when the run was made
        self.steps, self.checkpoint_every = steps, checkpoint_every
        method.begin(steps, config.training.seed)
        optimisers = build_optimisers(method, config.training)
        self.wrapped, *ready = fabric.setup(method, *optimisers.values())
        self.optimisers: dict[str, Any] = dict(zip(optimisers, ready, strict=True))
        self.scaler = getattr(fabric.strategy.precision, "scaler", None)
        self.checkpoint = folder / "checkpoint" / "resume.safetensors"
        self.saved_step: int | None = None  # that the checkpoint is of
        self.done = self._restore()
        self.metrics = MetricsLog(folder, self.done) if fabric.is_global_zero else None
        self.started = time.monotonic()
        self.seconds = 0.0  # spent in steps and rounds by this process, without evaluation and checkpoints
        self._swept: Tensor | None = None  # the target's features, from a round after the last step so far
        self.images_of_step = 0
        self.images_here = 0  # shown to the network in these seconds, by all processes

    def run(self) -> None:
        self.method.train()
        try:
            self._run()
        finally:
            if self.metrics is not None:
                self.metrics.close()

    def _run(self) -> None:
        visible = self.fabric.is_global_zero
        with _stop_requested() as stop, progress("training", self.steps, self.done, visible) as report:
            while self.done < self.steps:
                start = time.perf_counter()
                if self.done == 0 and self.method.round_every:
                    self._round()
                losses = self._step(self.done)
                self.done += 1
                note = self._log(losses) if self._logging_now(self.done) else None
                if self._round_now():  # before evaluation and checkpoint, which go by what it finds
                    self._round()
                self.seconds += time.perf_counter() - start
                self.images_here += self.images_of_step
                if note is not None:
                    report(self.done, note)
                if self._evaluating_now():  # before the checkpoint: a run killed in between evaluates again
                    self._evaluate()
                stopping = self._asking_others(self.done) and self._agreed(stop.is_set())
                if self._saving_now(self.done) or stopping:
                    self._save()
                if stopping and self.done < self.steps:
                    raise Interrupted(f"stopped after step {self.done} of {self.steps}; the run is saved")

    def features_of(self, pixels: Pixels) -> Tensor | None:
        """(N, d) of these images, if a round has just computed them for clustering: evaluation need not do it again.

        Several processes share the work of evaluation, in other batches: then a resumed run would have other last bits.
        """
        if self._swept is None or self.fabric.world_size > 1:
            return None
        theirs, ours = ([file.digest for file in p.files] for p in (pixels, self.stream.target.pixels))
        return self._swept if theirs == ours else None

    def images_per_second(self) -> float:
        """Images and mosaics that steps of all processes show to the network; those of rounds are not counted."""
        return self.images_here / self.seconds if self.seconds else 0.0

    def _step(self, step: int) -> dict[str, Tensor]:
        self._swept = None
        batch = self.stream.batch(step, self.method.requests(step))
        self.images_of_step = images_shown(self.method, *batch, self.fabric.world_size)
        losses: dict[str, Tensor] = {}
        for turn in self.optimisers:
            losses |= self._take_turn(turn, batch, step)
        return losses

    def _take_turn(self, turn: str, batch: tuple[SourceBatch, TargetBatch], step: int) -> dict[str, Tensor]:
        training, optimiser = self.config.training, self.optimisers[turn]
        set_learning_rate(optimiser, step, self.steps, self.method.lr_decay)
        purpose = "step" if turn == self.method.turns[0] else f"step {turn}"  # dropout and the like
        torch.manual_seed(torch_seed(training.seed, purpose, step, self.fabric.global_rank))
        losses: dict[str, Tensor] = self.wrapped(*batch, step, turn)
        self.fabric.backward(torch.stack(list(losses.values())).sum())
        # Reading a loss waits for the device. On one CPU that costs nothing; elsewhere only the logged steps are read.
        alone_on_cpu = self.fabric.device.type == "cpu" and self.fabric.world_size == 1
        if alone_on_cpu or self._logging_now(step + 1) or self._saving_now(step + 1):
            self._refuse_non_finite(losses, step, turn)
        if training.clip_norm is not None:
            self.fabric.clip_gradients(self.wrapped, optimiser, max_norm=training.clip_norm, error_if_nonfinite=False)
        optimiser.step()
        self.method.zero_grad(set_to_none=True)  # all: a turn's gradients reach parameters that are not its own
        return {name: loss.detach() for name, loss in losses.items()}

    def _round_now(self) -> bool:
        every = self.method.round_every
        if self.done == self.steps:
            return every > 0 and self.method.round_at_end
        return every > 0 and self.done % every == 0

    @torch.no_grad()
    def _round(self) -> None:
        """Every process does it all. They start from the same statistics, and go on with the main one's findings."""
        self.method.eval()
        share_buffers(self.fabric, self.method)
        sweep = Looking(self.method, self.stream)
        with self.fabric.autocast():
            self.method.on_round(self.done, sweep)
        self._swept = sweep.target_features
        share_buffers(self.fabric, self.method)
        share_parameters(self.fabric, self.method)
        self.method.train()

    def _logging_now(self, done: int) -> bool:
        return done % self.config.output.log_every == 0 or done == self.steps

    def _saving_now(self, done: int) -> bool:
        return done % self.checkpoint_every == 0 or done == self.steps

    def _asking_others(self, done: int) -> bool:
        """Agreeing with other processes waits for all of them: only done when logging. Alone, it costs nothing."""
        return self.fabric.world_size == 1 or self._logging_now(done)

    def _log(self, losses: dict[str, Tensor]) -> str:
        """Write this step's losses (the mean over processes). Returns them as a note for the progress bar."""
        watched = {name: number().float() for name, number in self.method.watched.items()}
        mean = self._all_reduce(torch.stack([*losses.values(), *watched.values()]), "mean").tolist()
        numbers = dict(zip(losses, mean, strict=False))
        if self.metrics is not None:
            groups = next(iter(self.optimisers.values())).param_groups
            rates = {"lr_backbone": groups[0]["lr"], "lr_new": groups[1]["lr"]}
            seen = dict(zip(watched, mean[len(losses) :], strict=True))
            self.metrics.write(self.done, "train", {**numbers, "total": sum(numbers.values()), **rates, **seen})
        return (
            "  ".join(f"{name} {value:.3f}" for name, value in numbers.items())
            + f"  {self.images_per_second():.0f} img/s"
        )

    def _evaluating_now(self) -> bool:
        every = self.config.output.eval_every
        return self.evaluate is not None and every > 0 and self.done % every == 0 and self.done < self.steps

    def _evaluate(self) -> None:
        assert self.evaluate is not None
        numbers = self.evaluate(self.done)
        if self.metrics is not None:
            self.metrics.write(self.done, "evaluation", numbers)

    def _refuse_non_finite(self, losses: dict[str, Tensor], step: int, turn: str) -> None:
        finite = torch.stack(list(losses.values())).isfinite()
        if self._agreed(not bool(finite.all())):
            name = next((n for n, ok in zip(losses, finite.tolist(), strict=True) if not ok), "of another process")
            # In the first turn, the weights are those before this step. Later they are not any more: from them, a
            # resumed run would take the turns before a second time.
            if turn == self.method.turns[0] and not self._agreed(not self._state_is_finite()):
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
            f"{what}; {kept}. Start anew with a lower --lr (now {self.config.training.lr}), --clip-norm 1 or "
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
        """Never replaces a good checkpoint by a bad one: a finite loss may still have had a gradient that was not."""
        if self._agreed(not self._state_is_finite()):
            raise self._diverged(f"a weight is not finite after step {self.done}")
        self._write_checkpoint()

    def _write_checkpoint(self) -> None:
        if self.fabric.is_global_zero:
            scaler = self.scaler.state_dict() if self.scaler is not None else None
            seconds = self.seconds_before + time.monotonic() - self.started
            save_checkpoint(self.checkpoint, self.method, self.optimisers, self.done, seconds, scaler)
        self.saved_step = self.done
        self.fabric.barrier()

    def _restore(self) -> int:
        self.seconds_before = 0.0  # that this run took before it was resumed
        if not self.checkpoint.exists():
            return 0
        done, self.seconds_before, scaler_state = load_checkpoint(self.checkpoint, self.method, self.optimisers)
        if self.scaler is not None and scaler_state:
            self.scaler.load_state_dict(scaler_state)
        self.saved_step = done
        log.info("resumed after step %d of %d", done, self.steps)
        return done


@contextmanager
def _stop_requested() -> Iterator[threading.Event]:
    """Turns Ctrl-C and SIGTERM into a flag, so that a step is never cut in half. A second Ctrl-C stops at once."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():  # only the main thread may catch signals
        yield stop
        return

    def ask(number: int, frame: object) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        log.info("stopping after this step; press Ctrl-C again to stop at once")
        stop.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
