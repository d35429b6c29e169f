"""A grid by workers that stay alive, beside a process for each run.

# how to run
    python benchmarks/grid.py                                                          # drawn pictures
    python benchmarks/grid.py --spec examples/grids/office31.yaml --root DIR --pairs A:D D:A --seeds 0

The same runs twice, one after the other, two side by side, a core each: `unida grid`, and `unida adapt` for each run,
as a script would start them. Features are computed before, so that both find them. Compares the answers. Writes
grid.csv.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import yaml
from common import Measure, report, timed

from unida.data.glyphs import write_glyphs
from unida.grids.options import GridOptions
from unida.grids.plan import Task, plan
from unida.grids.start import read_grid

ONE_CORE = {**os.environ, "OMP_NUM_THREADS": "1"}
DRAWN = {
    "seeds": [0, 1, 2],
    "options": {"backbone": "tf_efficientnet_lite0", "image_size": 96, "crop": 80},
    "rows": {"source-only": {"method": "source-only"}, "ovanet": {"method": "ovanet"}, "dcc": {"method": "dcc"}},
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Grids.")
    parser.add_argument("--spec", type=Path)
    parser.add_argument("--root", type=Path)
    parser.add_argument("--pairs", nargs="+")
    parser.add_argument("--seeds", nargs="+", type=int)
    parser.add_argument("--set", nargs="+", default=[])
    parser.add_argument("--csv", type=Path, default=Path(__file__).with_suffix(".csv"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        spec = options.spec or drawn_spec(work)
        chosen = {"root": options.root, "pairs": options.pairs, "seeds": options.seeds, "set": tuple(options.set)}
        tasks = {}
        for name in ("warm", "alive", "each"):
            given = GridOptions(spec=spec, out=work / name, **chosen)  # type: ignore[arg-type]
            tasks[name] = plan(read_grid(given)[1], work / name)
        first = {(task.pair, task.setting, task.row): task for task in reversed(tasks["warm"])}
        separately(list(first.values()))  # computes features
        each, _ = timed(lambda: separately(tasks["each"]))
        words = [word for key, value in chosen.items() if value for word in (f"--{key}", *as_words(value))]
        words += ["--out", str(work / "alive"), "--workers", "2", "--no-estimate"]
        alive, _ = timed(lambda: call("grid", str(spec), *words))
        pairs = zip(tasks["each"], tasks["alive"], strict=True)
        equal = sum(answers(one) == answers(other) for one, other in pairs)
    runs = len(tasks["each"])
    measures = [
        Measure("runs", runs, ""),
        Measure("a process for each run", each, "s"),
        Measure("unida grid", alive, "s"),
        Measure("runs an hour, a process for each", 3600 * runs / each, ""),
        Measure("runs an hour, unida grid", 3600 * runs / alive, ""),
        Measure("faster by", each / alive, "times"),
        Measure("runs with the same answers", equal, ""),
    ]
    report(measures, options.csv, workers=2)


def drawn_spec(work: Path) -> Path:
    data = write_glyphs(work / "pictures", shared=6, source_private=3, target_private=3, per_class=20, size=96)
    folders = {"glyphs": {"source": str(data.source), "target": str(data.target), "target_labels": True}}
    path = work / "spec.yaml"
    path.write_text(yaml.safe_dump({**DRAWN, "options": {**DRAWN["options"], "cache": "cache"}, "folders": folders}))  # type: ignore[dict-item]
    return path


def separately(tasks: list[Task]) -> None:
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda task: call(*task.words), tasks))


def call(*words: str) -> None:
    command = [sys.executable, "-m", "unida", *words]
    subprocess.run(command, env=ONE_CORE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)


def as_words(value: object) -> list[str]:
    return [str(part) for part in value] if isinstance(value, list | tuple) else [str(value)]


def answers(task: Task) -> bytes:
    return (task.folder / "predictions.csv").read_bytes()


if __name__ == "__main__":
    main()
