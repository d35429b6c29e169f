"""What handing memory back to the system costs: a frozen stem and a training step, with it kept and without.

# how to run
    python benchmarks/freed_memory.py

A process for each side, in one run; same work, same results. Linux with glibc. Writes freed_memory.csv.
"""

import argparse
import json
import resource
from pathlib import Path
from statistics import median

import torch
from common import Measure, in_own_process, report, timed
from data_path import BACKBONE, BATCH, CROP

from unida.models.backbone import create_backbone
from unida.support.memory import keep_freed_memory

REPEATS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description="Memory handed back, or kept.")
    parser.add_argument("--side", choices=("kept", "returned"), help=argparse.SUPPRESS)
    parser.add_argument("--csv", type=Path, default=Path(__file__).with_suffix(".csv"))
    options = parser.parse_args()
    if options.side:
        print(json.dumps(one_side(options.side == "kept")))
        return
    sides = {side: in_own_process(__file__, "--side", side) for side in ("returned", "kept")}
    measures = []
    for work in ("stem", "step"):
        for side, result in sides.items():
            measures.append(Measure(f"{work}, memory {side}", BATCH / result[work], "images/s"))
        measures.append(Measure(f"{work} faster by", sides["returned"][work] / sides["kept"][work], "times"))
    for side, result in sides.items():
        measures.append(Measure(f"peak memory, {side}", result["peak"] / 2**20, "GiB"))
    report(measures, options.csv, backbone=BACKBONE, batch=f"{BATCH} of {CROP} px")


def one_side(kept: bool) -> dict[str, float]:
    if kept:
        keep_freed_memory()
    torch.manual_seed(0)
    backbone = create_backbone(BACKBONE, "none").to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = torch.randn(BATCH, 3, CROP, CROP).contiguous(memory_format=torch.channels_last)

    def stem() -> None:
        with torch.inference_mode():
            backbone.run(images, upto=backbone.default_tap)

    def step() -> None:
        backbone(images).sum().backward()

    seconds = {}
    for name, work in (("stem", stem), ("step", step)):
        backbone.train(name == "step")
        work()
        seconds[name] = median(timed(work)[0] for _ in range(REPEATS))
    return {**seconds, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}


if __name__ == "__main__":
    main()
