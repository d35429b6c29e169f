"""The driver of a grid: plans, hands runs to an engine, keeps the results, and shows how it goes."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

from unida.errors import UserError
from unida.grids.engine import Ended, Engine, Started
from unida.grids.folder import driver_here, write_status
from unida.grids.plan import Task, plan
from unida.grids.results import (
    RESULTS,
    Record,
    collect,
    forget_failure,
    note_failure,
    write_results,
)
from unida.grids.spec import Grid
from unida.support.progress import duration

SECONDS_BETWEEN_LINES = 30.0


@dataclass
class Course:
    """How far a grid is: what status.json says, and what time is left."""

    tasks: Sequence[Task]  # those of this call
    workers: int
    expected: dict[str, float]  # seconds of a run by row, measured or estimated
    driver: dict[str, Any] = field(default_factory=driver_here)
    running: dict[str, tuple[Task, float, str]] = field(default_factory=dict)  # name → task, since when, where
    done: int = 0
    failed: int = 0
    seconds: dict[str, list[float]] = field(default_factory=dict)  # of runs that ended in this call, by row
    ended_names: set[str] = field(default_factory=set)

    @property
    def left(self) -> int:
        return len(self.tasks) - self.done - self.failed

    def seconds_left(self) -> float | None:
        """By the mean of each row so far; before any has ended, by the estimate; None if there is none."""
        by_row = {**self.expected, **{row: mean(values) for row, values in self.seconds.items()}}
        if not by_row:
            return None
        known = mean(by_row.values())
        ended = self.done + self.failed
        open_tasks = [task for task in self.tasks if task.name not in self.ended_names]
        total = sum(by_row.get(task.row, known) for task in open_tasks)
        spent = sum(min(time.time() - since, by_row.get(task.row, known)) for task, since, _ in self.running.values())
        return (total - spent) / max(1, min(self.workers, len(self.tasks) - ended))

    def started(self, event: Started) -> None:
        self.running[event.task.name] = (event.task, time.time(), event.where)

    def ended(self, event: Ended, status: str) -> None:
        self.running.pop(event.task.name, None)
        self.ended_names.add(event.task.name)
        self.done += status == "done"
        self.failed += status == "failed"
        if status == "done":
            self.seconds.setdefault(event.task.row, []).append(event.outcome.seconds)

    def line(self) -> str:
        left = self.seconds_left()
        time_left = f", {duration(left)} left" if left is not None and self.left else ""
        failed = f", {self.failed} failed" if self.failed else ""
        return f"{self.done} of {len(self.tasks)} runs done, {len(self.running)} running{failed}{time_left}"

    def plain(self) -> dict[str, Any]:
        return {
            "driver": self.driver,
            "time": time.time(),
            "runs": len(self.tasks),
            "done": self.done,
            "failed": self.failed,
            "seconds_left": self.seconds_left(),
            "running": [
                {"name": name, "since": since, "where": where, "folder": str(task.folder)}
                for name, (task, since, where) in self.running.items()
            ],
        }


def run_grid(
    grid: Grid,
    part: Grid,
    out: Path,
    engine: Engine,
    expected: dict[str, float],
    show: Callable[[str], None],
) -> list[Record]:
    """Carry out what is missing of a part of a grid; its results so far stand in results.csv at every moment.

    The folder must be claimed.

    Args:
        part: of the grid, as chosen for this call.
        expected: estimated seconds of a run, by row.
        show: prints a line.

    Returns:
        A record for each run of the whole grid that is finished or has failed.
    """
    whole = plan(grid, out)
    todo = [task for task in plan(part, out) if not task.is_finished]
    course = Course(todo, engine.workers, expected)
    records = collect(whole, out)
    _keep(whole, records, course, out)
    with contextlib.closing(engine.run(todo)) as events:
        _follow(events, course, records, whole, out, show)
    _keep(whole, records, course, out)
    return [records[task.name] for task in whole if task.name in records]


def _follow(
    events: Iterator[Any],
    course: Course,
    records: dict[str, Record],
    whole: Sequence[Task],
    out: Path,
    show: Callable[[str], None],
) -> None:
    last = time.monotonic()
    for event in events:
        if isinstance(event, Started):
            course.started(event)
            write_status(out, course.plain())
        elif isinstance(event, Ended):
            told = _settle(event, course, records, out)
            _keep(whole, records, course, out)
            show(f"{told} ({course.line()})")
            last = time.monotonic()
        elif time.monotonic() - last > SECONDS_BETWEEN_LINES:
            write_status(out, course.plain())
            show(course.line())
            last = time.monotonic()


def _settle(event: Ended, course: Course, records: dict[str, Record], out: Path) -> str:
    """Keep what a run gave, or why it failed: a line about it."""
    task, outcome = event.task, event.outcome
    if outcome.status == "disk full":
        raise UserError(f"no space is left for {task.name} ({outcome.reason}): free some, then give the command again")
    name = f"{task.pair} {task.setting} {task.row}, seed {task.seed}".replace("  ", " ")
    if outcome.status == "done":
        course.ended(event, "done")
        forget_failure(task, out)
        records |= collect([task], out)
        hos = records[task.name].get("hos")
        what = f"HOS {100 * hos:.1f}" if hos is not None else "done"
        return f"{name}: {what}, {duration(outcome.seconds)}"
    course.ended(event, "failed")
    note_failure(task, out, outcome.reason)
    records |= collect([task], out)
    return f"{name}: failed: {outcome.reason}"


def _keep(whole: Sequence[Task], records: dict[str, Record], course: Course, out: Path) -> None:
    write_results([records[task.name] for task in whole if task.name in records], out / RESULTS)
    write_status(out, course.plain())


@contextlib.contextmanager
def explaining_disk(out: Path) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:  # of the terminal
        raise
    except OSError as error:
        raise UserError(
            f"--out {out} cannot be written ({error.strerror or error}): fix that, then give the command again"
        ) from error
