"""The README's table: HOS of each method and setting on Office-31, the average over its six pairs.

    python examples/readme_table.py --results runs/office31/results.csv

Draws it between two markers of the README, instead of what is there: after new runs, copy their csv to
docs/office31.csv and call this. The columns "together" are from the csv of together.py.
"""

import argparse
from pathlib import Path

import together
from office31_tables import METHODS, NAMES, PAIRS, SETTINGS, Row, averages, markdown, read_rows, spread

BEGIN, END = "<!-- office31: drawn by examples/readme_table.py -->", "<!-- office31: end -->"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("docs/office31.csv"))
    parser.add_argument("--together", type=Path, default=Path("docs/together.csv"))
    parser.add_argument("--readme", type=Path, default=Path("README.md"))
    options = parser.parse_args()
    for option in ("results", "together", "readme"):
        if not (path := getattr(options, option)).is_file():
            parser.error(f"--{option} {path} is not there: correct the path")
    before = options.readme.read_text(encoding="utf-8")
    if not before.count(BEGIN) == before.count(END) == 1 or before.index(BEGIN) > before.index(END):
        parser.error(f"--readme {options.readme} needs the lines '{BEGIN}' and '{END}', once each, in this order")
    after = with_table(before, summary(read_rows(options.results), read_together(options.together)))
    if after != before:
        options.readme.write_text(after, encoding="utf-8")
    print("changed:" if after != before else "as it was:", options.readme)


def with_table(text: str, table: str) -> str:
    head, tail = text.split(BEGIN)[0], text.split(END)[1]
    return f"{head}{BEGIN}\n\n{table}\n\n{END}{tail}"  # blank lines, or some readers see no table


def read_together(path: Path) -> list[Row]:
    """The runs with frozen first layers (`tail`, the default), answered as `unida adapt` does."""
    rows = [row for row in together.read_rows(path) if (row["way"], row["threshold"]) == ("together", "auto")]
    return [{**row, "method": row["method"].removesuffix(", tail")} for row in rows]


def summary(alone: list[Row], in_groups: list[Row]) -> str:
    """A line for each method that has been run on all six pairs of a setting."""
    ways = {"alone": alone, "together": in_groups}
    columns = [(setting, way) for setting in SETTINGS for way in ways]
    values = {(method, *column): hos(ways[column[1]], method, column[0]) for method in METHODS for column in columns}
    most = max(map(len, values.values()))
    lines = []
    for method in METHODS:
        of_column = [values[method, *column] for column in columns]
        if any(of_column):
            lines.append([method, *(cell(seeds, most) for seeds in of_column)])
    return markdown(["method", *(f"{NAMES[setting]}, {way}" for setting, way in columns)], lines)


def hos(rows: list[Row], method: str, setting: str) -> list[float]:
    """The average over the six pairs for each seed that has them all."""
    mine = [row for row in rows if (row["method"], row["setting"]) == (method, setting)]
    return averages(mine, PAIRS, "hos")


def cell(seeds: list[float], most: int) -> str:
    """Mean ± standard deviation over seeds; where others have had more seeds, how many these are."""
    if not seeds:
        return "not measured"
    few = f" ({len(seeds)} seed{'s' if len(seeds) > 1 else ''})" if len(seeds) < most else ""
    return spread(seeds) + few


if __name__ == "__main__":
    main()
