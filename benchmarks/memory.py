"""What the memory of a run is made of: part by part, with three times as many images, and with
more of them in the network at once.

# how to run
    python benchmarks/memory.py

Drawn pictures, a process for each way of training and each size, nothing kept at the start. Twenty times a second it
looks at what is resident, and at the part of the run that is going on. *Own*: anonymous pages. *Mapped*: pages of
files (libraries, decoded images, kept features), which the system takes back when it needs them, and which processes
share. Writes memory.csv. Linux only.
"""

import argparse
import json
import sys
import tempfile
import threading
from pathlib import Path

from common import Measure, PeakMemory, in_own_process, report

SIZES = {"1×": 20, "3×": 60}  # pictures of a class
PARTS = {  # function on the main thread's stack → part of the run; the first that is found counts
    "score_pixels": "answering",
    "TargetAnswers": "answering",
    "_save": "answering",
    "_write_results": "answering",
    "open_inputs": "features",
    "run": "training",
    "build_for_run": "network",
    "_open_all": "decoding",
}
KINDS = ("own", "mapped", "resident")
ORDER = ("decoding", "network", "features", "training", "answering")


def part_of_the_run() -> str:
    """What the main thread is doing, by the functions on its stack."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    names = set()
    while frame is not None:
        if "unida" in frame.f_code.co_filename:
            names.add(frame.f_code.co_name)
        frame = frame.f_back
    return next((part for function, part in PARTS.items() if function in names), "other")


def one(work: Path, per_class: int, train: str, backbone: str, engine: str, at_once: int) -> dict[str, object]:
    with PeakMemory(part_of_the_run) as memory:
        import unida
        from unida.data.glyphs import write_glyphs
        from unida.features import stem

        stem.AT_ONCE = at_once or stem.AT_ONCE
        folders = write_glyphs(
            work / "data", shared=10, source_private=5, target_private=5, per_class=per_class, size=224
        )
        unida.adapt(
            folders.source,
            folders.target,
            work / "run",
            cache=work / "cache",
            backbone=backbone,
            weights="none",
            train=train,
            engine=engine,
            method="ovanet",
            steps=20,
        )
    return {"images": 30 * per_class, "peaks": memory.peaks}


def main() -> None:
    parser = argparse.ArgumentParser(description="Memory of a run, part by part.")
    parser.add_argument("--one", nargs=6, metavar=("WORK", "PER_CLASS", "TRAIN", "BACKBONE", "ENGINE", "AT_ONCE"))
    parser.add_argument("--backbone", default="tiny_vit_5m_224.dist_in22k")
    parser.add_argument("--train", nargs="+", default=["head", "tail"])
    parser.add_argument("--engine", default="torch")
    parser.add_argument("--csv", type=Path, default=Path(__file__).with_suffix(".csv"))
    options = parser.parse_args()
    if options.one:
        work, per_class, train, backbone, engine, at_once = options.one
        print(json.dumps(one(Path(work), int(per_class), train, backbone, engine, int(at_once))))
        return
    measures = []
    cases = [(train, name, 0) for train in options.train for name in SIZES] + [("head", "1×", 64)]
    for train, name, at_once in cases:
        with tempfile.TemporaryDirectory() as work:
            words = (work, SIZES[name], train, options.backbone, options.engine, at_once)
            result = in_own_process(__file__, "--one", *words)
        title = f"{train}, {name}" + (f", {at_once} images at once" if at_once else "")
        measures.append(Measure(f"{title}: images", result["images"], ""))
        for part in (part for part in ORDER if part in result["peaks"]):
            peak = result["peaks"][part]
            measures += [Measure(f"{title}: {part}, {kind}", peak[kind] / 2**20, "MiB") for kind in KINDS]
            if part == "features":
                measures.append(Measure(f"{title}: features, images/s", 20 * result["images"] / peak["looks"], ""))
    report(measures, options.csv, backbone=options.backbone, engine=options.engine)


if __name__ == "__main__":
    main()
