"""Office-31: every pair, UniDA and OSDA, several methods and seeds, and a table of it all.

    python examples/office31.py --root DIR --out runs/office31
    python examples/office31.py --root DIR --out runs/office31 --methods ovanet ovanet+spa --pairs A:D D:A

A run that is finished is not run again, and one that was killed continues: call it again until the table is there. Two
runs work side by side, one core each. The tables are written to OUT/results.md. OUT/results.csv has a line for every
finished run in OUT, whatever this call was for (`office31_tables.py` draws from it).
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from office31_tables import MEASURED, PAIRS, SETTINGS, Row, tables, write_rows
from office31_tables import METHODS as MAIN

Task = tuple[str, str, int, str]  # setting, pair, seed, method
DOMAINS = {"A": "amazon", "D": "dslr", "W": "webcam"}

SPA = "--method ovanet --spa"
PAPER = f"{SPA} --spa.preset paper"
METHODS = {  # a row of the table: options of `unida adapt`
    "source-only": "--method source-only",
    "source-only, one-vs-all": "--method source-only --rejection one-vs-all",
    "ovanet": "--method ovanet",
    "ovanet+spa": SPA,
    "dcc": "--method dcc",
    "dcc+spa": "--method dcc --spa",
    "dcc, faithful": "--method dcc --repeat-classes",
    "dcc, faithful, 10 unused logits": "--method dcc --repeat-classes --unused-logits 10",  # OSDA, as released
    "ovanet+spa, null": f"{SPA} --spa.entropy off",  # the words in the feature, and no loss of SPA
    "ovanet+spa, words and pretext": f"{SPA} --spa.entropy off --spa.pretext on",
    "ovanet+spa, all": f"{SPA} --spa.pretext on",
    "ovanet+spa, paper": PAPER,
    "ovanet+spa, paper, null": f"{PAPER} --spa.pretext off --spa.entropy off",
    "ovanet+spa, paper, words and entropy": f"{PAPER} --spa.pretext off",
    "ovanet+spa, paper, words and pretext": f"{PAPER} --spa.entropy off",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True, help="the folder that holds Office-31")
    parser.add_argument("--out", type=Path, default=Path("runs/office31"))
    parser.add_argument("--methods", nargs="+", default=list(MAIN), choices=METHODS, metavar="NAME")
    parser.add_argument("--against", default="ovanet", choices=METHODS, metavar="NAME", help="paired differences to it")
    parser.add_argument("--with-paper", action="store_true", help="rows with the numbers of SPA's paper")
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS))
    parser.add_argument("--pairs", nargs="+", default=list(PAIRS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side")
    parser.add_argument("--only-finished", action="store_true", help="tables of what is there; run nothing")
    parser.add_argument("rest", nargs="*", help="options for every `unida adapt`, after --")
    options = parser.parse_args()
    grid = list(itertools.product(options.settings, options.pairs, options.seeds, options.methods))
    if options.only_finished:
        grid = finished(grid, options)
    if not grid:
        parser.error(f"--out {options.out} holds no finished run of these methods, settings, pairs and seeds")
    with ThreadPoolExecutor(options.jobs) as pool:
        rows = list(pool.map(lambda task: run(task, options), grid))
    options.out.mkdir(parents=True, exist_ok=True)
    ends = {path.parent.name.rpartition("-")[2] for path in options.out.glob("*/metrics.json")}
    seeds = sorted(int(end) for end in ends if end.isdigit())
    every = itertools.product(dict.fromkeys([*SETTINGS, *options.settings]), PAIRS, seeds, METHODS)
    write_rows([run(task, options) for task in finished(every, options)], options.out / "results.csv")
    text = tables(rows, [options.against], options.with_paper)
    (options.out / "results.md").write_text(text + "\n")
    print(text)


def finished(tasks: Iterable[Task], options: argparse.Namespace) -> list[Task]:
    return [task for task in tasks if (folder_of(task, options) / "metrics.json").exists()]


def folder_of(task: Task, options: argparse.Namespace) -> Path:
    setting, pair, seed, method = task
    name = method.replace(", ", "-").replace(" ", "-")
    return options.out / f"{pair.replace(':', '')}-{setting}-{name}-{seed}"


def run(task: Task, options: argparse.Namespace) -> Row:
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
    measured = {**content["alone"]["method"], **content["cost"]}  # as papers answer; `together.py` has the other ways
    return {**names, **{name: round(measured[name], 5) for name in MEASURED}}  # the others stay in the run's folder


if __name__ == "__main__":
    main()
