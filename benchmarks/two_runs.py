"""Two independent runs on two cores: side by side with a core each, against one after the other with both.

# how to run
    python benchmarks/two_runs.py

Drawn pictures, `--train tail`, features computed beforehand. Writes two_runs.csv.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from common import Measure, report, timed

from unida.data.glyphs import GlyphFolders, write_glyphs


def main() -> None:
    parser = argparse.ArgumentParser(description="Two runs, side by side or in turn.")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--csv", type=Path, default=Path(__file__).with_suffix(".csv"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        folders = write_glyphs(work / "data", shared=10, source_private=5, target_private=5, per_class=20, size=96)
        wait(start(work, folders, "features", 0, 1, threads=2))

        def in_turn() -> None:
            for seed in (0, 1):
                wait(start(work, folders, "turn", seed, options.steps, threads=2))

        def side_by_side() -> None:
            for process in [start(work, folders, "side", seed, options.steps, threads=1) for seed in (0, 1)]:
                wait(process)

        turn, side = timed(in_turn)[0], timed(side_by_side)[0]
    report(
        [
            Measure("two runs in turn, two threads each", turn, "s"),
            Measure("two runs side by side, one thread each", side, "s"),
            Measure("side by side faster by", turn / side, "times"),
        ],
        options.csv,
        steps=options.steps,
    )


def start(
    work: Path, folders: GlyphFolders, name: str, seed: int, steps: int, threads: int
) -> "subprocess.Popen[bytes]":
    words = ["adapt", "--source", folders.source, "--target", folders.target, "--out", work / f"{name}-{seed}"]
    words += ["--cache", work / "cache", "--image-size", 96, "--crop", 80, "--steps", steps, "--seed", seed]
    words += ["--backbone", "tf_efficientnet_lite0", "--train", "tail", "--regime", "published"]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-m", "unida", *map(str, words)]
    return subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)


def wait(process: "subprocess.Popen[bytes]") -> None:
    if process.wait():
        raise SystemExit("a run failed")


if __name__ == "__main__":
    main()
