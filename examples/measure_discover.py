"""How well `unida discover` finds the classes that only the target has: the table of docs/discover.md.

    python examples/measure_discover.py runs/office31/runs/*-unida-*-0 --each source-only

Beside it stands k-means on the same features, which is told the true number of classes. The runs' targets must have
labels; they are used for this table only.
"""

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F

import unida
from unida.analysis.groups import Groups, find_groups
from unida.clustering.kmeans import kmeans
from unida.config import method_name
from unida.evaluation.grouping import GroupingResult
from unida.runs.discover import Space, UnknownImages, describe, look_at_unknown
from unida.support.tables import markdown

HEADING = ["pair", "method", "space", "groups", "classes", "accuracy", "NMI", "H³", "k-means: accuracy", "NMI"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    spaces = ["features", "words", "both"]
    parser.add_argument("--space", nargs="+", default=spaces, choices=spaces, help="(default: all that a run has)")
    parser.add_argument("--each", nargs="+", metavar="METHOD", help="a line for each run of these only (default: all)")
    options = parser.parse_args()
    print(table([row for folder in options.runs for row in measure(folder, options.space)], options.each))


def measure(folder: Path, spaces: Sequence[Space]) -> list[list[str | float]]:
    """A row for each space that the run has."""
    run = unida.load(folder)
    rows = []
    for space, unknown in images_of(run, spaces).items():
        found = measured(find_groups(unknown.features), unknown, run)
        told = kmeans(F.normalize(unknown.features, dim=1), found.true, seed=0).assignment  # the true number is told
        other = measured(Groups(told, torch.ones(len(told))), unknown, run)
        data = run.config.data
        pair = data.pair or f"{data.source}:{data.target}"
        shares = [found.accuracy, found.nmi, found.h3, other.accuracy, other.nmi]
        numbers = [float(found.found), float(found.true), *(100 * (share or 0) for share in shares)]
        rows.append([pair, method_name(run.config), space, *numbers])
        print(rows[-1], file=sys.stderr, flush=True)
    return rows


def images_of(run: unida.Run, spaces: Sequence[Space]) -> dict[Space, UnknownImages]:
    """The unknown images in each space that the run has. Words are looked at once: "both" has features, then words."""
    features = look_at_unknown(run._finished, "features", visible=False)
    found: dict[Space, UnknownImages] = {"features": features}
    if run.config.spa.spa and {"words", "both"} & {*spaces}:
        words = look_at_unknown(run._finished, "words", visible=False)
        both = replace(words, features=torch.cat([features.features, words.features], dim=1))
        found |= {"words": words, "both": both}
    return {space: found[space] for space in spaces if space in found}


def measured(groups: Groups, unknown: UnknownImages, run: unida.Run) -> GroupingResult:
    result = describe(unknown, groups, run._finished, visible=False).measured
    if result is None:
        raise SystemExit(f"{run.folder}: its target has no labels to compare groups with")
    return result


def table(rows: list[list[str | float]], each: Sequence[str] | None) -> str:
    """A line for each run of the methods in `each`, and the mean of each method and space that has several."""
    lines = [row for row in rows if each is None or row[1] in each]
    for method, space in dict.fromkeys((row[1], row[2]) for row in rows):
        mine = [row[3:] for row in rows if (row[1], row[2]) == (method, space)]
        if len(mine) > 1:
            lines.append([f"mean of {len(mine)}", method, space, *map(statistics.mean, zip(*mine, strict=True))])
    return markdown(HEADING, [[f"{x:.1f}" if isinstance(x, float) else str(x) for x in row] for row in lines])


if __name__ == "__main__":
    main()
