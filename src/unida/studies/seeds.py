"""`unida study seeds`: how much OS and OS* differ from seed to seed."""

import statistics
from typing import TYPE_CHECKING

from unida.grids.plan import Task
from unida.grids.results import ALONE, Record
from unida.studies.base import (
    Line,
    Row,
    Study,
    Table,
    grouped,
    in_percent,
    of_method,
    of_preset,
    seed_means,
    shown_metric,
)
from unida.studies.options import SeedsOptions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MEASURED = ("os", "os_star", "unknown", "hos")
NAMES = ("OS", "OS*", "unknown", "HOS")
COLUMNS = (*MEASURED, *(ALONE + name for name in MEASURED))


def rows(options: SeedsOptions) -> list[Row]:
    method = options.method
    return [
        Row(method, of_method(method, options), {"spa": "no"}),
        Row(f"{method}+spa", of_preset(method, options), {"spa": "yes"}),
    ]


def measure(row: Row, task: Task, record: Record, options: SeedsOptions) -> list[Line]:
    return [{name: record.get(name) for name in COLUMNS}]


def tables(lines: list[Line], options: SeedsOptions) -> list[Table]:
    """By pair, as the paper's table is; then the average over pairs, which has a spread of its own."""
    metrics = [shown_metric(name, options) for name in MEASURED]
    heading = ("row", "pair", *NAMES, "seeds")
    drawn = []
    for (row,), mine in grouped(lines, "row").items():
        of_pairs = grouped(mine, "pair")
        for (pair,), some in of_pairs.items():
            cells = [in_percent([line[m] for line in some if line.get(m) is not None]) for m in metrics]
            drawn.append([row, pair, *cells, str(len(some))])
        if len(of_pairs) > 1:
            means = [seed_means(mine, metric) for metric in metrics]
            drawn.append([row, "average", *map(in_percent, means), str(len(means[0]))])
    return [Table("Mean ± standard deviation between seeds, in per cent.", heading, drawn)]


def draw(figure: "Figure", lines: list[Line], options: SeedsOptions) -> None:
    for place, (name, title) in enumerate(zip(MEASURED[:2], NAMES[:2], strict=True)):
        axes = figure.add_subplot(1, 2, place + 1)
        metric = shown_metric(name, options)
        found = grouped(lines, "row")
        for number, mine in enumerate(found.values()):
            values = [100 * it for it in seed_means(mine, metric)]
            if values:
                std = statistics.stdev(values) if len(values) > 1 else 0.0
                axes.errorbar(number, statistics.fmean(values), yerr=std, fmt="o", capsize=5)
                axes.plot([number + 0.15] * len(values), values, "k.", markersize=4)
        axes.set_xticks(range(len(found)), [row for (row,) in found])
        axes.set_xlim(-0.6, len(found) - 0.4)
        axes.set_title(f"{title}, in per cent")
        axes.grid(axis="y", alpha=0.3)


SEEDS = Study(
    name="seeds",
    about="OS and OS* without and with SPA, mean and standard deviation between seeds.",
    rows=rows,
    measured=COLUMNS,
    measure=measure,
    tables=tables,
    draw=draw,
    paper="OS and OS* on Office-31 under OSDA, three seeds each.",
    published="osda-office31-os",
    how="OS is the mean over the shared classes and unknown as one more class, OS* the mean without unknown.",
    Options=SeedsOptions,
)
