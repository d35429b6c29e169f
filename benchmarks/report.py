"""How long a report takes, and how large it is, for a run with many target images.

# how to run
    python benchmarks/report.py                  # 20,000 made-up images: minutes, most of them for the run
    python benchmarks/report.py --images 2000
    python benchmarks/report.py --keep DIR       # keep the images and the run there, and find them again

Pictures of coloured noise, which make the largest JPEGs, are adapted to by `unida adapt` with a tiny network. Then
`unida report` runs in a process of its own, as a user would start it; the time of its imports is part of it. On a busy
machine, its processor time tells more. Writes report.csv.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from common import Measure, report, timed
from PIL import Image

CLASSES, PER_CLASS, SIDE = 50, 10, 96
LIMIT_SECONDS, LIMIT_BYTES = 60, 10_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description="Reports.")
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--csv", type=Path, default=Path(__file__).with_suffix(".csv"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = options.keep or Path(folder)
        run = made_up_run(work, options.images)
        before = os.times()
        seconds, _ = timed(lambda: unida("report", str(run)))
        after = os.times()
        worked = after.children_user + after.children_system - before.children_user - before.children_system
        size = (run / "report.html").stat().st_size
    name = f"report of {options.images} target images"
    measures = [Measure(name, seconds, "s"), Measure(f"{name}, processor time", worked, "s")]
    load = f"{os.getloadavg()[0]:.0f}"  # how many processes shared the machine
    report([*measures, Measure(f"{name}, size", size / 1e6, "MB")], options.csv, load=load)
    if seconds > LIMIT_SECONDS or size > LIMIT_BYTES:
        sys.exit(f"more than {LIMIT_SECONDS} s or {LIMIT_BYTES / 1e6:.0f} MB")


def made_up_run(work: Path, images: int) -> Path:
    """A finished run on noise. Most images of the target are of classes that the source has, in other colours."""
    run = work / "run"
    if (run / "metrics.json").exists():
        return run
    for number in range(CLASSES * PER_CLASS):
        draw(work / "source" / f"class {number % CLASSES}" / f"{number}.jpg", number % CLASSES, number)
    for number in range(images):
        kind = number % (CLASSES + 10)
        draw(work / "target" / f"class {kind}" / f"{number}.jpg", kind, CLASSES * PER_CLASS + number)
    words = f"--source {work}/source --target {work}/target --out {run} --cache {work}/cache --target-labels"
    words += " --backbone test_resnet --weights none --train head --image-size 40 --crop 32"
    unida("adapt", *words.split())
    (run / "report.html").unlink(missing_ok=True)
    return run


def draw(path: Path, kind: int, number: int) -> None:
    """Large spots that a class has, under noise that only this picture has."""
    path.parent.mkdir(parents=True, exist_ok=True)
    spots = np.random.default_rng(kind).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    large = np.asarray(Image.fromarray(spots).resize((SIDE, SIDE), Image.Resampling.BICUBIC), dtype=np.int64)
    noise = np.random.default_rng(number).integers(-40, 40, (SIDE, SIDE, 3))
    Image.fromarray((large + noise).clip(0, 255).astype(np.uint8)).save(path, quality=80)


def unida(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "unida", *words], check=True, env=os.environ)


if __name__ == "__main__":
    main()
