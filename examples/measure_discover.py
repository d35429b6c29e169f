"""How well `unida discover` finds the classes that only the target has: a line for each run and space.

    python examples/measure_discover.py runs/office31/runs/*-unida-*-0 --space features words both

Beside it stands k-means on the same features, which is told the true number of classes. The runs' targets must have
labels; they are used for this table only.
"""

import argparse
import statistics
from pathlib import Path

import torch

import unida
from unida.analysis.groups import Groups, find_groups
from unida.clustering.kmeans import kmeans
from unida.config import method_name
from unida.errors import UserError
from unida.evaluation.grouping import GroupingResult
from unida.runs.discover import Space, describe, look_at_unknown
from unida.support.tables import markdown

HEADING = ["pair", "method", "space", "groups", "classes", "accuracy", "NMI", "H³", "k-means: accuracy", "NMI"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--space", nargs="+", default=["features"], choices=["features", "words", "both"])
    options = parser.parse_args()
    rows = []
    for folder in options.runs:
        for space in options.space:
            try:
                rows.append(measure(folder, space))
            except UserError as error:  # a run without words
                print(f"left out: {error}", flush=True)
    print(table(rows))


def measure(folder: Path, space: Space) -> list[str | float]:
    run = unida.load(folder)
    unknown = look_at_unknown(run._finished, space, visible=False)
    found = measured(find_groups(unknown.features), unknown, run)
    told = kmeans(unknown.features, found.true, seed=0).assignment  # the true number is told
    other = measured(Groups(told, torch.ones(len(told))), unknown, run)
    data = run.config.data
    pair = data.pair or f"{data.source}:{data.target}"
    numbers = [found.accuracy, found.nmi, found.h3, other.accuracy, other.nmi]
    return [pair, method_name(run.config), space, found.found, found.true, *(100 * (x or 0) for x in numbers)]


def measured(groups: Groups, unknown, run) -> GroupingResult:
    result = describe(unknown, groups, run._finished, visible=False).measured
    if result is None:
        raise SystemExit(f"{run.folder}: its target has no labels to compare groups with")
    return result


def table(rows: list[list[str | float]]) -> str:
    """A line for each run, and the mean of each method and space that has several."""
    lines = [*rows]
    for method, space in dict.fromkeys((row[1], row[2]) for row in rows):
        mine = [row[3:] for row in rows if (row[1], row[2]) == (method, space)]
        if len(mine) > 1:
            lines.append([f"mean of {len(mine)}", method, space, *map(statistics.mean, zip(*mine, strict=True))])
    return markdown(HEADING, [[f"{x:.1f}" if isinstance(x, float) else str(x) for x in row] for row in lines])


if __name__ == "__main__":
    main()
