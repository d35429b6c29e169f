"""Office-31, four ways to answer with the same models: alone or together, with the published threshold or a found one.

    unida grid examples/grids/office31-published.yaml --root DIR --out runs/published    # makes the runs
    python examples/together.py --runs runs/published --csv docs/together.csv
    python examples/together.py --into docs/together.md    # draws the tables again, from the csv

Nothing is trained here: every run has measured the four ways on its last step (metrics.json). In a page, the tables
stand between two markers, `<!-- together.py -->` and `<!-- together.py: end -->`.
"""

import argparse
import csv
import json
import statistics
from pathlib import Path
from typing import Any

import yaml

from unida.data.benchmarks import load_benchmark
from unida.errors import UserError
from unida.grids.folder import saved_grid
from unida.grids.plan import plan
from unida.support.tables import markdown

SETTINGS = {"unida": "UniDA", "osda": "OSDA"}
WAYS = (("alone", "method"), ("alone", "auto"), ("together", "method"), ("together", "auto"))
MEASURED = ("hos", "known", "unknown", "auroc", "oscr", "closed_accuracy")
BEGIN, END = "<!-- together.py -->", "<!-- together.py: end -->"

Row = dict[str, Any]  # setting, pair, seed, method, way, threshold, and a number for each name in MEASURED


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", nargs="*", type=Path, default=[], help="folders of grids")
    parser.add_argument("--csv", type=Path, default=Path("docs/together.csv"))
    parser.add_argument("--into", nargs="*", type=Path, default=[], help="pages to draw the tables into")
    options = parser.parse_args()
    if options.runs:
        try:
            rows = [row for folder in options.runs for row in rows_of(folder)]
        except UserError as error:
            parser.error(str(error))
        if not rows:
            parser.error("--runs has no finished run")
        write_rows(rows, options.csv)
    if not options.csv.is_file():
        parser.error(f"--csv {options.csv} is not there: make it with --runs")
    text = tables(read_rows(options.csv))
    for page in options.into:
        before = page.read_text(encoding="utf-8")
        if not before.count(BEGIN) == before.count(END) == 1:
            parser.error(f"--into {page} needs the lines '{BEGIN}' and '{END}', once each")
        head, tail = before.split(BEGIN)[0], before.split(END)[1]
        page.write_text(f"{head}{BEGIN}\n\n{text}\n\n{END}{tail}", encoding="utf-8")
    print(text)


def rows_of(folder: Path) -> list[Row]:
    """Four rows for every finished run of a grid."""
    grid = saved_grid(folder)
    if grid.benchmark is None:
        raise UserError(f"{folder} is no grid of a benchmark")
    benchmark, rows = load_benchmark(grid.benchmark), []
    for task in plan(grid, folder):
        if not task.is_finished:
            continue
        pair = ":".join(benchmark.find_domain(name).letter for name in task.pair.split(":"))
        config = yaml.safe_load((task.folder / "config.yaml").read_text(encoding="utf-8"))
        content = json.loads((task.folder / "metrics.json").read_bytes())
        names = {"setting": task.setting, "pair": pair, "seed": task.seed}
        for way, threshold in WAYS:
            named = {**names, "method": f"{task.row}, {config['model']['train']}", "way": way, "threshold": threshold}
            measured = content[way][threshold]
            rows.append({**named, **{name: round(measured[name], 5) for name in MEASURED}})
    return rows


def write_rows(rows: list[Row], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def read_rows(path: Path) -> list[Row]:
    with path.open(newline="", encoding="utf-8") as file:
        return [{**row, **{name: float(row[name]) for name in MEASURED}} for row in csv.DictReader(file)]


def tables(rows: list[Row]) -> str:
    parts = []
    for setting, name in SETTINGS.items():
        mine = [row for row in rows if row["setting"] == setting]
        if mine:
            parts.append(f"**{name}**\n\n{table(mine)}")
    return "\n\n".join(parts)


def table(rows: list[Row]) -> str:
    head = ["method", "runs", *(f"HOS, {way}, {threshold}" for way, threshold in WAYS)]
    head += ["gain", "worst pair", "AUROC", "OSCR", "closed"]
    lines = []
    for method in dict.fromkeys(row["method"] for row in rows):
        mine = {way: by_run(rows, method, way) for way in WAYS}
        first, last = mine[WAYS[0]], mine[WAYS[-1]]
        gains = {run: 100 * (last[run]["hos"] - first[run]["hos"]) for run in first}
        error = statistics.stdev(gains.values()) / len(gains) ** 0.5 if len(gains) > 1 else 0.0
        of_pair = {pair: [gain for run, gain in gains.items() if run[0] == pair] for pair, _ in gains}
        worst = min((statistics.mean(some), pair) for pair, some in of_pair.items())
        change = [f"{mean(first, name):.1f} → {mean(last, name):.1f}" for name in ("auroc", "oscr", "closed_accuracy")]
        lines.append(
            [
                method,
                str(len(first)),
                *(f"{mean(mine[way], 'hos'):.1f}" for way in WAYS),
                f"{statistics.mean(gains.values()):+.1f} ± {error:.1f}",
                f"{worst[0]:+.1f} ({worst[1].replace(':', '→')})",
                *change,
            ]
        )
    return markdown(head, lines)


def by_run(rows: list[Row], method: str, way: tuple[str, str]) -> dict[tuple[str, str], Row]:
    """Rows by pair and seed."""
    mine = (row for row in rows if (row["method"], row["way"], row["threshold"]) == (method, *way))
    return {(row["pair"], row["seed"]): row for row in mine}


def mean(rows: dict[tuple[str, str], Row], name: str) -> float:
    """In per cent; each pair counts the same, however many seeds it has."""
    pairs = {pair for pair, _ in rows}
    return 100 * statistics.mean(statistics.mean(row[name] for run, row in rows.items() if run[0] == p) for p in pairs)


if __name__ == "__main__":
    main()
