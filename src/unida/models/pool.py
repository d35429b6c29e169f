"""A pool of pretext images, for a frozen stem: made once from fresh pixels, and kept as the stem's features.

A mosaic cannot be made of kept features, so a number of them is made in advance. Mosaic i depends on the set of images,
the task and i alone: other methods, seeds and target folders with the same images find it on the same shelf.
"""

import hashlib
import logging
import time
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from unida.data.augment import Preprocess, Views, random_views
from unida.data.cache import DECODER_VERSION, Pixels
from unida.data.sampling import generator
from unida.models.shelf import FORMAT_VERSION, Shelf, Stem
from unida.pretext.instance_count import InstanceCount, Layout, PretextBatch, assemble
from unida.progress import duration, progress

log = logging.getLogger("unida")

CHUNK = 64  # mosaics that are made together, of as many images


class Plan(NamedTuple):
    """How a chunk of mosaics is made."""

    images: np.ndarray  # (N,) which images
    views: Views  # of those
    layout: Layout  # of the mosaics


class PretextPool:
    """Mosaics of one domain, as features.

    Args:
        size: how many; rounded up to whole chunks.
    """

    def __init__(
        self, task: InstanceCount, pixels: Pixels, size: int, preprocess: Preprocess, stem: Stem, cache_dir: Path
    ) -> None:
        self.task, self.pixels, self.preprocess, self.stem = task, pixels, preprocess, stem
        self.chunks = -(-size // CHUNK)
        self.size = self.chunks * CHUNK
        self.images_key = hashlib.blake2b(
            "".join(sorted(file.digest for file in pixels.files)).encode(), digest_size=16
        ).hexdigest()
        parts = (
            f"{FORMAT_VERSION} | {stem.key} | {stem.format} {stem.shape} | mosaics of {self.images_key} | "
            f"grid {task.grid} smallest {task.smallest} | {pixels.resize} {pixels.size} decoder {DECODER_VERSION} | "
            f"crop {preprocess.crop}"
        )
        name = hashlib.blake2b(parts.encode(), digest_size=16).hexdigest()
        self.shelf = Shelf(cache_dir / "features" / name, stem.shape, stem.format)

    def draw(self, count: int, draw: np.random.Generator, part: slice) -> PretextBatch:
        """A random `count` of the pool (this process's part of them), with replacement; features on the host."""
        chosen = draw.integers(self.size, size=count)[part]
        return PretextBatch(self.shelf.read(self._rows[chosen]), torch.from_numpy(self._counts[chosen] - 1))

    def count_missing(self) -> int:
        """How many mosaics are still to be made."""
        return len(self._missing()) * CHUNK

    def prepare(self, visible: bool) -> None:
        """Make what is not there yet, with a word on how long it takes."""
        if not self._missing():
            return
        with self.shelf.computing:
            self.shelf.refresh()  # another process may have made some by now
            missing = self._missing()
            if not missing:
                return
            total = len(missing) * CHUNK
            size = total * 2 * int(np.prod(self.stem.shape)) / 2**30
            self._compute(missing[0])  # the first call is slower than the rest
            start = time.perf_counter()
            self._compute(missing[0])
            seconds = (time.perf_counter() - start) * len(missing)
            log.info("mosaics: %d to make once, %.2f GiB, about %s", total, size, duration(seconds))
            with progress("mosaics", total, visible=visible) as report:
                for done, chunk in enumerate(missing, start=1):
                    self._keep(self._names(chunk), self._compute(chunk))
                    report(done * CHUNK)

    def _keep(self, names: list[bytes], features: Tensor) -> None:
        """Store a chunk, without what a truncated shelf still has of it."""
        new = [i for i, name in enumerate(names) if name not in self.shelf.row_of]
        self.shelf.append([names[i] for i in new], features[new])

    @cached_property
    def _counts(self) -> np.ndarray:
        """(size,) how many images each mosaic is made of."""
        return np.concatenate([self._plan(chunk).layout.instances for chunk in range(self.chunks)])

    @cached_property
    def _rows(self) -> np.ndarray:
        """(size,) where each mosaic lies on the shelf."""
        names = (name for chunk in range(self.chunks) for name in self._names(chunk))
        return np.array([self.shelf.row_of[name] for name in names], dtype=np.int64)

    def _missing(self) -> list[int]:
        return [c for c in range(self.chunks) if any(name not in self.shelf.row_of for name in self._names(c))]

    def _names(self, chunk: int) -> list[bytes]:
        return [b"mosaic" + (chunk * CHUNK + i).to_bytes(10, "big") for i in range(CHUNK)]

    def _plan(self, chunk: int) -> Plan:
        """The images come in the order of their digests, so the plan does not depend on the folder's name."""
        draw = generator(0, f"mosaics of {self.images_key}", chunk)
        index = draw.choice(len(self.pixels), size=min(CHUNK, len(self.pixels)), replace=False)
        views = random_views(draw, self.pixels.shapes[index], self.preprocess.crop)
        return Plan(index, views, self.task.draw_layout(CHUNK, np.arange(len(index)), draw))

    @torch.inference_mode()
    def _compute(self, chunk: int) -> Tensor:
        """(CHUNK, *shape) float32 on the host."""
        index, views, layout = self._plan(chunk)
        mosaics = assemble(self.preprocess.view(self.pixels, index, views), layout, self.task.grid)
        return self.stem.run(mosaics).float().cpu()
