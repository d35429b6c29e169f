"""Runs that take a second or two, on drawn pictures, for the integration tests."""

import functools
import json
import logging
import multiprocessing
import multiprocessing.connection
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from unida.cli import main
from unida.runs import pipeline
from unida.support.tensorfile import digest_of, read_tensors
from unida.training.batches import BatchStream
from unida.training.checkpoint import Checkpoint
from unida.training.loop import Training

# One thread: sums in another order give other bits, and the machine may be shared.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def adapt_arguments(source: Path, target: Path, out: Path, cache: Path, **changes: Any) -> list[str]:
    """`adapt …`; a change of None leaves the option out, True makes it a flag."""
    options: dict[str, Any] = {
        "source": source,
        "target": target,
        "out": out,
        "cache": cache,
        "backbone": "test_resnet",
        "weights": "none",
        "train": "all",
        "image_size": 40,
        "crop": 32,
        "batch_size": 4,
        "steps": 8,
        "log_every": 1,
        "accelerator": "cpu",
        "engine": "torch",  # OpenVINO, where it is installed, crashes in the forked processes of `run_two`
        "target_labels": True,
        **changes,
    }
    words = ["adapt"]
    for name, value in options.items():
        if value is not None:
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return words


def run_here(arguments: list[str]) -> int:
    """The command in this process, whose random state is nobody's business: its exit code."""
    torch.seed()
    try:
        main(arguments)
    except SystemExit as end:
        return int(end.code or 0)
    return 0


class Forked:
    """The command in a process that can be killed or signalled.

    It is forked from this one, which has torch loaded: that is most of the time that a new process takes.

    Args:
        prepare: called in the process, first.
        environment: to be added there.
    """

    def __init__(
        self,
        words: list[str],
        prepare: Callable[[], None] | None = None,
        environment: Mapping[str, object] | None = None,
    ) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115
        given = (words, prepare, environment or {})
        self._process = multiprocessing.get_context("fork").Process(target=self._run, args=given)
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    @property
    def printed(self) -> str:
        """All that it has printed so far."""
        return os.pread(self._file.fileno(), 2**20, 0).decode(errors="replace")

    @property
    def code(self) -> int | None:
        """Its exit code, below 0 if a signal ended it; None while it runs."""
        return self._process.exitcode

    @property
    def sentinel(self) -> int:
        """Ready when the process has ended."""
        return self._process.sentinel

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    def end(self, seconds: float = 1200) -> int:
        """Its exit code; if it does not end in time, that is a failure."""
        self._process.join(seconds)
        code = self.code
        if code is None:
            self._process.kill()
            self._process.join()
        assert code is not None, self.printed
        return code

    def _run(self, words: list[str], prepare: Callable[[], None] | None, environment: Mapping[str, object]) -> None:
        os.environ.update({name: str(value) for name, value in environment.items()})
        for number in (1, 2):
            os.dup2(self._file.fileno(), number)
        sys.stdout, sys.stderr = (open(number, "w", buffering=1, closefd=False) for number in (1, 2))  # noqa: SIM115
        logging.getLogger().handlers = []  # the test runner's
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a runner in the background may ignore Ctrl-C
        if prepare is not None:
            prepare()
        sys.exit(run_here(words))


def run_two(words: list[str], prepare: Callable[[int], None] | None = None) -> tuple[int, str]:
    """The command in two processes, as torchrun starts them: the larger exit code, and what both printed.

    Args:
        prepare: called in each with its rank, first.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "GROUP_RANK": 0, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    both = []
    for rank in (0, 1):
        place = {**shared, "RANK": rank, "LOCAL_RANK": rank, "TORCHELASTIC_RUN_ID": "tests"}
        both.append(Forked(words, prepare and functools.partial(prepare, rank), place))
    # One that dies leaves the other waiting for it.
    multiprocessing.connection.wait([process.sentinel for process in both], timeout=1200)
    codes = [process.end(seconds=20) for process in both]
    return max(map(abs, codes)), "".join(process.printed for process in both)


def start_process(
    arguments: list[str],
    *launcher: str,
    entry: tuple[str, ...] = ("-m", "unida"),
    environment: Mapping[str, str] = ENVIRONMENT,
    **options: Any,
) -> "subprocess.Popen[str]":
    """The real entry point, its output kept."""
    command = [*(launcher or (sys.executable,)), *entry, *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=environment, **pipes, **options)  # type: ignore[call-overload, no-any-return]


def model_hash(run: Path) -> str:
    """Of the tensors alone: the header names the run, and two runs may come to the same weights."""
    return digest_of(read_tensors(run / "checkpoint" / "model.safetensors")[0], {})


def last_step(run: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((run / "metrics.json").read_text())
    return content["last_step"]  # type: ignore[no-any-return]


def lines_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def all_weights(run: Path) -> dict[str, Any]:
    return load_file(run / "checkpoint" / "resume.safetensors")


def saved_step(run: Path) -> int:
    """The step after which the run's checkpoint was written."""
    return Checkpoint(run / "checkpoint" / "resume.safetensors").progress.step


class Killed(BaseException):
    """Nothing in the run catches it."""


@contextmanager
def dying_at_the_first_checkpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A run inside ends right after its first checkpoint is written, as if it had been killed there."""
    write = Training._write_checkpoint

    def write_and_die(training: Training) -> None:
        write(training)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Training, "_write_checkpoint", write_and_die)
        with pytest.raises(Killed):
            yield


def kill_after(step: int, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    """The command ends right after the checkpoint of this step is written, as if it had been killed there."""
    write = Training._write_checkpoint

    def write_and_die(training: Training) -> None:
        write(training)
        if training.done == step:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Training, "_write_checkpoint", write_and_die)
        with pytest.raises(Killed):
            run_here(words)


def assert_same_state(ours: Path, theirs: Path) -> None:
    """Every weight, buffer and state of an optimiser, to the bit."""
    one, other = all_weights(ours), all_weights(theirs)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one)


def assert_nearly_same_run(two: Path, one: Path) -> None:
    """What two processes leave, and what one does: sums in another order have other last bits."""
    ours, theirs = all_weights(two), all_weights(one)
    assert ours.keys() == theirs.keys()
    for key in ours:
        assert torch.allclose(ours[key], theirs[key], rtol=1e-3, atol=1e-5), (key, ours[key] - theirs[key])
    for line, expected in zip(lines_of(two), lines_of(one), strict=True):
        assert line["total"] == pytest.approx(expected["total"], rel=1e-3)


def note_reads(monkeypatch: pytest.MonkeyPatch, read: list[str]) -> None:
    """Note whose images training is given, in order: every way to an image goes through the stream's inputs."""
    open_stream = pipeline.open_stream

    def watched(*arguments: Any) -> BatchStream:
        stream = open_stream(*arguments)
        for name in ("training_view", "test_view", "made", "made_test_view"):
            monkeypatch.setattr(stream.inputs, name, noting(stream, getattr(stream.inputs, name)))
        return stream

    def noting(stream: BatchStream, view: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any) -> Any:
            read.append("source" if any(it is stream.source.pixels for it in arguments) else "target")
            return view(*arguments)

        return noted

    monkeypatch.setattr(pipeline, "open_stream", watched)
