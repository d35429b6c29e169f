"""What it costs to notice a flipped bit: pixels, features and model files, with their checks and without.

# how to run
    python benchmarks/digests.py

Both sides do the same work on the same files, in one run, in turns, on one thread. The files are in the system's
memory, so that no disk hides the cost. Medians over the repeats; a ratio is the median of the ratios within each
repeat. An image and a row of features are compared with their crc32 the first time that a process reads them, a model
file with its blake2b whenever it is read. Writes digests.csv.
"""

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from common import Measure, report, timed
from data_path import BACKBONE, BATCH, CROP, SIZE, cached_epoch, read_epoch, write_pictures

from unida.data.folders import scan
from unida.data.pixels import Pixels, open_pixels
from unida.features.shelf import Shelf
from unida.models.backbone import create_backbone
from unida.support import tensorfile
from unida.support.memory import keep_freed_memory

Prepare = Callable[[], Any]  # makes what the work is done on; its time does not count
LARGE = "resnet50"  # 100 MB


class Size(NamedTuple):
    """Of the work of one repeat."""

    bytes: int
    units: float
    unit: str


def main() -> None:
    parser = argparse.ArgumentParser(description="The cost of checks, side by side.")
    parser.add_argument("--count", type=int, default=200, help="pictures to draw, and rows of features (default: 200)")
    parser.add_argument("--repeats", type=int, default=15, help="of each side (default: 15)")
    parser.add_argument("--csv", type=Path, default=Path(__file__).with_suffix(".csv"), help="where the table goes")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()  # as every run does
    with tempfile.TemporaryDirectory() as work:
        measures = [
            *compare_pixels(Path(work), options.count, options.repeats),
            *compare_rows(Path(work), options.count, options.repeats),
            *compare_tensors(Path(work), options.repeats),
        ]
    report(measures, options.csv, images=options.count, row=f"{BACKBONE} at its tap", model=LARGE)


def compare_pixels(work: Path, count: int, repeats: int) -> list[Measure]:
    files = scan(write_pictures(work / "pictures", count))[0]

    def opened() -> Pixels:
        """Nothing of it is compared yet."""
        return open_pixels(files, resize="squash", size=SIZE, cache_dir=work / "cache", memory_limit=0)

    def unchecked() -> Pixels:
        return replace(opened(), _guard=None)

    def known(pixels: Pixels) -> Pixels:
        read_epoch(pixels, 0)
        return pixels

    def read(pixels: Pixels) -> None:
        read_epoch(pixels, 0)

    def view(pixels: Pixels) -> None:
        cached_epoch(pixels, 0)

    size = Size(count * SIZE * SIZE * 3, count / 1000, "a thousand images")
    return [
        *side_by_side("pixels, first read", opened, unchecked, read, repeats, size),
        *side_by_side("pixels, read again", lambda: known(opened()), lambda: known(unchecked()), read, repeats, size),
        *side_by_side("pixels loaded into memory", opened, unchecked, Pixels.in_memory, repeats, size),
        *side_by_side("training views, first epoch", opened, unchecked, view, repeats, size),
    ]


def compare_rows(work: Path, count: int, repeats: int) -> list[Measure]:
    backbone = create_backbone(BACKBONE, "none").eval()
    with torch.inference_mode():
        shape = tuple(backbone.run(torch.zeros(1, 3, CROP, CROP), upto=backbone.default_tap).shape[1:])
    rows = torch.randn(count, *shape)
    digests = [i.to_bytes(16, "little") for i in range(1, count + 1)]

    def opened() -> Shelf:
        return Shelf(work / "shelf", shape, torch.float16)

    def unchecked() -> Shelf:
        shelf = opened()
        shelf._checked[:] = True
        return shelf

    def read(shelf: Shelf) -> None:
        order = np.random.default_rng(0).permutation(count)
        for start in range(0, count, BATCH):
            shelf.read(order[start : start + BATCH])

    opened().append(digests, rows)
    size = Size(count * opened().row_bytes, count / 1000, "a thousand rows")
    return side_by_side("features, first read", opened, unchecked, read, repeats, size)


def compare_tensors(work: Path, repeats: int) -> list[Measure]:
    tensors = create_backbone(LARGE, "none").state_dict()
    size = Size(sum(tensor.nbytes for tensor in tensors.values()), 1, "the file")
    path = work / "model.safetensors"

    def write(checked: bool) -> None:
        with digests_if(checked):
            tensorfile.write_tensors(path, tensors, {})

    def read(checked: bool) -> None:
        with digests_if(checked):
            tensorfile.read_tensors(path)

    def written(checked: bool) -> bool:
        write(checked)
        return checked

    def with_digest() -> bool:
        return written(True)

    def without() -> bool:
        return written(False)

    return [
        *side_by_side("model file, written", lambda: True, lambda: False, write, repeats, size),
        *side_by_side("model file, read", with_digest, without, read, repeats, size),
    ]


def digests_if(checked: bool) -> Any:
    """The same code with a digest that costs nothing, unless checked."""
    digest = tensorfile.digest_of if checked else lambda tensors, notes: "none"
    return patch.object(tensorfile, "digest_of", digest)


def side_by_side(
    name: str, checked: Prepare, unchecked: Prepare, work: Callable[[Any], object], repeats: int, size: Size
) -> list[Measure]:
    """Rates of both sides, how many times as long the checked one takes, and what that is in seconds."""
    work(checked())  # to warm up
    work(unchecked())
    pairs = []
    for _ in range(repeats):
        sides = []
        for prepare in (checked, unchecked):
            material = prepare()
            sides.append(timed(lambda m=material: work(m))[0])
        pairs.append(sides)
    mebibytes = size.bytes / 2**20
    return [
        Measure(f"{name}: checked", mebibytes / median(slow for slow, _ in pairs), "MiB/s"),
        Measure(f"{name}: unchecked", mebibytes / median(fast for _, fast in pairs), "MiB/s"),
        Measure(f"{name}: checked takes", median(slow / fast for slow, fast in pairs), "times as long"),
        Measure(f"{name}: checks of {size.unit}", median(slow - fast for slow, fast in pairs) / size.units, "s"),
    ]


if __name__ == "__main__":
    main()
