"""`unida adapt` on two folders of photos without a GPU: a first run from nothing, and a second seed after it.

# how to run
    python benchmarks/two_folders.py --source DIR --target DIR      # the source has a sub-folder per class
    python benchmarks/two_folders.py --office31 DIR                 # a thousand images a side, linked from Office-31

Both runs are the command itself, with its defaults. "After the cache check" is counted from the line that says that all
features are there to the first step. Writes two_folders.csv.
"""

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from common import Measure, report

IMAGES = 1000


def main() -> None:
    parser = argparse.ArgumentParser(description="Two folders.")
    parser.add_argument("--source", type=Path)
    parser.add_argument("--target", type=Path)
    parser.add_argument("--office31", type=Path)
    parser.add_argument("--csv", type=Path, default=Path(__file__).with_suffix(".csv"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        source, target = options.source, options.target
        if options.office31 is not None:
            source, target = link_office31(options.office31, work / "data")
        common = ["--source", source, "--target", target, "--cache", work / "cache", "--duplicates", "keep"]
        first = run(common, work / "first")
        second = run([*common, "--seed", "1"], work / "second")
        counts = [sum(len(files) for *_, files in os.walk(side, followlinks=True)) for side in (source, target)]
    report(
        [
            Measure("first run, from nothing to answers", first["end"], "s"),
            Measure("of it until the first step (start, decoding, features)", first["first step"], "s"),
            Measure("second seed, the whole", second["end"], "s"),
            Measure("second seed, until the first step", second["first step"], "s"),
            Measure("second seed, from the cache check to the first step", second["first step"] - second["check"], "s"),
        ],
        options.csv,
        source_images=counts[0],
        target_images=counts[1],
    )


def run(words: list[object], out: Path) -> dict[str, float]:
    """Seconds from the command's start to what it says and does."""
    start, seen = time.perf_counter(), {}
    every_step = ["--log-every", "1"]  # the first line of the log tells when the first step was done
    command = [sys.executable, "-u", "-m", "unida", "adapt", *map(str, words), "--out", str(out), *every_step]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        watcher = threading.Thread(target=watch, args=(out / "metrics.jsonl", process, start, seen))
        watcher.start()
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("features: all found"):
                seen["check"] = time.perf_counter() - start
    watcher.join()
    assert process.returncode == 0, words
    return {**seen, "end": time.perf_counter() - start}


def watch(log: Path, process: subprocess.Popen[str], start: float, seen: dict[str, float]) -> None:
    while process.poll() is None:
        if log.exists() and log.stat().st_size:
            seen["first step"] = time.perf_counter() - start
            return
        time.sleep(0.02)


def link_office31(root: Path, folder: Path) -> tuple[Path, Path]:
    """Amazon's first twenty classes on one side, webcam and dslr without labels on the other: a thousand of each."""
    classes = sorted(path for path in (root / "amazon" / "images").iterdir() if path.is_dir())[:20]
    by_turns = itertools.zip_longest(*(sorted(path.iterdir()) for path in classes))
    amazon = [file for row in by_turns for file in row if file is not None]
    for file in amazon[:IMAGES]:
        link(file, folder / "source" / file.parent.name / file.name)
    others = [file for name in ("webcam", "dslr") for file in sorted((root / name / "images").rglob("*.jpg"))]
    for number, file in enumerate(others[:IMAGES]):
        link(file, folder / "target" / f"{number}.jpg")
    return folder / "source", folder / "target"


def link(file: Path, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(file.absolute())


if __name__ == "__main__":
    main()
