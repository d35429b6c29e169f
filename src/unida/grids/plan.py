"""From a grid to its runs: a folder, options and a command each. All of them are checked before one starts."""

import itertools
import shlex
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from unida.config import Config, complete, config_from_options
from unida.data.pairs import benchmark_pair
from unida.errors import UserError
from unida.grids.spec import Grid, Options, folder_part
from unida.models.options import NO_WEIGHTS, pinned_revision
from unida.runs.folder import is_finished, refuse_changes
from unida.support.options import flag

RUNS = "runs"
LONGEST_NAME = 200  # most file systems allow 255 bytes


@dataclass(frozen=True)
class Task:
    """One run of a grid. Plain values only: it is sent to workers as JSON."""

    name: str  # of its folder
    row: str
    pair: str  # of a benchmark, or the name of the two folders
    setting: str  # "" for folders
    seed: int
    options: Options  # all options of the run but `resume`

    @property
    def folder(self) -> Path:
        return Path(self.options["out"])

    @property
    def is_finished(self) -> bool:
        return is_finished(self.folder)

    @property
    def words(self) -> list[str]:
        """The arguments of `unida` that make or continue this run."""
        words = ["adapt"]
        for name, value in {**self.options, "resume": True}.items():
            if value is True:
                words.append(flag(name))
            elif value is not False and value is not None:
                words += [flag(name), str(value)]
        return words

    @property
    def command(self) -> str:
        return shlex.join(["unida", *self.words])

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def plan(grid: Grid, out: Path) -> list[Task]:
    """All runs, seed by seed, so that a whole table stands as early as possible."""
    tasks = [
        Task(
            name=name,
            row=row,
            pair=pair,
            setting=setting,
            seed=seed,
            options={
                **data,
                **grid.options,
                **options,
                "seed": seed,
                "out": str(out.absolute() / RUNS / name),
            },
        )
        for seed in grid.seeds
        for (pair, setting, data), (row, options) in itertools.product(_data(grid), grid.rows.items())
        for name in ["-".join(folder_part(part) for part in (pair, setting, row, str(seed)) if part)]
    ]
    seen: dict[str, Task] = {}
    for task in tasks:
        if len(task.name) > LONGEST_NAME:
            raise UserError(f"the name {task.name[:60]!r}… is too long for a folder: shorten the row's name")
        if (other := seen.setdefault(task.name, task)) is not task:
            one, two = (f"row {each.row!r} of {each.pair} {each.setting}".strip() for each in (other, task))
            raise UserError(f"{one} and {two} would share the folder {task.name!r}: rename a row")
    return tasks


def _data(grid: Grid) -> Iterator[tuple[str, str, Options]]:
    """Name of the pair, setting, and the options that say which images to read."""
    for name, folders in grid.folders.items():
        yield name, "", dict(folders)
    for setting, pair in itertools.product(grid.settings, grid.pairs):
        yield pair, setting, {"benchmark": grid.benchmark, "root": grid.root, "pair": pair, "setting": setting}


def check_plan(tasks: list[Task]) -> None:
    """Refuse a wrong option before anything runs. The error names the row."""
    for task in tasks:
        try:
            config = config_of(task)
            complete(config, has_gpu=False)
            benchmark_pair(config.data)
            if config.training.devices * config.training.num_nodes > 1:
                raise UserError("devices and num_nodes must be 1: a run of a grid is one process, on one device")
            weights = config.model.weights
            if weights not in (None, NO_WEIGHTS) and pinned_revision(weights) is None and not Path(weights).is_file():
                raise UserError(f"weights {weights} is not a file")
            refuse_changes(config, of_places=not task.is_finished)
        except UserError as error:
            raise UserError(f"row {task.row!r}: {error}") from error


def config_of(task: Task) -> Config:
    """The run's config: a new one, or that of the run to continue."""
    return config_from_options({**task.options, "resume": True})
