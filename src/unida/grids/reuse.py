"""Finished runs of other grids, taken over: two studies that share a row need to run it only once."""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from unida.config import Config, complete, config_from_options
from unida.errors import UserError
from unida.grids.folder import SPEC, saved_grid
from unida.grids.plan import Task, plan

ASIDE = ".taken"  # the end of a folder's name while it is copied


def refuse_places(places: Sequence[Path]) -> None:
    for place in places:
        if _grid_in(place) is None:
            raise UserError(f"--reuse {place} is not the folder of a grid or of a study")


def take_over(todo: Sequence[Task], places: Sequence[Path]) -> list[Task]:
    """Copy runs with the same options, on the same data, from the grids or studies in these folders.

    Returns:
        The tasks that are finished by this.
    """
    finished = [task for task in _runs_of(places) if task.is_finished]
    if not finished:
        return []
    there = [(_config(task), task.folder) for task in finished]
    taken = []
    for task in todo:
        config = _config(task)
        folder = next((folder for other, folder in there if other == config), None)
        if folder is not None and folder != task.folder:
            _copy(folder, task.folder)
            taken.append(task)
    return taken


def _runs_of(places: Sequence[Path]) -> Iterator[Task]:
    for place in places:
        grid = _grid_in(place)
        assert grid is not None  # or refuse_places would have raised
        yield from plan(saved_grid(grid), grid)


def _grid_in(place: Path) -> Path | None:
    """The grid's folder; that of a study lies in it."""
    return next((folder for folder in (place, place / "grid") if (folder / SPEC).exists()), None)


def _config(task: Task) -> Config:
    """All that the run does, but where it lies: equal configs give equal runs."""
    options = {name: value for name, value in task.options.items() if name != "out"}
    config = complete(config_from_options(options), has_gpu=False)
    return replace(config, data=replace(config.data, cache=Path()))


def _copy(run: Path, folder: Path) -> None:
    """Whole or not at all. What an unfinished run of the task has left there goes."""
    aside = folder.with_name(folder.name + ASIDE)
    shutil.rmtree(aside, ignore_errors=True)
    shutil.copytree(run, aside)
    shutil.rmtree(folder, ignore_errors=True)
    aside.rename(folder)
