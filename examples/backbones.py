"""Office-31 by backbone and way of training, drawn from finished runs.

    python examples/office31.py --root DIR --out runs/tiny-vit-head              # makes runs, with the defaults
    python examples/office31.py --root DIR --out runs/lite0-head -- --backbone tf_efficientnet_lite0
    python examples/backbones.py --runs runs/tiny-vit-head runs/lite0-head --csv docs/backbones.csv
    python examples/backbones.py --into docs/backbones.md                        # draws the tables again, from the csv

Nothing is trained here. The csv has a line for each run: *alone* is each image by itself with the method's own
threshold, as in papers; *together* is what `unida adapt` answers. In a page, the tables stand between two markers:
`<!-- backbones.py -->` for all rows, `<!-- backbones.py: frozen -->` for HOS of frozen backbones alone.
"""

import argparse
import csv
import json
import statistics
from pathlib import Path
from typing import Any

import yaml
from office31_tables import NAMES, SETTINGS, markdown
from together import write_rows

ALL, FROZEN, END = "<!-- backbones.py -->", "<!-- backbones.py: frozen -->", "<!-- backbones.py: end -->"
NUMBERS = ("hos", "auroc", "closed_accuracy")
WAYS = {"alone": "method", "together": "auto"}  # with which threshold

Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", nargs="*", type=Path, default=[], help="folders that hold runs of office31.py")
    parser.add_argument("--csv", type=Path, default=Path("docs/backbones.csv"))
    parser.add_argument("--into", nargs="*", type=Path, default=[], help="pages to draw the tables into")
    options = parser.parse_args()
    if options.runs:
        write_rows([row for folder in options.runs for row in rows_of(folder)], options.csv)
    if not options.csv.is_file():
        parser.error(f"--csv {options.csv} is not there: make it with --runs")
    rows = read_rows(options.csv)
    for page in options.into:
        before = page.read_text(encoding="utf-8")
        begin = next((mark for mark in (ALL, FROZEN) if before.count(mark) == 1), None)
        if begin is None or before.count(END) != 1:
            parser.error(f"--into {page} needs the lines '{ALL}' or '{FROZEN}', and '{END}', once each")
        text = tables(rows) if begin == ALL else short_table(rows)
        page.write_text(f"{before.split(begin)[0]}{begin}\n\n{text}\n\n{END}{before.split(END)[1]}", encoding="utf-8")
    print(tables(rows))


def rows_of(folder: Path) -> list[Row]:
    """A row for every finished run: its folder is called PAIR-SETTING-METHOD-SEED."""
    rows = []
    for path in sorted(folder.glob("*-*-*-*/metrics.json")):
        pair, setting, *method, seed = path.parent.name.split("-")
        config = yaml.safe_load((path.parent / "config.yaml").read_text(encoding="utf-8"))
        content = json.loads(path.read_bytes())
        row = {
            "backbone": config["model"]["backbone"],
            "train": config["model"]["train"],
            "regime": config["training"].get("regime", "published"),
            "method": "-".join(method),
            "setting": setting,
            "pair": f"{pair[0]}:{pair[1]}",
            "seed": int(seed),
        }
        measured = {f"{name}_{way}": content[way][rule][name] for way, rule in WAYS.items() for name in NUMBERS}
        rows.append({**row, **{name: round(value, 5) for name, value in measured.items()}})
    return rows


def read_rows(path: Path) -> list[Row]:
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return [{**row, **{name: float(row[name]) for name in row if name.split("_")[-1] in WAYS}} for row in rows]


def tables(rows: list[Row]) -> str:
    parts = []
    for setting in SETTINGS:
        mine = [row for row in rows if row["setting"] == setting]
        if mine:
            parts.append(f"**{NAMES[setting]}**\n\n{table(mine)}")
    return "\n\n".join(parts)


def table(rows: list[Row]) -> str:
    """A line for each backbone, way of training and method: mean over pairs, ± the deviation between seeds."""
    head = ["backbone", "--train", "regime", "method", "pairs × seeds"]
    head += [f"{NAMES[name]}, {way}" for name in NUMBERS for way in WAYS]
    lines = []
    for key in dict.fromkeys(tuple(row[name] for name in ("backbone", "train", "regime", "method")) for row in rows):
        mine = [row for row in rows if tuple(row[name] for name in ("backbone", "train", "regime", "method")) == key]
        numbers = [by_seed(mine, f"{name}_{way}") for name in NUMBERS for way in WAYS]
        pairs = len({row["pair"] for row in mine})
        lines.append([*key, f"{pairs} × {len(numbers[0])}", *map(spread, numbers)])
    return markdown(head, lines)


def short_table(rows: list[Row]) -> str:
    """HOS of each backbone and method with a frozen backbone, both settings, alone and together."""
    mine = [row for row in rows if (row["train"], row["regime"]) == ("head", "kept")]
    lines = []
    for backbone, method in dict.fromkeys((row["backbone"], row["method"]) for row in mine):
        line = [f"`{backbone}`", method]
        for setting in SETTINGS:
            some = [
                row for row in mine if (row["backbone"], row["method"], row["setting"]) == (backbone, method, setting)
            ]
            line += [spread(by_seed(some, f"hos_{way}")) if some else "not measured" for way in WAYS]
        lines.append(line)
    head = ["backbone", "method", *(f"{NAMES[setting]}, {way}" for setting in SETTINGS for way in WAYS)]
    return markdown(head, lines)


def by_seed(rows: list[Row], name: str) -> list[float]:
    """The mean over pairs for each seed that has all of them."""
    pairs = {row["pair"] for row in rows}
    of_seed = {
        seed: [row for row in rows if row["seed"] == seed] for seed in dict.fromkeys(row["seed"] for row in rows)
    }
    return [statistics.mean(row[name] for row in some) for some in of_seed.values() if len(some) == len(pairs)]


def spread(values: list[float]) -> str:
    mean = 100 * statistics.mean(values)
    return f"{mean:.1f} ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else f"{mean:.1f}"


if __name__ == "__main__":
    main()
