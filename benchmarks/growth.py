"""What more images cost: time and peak memory of a run with one, three and ten times as many.

# how to run
    python benchmarks/growth.py

Drawn pictures, `--train tail`, a process for each size. Peak memory is what the process itself holds (anonymous pages)
and all that is resident (with pages of mapped files, which the system takes back when needed). Writes growth.csv.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

from common import Measure, PeakMemory, in_own_process, report

import unida
from unida.data.glyphs import write_glyphs

SIZES = {"1×": 20, "3×": 60, "10×": 200}


def main() -> None:
    parser = argparse.ArgumentParser(description="Growth.")
    parser.add_argument("--per-class", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--csv", type=Path, default=Path(__file__).with_suffix(".csv"))
    options = parser.parse_args()
    if options.per_class:
        print(json.dumps(one_size(options.work, options.per_class, options.steps)))
        return
    measures = []
    for name, per_class in SIZES.items():
        with tempfile.TemporaryDirectory() as work:
            result = in_own_process(__file__, "--per-class", per_class, "--work", work, "--steps", options.steps)
        measures += [
            Measure(f"{name}: images", result["images"], ""),
            Measure(f"{name}: decoding and features", result["preparing"], "s"),
            Measure(f"{name}: the same, per image", 1000 * result["preparing"] / result["images"], "ms"),
            Measure(f"{name}: training step", 1000 * result["training"] / options.steps, "ms"),
            Measure(f"{name}: peak memory of its own", result["anonymous"] / 2**30, "GiB"),
            Measure(f"{name}: peak resident memory", result["resident"] / 2**30, "GiB"),
        ]
    report(measures, options.csv, steps=options.steps)


def one_size(work: Path, per_class: int, steps: int) -> dict[str, float]:
    folders = write_glyphs(work / "data", shared=10, source_private=5, target_private=5, per_class=per_class, size=96)
    settings = {
        "source": folders.source,
        "target": folders.target,
        "cache": work / "cache",
        "image_size": 96,
        "crop": 80,
        "backbone": "tf_efficientnet_lite0",
        "train": "tail",
        "regime": "published",
    }
    with PeakMemory() as memory:
        start = time.perf_counter()
        unida.adapt(out=work / "first", steps=1, **settings)
        first = time.perf_counter() - start
        run = unida.adapt(out=work / "second", steps=steps, **settings)
    cost = json.loads((run.folder / "metrics.json").read_text())["cost"]
    return {
        "images": 30 * per_class,
        "preparing": first,
        "training": 2 * 36 * steps / cost["images_per_second"],
        "anonymous": memory.peaks[""]["own"],
        "resident": memory.peaks[""]["resident"],
    }


if __name__ == "__main__":
    main()
