"""Office-31: every pair, UniDA and OSDA, several methods and seeds, and a table of it all.

    python examples/office31.py --root DIR --out runs/office31

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
METRICS = ("hos", "known", "unknown")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True, help="the folder that holds Office-31")
    parser.add_argument("--out", type=Path, default=Path("runs/office31"))
    parser.add_argument(
        "--methods",
        nargs="+",
        default=["source-only", "source-only/one-vs-all", "ovanet"],
        help="what follows a slash is source-only's --rejection",
    )
    parser.add_argument("--settings", nargs="+", default=["unida", "osda"])
    parser.add_argument("--pairs", nargs="+", default=list(PAIRS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side")
    parser.add_argument("rest", nargs="*", help="options for `unida adapt`, after --")
    options = parser.parse_args()
    grid = list(itertools.product(options.pairs, options.settings, options.methods, options.seeds))
    with ThreadPoolExecutor(options.jobs) as pool:
        rows = list(pool.map(lambda task: run(task, options), grid))
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "results.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    text = "\n\n".join(table(rows, setting, options.pairs) for setting in options.settings)
    (options.out / "results.md").write_text(text + "\n")
    print(text)


def run(task: tuple[str, str, str, int], options: argparse.Namespace) -> dict[str, object]:
    """One run, unless it is there: its row of the table."""
    pair, setting, method, seed = task
    folder = options.out / f"{pair.replace(':', '')}-{setting}-{method.replace('/', '-')}-{seed}"
    name, _, rejection = method.partition("/")
    if not (folder / "metrics.json").exists():
        source, target = (DOMAINS[letter] for letter in pair.split(":"))
        words = [
            "--benchmark",
            "office31",
            "--root",
            options.root,
            "--pair",
            f"{source}:{target}",
            "--setting",
            setting,
        ]
        words += ["--method", name, *(["--rejection", rejection] if rejection else [])]
        words += ["--seed", seed, "--out", folder, "--resume", *options.rest]
        command = [sys.executable, "-m", "unida", "adapt", *map(str, words)]
        folder.parent.mkdir(parents=True, exist_ok=True)
        with open(f"{folder}.log", "a") as log:
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, env=environment, check=True)
        print("done:", folder.name, flush=True)
    content = json.loads((folder / "metrics.json").read_text())
    names = {"pair": pair, "setting": setting, "method": method, "seed": seed}
    return {**names, **content["last_step"], **content["cost"]}


def table(rows: list[dict[str, object]], setting: str, pairs: list[str]) -> str:
    """HOS (class mean) by pair, with known and unknown accuracy averaged, in per cent: mean ± standard deviation."""
    of_setting = [row for row in rows if row["setting"] == setting]
    heading = ["method", *(pair.replace(":", "→") for pair in pairs), "HOS", "known", "unknown", "s/run"]
    lines = [f"### {setting}", "", "| " + " | ".join(heading) + " |", "|---" * len(heading) + "|"]
    for method in dict.fromkeys(row["method"] for row in of_setting):
        mine = [row for row in of_setting if row["method"] == method]
        cells = [spread([100 * float(row["hos"]) for row in mine if row["pair"] == pair]) for pair in pairs]
        seeds = sorted({row["seed"] for row in mine})
        for metric in METRICS:  # the average over pairs of each seed, then its spread over seeds
            by_seed = [[100 * float(r[metric]) for r in mine if r["seed"] == seed] for seed in seeds]
            cells.append(spread([statistics.mean(values) for values in by_seed]))
        seconds = statistics.mean(float(row["seconds"]) for row in mine)
        lines.append("| " + " | ".join([str(method), *cells, f"{seconds:.0f}"]) + " |")
    return "\n".join(lines)


def spread(values: list[float]) -> str:
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.1f} ± {deviation:.1f}"


if __name__ == "__main__":
    main()
