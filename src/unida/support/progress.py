"""Progress of long work: a bar with time left on a terminal, plain lines elsewhere (log files, notebooks, CI)."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

SECONDS_BETWEEN_LINES = 10.0


class Report(Protocol):
    """Reports how many are done, with a note such as the losses."""

    def __call__(self, count: int, note: str = "") -> None: ...


@contextmanager
def progress(title: str, total: int, done: int = 0, visible: bool = True) -> Iterator[Report]:
    """Yields `report(done, note)`. `done` items were done before: they do not count in the estimate of time."""
    if not visible or total <= done:
        yield _silence
    elif sys.stderr.isatty():
        yield from _bar(title, total, done)
    else:
        yield from _lines(title, total, done)


def _silence(count: int, note: str = "") -> None:
    pass


def _bar(title: str, total: int, done: int) -> Iterator[Report]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total, completed=done, note="")

        def report(count: int, note: str = "") -> None:
            bar.update(task, completed=count, note=note)

        yield report


def _lines(title: str, total: int, done: int) -> Iterator[Report]:
    start = last = time.monotonic()

    def report(count: int, note: str = "") -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < SECONDS_BETWEEN_LINES or count <= done:
            return
        last = now
        left = (now - start) / (count - done) * (total - count)
        print(
            f"{title}: {count}/{total}  {note}  {duration(left)} left".replace("    ", "  "),
            file=sys.stderr,
            flush=True,
        )

    yield report


def duration(seconds: float) -> str:
    """4 → "4 s", 75 → "1 min 15 s", 4000 → "1 h 6 min"."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def data_size(count: float) -> str:
    """Bytes for people: "1.50 GiB", "12.3 MiB"."""
    return f"{count / 2**30:.2f} GiB" if count >= 0.1 * 2**30 else f"{count / 2**20:.1f} MiB"
