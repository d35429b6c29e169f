"""How fast images reach the network: from the cache, and decoded anew every epoch as reference code does.

# how to run
    python benchmarks/data_path.py                  # draws 200 pictures of 1000 × 750 pixels, takes some minutes
    python benchmarks/data_path.py --images DIR     # on the pictures of a folder
    python benchmarks/data_path.py --help

Both sides work on the same pictures, in the same run, in turns, on one thread each: a reference's loader works so in
each of its worker processes. Compared are one epoch of resized pixels (what the cache replaces), and one of training
views, in batches of 36, cropped, mirrored and normalised to float32, ready for the network.
Medians over the repeats; the ratio is the median of the ratios within each repeat. The last part asks what share of a
whole training step is spent on its two batches. Writes data_path.csv beside this file.
"""

import argparse
import tempfile
from pathlib import Path
from statistics import median

import numpy as np
import torch
from common import CPU, Measure, report, timed
from lightning_fabric import Fabric
from PIL import Image
from torchvision import transforms

from unida.config import Config, complete, config_from_options
from unida.data.augment import Preprocess
from unida.data.domains import Source, Target
from unida.data.folders import scan
from unida.data.glyphs import CLASSES, draw
from unida.data.pixels import Pixels, open_pixels
from unida.features.inputs import PixelInputs
from unida.methods.base import Problem, SourceBatch, TargetBatch
from unida.methods.ovanet import OVANet, OVANetOptions
from unida.models.backbone import create_backbone
from unida.support.memory import keep_freed_memory
from unida.support.random import generator
from unida.training.batches import BatchStream
from unida.training.optim import build_optimiser, set_learning_rate

BATCH, SIZE, CROP = 36, 256, 224
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
BACKBONE = "tf_efficientnet_lite0"


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed of the data path, side by side.")
    parser.add_argument("--images", type=Path, help="a folder of pictures (default: drawn for the occasion)")
    parser.add_argument("--count", type=int, default=200, help="pictures to draw (default: 200)")
    parser.add_argument("--repeats", type=int, default=5, help="epochs of each side (default: 5)")
    parser.add_argument(
        "--steps", type=int, default=5, help="training steps to time, after one to warm up (default: 5)"
    )
    parser.add_argument("--csv", type=Path, default=Path(__file__).with_suffix(".csv"), help="where the table goes")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        folder = options.images or write_pictures(Path(work) / "pictures", options.count)
        pixels, building = build_cache(folder, Path(work) / "cache")
        measures = [
            *building,
            *compare_epochs(pixels, options.repeats),
            *share_of_a_step(pixels, options.steps),
        ]
    report(measures, options.csv, images=len(pixels))


def write_pictures(folder: Path, count: int) -> Path:
    """JPEG files as a camera or a web shop makes them: large, textured, no two alike."""
    folder.mkdir()
    for i in range(count):
        rng = np.random.default_rng(i)
        glyph = draw(CLASSES[i % len(CLASSES)], "photo", seed=0, size=192, number=i).resize((1000, 750))
        grain = rng.normal(0, 12, (750, 1000, 3))
        textured = (np.asarray(glyph) + grain).clip(0, 255).astype(np.uint8)
        Image.fromarray(textured).save(folder / f"{i:04}.jpg", quality=90)
    return folder


def build_cache(folder: Path, cache: Path) -> tuple[Pixels, list[Measure]]:
    """Everything a first run does before its first step, and what a second run does."""

    def opened() -> Pixels:
        return open_pixels(scan(folder, cache_dir=cache)[0], resize="squash", size=SIZE, cache_dir=cache)

    first, pixels = timed(opened)
    again, _ = timed(opened)
    return pixels, [
        Measure("building the cache", first, "s"),
        Measure("opening the cache again", again, "s"),
    ]


def compare_epochs(pixels: Pixels, repeats: int) -> list[Measure]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    keep_freed_memory()  # as every run does
    cached_epoch(pixels, -1)  # first touch of the memory
    cached, decoded, read, resized = [], [], [], []
    for repeat in range(repeats):
        resized.append(timed(lambda: resized_epoch(pixels))[0])
        read.append(timed(lambda r=repeat: [read_epoch(pixels, 100 * r + i) for i in range(100)])[0] / 100)
        decoded.append(timed(lambda: decoded_epoch(pixels))[0])
        # An epoch from the cache is short: many of them, for a time that a clock can tell.
        cached.append(timed(lambda r=repeat: [cached_epoch(pixels, 20 * r + i) for i in range(20)])[0] / 20)
    torch.set_num_threads(threads)
    return [
        Measure("pixels of 256 × 256 from the cache", len(pixels) / median(read), "images/s"),
        Measure("pixels of 256 × 256, decoded and resized anew", len(pixels) / median(resized), "images/s"),
        Measure("pixels faster from the cache by", median(d / c for d, c in zip(resized, read, strict=True)), "times"),
        Measure("training views from the cache", len(pixels) / median(cached), "images/s"),
        Measure("training views decoded anew", len(pixels) / median(decoded), "images/s"),
        Measure(
            "training views faster from the cache by",
            median(d / c for d, c in zip(decoded, cached, strict=True)),
            "times",
        ),
    ]


