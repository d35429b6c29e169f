"""Features of a frozen backbone by every engine that is installed: images per second, and how near to torch's.

# how to run
    python benchmarks/engines.py --root DIR --weights-dir DIR     # some ten minutes
    python benchmarks/engines.py --root DIR --weights-dir DIR --backbones tf_efficientnet_lite0

--root is a folder of photos, such as amazon/images of Office-31; --weights-dir holds the files of `WEIGHTS` below. The
whole backbone is frozen, down to the pooled vector. Engines take turns on the same batches in one process, so that
other work on the machine hits all of them; the median of their times counts. Then every engine computes the features of
500 photos, rounded as they are kept. Each half of them teaches a classifier of class means, by torch's features; the
other half gets its labels from it, once by torch's features and once by the engine's. Writes engines.csv.
"""

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import numpy as np
import torch
from common import CPU, Measure, report, timed
from torch import Tensor

from unida.data.augment import Preprocess
from unida.data.folders import scan
from unida.data.pixels import Pixels, open_pixels
from unida.features import engines
from unida.features.engines import open_engine
from unida.models.backbone import POOLED, Backbone, create_backbone
from unida.support.memory import keep_freed_memory

WEIGHTS = {
    "tf_efficientnet_lite0": "efficientnet-lite0-57934424.pth",
    "mobilenetv2_100": "mobilenet_v2-b0353104.pth",
    "tiny_vit_5m_224.dist_in22k": "tiny_vit_5m_in22k.safetensors",
    "vit_small_patch14_dinov2.lvd142m": "dinov2_vits14.fp16.safetensors",
}
CROP, SIZE, BATCH, ROUNDS = 224, 256, 64, 5


def main() -> None:
    parser = argparse.ArgumentParser(description="Engines, side by side.")
    parser.add_argument("--root", type=Path, required=True, help="a folder of photos, one sub-folder per class")
    parser.add_argument("--weights-dir", type=Path, required=True)
    parser.add_argument("--backbones", nargs="+", choices=WEIGHTS, default=list(WEIGHTS))
    parser.add_argument("--photos", type=int, default=500)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--csv", type=Path, default=Path(__file__).with_suffix(".csv"))
    options = parser.parse_args()
    keep_freed_memory()  # as every run does
    torch.set_num_threads(options.threads)
    measures, keys = [], set[str]()
    with tempfile.TemporaryDirectory() as cache:
        files = scan(options.root)[0][: options.photos]  # ordered by digest: a random sample
        pixels = open_pixels(files, resize="squash", size=SIZE, cache_dir=Path(cache))
        labels = np.unique([file.path.parent.name for file in pixels.files], return_inverse=True)[1]
        for name in options.backbones:
            backbone = create_backbone(name, options.weights_dir / WEIGHTS[name]).eval()
            backbone.freeze(POOLED, torch.float16)
            measures += compare(backbone, pixels, torch.from_numpy(labels), keys)
    report(
        measures,
        options.csv,
        batch=f"{BATCH} of {CROP} px",
        threads=options.threads,
        photos=len(pixels),
        engine=" ".join(sorted(keys)) or "none",
    )


@torch.inference_mode()
def compare(backbone: Backbone, pixels: Pixels, labels: Tensor, keys: set[str]) -> Iterator[Measure]:
    preprocess = Preprocess(CROP, backbone.mean, backbone.std, CPU)
    opening, engine = timed(lambda: open_engine(backbone, CROP, "auto"))
    runs = {engines.TORCH: backbone.stem}
    if engine.key:
        keys.add(engine.key)
        runs[engines.OPENVINO] = engine.run
    first = preprocess.test_view(pixels, np.arange(BATCH))
    for run in runs.values():
        run(first)
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(ROUNDS):
        for name, run in runs.items():
            seconds[name].append(timed(lambda run=run: run(first))[0])
    for name in runs:
        yield Measure(f"{backbone.name}, {name}", BATCH / median(seconds[name]), "images/s")
    ratios = [a / b for a, b in zip(seconds[engines.TORCH], seconds.get(engines.OPENVINO, []), strict=False)]
    if not ratios:
        return
    index = np.array_split(np.arange(len(pixels)), range(BATCH, len(pixels), BATCH))
    views = [preprocess.test_view(pixels, part) for part in index]
    exact, ours = (torch.cat([run(view) for view in views]) for run in runs.values())
    answers = [by_class_means(exact.half().float(), features.half().float(), labels) for features in (exact, ours)]
    yield Measure("  faster by", median(ratios), "times")
    yield Measure("  opened in", opening, "s")
    yield Measure("  largest difference of a feature", float((ours - exact).abs().max()), "")
    yield Measure("  of a largest feature of", float(exact.abs().max()), "")
    yield Measure("  other 16-bit numbers", 100 * float((ours.half() != exact.half()).float().mean()), "%")
    yield Measure("  right labels, by torch's features", 100 * float((answers[0] == labels).float().mean()), "%")
    yield Measure("  equal labels", 100 * float((answers[0] == answers[1]).float().mean()), "%")


def by_class_means(known: Tensor, asked: Tensor, labels: Tensor) -> Tensor:
    """A label for each of `asked`: the class whose mean, of the half of `known` without that image, is nearest."""
    answers = torch.empty_like(labels)
    for half in (0, 1):
        taught, told = known[half::2], labels[half::2]
        classes = told.unique()
        means = torch.stack([taught[told == c].mean(0) for c in classes])
        nearest = (asked[1 - half :: 2] @ torch.nn.functional.normalize(means).T).argmax(1)
        answers[1 - half :: 2] = classes[nearest]
    return answers


if __name__ == "__main__":
    main()
