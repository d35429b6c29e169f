"""Few pictures and the files that their features are kept in, for the tests of frozen stems."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from unida.data.augment import Preprocess
from unida.data.folders import scan
from unida.data.pixels import Pixels, open_pixels
from unida.features.kept import FeatureInputs
from unida.features.stem import Stem, stem_of
from unida.models.backbone import Backbone

CROP = 32
VIEWS = 2
WHOLE = slice(None)


def pixels_of(folder: Path, cache: Path) -> Pixels:
    return open_pixels(scan(folder)[0], resize="squash", size=40, cache_dir=cache)


def rows_files(cache: Path) -> list[Path]:
    return sorted((cache / "features").glob("*/rows.16"))


def preprocess_for(backbone: Backbone) -> Preprocess:
    return Preprocess(CROP, backbone.mean, backbone.std, torch.device("cpu"))


class Counting:
    """A stem that counts the images that pass through it.

    Args:
        last_call: the call after which it is interrupted, as by Ctrl-C.
    """

    def __init__(self, stem: Stem, last_call: int | None = None) -> None:
        self.images = self.calls = 0
        self.last_call, self._run = last_call, stem.run
        self.stem = replace(stem, run=self.run)

    def run(self, images: Tensor) -> Tensor:
        if self.calls == self.last_call:
            raise KeyboardInterrupt
        self.calls += 1
        self.images += len(images)
        return self._run(images)


def inputs_for(
    backbone: Backbone, cache: Path, views: int = VIEWS, counted: Callable[[Stem], Counting] | None = None
) -> tuple[FeatureInputs, Counting]:
    """Inputs that find or keep features in `cache`, and the count of images that they compute."""
    counting = (counted or Counting)(stem_of(backbone, CROP, "fp16"))
    inputs = FeatureInputs(preprocess_for(backbone), counting.stem, views, cache)
    inputs.seconds_per_view = lambda *_: 0.0  # type: ignore[method-assign]  # or the images of the timing would count
    return inputs, counting


class Fixed:
    """A draw that gives the numbers that the test wants."""

    def __init__(self, numbers: np.ndarray | int) -> None:
        self.numbers = numbers

    def integers(self, *bounds: int, size: int) -> np.ndarray:
        return np.broadcast_to(np.asarray(self.numbers), size)
