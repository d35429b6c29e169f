"""Tables of the Office-31 runs, from the csv that `office31.py` leaves.

    python examples/office31_tables.py --results docs/office31.csv --with-paper
    python examples/office31_tables.py --results docs/office31.csv --into docs/results.md

docs/office31.csv is what docs/results.md and the README are drawn from. In a page, each place for tables says with
which options they are drawn:

    <!-- office31_tables.py --methods ovanet dcc --settings unida -->
    …
    <!-- end of tables -->
"""

import argparse
import csv
import re
import shlex
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

METHODS = ("source-only", "ovanet", "ovanet+spa", "dcc", "dcc+spa")  # of the main table, without ablations
SETTINGS = ("unida", "osda")
PAIRS = ("A:D", "A:W", "D:A", "D:W", "W:A", "W:D")
METRICS = ("hos", "hos_sample", "known", "unknown", "auroc")  # columns of the tables
COMPARED = ("hos", "oscr", "auroc", "closed_accuracy")  # columns of the tables of differences
MEASURED = (*METRICS, "oscr", "closed_accuracy", "seconds")  # columns of the csv, beside the run's name
NAMES = {"hos": "HOS", "hos_sample": "HOS, by image", "auroc": "AUROC", "oscr": "OSCR", "closed_accuracy": "closed"}
NAMES |= {"unida": "UniDA", "osda": "OSDA"}

Row = dict[str, Any]  # setting, pair, seed, method, and a number for each name in MEASURED

# HOS as printed in the Office-31 tables of Kundu et al., Subsidiary Prototype Alignment, NeurIPS 2022: six pairs, then
# their average. The headings of these two tables are not in the order of their columns: the paper's own table of OS and
# OS* gives DCC+SPA's open-set row only in the order below, and rows quoted from other papers match these only so.
# OVANet's open-set row matches no other source (later papers quote 91.7 on average): its columns cannot be checked.
# Which HOS it is, the paper does not say; with DCC's own evaluation, the rows of DCC hold HOS by image.
# There is no row of source-only.
PAPER_COLUMNS = ("A:W", "A:D", "D:W", "D:A", "W:D", "W:A")
PAPER_HOS = {
    "unida": {
        "ovanet": (79.4, 85.8, 95.4, 80.1, 94.3, 84.0, 86.5),
        "ovanet+spa": (80.9, 85.4, 92.3, 82.5, 97.5, 82.5, 86.9),
        "dcc": (78.5, 88.5, 79.3, 70.2, 88.6, 75.9, 80.2),
        "dcc+spa": (83.8, 90.4, 90.5, 83.1, 88.6, 86.5, 87.2),
    },
    "osda": {
        "ovanet": (84.9, 89.5, 93.7, 89.7, 85.8, 88.5, 88.7),
        "ovanet+spa": (89.7, 90.2, 96.9, 82.6, 99.8, 86.8, 91.0),
        "dcc": (87.1, 85.5, 91.2, 85.5, 87.1, 84.4, 86.8),
        "dcc+spa": (91.7, 92.3, 96.0, 90.0, 97.4, 91.5, 93.2),
    },
}


PLACE = re.compile(r"(<!-- office31_tables\.py (.*?) -->\n).*?(<!-- end of tables -->)", re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("docs/office31.csv"))
    parser.add_argument("--into", type=Path, metavar="PAGE", help="draw the tables of this page again")
    add_choices(parser)
    options = parser.parse_args()
    if not options.results.is_file():
        parser.error(f"--results {options.results} is not there: examples/office31.py writes it")
    rows = read_rows(options.results)
    if options.into is None:
        print(tables(chosen(rows, options), options.against, options.with_paper))
        return
    if not options.into.is_file():
        parser.error(f"--into {options.into} is not there: correct the path")
    before = options.into.read_text(encoding="utf-8")
    after = redrawn(before, rows)
    if after != before:
        options.into.write_text(after, encoding="utf-8")
    print("changed:" if after != before else "as it was:", options.into)


