"""`unida adapt` on two folders of photos without a GPU: a first run from nothing, and a second seed after it.

# how to run
    python benchmarks/two_folders.py --source DIR --target DIR      # a sub-folder per class, in the target too
    python benchmarks/two_folders.py --office31 DIR                 # a thousand images a side, linked from Office-31
    python benchmarks/two_folders.py --office31 DIR --weights FILE  # TinyViT's weights, where there is no hub
    python benchmarks/two_folders.py --office31 DIR --cells --csv cells.csv tiny_vit_5m_224.dist_in22k=FILE …

All runs are the command itself: with its defaults, and as they were before (EfficientNet-Lite0, the last layers
trained as published). The target's classes are used to measure HOS, alone and together. Writes two_folders.csv.

With --cells: every method on the backbones that are named (with a weights file, if there is no hub), each with --train
head and tail (--trains). The first run of a backbone computes its features; the others find them (SPA needs maps, too).
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import Measure, report

IMAGES = 1000
CELL_ROWS = {
    "ovanet": ["--method", "ovanet"],
    "source-only": ["--method", "source-only"],
    "ovanet+spa": ["--method", "ovanet", "--spa"],
    "dcc": ["--method", "dcc"],
}
BEFORE = ["--backbone", "tf_efficientnet_lite0", "--train", "tail", "--regime", "published"]


def main() -> None:
    parser = argparse.ArgumentParser(description="Two folders.")
    parser.add_argument("--source", type=Path)
    parser.add_argument("--target", type=Path)
    parser.add_argument("--office31", type=Path)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--cells", action="store_true")
    parser.add_argument("--trains", nargs="+", default=["head", "tail"])
    parser.add_argument("--rows", nargs="+", default=list(CELL_ROWS), help="with --cells")
    parser.add_argument("--csv", type=Path, default=Path(__file__).with_suffix(".csv"))
    parser.add_argument("backbones", nargs="*", metavar="NAME[=FILE]", help="with --cells")
    options = parser.parse_args()
    variants = {"default": ["--weights", options.weights] if options.weights else [], "before": BEFORE}
    measures = []
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        source, target = options.source, options.target
        if options.office31 is not None:
            source, target = link_office31(options.office31, work / "data")
        counts = [sum(len(files) for *_, files in os.walk(side, followlinks=True)) for side in (source, target)]
        data = ["--source", source, "--target", target, "--target-labels", "--duplicates", "keep"]
        if options.cells:
            measures = [it for name in options.backbones for it in cells(name, options, data, work)]
            variants = {}
        for name, words in variants.items():
            common = [*data, *words, "--cache", work / f"cache of {name}"]
            first, numbers = run(common, work / f"first of {name}")
            second, _ = run([*common, "--seed", "1"], work / f"second of {name}")
            disk = size_of(work / f"cache of {name}")
            measures += [
                Measure(f"{name}: first run, from nothing to answers", first, "s"),
                Measure(f"{name}: second seed, the whole", second, "s"),
                Measure(f"{name}: HOS, alone", 100 * numbers["alone"]["method"]["hos"], "%"),
                Measure(f"{name}: HOS, together", 100 * numbers["together"]["auto"]["hos"], "%"),
                Measure(f"{name}: peak memory", numbers["cost"]["peak_memory_bytes"] / 2**30, "GiB"),
                Measure(f"{name}: kept on disk", disk / 2**30, "GiB"),
            ]
    report(measures, options.csv, source_images=counts[0], target_images=counts[1])


def cells(named: str, options: argparse.Namespace, data: list[Any], work: Path) -> list[Measure]:
    """Seconds, HOS, memory and disk of each method on one backbone, for each part of it that is trained."""
    backbone, _, weights = named.partition("=")
    measures = []
    for train in options.trains:
        cache = work / f"cache of {backbone}, {train}"
        for row in options.rows:
            words = [*data, "--backbone", backbone, "--train", train, *CELL_ROWS[row], "--cache", cache]
            name = f"{backbone}, {train}, {row}"
            took, numbers = run([*words, *(["--weights", weights] if weights else [])], work / name)
            measures += [
                Measure(f"{name}: {'from nothing' if row == options.rows[0] else 'after it'}", took, "s"),
                Measure(f"{name}: HOS, alone", 100 * numbers["alone"]["method"]["hos"], "%"),
                Measure(f"{name}: HOS, together", 100 * numbers["together"]["auto"]["hos"], "%"),
                Measure(f"{name}: peak memory", numbers["cost"]["peak_memory_bytes"] / 2**30, "GiB"),
            ]
        measures.append(Measure(f"{backbone}, {train}: kept on disk", size_of(cache) / 2**30, "GiB"))
    return measures


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def run(words: list[object], out: Path) -> tuple[float, dict[str, Any]]:
    """Seconds from the command's start to its end, and its metrics."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "unida", "adapt", *map(str, words), "--out", str(out)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start, json.loads((out / "metrics.json").read_bytes())


def link_office31(root: Path, folder: Path) -> tuple[Path, Path]:
    """Amazon's first twenty classes on one side, all of webcam and dslr on the other: a thousand of each."""
    classes = sorted(path for path in (root / "amazon" / "images").iterdir() if path.is_dir())[:20]
    by_turns = itertools.zip_longest(*(sorted(path.iterdir()) for path in classes))
    amazon = [file for row in by_turns for file in row if file is not None]
    for file in amazon[:IMAGES]:
        link(file, folder / "source" / file.parent.name / file.name)
    others = [file for name in ("webcam", "dslr") for file in sorted((root / name / "images").rglob("*.jpg"))]
    for number, file in enumerate(others[:IMAGES]):
        link(file, folder / "target" / file.parent.name / f"{number}.jpg")
    return folder / "source", folder / "target"


def link(file: Path, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(file.absolute())


if __name__ == "__main__":
    main()
