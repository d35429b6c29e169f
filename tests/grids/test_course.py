"""How far a grid is, and how long it will still take."""

from pathlib import Path

import pytest

from unida.grids.driver import Course
from unida.grids.engine import Ended, Started
from unida.grids.plan import Task
from unida.grids.worker import Outcome


def tasks(*rows: str) -> list[Task]:
    return [Task(f"{row}-{i}", row, "a:b", "", i, {"out": str(Path("out"))}) for i, row in enumerate(rows)]


def test_time_left_follows_the_rows_and_the_workers() -> None:
    todo = tasks("fast", "slow", "fast", "slow", "new")
    course = Course(todo, workers=2, expected={"fast": 10.0, "slow": 100.0})
    assert course.seconds_left() == pytest.approx((10 + 100 + 10 + 100 + 55) / 2)  # "new": as the others on average
    course.started(Started(todo[0], "here"))
    course.ended(Ended(todo[0], Outcome("done", seconds=20.0)), "done")
    assert course.seconds_left() == pytest.approx((100 + 20 + 100 + 60) / 2)  # measured, not expected
    course.ended(Ended(todo[1], Outcome("failed", "why", seconds=0.1)), "failed")
    assert course.seconds_left() == pytest.approx((20 + 100 + 60) / 2)  # a failure says nothing about time
    assert course.line().startswith("1 of 5 runs done, 0 running, 1 failed, 1 min 30 s left")


def test_without_an_estimate_the_first_run_tells() -> None:
    todo = tasks("a", "a")
    course = Course(todo, workers=1, expected={})
    assert course.seconds_left() is None and "left" not in course.line()
    course.ended(Ended(todo[0], Outcome("done", seconds=7.0)), "done")
    assert course.seconds_left() == pytest.approx(7)