def add_choices(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--methods", nargs="+", metavar="NAME", help="rows (default: all)")
    parser.add_argument("--settings", nargs="+", metavar="NAME", help="tables (default: all)")
    parser.add_argument("--pairs", nargs="+", metavar="PAIR", help="columns (default: all)")
    parser.add_argument("--against", nargs="+", default=["ovanet"], metavar="NAME", help="paired differences to these")
    parser.add_argument("--with-paper", action="store_true", help="rows with the numbers of SPA's paper")


def chosen(rows: list[Row], options: argparse.Namespace) -> list[Row]:
    """The rows to draw, in the order in which methods were named."""
    wanted = {"setting": options.settings, "pair": options.pairs, "method": options.methods}
    kept = [row for row in rows if all(names is None or row[key] in names for key, names in wanted.items())]
    return kept if options.methods is None else sorted(kept, key=lambda row: options.methods.index(row["method"]))


def redrawn(page: str, rows: list[Row]) -> str:
    """The page with each of its places for tables filled anew."""
    parser = argparse.ArgumentParser()
    add_choices(parser)

    def fill(place: re.Match[str]) -> str:
        options = parser.parse_args(shlex.split(place[2]))
        return f"{place[1]}\n{tables(chosen(rows, options), options.against, options.with_paper)}\n\n{place[3]}"

    return PLACE.sub(fill, page)


def write_rows(rows: list[Row], path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=["setting", "pair", "seed", "method", *MEASURED], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def read_rows(path: Path) -> list[Row]:
    with path.open(newline="") as file:
        rows: list[Row] = list(csv.DictReader(file))
    for row in rows:
        row |= {"seed": int(row["seed"]), **{name: float(row[name]) for name in MEASURED}}
    return rows


def tables(rows: list[Row], against: Sequence[str], with_paper: bool) -> str:
    """Two tables for each setting: what was measured, and differences; under its name, where there are several."""
    settings = list(dict.fromkeys(row["setting"] for row in rows))
    drawn = []
    for setting in settings:
        drawn += [f"### {NAMES.get(setting, setting)}"] if len(settings) > 1 else []
        drawn += [table(rows, setting, with_paper), differences(rows, setting, against)]
    return "\n\n".join(text for text in drawn if text)


def table(rows: list[Row], setting: str, with_paper: bool) -> str:
    """HOS (class mean) by pair, other metrics averaged over pairs, in per cent: mean ± standard deviation of seeds."""
    rows = [row for row in rows if row["setting"] == setting]
    pairs = [pair for pair in PAIRS if any(row["pair"] == pair for row in rows)]
    heading = ["method", *(pair.replace(":", "→") for pair in pairs), *(NAMES.get(m, m) for m in METRICS), "s a run"]
    lines = []
    for method in dict.fromkeys(row["method"] for row in rows):
        mine = [row for row in rows if row["method"] == method]
        cells = [spread([100 * row["hos"] for row in mine if row["pair"] == pair]) for pair in pairs]
        cells += [spread(averages(mine, pairs, metric)) for metric in METRICS]
        cells.append(f"{statistics.mean(row['seconds'] for row in mine):.0f}")
        lines.append([method, *cells])
    for method, numbers in PAPER_HOS.get(setting, {}).items() if with_paper else ():
        of_pair = dict(zip(PAPER_COLUMNS, numbers, strict=False))
        cells = [*(str(of_pair[pair]) for pair in pairs), str(numbers[-1]) if len(pairs) == len(PAIRS) else ""]
        empty = [""] * (len(heading) - 1 - len(cells))
        lines.append([f"{method} (paper, ResNet-50)", *cells, *empty])
    return markdown(heading, lines)


def differences(rows: list[Row], setting: str, against: Sequence[str]) -> str:
    """Means of the differences to some methods, run by run on the same pair and seed, ± their standard errors."""
    rows = [row for row in rows if row["setting"] == setting]
    methods = list(dict.fromkeys(row["method"] for row in rows))
    lines = []
    for other in against:
        theirs = [row for row in rows if row["method"] == other]
        for method in methods:
            mine = [row for row in rows if row["method"] == method]
            runs = len({(row["pair"], row["seed"]) for row in mine} & {(row["pair"], row["seed"]) for row in theirs})
            if runs > 1 and method not in against[: against.index(other) + 1]:  # nor what was compared already
                lines.append([f"{method} − {other}", str(runs), *(difference(mine, theirs, m) for m in COMPARED)])
    return markdown(["difference", "runs", *(NAMES.get(m, m) for m in COMPARED)], lines) if lines else ""


def markdown(heading: list[str], lines: list[list[str]]) -> str:
    drawn = ["| " + " | ".join(cells) + " |" for cells in (heading, *lines)]
    return "\n".join([drawn[0], "|---" * len(heading) + "|", *drawn[1:]])


def averages(rows: list[Row], pairs: list[str] | tuple[str, ...], metric: str) -> list[float]:
    """One method's average over pairs, in per cent, for each seed that has them all."""
    value = {(row["pair"], row["seed"]): 100 * row[metric] for row in rows}
    seeds = dict.fromkeys(row["seed"] for row in rows)
    return [statistics.mean(value[p, s] for p in pairs) for s in seeds if all((p, s) in value for p in pairs)]


def difference(mine: list[Row], others: list[Row], metric: str) -> str:
    of_run = {(row["pair"], row["seed"]): row[metric] for row in others}
    keys = [(row["pair"], row["seed"]) for row in mine]
    values = [100 * (row[metric] - of_run[key]) for row, key in zip(mine, keys, strict=True) if key in of_run]
    return f"{statistics.mean(values):+.1f} ± {statistics.stdev(values) / len(values) ** 0.5:.1f}"


def spread(values: list[float]) -> str:
    """Mean ± standard deviation. One value has no deviation, and none has no mean."""
    if len(values) < 2:
        return f"{values[0]:.1f}" if values else ""
    return f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}"


if __name__ == "__main__":
    main()
