"""A pool of images that a recipe made from several images, for a frozen stem: made once from pixels, kept as features.

They cannot be made from kept features, so some are made in advance. Image i of the pool depends on the set of
images, the recipe and i alone: other methods, seeds and target folders with the same images find it on the same shelf.
"""

import hashlib
import logging
import time
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from unida.data.augment import Preprocess, random_views
from unida.data.packs import DECODER_VERSION
from unida.data.pixels import Pixels
from unida.features.shelf import Shelf
from unida.features.stem import TORCH_FORMAT, Stem
from unida.recipes.base import Made, SetRecipe
from unida.support.progress import data_size, duration, progress
from unida.support.random import generator

log = logging.getLogger("unida")

CHUNK = 64  # images that are made together, from the same number of images
FORMAT_VERSION = 2  # raise it whenever the same key would hold other numbers


class Pool:
    """Made images of one domain, as features. There are `recipe.pool` of them, rounded up to whole chunks."""

    def __init__(self, recipe: SetRecipe, pixels: Pixels, preprocess: Preprocess, stem: Stem, folder: Path) -> None:
        self.recipe, self.pixels, self.preprocess, self.stem = recipe, pixels, preprocess, stem
        self.chunks = -(-recipe.pool // CHUNK)
        self.size = self.chunks * CHUNK
        digests = "".join(sorted(file.digest for file in pixels.files))
        self.images_key = hashlib.blake2b(digests.encode(), digest_size=16).hexdigest()
        self.key = (
            f"{FORMAT_VERSION} | {stem.key} | {stem.format} {stem.shape} | {recipe.key} of {self.images_key} | "
            f"{pixels.resize} {pixels.size} decoder {DECODER_VERSION} | crop {preprocess.crop}"
        )
        self.folder = folder
        made = self._make(0)  # for the shapes of labels and indices
        self.features = self._shelf("features", stem.shape, TORCH_FORMAT[stem.format])
        self._labels = self._shelf("labels", tuple(made.labels.shape[1:]), made.labels.dtype)
        self._of = self._shelf("of", tuple(made.of.shape[1:]), torch.int64)

    def draw(self, count: int, draw: np.random.Generator, part: slice) -> Made:
        """A random `count` of the pool (this process's part of them), with replacement; on the host."""
        chosen = draw.integers(self.size, size=count)[part]
        return Made(*(shelf.read(rows[chosen]) for shelf, rows in self._places))

    def count_missing(self) -> int:
        """How many are still to be made."""
        return len(self._missing()) * CHUNK

    def prepare(self, visible: bool) -> None:
        """Make what is not there yet, and report how long it takes."""
        if not self._missing():
            return
        with self.features.computing:
            for shelf in self._shelves:
                shelf.refresh()  # another process may have made some by now
            missing = self._missing()
            if not missing:
                return
            total = len(missing) * CHUNK
            size = data_size(total * 2 * int(np.prod(self.stem.shape)))
            self._compute(missing[0])  # the first call is slower than the rest
            start = time.perf_counter()
            self._compute(missing[0])
            seconds = (time.perf_counter() - start) * len(missing)
            log.info("%s: %d to make once, %s, about %s", self.recipe.name, total, size, duration(seconds))
            with progress(self.recipe.name, total, visible=visible) as report:
                for done, chunk in enumerate(missing, start=1):
                    self._keep(self._names(chunk), self._compute(chunk))
                    report(done * CHUNK)

    def _keep(self, names: list[bytes], made: Made) -> None:
        """Store a chunk, except the part that a shelf still has after a kill or damage."""
        for shelf, values in zip(self._shelves, made, strict=True):
            shelf.refresh()
            new = [i for i, name in enumerate(names) if name not in shelf.row_of]
            shelf.append([names[i] for i in new], values[new])

    @cached_property
    def _places(self) -> list[tuple[Shelf, np.ndarray]]:
        """Each shelf, and (size,) where the images lie on it."""
        names = [name for chunk in range(self.chunks) for name in self._names(chunk)]
        rows = (np.array([shelf.row_of[name] for name in names], dtype=np.int64) for shelf in self._shelves)
        return list(zip(self._shelves, rows, strict=True))

    @property
    def _shelves(self) -> tuple[Shelf, Shelf, Shelf]:
        """In the order of `Made`."""
        return self.features, self._labels, self._of

    def _shelf(self, what: str, shape: tuple[int, ...], kind: torch.dtype) -> Shelf:
        name = hashlib.blake2b(f"{self.key} | {what}".encode(), digest_size=16).hexdigest()
        return Shelf(self.folder / name, shape, kind)

    def _missing(self) -> list[int]:
        """Chunks in which something is missing: an image, its label, or what it was made from."""
        return [
            chunk
            for chunk in range(self.chunks)
            if any(name not in shelf.row_of for name in self._names(chunk) for shelf in self._shelves)
        ]

    def _names(self, chunk: int) -> list[bytes]:
        return [b"pooled" + (chunk * CHUNK + i).to_bytes(10, "big") for i in range(CHUNK)]

    def _compute(self, chunk: int) -> Made:
        """A chunk of the pool, on the host."""
        made = self._make(chunk)
        with torch.inference_mode():
            features: Tensor = self.stem.run(made.images).float().cpu()
        return Made(features, made.labels.cpu(), made.of)

    @torch.inference_mode()
    def _make(self, chunk: int) -> Made:
        """Make a chunk. Images are ordered by digest, so it does not depend on the folder's name."""
        draw = generator(0, f"{self.recipe.name} of {self.images_key}", chunk)
        index = draw.choice(len(self.pixels), size=min(CHUNK, len(self.pixels)), replace=False)
        views = random_views(draw, self.pixels.shapes[index], self.preprocess.crop)
        images = self.preprocess.view(self.pixels, index, views)
        made = self.recipe.make_of_several(images, np.arange(len(index)), draw, CHUNK)
        return made._replace(of=torch.from_numpy(index)[made.of.cpu()])
