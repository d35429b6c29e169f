"""Office-31: every pair, UniDA and OSDA, several methods and seeds, and a table of it all.

    python examples/office31.py --root DIR --out runs/office31
    python examples/office31.py --root DIR --out runs/office31 --methods ovanet ovanet+spa --pairs A:D D:A

A run that is finished is not run again, one that was killed goes on: call it again until the table is there. Two runs
go side by side, one core each. The tables are written to OUT/results.md and OUT/results.csv.
"""

import argparse
import csv
import itertools
import json
import os
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

DOMAINS = {"A": "amazon", "D": "dslr", "W": "webcam"}
PAIRS = ("A:D", "A:W", "D:A", "D:W", "W:A", "W:D")
METRICS = ("hos", "hos_sample", "known", "unknown", "auroc")

SPA = "--method ovanet --spa"
PAPER = f"{SPA} --spa.preset paper"
METHODS = {  # a row of the table: options of `unida adapt`
    "source-only": "--method source-only",
    "source-only, one-vs-all": "--method source-only --rejection one-vs-all",
    "ovanet": "--method ovanet",
    "ovanet+spa": SPA,
    "ovanet+spa, null": f"{SPA} --spa.pretext off --spa.entropy off",
    "ovanet+spa, words and entropy": f"{SPA} --spa.pretext off",
    "ovanet+spa, words and pretext": f"{SPA} --spa.entropy off",
    "ovanet+spa, paper": PAPER,
    "ovanet+spa, paper, null": f"{PAPER} --spa.pretext off --spa.entropy off",
    "ovanet+spa, paper, words and entropy": f"{PAPER} --spa.pretext off",
    "ovanet+spa, paper, words and pretext": f"{PAPER} --spa.entropy off",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True, help="the folder that holds Office-31")
    parser.add_argument("--out", type=Path, default=Path("runs/office31"))
    parser.add_argument("--methods", nargs="+", default=["source-only", "ovanet"], choices=METHODS, metavar="NAME")
    parser.add_argument("--against", default="ovanet", choices=METHODS, metavar="NAME", help="paired differences to it")
    parser.add_argument("--settings", nargs="+", default=["unida", "osda"])
    parser.add_argument("--pairs", nargs="+", default=list(PAIRS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side")
    parser.add_argument("--only-finished", action="store_true", help="tables of what is there; run nothing")
    parser.add_argument("rest", nargs="*", help="options for every `unida adapt`, after --")
    options = parser.parse_args()
    grid = list(itertools.product(options.settings, options.pairs, options.seeds, options.methods))
    if options.only_finished:
        grid = [task for task in grid if (folder_of(task, options) / "metrics.json").exists()]
    with ThreadPoolExecutor(options.jobs) as pool:
        rows = list(pool.map(lambda task: run(task, options), grid))
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "results.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    text = "\n\n".join(table(rows, setting, options) for setting in options.settings)
    (options.out / "results.md").write_text(text + "\n")
    print(text)


def folder_of(task: tuple[str, str, int, str], options: argparse.Namespace) -> Path:
    setting, pair, seed, method = task
    name = method.replace(", ", "-").replace(" ", "-")
    return options.out / f"{pair.replace(':', '')}-{setting}-{name}-{seed}"


def run(task: tuple[str, str, int, str], options: argparse.Namespace) -> dict[str, object]:
    """One run, unless it is there: its row of the table."""
    setting, pair, seed, method = task
    folder = folder_of(task, options)
    if not (folder / "metrics.json").exists():
        source, target = (DOMAINS[letter] for letter in pair.split(":"))
        data = ["--benchmark", "office31", "--root", options.root, "--pair", f"{source}:{target}"]
        words = [*data, "--setting", setting, *METHODS[method].split()]
        words += ["--seed", seed, "--out", folder, "--resume", *options.rest]
        command = [sys.executable, "-m", "unida", "adapt", *map(str, words)]
        folder.parent.mkdir(parents=True, exist_ok=True)
        with open(f"{folder}.log", "a") as log:
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, env=environment, check=True)
        print("done:", folder.name, flush=True)
    content = json.loads((folder / "metrics.json").read_text())
    names = {"setting": setting, "pair": pair, "seed": seed, "method": method}
    return {**names, **content["last_step"], **content["cost"]}


def table(rows: list[dict[str, object]], setting: str, options: argparse.Namespace) -> str:
    """HOS (class mean) by pair, other metrics averaged over pairs, in per cent: mean ± standard deviation of seeds.

    The last column is the mean of the differences to `--against`, run by run on the same pair and seed, and its
    standard error.
    """
    of_setting = {(r["method"], r["pair"], r["seed"]): r for r in rows if r["setting"] == setting}
    pairs = [pair for pair in options.pairs if any(key[1] == pair for key in of_setting)]
    names = {"hos": "HOS", "hos_sample": "HOS, by image"}
    heading = ["method", *(pair.replace(":", "→") for pair in pairs), *(names.get(m, m) for m in METRICS), "s a run"]
    heading.append(f"HOS − {options.against}'s")
    lines = [f"### {setting}", "", "| " + " | ".join(heading) + " |", "|---" * len(heading) + "|"]
    for method in dict.fromkeys(key[0] for key in of_setting):
        mine = {key[1:]: row for key, row in of_setting.items() if key[0] == method}
        cells = [spread([100 * float(r["hos"]) for (p, _), r in mine.items() if p == pair]) for pair in pairs]
        for metric in METRICS:  # the average over pairs of each seed, then its spread over seeds
            seeds = [s for s in options.seeds if all((pair, s) in mine for pair in pairs)]
            cells.append(spread([statistics.mean(100 * float(mine[p, s][metric]) for p in pairs) for s in seeds]))
        cells.append(f"{statistics.mean(float(row['seconds']) for row in mine.values()):.0f}")
        cells.append(difference(mine, of_setting, options.against) if method != options.against else "")
        lines.append("| " + " | ".join([str(method), *cells]) + " |")
    return "\n".join(lines)


def difference(mine: dict, of_setting: dict, against: str) -> str:
    other = {key[1:]: row for key, row in of_setting.items() if key[0] == against}
    values = [100 * (float(mine[key]["hos"]) - float(other[key]["hos"])) for key in mine if key in other]
    if len(values) < 2:
        return ""
    return f"{statistics.mean(values):+.1f} ± {statistics.stdev(values) / len(values) ** 0.5:.1f} (n = {len(values)})"


def spread(values: list[float]) -> str:
    if not values:
        return ""
    return f"{statistics.mean(values):.1f} ± {statistics.stdev(values) if len(values) > 1 else 0.0:.1f}"


if __name__ == "__main__":
    main()
