"""The report of a grid: every run, the table, paired differences, and cost against quality."""

import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import quote

from unida.errors import UserError
from unida.grids.folder import saved_grid
from unida.grids.options import UNKNOWN_ANSWERS, TableOptions
from unida.grids.plan import Task, plan
from unida.grids.results import Record, record_of
from unida.grids.tables import Table, draw
from unida.reports import charts
from unida.reports.page import render, require_packages
from unida.runs.summary import percent
from unida.support.files import write_text
from unida.support.progress import duration
from unida.support.suggest import did_you_mean

REPORT = "report.html"
BASELINE = "source-only"
SHOWN = ("hos", "known", "unknown", "auroc", "accuracy")
HEADINGS = {"hos": "HOS", "known": "known", "unknown": "unknown", "auroc": "AUROC", "accuracy": "accuracy"}


@dataclass(frozen=True)
class RunLine:
    names: tuple[str, str, str, str]  # row, pair, setting, seed
    numbers: list[str]
    link: str | None  # to the run's report


def write_grid_report(folder: Path, out: Path, against: str | None = None, with_runs: bool = False) -> None:
    """One HTML file from the folder of a grid.

    Args:
        against: the row to compare with; by default source-only, or the first.
        with_runs: also write the report of every finished run that has none.
    """
    require_packages()
    tasks = plan(saved_grid(folder), folder)
    if with_runs:
        from unida.reports.run_report import report_after_run

        for task in tasks:
            if task.is_finished:
                report_after_run(task.folder)
    write_text(out, render("grid.html", grid_context(folder, tasks, out, against)))


def grid_context(folder: Path, tasks: Sequence[Task], out: Path, against: str | None) -> dict[str, Any]:
    """All that the template shows."""
    records = {task.name: record for task in tasks if (record := record_of(task, folder)) is not None}
    done = {name: record for name, record in records.items() if record["status"] == "done"}
    if not done:
        raise UserError(f"{folder} has no finished run: there is nothing to report")
    rows = list(dict.fromkeys(record["row"] for record in done.values()))
    if against is not None and against not in rows:
        raise UserError(f"--against: there is no row {against!r}{did_you_mean(against, rows)}")
    has_truth = any(record.get("hos") is not None for record in done.values())
    base = against or (BASELINE if BASELINE in rows else rows[0])
    shown = SHOWN if has_truth else (UNKNOWN_ANSWERS,)
    points = _costs(list(done.values()), rows)
    return {
        "title": f"Grid: {folder.absolute().name}",
        "version": version("unida"),
        "written": time.strftime("%Y-%m-%d %H:%M"),
        "sentence": _sentence(tasks, records, done, rows),
        "tables": _tables(list(done.values()), has_truth, base, len(rows)),
        "base": base,
        "run_headings": [*(HEADINGS.get(name, "answered unknown") for name in shown), "HOS alone", "seconds"],
        "runs": [_line(task, done[task.name], shown, out) for task in tasks if task.name in done],
        "failed": [
            (r["row"], r["pair"], r["setting"], str(r["seed"]), r.get("reason", ""))
            for r in records.values()
            if r["status"] == "failed"
        ],
        "charts": {"cost": charts.cost_against(points, "HOS")} if points else {},
    }


def _sentence(tasks: Sequence[Task], records: dict[str, Record], done: dict[str, Record], rows: Sequence[str]) -> str:
    pairs, seeds = ({record[name] for record in done.values()} for name in ("pair", "seed"))
    seconds = sum(record.get("seconds") or 0 for record in done.values())
    failed, missing = len(records) - len(done), len(tasks) - len(records)
    rest = f" {failed} failed." if failed else ""
    rest += f" {missing} are not finished yet." if missing else ""
    return (
        f"{len(done)} of {len(tasks)} runs are finished: {len(rows)} rows on {len(pairs)} pair(s), {len(seeds)} "
        f"seed(s), {duration(seconds)} of work.{rest}"
    )


def _tables(records: list[Record], has_truth: bool, base: str, num_rows: int) -> list[Table]:
    """Means by pair, then the differences to one row where they can be told."""
    metric = "hos" if has_truth else UNKNOWN_ANSWERS
    found: list[Table] = []
    others = {"against": (base,), "layout": "differences", "also": ("known", "unknown", "auroc")}
    for options in ({"metric": metric}, {"metric": metric, **others}):
        if "against" in options and (num_rows < 2 or not has_truth):
            continue
        try:
            found += draw(records, TableOptions(**options))
        except UserError:  # two runs of each row are too few to compare, or runs that differ share a row
            continue
    return found


def _line(task: Task, record: Record, shown: Sequence[str], out: Path) -> RunLine:
    numbers = [percent(record.get(name)) for name in shown]
    seconds = record.get("seconds")
    numbers += [percent(record.get("alone_hos")), "–" if seconds is None else f"{seconds:.1f}"]
    page = task.folder / REPORT
    link = quote(os.path.relpath(page, out.absolute().parent)) if page.exists() else None
    return RunLine((record["row"], record["pair"], record["setting"], str(record["seed"])), numbers, link)


def _costs(records: Sequence[Record], rows: Sequence[str]) -> list[tuple[str, float, float, float]]:
    """Row, mean seconds, mean HOS and its deviation over runs; rows without either are left out."""
    points = []
    for row in rows:
        mine = [r for r in records if r["row"] == row and r.get("hos") is not None and r.get("seconds")]
        if mine:
            hos = [100 * r["hos"] for r in mine]
            deviation = statistics.stdev(hos) if len(hos) > 1 else 0.0
            points.append((row, statistics.mean(r["seconds"] for r in mine), statistics.mean(hos), deviation))
    return points