def cached_epoch(pixels: Pixels, epoch: int) -> None:
    preprocess = Preprocess(CROP, MEAN, STD, CPU)
    order = np.random.default_rng(abs(epoch)).permutation(len(pixels))
    for start in range(0, len(order), BATCH):
        index = order[start : start + BATCH]
        batch = preprocess.training_view(pixels, index, generator(0, "view", epoch, start), slice(None))
        assert batch.shape[1:] == (3, CROP, CROP)


def read_epoch(pixels: Pixels, epoch: int) -> None:
    """What the cache replaces, and nothing more: batches of resized pixels."""
    order = np.random.default_rng(epoch).permutation(len(pixels))
    for start in range(0, len(order), BATCH):
        index = order[start : start + BATCH]
        corner = np.zeros(len(index), dtype=np.int64)
        assert pixels.windows(index, corner, corner)[0].shape[1:] == (SIZE, SIZE, 3)


def resized_epoch(pixels: Pixels) -> None:
    for start in range(0, len(pixels), BATCH):
        files = pixels.files[start : start + BATCH]
        pictures = [Image.open(f.path).convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR) for f in files]
        assert np.stack([np.asarray(picture) for picture in pictures]).shape[1:] == (SIZE, SIZE, 3)


def decoded_epoch(pixels: Pixels) -> None:
    """The released code's transform, on every file, as a DataLoader's worker runs it."""
    transform = transforms.Compose(
        [
            transforms.Resize((SIZE, SIZE)),
            transforms.RandomHorizontalFlip(),
            transforms.RandomCrop(CROP),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )
    for start in range(0, len(pixels), BATCH):
        files = pixels.files[start : start + BATCH]
        batch = torch.stack([transform(Image.open(file.path).convert("RGB")) for file in files])
        assert batch.shape[1:] == (3, CROP, CROP)


def share_of_a_step(pixels: Pixels, steps: int) -> list[Measure]:
    """OVANet at its defaults: 36 + 36 images of 224 pixels, drawn, cropped, mirrored, normalised, then learnt from."""
    fabric = Fabric(accelerator="auto", devices=1)
    on_gpu = fabric.device.type != "cpu"
    config: Config = complete(config_from_options({"steps": steps + 1, "batch_size": BATCH}), on_gpu)
    classes = tuple(CLASSES[:10])
    source = Source(pixels, np.arange(len(pixels)) % len(classes), classes)
    problem = Problem(len(classes), len(pixels), len(pixels), steps + 1)
    method = OVANet(create_backbone(BACKBONE, "none"), problem, OVANetOptions())
    method.to(fabric.device, memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    (phase,) = method.phases()
    (turn,) = phase.turns
    optimiser = build_optimiser(turn, config.training)
    inputs = PixelInputs(CROP, method.backbone.mean, method.backbone.std, fabric.device)
    stream = BatchStream(source, Target(pixels), inputs, config, fabric, method.recipes)

    def learn(step: int, source: SourceBatch, target: TargetBatch) -> None:
        set_learning_rate(optimiser, step, steps + 1, turn.decay)
        torch.stack(list(turn.losses(source, target, step).values())).sum().backward()
        optimiser.step()
        optimiser.zero_grad()

    drawing, learning = [], []
    for step in range(steps + 1):
        seconds, batches = timed(lambda s=step: stream.batch(s, phase), fabric.device)
        drawing.append(seconds)
        learning.append(timed(lambda s=step, b=batches: learn(s, *b), fabric.device)[0])
    shares = [d / (d + n) for d, n in zip(drawing[1:], learning[1:], strict=True)]
    whole = median(d + n for d, n in zip(drawing[1:], learning[1:], strict=True))
    return [
        Measure(f"two batches of {BATCH}", 1000 * median(drawing[1:]), "ms"),
        Measure(f"whole step ({BACKBONE}, {fabric.device})", 1000 * whole, "ms"),
        Measure("share of a step outside the network", 100 * median(shares), "%"),
    ]


if __name__ == "__main__":
    main()
