"""`unida grid` and `unida.grid`: check everything, tell the plan, then run it."""

import dataclasses
import shlex
from collections.abc import Callable, Mapping, Sized
from pathlib import Path
from typing import Any

from unida.errors import UserError
from unida.grids.driver import explaining_disk, run_grid
from unida.grids.engine import Engine
from unida.grids.folder import LOGS, SPEC, claimed, refuse_out, saved_grid
from unida.grids.options import GridOptions
from unida.grids.pages import write_page
from unida.grids.plan import Task, check_plan, plan
from unida.grids.results import Record, collect, forget_failure, note_failure
from unida.grids.reuse import refuse_places, take_over
from unida.grids.spec import Grid, grid_from, paper_spec, read_spec, run_options
from unida.grids.worker import Outcome, carry_out
from unida.support.suggest import did_you_mean

Show = Callable[[str], None]


def read_grid(options: GridOptions, content: Mapping[str, Any] | None = None) -> tuple[Grid, Grid]:
    """The whole grid, and the part of it that the options choose.

    Args:
        content: of a spec, from Python, in place of a file.
    """
    if content is not None:
        grid = grid_from(content, root=options.root)
    elif options.paper is not None:
        grid = paper_spec(options.paper, options.root)
    else:
        assert options.spec is not None  # or check() would have raised
        grid = read_spec(options.spec, options.root)
    overrides = run_options(options.overrides(), "--set", Path.cwd())
    grid = dataclasses.replace(grid, options={**grid.options, **overrides})
    part = grid.chosen(options.rows, options.pairs, options.settings, options.seeds)
    assert options.out is not None  # or check() would have raised
    before = saved_grid(options.out).seeds if (options.out / SPEC).exists() else []
    seeds = list(dict.fromkeys([*grid.seeds, *before, *part.seeds]))  # what was run with other seeds stays in the table
    return dataclasses.replace(grid, seeds=seeds), part


def start_grid(options: GridOptions, show: Show, content: Mapping[str, Any] | None = None) -> list[Record]:
    """Run what is missing of a grid. Everything that can be checked is checked before the first run."""
    assert options.out is not None  # as above
    out = options.out
    grid, part = read_grid(options, content)
    tasks = plan(part, out)
    refuse_out(out, grid)
    refuse_places(options.reuse)
    chosen = {task.name for task in tasks}
    check_plan([task for task in plan(grid, out) if task.name in chosen or task.folder.exists()])
    for line in plan_lines(grid, part, tasks):
        show(line)
    if options.dry_run:
        _estimate(options, tasks, out, _workers(options), show)
        return list(collect(plan(grid, out), out).values())
    with explaining_disk(out), claimed(out, grid):
        if options.reuse:
            taken = take_over([task for task in tasks if not task.is_finished], options.reuse)
            show(f"taken over: {_count(taken, 'finished run')} of other grids")
        if options.engine == "slurm-script":
            return _write_script(options, grid, tasks, out, show)
        engine = _engine(options, grid, out, len(tasks))
        expected = _estimate(options, tasks, out, engine.workers, show)
        records = run_grid(grid, part, out, engine, expected, show)
        page = write_page(grid, out)
        if page is not None:
            show(f"the tables to read are in {page}")
        return records


def _estimate(options: GridOptions, tasks: list[Task], out: Path, workers: int, show: Show) -> dict[str, float]:
    """Seconds of a run, by row; tells how long all of them will take."""
    todo = [task for task in tasks if not task.is_finished]
    if not todo:
        return {}
    if options.engine != "local" or options.no_estimate:
        show(f"time: not measured; {workers} runs side by side")
        return {}
    from unida.grids.estimate import estimate

    measured = estimate(todo, collect(tasks, out), options.cpus_per_run, show)
    show(measured.line(todo, workers))
    return measured.of_row


def plan_lines(grid: Grid, part: Grid, tasks: list[Task]) -> list[str]:
    finished = sum(task.is_finished for task in tasks)
    data = [_count(part.folders, "pair of folders", "pairs of folders")] if part.folders else []
    data = data or [_count(part.pairs, "pair"), _count(part.settings, "setting")]
    factors = [_count(part.rows, "row"), *data, _count(part.seeds, "seed")]
    counted = f"{' × '.join(factors)} = {_count(tasks, 'run')}"
    lines = [f"{grid.title or 'grid'}: {counted}" + (f", {finished} of them finished" if finished else "")]
    lines += [f"  {row}: {_told(own)}" for row, own in part.rows.items()]
    lines += [f"  every run: {_told(part.options)}"]
    if grid.skipped:
        lines.append(f"left out, for there is no such method here: {', '.join(grid.skipped)}")
    return lines


def _count(things: Sized, one: str, many: str = "") -> str:
    return f"{len(things)} {one if len(things) == 1 else many or one + 's'}"


def _told(options: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in options.items()) or "the defaults"


def _engine(options: GridOptions, grid: Grid, out: Path, runs: int) -> Engine:
    logs = out.absolute() / LOGS
    if options.engine == "ray":
        from unida.grids.onray import RayEngine

        return RayEngine(
            logs, grid.methods, options.cpus_per_run, options.gpus_per_run, options.attempts, options.workers
        )
    from unida.grids.local import LocalEngine

    workers = min(_workers(options), max(1, runs))
    gpus = options.gpus_per_run if options.gpus_per_run is not None else 1.0
    return LocalEngine(workers, logs, grid.methods, options.cpus_per_run, _devices(options), gpus, options.attempts)


def _devices(options: GridOptions) -> int:
    if options.gpus_per_run == 0:
        return 0
    import torch

    return torch.cuda.device_count()


def _workers(options: GridOptions) -> int:
    from unida.grids.local import default_workers

    return options.workers or default_workers(options.cpus_per_run, _devices(options), options.gpus_per_run or 1.0)


def _write_script(options: GridOptions, grid: Grid, tasks: list[Task], out: Path, show: Show) -> list[Record]:
    from unida.grids.slurm import write_script

    todo = [task for task in tasks if not task.is_finished]
    if todo:
        quoted = shlex.quote(str(out))
        script = shlex.quote(str(write_script(todo, out, options.cpus_per_run, options.gpus_per_run or 0)))
        show(f"wrote {script}: hand it in with `sbatch {script}`, then draw the table with `unida table {quoted}`")
    else:
        show("all runs are finished: there is nothing to hand in")
    return list(collect(plan(grid, out), out).values())


def run_task(out: Path, name: str) -> Outcome:
    """One run of a grid, by the name of its folder, in this process: what a job of a SLURM array does."""
    grid = saved_grid(out)
    tasks = {task.name: task for task in plan(grid, out)}
    if name not in tasks:
        raise UserError(f"the grid in {out} has no run {name!r}{did_you_mean(name, tasks)}")
    outcome = carry_out(tasks[name], None, grid.methods)
    if outcome.status == "done":
        forget_failure(tasks[name], out)
    elif outcome.status == "failed":
        note_failure(tasks[name], out, outcome.reason)
    return outcome
