"""Does an exported model answer as `unida predict` does? Asked before its file gets its name."""

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from unida.answering.alone import Answers, Scored, score_pixels
from unida.data.augment import Preprocess, Views, centre_views, crop_and_flip
from unida.data.folders import ImageFile, scan_listed
from unida.data.pixels import decode_in_memory
from unida.errors import UserError
from unida.methods.base import Method
from unida.runs.modelfile import ModelInfo
from unida.support.fabric import Fabric
from unida.support.random import generator

OF_TARGET, MADE = 24, 8  # images to compare
TOLERANCE = 1e-4  # of probabilities and unknown scores
# Another engine has other last bits. Features are rounded to 16 bits, so a few then fall on the other side of a
# rounding, and two neighbours that are equally near change places. Pixels that are off by this share do that to torch:
# darker or lighter, or with less or more contrast, as each moves features in another direction.
LAST_BITS = (-1.6e-5, -8e-6, -4e-6, -2e-6, -1e-6, 1e-6, 2e-6, 4e-6, 8e-6, 1.6e-5)


@dataclass(frozen=True)
class Expected:
    """What `unida predict` answers for some picture files, each taken as a new one."""

    paths: list[Path]
    centres: Tensor  # (N, crop, crop, 3) uint8, the input of an exported model
    answers: Answers
    threshold: float
    unknown: int  # the label that says so
    shaky: np.ndarray  # (N,) bool: torch itself gives other scores if pixels are off in their last bits


def pictures(run: Path, made: Path) -> list[Path]:
    """Some pictures of the run's target that are still where they were, and made-up ones, written to `made`."""
    try:
        with open(run / "predictions.csv", newline="", encoding="utf-8", errors="surrogateescape") as stream:
            there = [Path(row["path"]) for row in csv.DictReader(stream) if row["label"]]
    except (OSError, LookupError, csv.Error):  # the run answers without this file
        there = []
    some = there[:: max(1, len(there) // OF_TARGET)][:OF_TARGET]
    draw = generator(0, "pictures to compare an export on")
    for number in range(MADE):
        colours = draw.integers(0, 256, (4 + number, 9 - number // 2, 3), dtype=np.uint8)
        size = int(draw.integers(40, 400)), int(draw.integers(40, 400))
        Image.fromarray(colours).resize(size, Image.Resampling.BICUBIC).save(made / f"{number}.png")
    return [*(path for path in some if path.is_file()), *sorted(made.glob("*.png"))]


def expect(
    paths: Sequence[Path],
    method: Method,
    info: ModelInfo,
    answer: Callable[[Scored], Answers],
    threshold: float,
) -> Expected:
    """The answers of these pictures by the same code as `unida predict`. A picture that is damaged by now is left out.

    Args:
        answer: from scores to answers, for new images.
    """
    files: list[ImageFile] = scan_listed(paths, root=Path())[0]
    pixels = decode_in_memory(files, info.resize, info.image_size)
    fabric = Fabric(accelerator="cpu", devices=1)

    def answered(darker: float = 0.0, flatter: float = 0.0) -> Answers:
        mean, std = (
            tuple(value * (1 + off) for value in values) for values, off in ((info.mean, darker), (info.std, flatter))
        )
        preprocess = Preprocess(info.crop, mean, std, torch.device("cpu"))
        return answer(score_pixels(method, pixels, preprocess, fabric, visible=False))

    answers = answered()
    others = [moved for off in LAST_BITS for moved in (answered(darker=off), answered(flatter=off))]
    shaky = _moved(answers, others)
    views = centre_views(pixels.shapes, info.crop)
    windows, top, left = pixels.windows(np.arange(len(pixels)), views.top, views.left)
    centres = crop_and_flip(torch.from_numpy(windows), Views(top, left, views.flip), info.crop)
    paths = [file.path for file in pixels.files]
    return Expected(paths, centres, answers, threshold, len(info.classes), shaky)


def _moved(answers: Answers, others: Sequence[Answers]) -> np.ndarray:
    """(N,) bool: which images have scores that are not the same in all of them."""
    moved = torch.zeros(len(answers.prediction), dtype=torch.bool)
    for other in others:
        moved |= (other.probability - answers.probability).abs() > TOLERANCE / 2
        moved |= (other.unknown_score - answers.unknown_score).abs() > TOLERANCE / 2
    return moved.numpy()


class Apart(NamedTuple):
    """How far an exported model's scores are from those of `unida predict`."""

    most: float  # the largest difference
    excused: int  # images whose scores differ by more than TOLERANCE, as torch's own do


def compare(expected: Expected, label: np.ndarray, probability: np.ndarray, unknown: np.ndarray, what: str) -> Apart:
    """The differences of scores; a UserError if answers differ. Arrays have a row per picture.

    A score may differ more only where torch's own does if pixels are off in their last bits.
    """
    ours = expected.answers
    off = np.stack([probability - ours.probability.numpy(), unknown - ours.unknown_score.numpy()])
    apart = np.nan_to_num(np.abs(off).max(axis=0), nan=np.inf)
    at_threshold = np.abs(ours.unknown_score.numpy() - expected.threshold) <= TOLERANCE
    known = (label != expected.unknown) & (ours.prediction.numpy() != expected.unknown)
    two_best = known & (apart <= TOLERANCE)  # another class, as likely as ours
    excused = expected.shaky & np.isfinite(apart)
    refused = int(((label != ours.prediction.numpy()) & ~at_threshold & ~two_best & ~excused).sum())
    many = int(((apart > TOLERANCE) & ~excused).sum())
    if refused or many:
        raise UserError(
            f"{what} does not answer as unida predict does: of {len(apart)} images, {refused} have another label and "
            f"{many} a score that differs by more than {TOLERANCE:g} (at most {apart.max():.1e}); nothing was written"
        )
    return Apart(float(apart.max()), int((apart > TOLERANCE).sum()))
