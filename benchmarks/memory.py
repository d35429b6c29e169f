"""What the memory of a run is made of: part by part, and with three times as many images.

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
from collections import defaultdict
from pathlib import Path

SIZES = {"1×": 20, "3×": 60}  # pictures of a class
PARTS = {  # function on the main thread's stack → part of the run; the first that is found counts
    "score_pixels": "answering",
    "TargetAnswers": "answering",
    "_save": "answering",
    "_write_results": "answering",
    "run": "training",
    "open_inputs": "features",
    "build_for_run": "network",
    "_open_all": "decoding",
}
ORDER = ("decoding", "network", "features", "training", "answering")


class Sampler:
    """Peak of own and mapped memory, by part of the run."""

    def __enter__(self) -> "Sampler":
        self.peaks: dict[str, dict[str, int]] = defaultdict(lambda: {"own": 0, "mapped": 0, "resident": 0})
        self._main = threading.main_thread().ident
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._stop.wait(0.05):
            part = self._part()
            fields = {}
            for line in Path("/proc/self/status").read_text().splitlines():
                name, _, value = line.partition(":")
                fields[name] = value
            own = 1024 * int(fields["RssAnon"].split()[0])
            mapped = 1024 * (int(fields["RssFile"].split()[0]) + int(fields["RssShmem"].split()[0]))
            for name, value in (("own", own), ("mapped", mapped), ("resident", own + mapped)):
                self.peaks[part][name] = max(self.peaks[part][name], value)

    def _part(self) -> str:
        frame = sys._current_frames().get(self._main or 0)
        names = []
        while frame is not None:
            if "unida" in frame.f_code.co_filename:
                names.append(frame.f_code.co_name)
            frame = frame.f_back
        return next((part for function, part in PARTS.items() if function in names), "other")


def one(work: Path, per_class: int, train: str, backbone: str, engine: str) -> dict[str, object]:
    with Sampler() as sampler:
        import unida
        from unida.data.glyphs import write_glyphs

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
    return {"images": 30 * per_class, "peaks": sampler.peaks}


def main() -> None:
    parser = argparse.ArgumentParser(description="Memory of a run, part by part.")
    parser.add_argument("--one", nargs=5, metavar=("WORK", "PER_CLASS", "TRAIN", "BACKBONE", "ENGINE"))
    parser.add_argument("--backbone", default="tiny_vit_5m_224.dist_in22k")
    parser.add_argument("--train", nargs="+", default=["head", "tail"])
    parser.add_argument("--engine", default="torch")
    parser.add_argument("--csv", type=Path, default=Path(__file__).with_suffix(".csv"))
    options = parser.parse_args()
    if options.one:
        work, per_class, train, backbone, engine = options.one
        print(json.dumps(one(Path(work), int(per_class), train, backbone, engine)))
        return
    from common import Measure, in_own_process, report

    measures = []
    for train in options.train:
        for name, per_class in SIZES.items():
            with tempfile.TemporaryDirectory() as work:
                result = in_own_process(__file__, "--one", work, per_class, train, options.backbone, options.engine)
            measures.append(Measure(f"{train}, {name}: images", result["images"], ""))
            for part in (part for part in ORDER if part in result["peaks"]):
                for kind, value in result["peaks"][part].items():
                    measures.append(Measure(f"{train}, {name}: {part}, {kind}", value / 2**20, "MiB"))
    report(measures, options.csv, backbone=options.backbone, engine=options.engine)


if __name__ == "__main__":
    main()
