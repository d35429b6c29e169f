"""Every method as an ONNX file: does ONNX Runtime give the answers of `unida predict` on new photos, and how fast?

# how to run
    python benchmarks/export.py --source DIR --target DIR --new DIR                        # every method, one network
    python benchmarks/export.py --source DIR --target DIR --new DIR --methods ovanet dcc \\
        --backbones tf_efficientnet_lite0 resnet18 vit_tiny_patch16_224 --crop 224

Three folders of photos, such as the domains of Office-31. A run is made for each method, plain and with SPA, from a few
photos of the source and of the target, by few steps, with random weights (--weights none) unless asked otherwise: what
is compared is the arithmetic. Then 500 photos of --new, which no run has seen, are answered twice: by `unida predict`,
and by the script beside the ONNX file, with as many threads as torch has. Times include reading the files. Writes
export.csv.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from common import Measure, report, timed

import unida
from unida.data.folders import scan
from unida.export.standalone import answers
from unida.methods import METHODS
from unida.support.memory import keep_freed_memory

TOLERANCE = 1e-4


def main() -> None:
    parser = argparse.ArgumentParser(description="Exported models beside unida predict.")
    for name in ("source", "target", "new"):
        parser.add_argument(f"--{name}", type=Path, required=True, help="a folder of photos")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--spa", nargs="+", choices=("off", "on"), default=["off", "on"])
    parser.add_argument("--backbones", nargs="+", default=["test_resnet.r160_in1k"])
    parser.add_argument("--weights", default="none", help="a file, none, or pretrained")
    parser.add_argument("--crop", type=int, default=64)
    parser.add_argument("--steps", type=int, default=4, help="of training; after few, many runs give one label only")
    parser.add_argument("--photos", type=int, default=500)
    parser.add_argument("--csv", type=Path, default=Path(__file__).with_suffix(".csv"))
    options = parser.parse_args()
    keep_freed_memory()  # as every run does
    measures: list[Measure] = []
    with tempfile.TemporaryDirectory() as work:
        for name in ("source", "target"):
            few_of_each(getattr(options, name), Path(work) / name)
        photos = [file.path for file in scan(options.new)[0][: options.photos]]  # ordered by digest: a random sample
        for backbone in options.backbones:
            for method in options.methods:
                for spa in options.spa:
                    found = list(compare(Path(work), photos, backbone, method, spa == "on", options))
                    for measure in found:
                        print(*measure, file=sys.stderr, flush=True)
                    measures += found
    report(measures, options.csv, photos=len(photos), crop=options.crop, threads=torch.get_num_threads())


def few_of_each(folder: Path, out: Path, count: int = 6) -> None:
    """Links to a few photos of every class."""
    taken: dict[str, int] = {}
    for file in scan(folder)[0]:
        name = file.path.parent.name if file.path.parent.name != "images" else file.path.parent.parent.name
        taken[name] = taken.get(name, 0) + 1
        if taken[name] <= count:
            (out / name).mkdir(parents=True, exist_ok=True)
            os.symlink(file.path.absolute(), out / name / file.path.name)


def compare(
    work: Path, photos: list[Path], backbone: str, method: str, spa: bool, options: argparse.Namespace
) -> Iterator[Measure]:
    title = f"{method}{'+spa' if spa else ''} on {backbone}"
    out = work / "runs" / title.replace(" ", "-")
    weights = None if options.weights == "pretrained" else options.weights
    given = {"method": method, "backbone": backbone, "weights": weights, "train": "head", "steps": options.steps}
    sizes = {"crop": options.crop, "image_size": options.crop * 8 // 7, "batch_size": 16}
    extra = {"spa": True, "spa_vocabulary": 64} if spa else {}
    folders = {"source": work / "source", "target": work / "target", "cache": work / "cache", "duplicates": "keep"}
    try:
        run = unida.adapt(out=out, **folders, **given, **sizes, **extra)
    except unida.UserError as error:
        yield Measure(title, f"no such run: {error}", "")
        return
    model = out.with_suffix(".onnx")
    seconds, _ = timed(lambda: run.export(onnx=model))
    _ = run.classes  # reads the model
    by_torch, ours = timed(lambda: run.predict(photos))
    by_onnx, theirs = timed(lambda: list(answers(model, photos, threads=torch.get_num_threads())))
    pairs = list(zip(ours, theirs, strict=True))
    same = sum(our.label == label for our, (_, label, *_) in pairs)
    apart = [max(abs(our.probability - p), abs(our.unknown_score - u)) for our, (_, _, p, u, _) in pairs]
    yield Measure(title, f"{same} of {len(pairs)}", "labels equal")
    yield Measure("  largest difference of a score", max(apart), "")
    yield Measure(f"  scores that differ by more than {TOLERANCE:g}", sum(a > TOLERANCE for a in apart), "images")
    yield Measure("  answers", len({our.label for our in ours}), "different labels")
    yield Measure("  torch", len(photos) / by_torch, "images/s")
    yield Measure("  ONNX Runtime", len(photos) / by_onnx, "images/s")
    yield Measure("  exported in", seconds, "s")
    yield Measure("  file", model.stat().st_size / 2**20, "MiB")


if __name__ == "__main__":
    main()
