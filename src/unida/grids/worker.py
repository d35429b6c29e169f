"""One run of a grid in this process, and a process that carries out one run after another.

    python -m unida.grids.worker

A worker reads tasks from its standard input, a line of JSON each, and answers each with a line of JSON. Torch is
imported once for all of them. It ends when its input does: so it does not outlive the driver, even if that is killed.
"""

import errno
import json
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TextIO

from unida.errors import UserError
from unida.grids.plan import Task, config_of
from unida.grids.spec import load_methods

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    status: Literal["done", "failed", "stopped", "disk full"]
    reason: str = ""
    seconds: float = 0.0


def carry_out(task: Task, log: Path | None, methods: Sequence[str] = ()) -> Outcome:
    """The run, or the rest of it. What it prints goes to the file `log`, if there is one; nothing is raised."""
    started = time.monotonic()
    status: Literal["done", "failed", "stopped", "disk full"] = "done"
    reason = ""
    try:
        with output_to(log) if log is not None else nullcontext():
            status, reason = _attempt(task, methods)
    except OSError as error:  # of the log
        status, reason = "disk full" if _is_disk_full(error) else "failed", f"{log}: {error.strerror or error}"
    return Outcome(status, reason, time.monotonic() - started)


def _attempt(task: Task, methods: Sequence[str]) -> tuple[Literal["done", "failed", "stopped", "disk full"], str]:
    from unida.runs.pipeline import execute
    from unida.support.memory import forget_peak_memory
    from unida.support.signals import Interrupted

    try:
        load_methods(methods)
        forget_peak_memory()
        execute(config_of(task))
    except (Interrupted, KeyboardInterrupt):
        return "stopped", ""
    except UserError as error:
        return "disk full" if _is_disk_full(error) else "failed", str(error)
    except Exception as error:  # one run must not end the others
        traceback.print_exc()
        return "disk full" if _is_disk_full(error) else "failed", f"{type(error).__name__}: {error}"
    return "done", ""


def _is_disk_full(error: BaseException | None) -> bool:
    """Whether this error, or one that led to it, says that no space is left."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            return True
        if any(f"os error {number}" in str(error) for number in DISK_FULL):  # as safetensors says it
            return True
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def output_to(log: Path) -> Iterator[None]:
    """All that this process prints, also from compiled code, is appended to a file."""
    log.parent.mkdir(parents=True, exist_ok=True)
    before = {number: os.dup(number) for number in (1, 2)}
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        for number in before:
            os.dup2(file, number)
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        for number, old in before.items():
            os.dup2(old, number)
            os.close(old)
        os.close(file)


def main() -> None:
    """Work off tasks until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever prints must not mix with the answers
    import unida.runs.pipeline  # noqa: F401 - imports torch: before the first run, whose time is measured

    tasks: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=_receive, args=(sys.stdin, tasks), daemon=True).start()
    while True:
        order = tasks.get()
        outcome = carry_out(Task(**order["task"]), Path(order["log"]), order["methods"])
        print(json.dumps(asdict(outcome)), file=answers, flush=True)


def _receive(stream: TextIO, tasks: "queue.Queue[dict[str, Any]]") -> None:
    for line in stream:
        tasks.put(json.loads(line))
    os._exit(0)  # the driver has gone. A run survives being cut off at any moment


if __name__ == "__main__":
    main()
