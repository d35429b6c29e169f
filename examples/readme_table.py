"""The README's table: HOS of each method and setting on Office-31, the average over its six pairs.

    python examples/readme_table.py --results runs/office31/results.csv

Draws it between two markers of the README, instead of what is there: after new runs, copy their csv to
docs/office31.csv and call this.
"""

import argparse
from pathlib import Path

from office31_tables import METHODS, NAMES, PAIRS, SETTINGS, Row, averages, markdown, read_rows, spread

BEGIN, END = "<!-- office31: drawn by examples/readme_table.py -->", "<!-- office31: end -->"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("docs/office31.csv"))
    parser.add_argument("--readme", type=Path, default=Path("README.md"))
    options = parser.parse_args()
    for option in ("results", "readme"):
        if not (path := getattr(options, option)).is_file():
            parser.error(f"--{option} {path} is not there: correct the path")
    before = options.readme.read_text(encoding="utf-8")
    if not before.count(BEGIN) == before.count(END) == 1 or before.index(BEGIN) > before.index(END):
        parser.error(f"--readme {options.readme} needs the lines '{BEGIN}' and '{END}', once each, in this order")
    after = with_table(before, summary(read_rows(options.results)))
    if after != before:
        options.readme.write_text(after, encoding="utf-8")
    print("changed:" if after != before else "as it was:", options.readme)


def with_table(text: str, table: str) -> str:
    head, tail = text.split(BEGIN)[0], text.split(END)[1]
    return f"{head}{BEGIN}\n\n{table}\n\n{END}{tail}"  # blank lines, or some readers see no table


def summary(rows: list[Row]) -> str:
    """A line for each method that has been run on all six pairs of a setting."""
    values = {(method, setting): hos(rows, method, setting) for method in METHODS for setting in SETTINGS}
    most = max(map(len, values.values()))
    lines = []
    for method in METHODS:
        of_setting = [values[method, setting] for setting in SETTINGS]
        if any(of_setting):
            lines.append([method, *(cell(seeds, most) for seeds in of_setting)])
    return markdown(["method", *(f"HOS, {NAMES[setting]}" for setting in SETTINGS)], lines)


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
