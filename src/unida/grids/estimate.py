"""How long a grid will take: a few steps of one run of each row, as `unida check` does, or runs that are there."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

import torch

from unida.config import Config, method_name
from unida.grids.plan import Task, config_of
from unida.grids.results import Record
from unida.runs.check import cost_of
from unida.support.progress import duration

SECONDS_OF_START = 2.0  # of a run in a worker that is warm: reading lists and files, building the network, writing
SECONDS_OF_WORKER = 10.0  # until a worker has imported torch


@dataclass(frozen=True)
class Estimate:
    of_row: dict[str, float]  # seconds of a run whose features are there
    features: float  # seconds for all features that are missing

    def line(self, tasks: Sequence[Task], workers: int) -> str:
        if not self.of_row:
            return "time: not known"
        others = mean(self.of_row.values())
        runs = sum(self.of_row.get(task.row, others) for task in tasks)
        slowest = max(self.of_row, key=lambda row: self.of_row[row])
        fastest = min(self.of_row, key=lambda row: self.of_row[row])
        of_features = f", {duration(self.features)} of it for features" if self.features >= 1 else ""
        range_of_runs = f"from {duration(self.of_row[fastest])} ({fastest}) to {duration(self.of_row[slowest])} a run"
        each = range_of_runs if fastest != slowest else f"{duration(self.of_row[fastest])} a run"
        total = SECONDS_OF_WORKER + self.features + runs / min(workers, len(tasks))
        return f"time: about {duration(total)} with {workers} worker(s){of_features}; {each}"


def estimate(todo: Sequence[Task], there: Mapping[str, Record], threads: int, show: Callable[[str], None]) -> Estimate:
    """Seconds of a run of each row: the mean of its finished runs, or else measured on a few images and steps.

    Measured with as many threads as a run will have. Features are shared: they are counted once for each kind of
    network, for as many domains as the runs use.
    """
    torch.set_num_threads(threads)
    of_row: dict[str, float] = {}
    features: dict[tuple[object, ...], float] = {}
    first = {task.row: task for task in reversed(todo)}
    unknown = [row for row in first if not _seconds(there, row)]
    if unknown:
        show(f"measuring how long {len(unknown)} row(s) will take; --no-estimate starts at once")
    for row, task in first.items():
        if seconds := _seconds(there, row):
            of_row[row] = mean(seconds)
            continue
        config = config_of(task)
        try:
            cost = cost_of(config)
        except Exception as error:  # its runs will say what is wrong, each for itself
            show(f"row {row!r} cannot be measured: {error}")
            continue
        of_row[row] = SECONDS_OF_START + cost.seconds_steps + cost.seconds_rounds + cost.seconds_answers
        kind = _kind_of_features(config)
        features[kind] = max(features.get(kind, 0.0), cost.seconds_features * _domains(todo) / 2)
    return Estimate(of_row, sum(features.values()))


def _seconds(there: Mapping[str, Record], row: str) -> list[float]:
    return [record["seconds"] for record in there.values() if record["row"] == row and record["status"] == "done"]


def _kind_of_features(config: Config) -> tuple[object, ...]:
    model, data = config.model, config.data
    words = method_name(config) if config.spa.spa else ""
    return model.backbone, model.weights, model.train, model.tap, model.views, data.image_size, data.crop, words


def _domains(tasks: Sequence[Task]) -> int:
    """How many sets of images the runs read: the domains of a benchmark, or two folders for each pair."""
    names = {name for task in tasks for name in task.pair.split(":")}
    return len(names) if tasks[0].setting else 2 * len({task.pair for task in tasks})
