"""Other label sets than the published ones: does what was chosen on Office-31's own splits hold elsewhere?

    python examples/label_sets.py --root DIR --out runs/label-sets      # prints the table of docs/studies/label_sets.md

Classes are drawn at random. A set has so many shared, source-private and target-private classes. Each is a grid of
two methods and the baseline on four pairs of folders; given again, it goes on where it was.
"""

import argparse
import random
from pathlib import Path
from typing import Any

import unida
from unida.support.tables import markdown

SETS = {  # shared, source-private, target-private
    "few classes, very open": (5, 2, 24),
    "three classes": (3, 0, 28),
    "open": (12, 0, 19),
    "nearly closed": (25, 3, 3),
    "no unknown image": (12, 19, 0),
}
PAIRS = ("amazon:dslr", "dslr:amazon", "amazon:webcam", "webcam:amazon")
METHODS = ("source-only", "ovanet", "dcc")
HEADING = [
    "label sets",
    "draw",
    "method",
    "HOS alone",
    "together",
    "AUROC alone",
    "together",
    "known",
    "called unknown",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True, help="Office-31: DIR/amazon/images/CLASS/*.jpg")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--draws", type=int, nargs="+", default=[0])
    parser.add_argument("--set", dest="options", nargs="*", default=[], metavar="NAME=VALUE", help="for every run")
    asked = parser.parse_args()
    options = dict(one.split("=", 1) for one in asked.options)
    lines = []
    for name in SETS:
        for draw in asked.draws:
            folder = asked.out / f"{name.replace(' ', '-').replace(',', '')}-{draw}"
            results = unida.grid(spec_of(name, draw, asked.root, options), out=folder, no_estimate=True)
            lines += [[name, str(draw), *line] for line in means(results.records)]
    print(markdown(HEADING, lines))


def spec_of(name: str, draw: int, root: Path, options: dict[str, str]) -> dict[str, Any]:
    classes = sorted(path.name for path in (root / "amazon" / "images").iterdir())
    shared, of_source, of_target = SETS[name]
    order = list(range(len(classes)))
    random.Random(draw).shuffle(order)
    source = {*order[: shared + of_source]}
    target = {*order[:shared], *order[shared + of_source : shared + of_source + of_target]}
    without = {
        f"{domain}_without": "/".join(it for i, it in enumerate(classes) if i not in held)
        for domain, held in (("source", source), ("target", target))
        if len(held) < len(classes)
    }
    folders = {}
    for pair in PAIRS:
        source_folder, target_folder = (str(root / domain / "images") for domain in pair.split(":"))
        folders[pair.replace(":", "-")] = {"source": source_folder, "target": target_folder, "target_labels": True}
    rows = {method: {"method": method} for method in METHODS}
    return {"folders": folders, "options": {"duplicates": "keep", **without, **options}, "rows": rows}


def means(rows: list[dict[str, Any]]) -> list[list[str]]:
    """For each method, the mean over the pairs in per cent; a dash where the target has no unknown image."""
    columns = ("alone_hos", "hos", "alone_auroc", "auroc", "known", "unknown_answers")
    lines = []
    for method in METHODS:
        mine = [row for row in rows if row["row"] == method and row["status"] == "done"]
        values = [[float(row[column]) for row in mine if row[column] not in ("", None)] for column in columns]
        lines.append([method, *(f"{100 * sum(v) / len(v):.1f}" if v else "–" for v in values)])
    return lines


if __name__ == "__main__":
    main()
