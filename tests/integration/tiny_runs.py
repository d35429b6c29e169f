"""Runs that take a second or two, on drawn pictures, for the integration tests."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from unida.cli import main
from unida.support.tensorfile import digest_of, read_tensors
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
