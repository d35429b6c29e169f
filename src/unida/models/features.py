"""Features at a tap, computed once per image and view and kept on disk.

When the layers up to a tap are frozen, what they make of an image never changes. View 0 is the central crop (the test
view); views 1…V are random crops and mirrors that depend on the image's content and the view's number alone. So other
methods, seeds, pairs and folders that hold the same image find its features there.

Each view has a shelf of its own (`unida.models.shelf`) in the folder ``<cache_dir>/features/<key>``. The key is made
of the backbone's weights, the tap, the normalisation, the resizing, the crop, the view and the number format: a shelf
never goes stale.
"""

import hashlib
import logging
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from unida.data.augment import Preprocess, Views, centre_views, random_views
from unida.data.cache import DECODER_VERSION, Pixels
from unida.data.sampling import generator
from unida.errors import UserError
from unida.models.pool import PretextPool
from unida.models.shelf import FORMAT_VERSION, TORCH_FORMAT, Shelf, Stem
from unida.pretext.instance_count import InstanceCount, PretextBatch
from unida.progress import duration, progress

log = logging.getLogger("unida")

BATCH = 64  # images computed and stored at a time
TEST_VIEW = range(1)


class FeatureInputs:
    """Stands in for `Preprocess`: gives the methods features at the tap where it would give images.

    Args:
        views: V, random views kept per image; a training step draws one of them for each image.
    """

    def __init__(self, preprocess: Preprocess, stem: Stem, views: int, cache_dir: Path) -> None:
        self.preprocess, self.stem, self.views, self.cache_dir = preprocess, stem, views, cache_dir
        self.device = preprocess.device
        self._shelves: dict[tuple[str, int, int], Shelf] = {}
        self._rows: dict[tuple[int, int], tuple[Pixels, np.ndarray]] = {}
        self._pools: list[PretextPool] = []

    @property
    def every_view(self) -> range:
        return range(self.views + 1)

    @property
    def training_views(self) -> range:
        return range(1, self.views + 1)

    def training_view(self, pixels: Pixels, index: np.ndarray, draw: np.random.Generator, part: slice) -> Tensor:
        """A random one of the kept views of each image at `index[part]`: (B, *shape) float32 on the device."""
        chosen = draw.integers(1, self.views + 1, size=len(index))[part]
        return self._gather(pixels, index[part], chosen)

    def test_view(self, pixels: Pixels, index: np.ndarray) -> Tensor:
        """The central crop's features: (B, *shape) float32 on the device."""
        return self._gather(pixels, index, np.zeros(len(index), dtype=np.int64))

    def pretext(
        self,
        task: InstanceCount,
        pixels: Pixels,
        images: Tensor,
        index: np.ndarray,
        draw: np.random.Generator,
        part: slice,
    ) -> PretextBatch:
        """As many of the pool's mosaics as the batch has images; they are not made of this batch's images."""
        pool = next(pool for pool in self._pools if pool.pixels is pixels)
        features, labels = pool.draw(len(index), draw, part)
        return PretextBatch(self._to_device(features), labels.to(self.device, non_blocking=True))

    def prepare_pools(self, task: InstanceCount, domains: Sequence[Pixels], size: int, visible: bool) -> None:
        """Make the mosaics of each domain that `pretext` draws from."""
        for pool in self._pools_for(task, domains, size):
            try:
                pool.prepare(visible)
            except OSError as error:
                raise self._cannot_keep(error) from error
            self._pools.append(pool)

    def count_missing_mosaics(self, task: InstanceCount, domains: Sequence[Pixels], size: int) -> int:
        """How many mosaics are still to be made; arguments as in `prepare_pools`."""
        return sum(pool.count_missing() for pool in self._pools_for(task, domains, size))

    def _pools_for(self, task: InstanceCount, domains: Sequence[Pixels], size: int) -> list[PretextPool]:
        return [PretextPool(task, pixels, size, self.preprocess, self.stem, self.cache_dir) for pixels in domains]

    def count_missing(self, sets: Sequence[tuple[Pixels, range]]) -> int:
        """How many views are still to be computed; arguments as in `prepare`."""
        return sum(len(missing) for *_, missing in self._jobs(sets))

    def prepare(self, sets: Sequence[tuple[Pixels, range]], visible: bool) -> None:
        """Compute what is not there yet. Tells how much it is and how long it takes, then shows progress.

        Args:
            sets: images, and which of their views are needed: `every_view`, `training_views` or `TEST_VIEW`.
        """
        jobs = self._jobs(sets)
        total = sum(len(missing) for *_, missing in jobs)
        if not total:
            log.info("features: all found in %s", self.cache_dir / "features")
            return
        self._announce(*jobs[0], total)
        try:
            self._compute_jobs(jobs, total, visible)
        except OSError as error:
            raise self._cannot_keep(error) from error

    def _cannot_keep(self, error: OSError) -> UserError:
        return UserError(
            f"{self.cache_dir}: cannot keep features there ({error.strerror}): free space or choose another --cache"
        )

    def _compute_jobs(self, jobs: list[tuple[Pixels, int, np.ndarray]], total: int, visible: bool) -> None:
        done = 0
        with progress("features", total, visible=visible) as report:
            for pixels, view, missing in jobs:
                shelf = self._shelf(pixels, view)
                with shelf.computing:
                    shelf.refresh()  # another process may have computed some by now
                    left = self._missing(pixels, view)
                    for start in range(0, len(left), BATCH):
                        index = left[start : start + BATCH]
                        shelf.append([_digest(pixels, i) for i in index], self._compute(pixels, index, view))
                        report(done + start + len(index))
                done += len(missing)

    def _jobs(self, sets: Sequence[tuple[Pixels, range]]) -> list[tuple[Pixels, int, np.ndarray]]:
        """(images, view, indices of those without features), where there are any."""
        jobs, counted = [], set[tuple[bytes, int]]()
        for pixels, views in sets:
            for view in views:
                missing = [i for i in self._missing(pixels, view) if (_digest(pixels, i), view) not in counted]
                counted.update((_digest(pixels, i), view) for i in missing)
                if missing:
                    jobs.append((pixels, view, np.array(missing)))
        return jobs

    def _announce(self, pixels: Pixels, view: int, missing: np.ndarray, total: int) -> None:
        sample = missing[:16]
        self._compute(pixels, sample, view)  # the first call is slower than the rest
        start = time.perf_counter()
        self._compute(pixels, sample, view)
        seconds = (time.perf_counter() - start) / len(sample) * total
        size = total * 2 * int(np.prod(self.stem.shape)) / 2**30
        where = self.cache_dir / "features"
        log.info("features: %d views to compute once, %.2f GiB in %s, about %s", total, size, where, duration(seconds))

    def _missing(self, pixels: Pixels, view: int) -> np.ndarray:
        """(M,) indices of images without features, each content once."""
        shelf, seen, missing = self._shelf(pixels, view), set[bytes](), []
        for i in range(len(pixels)):
            digest = _digest(pixels, i)
            if digest not in shelf.row_of and digest not in seen:
                seen.add(digest)
                missing.append(i)
        return np.array(missing, dtype=np.int64)

    @torch.inference_mode()
    def _compute(self, pixels: Pixels, index: np.ndarray, view: int) -> Tensor:
        """The stem's output for one view of each image: (B, *shape) float32 on the host."""
        if view == 0:
            views = centre_views(pixels.shapes[index], self.preprocess.crop)
        else:
            views = self._random_views(pixels, index, view)
        return self.stem.run(self.preprocess.view(pixels, index, views)).float().cpu()

    def _random_views(self, pixels: Pixels, index: np.ndarray, view: int) -> Views:
        """Crops and mirrors that depend on each image's content and the view's number, not on the run."""
        draws = [generator(0, f"view of {pixels.files[i].digest}", view) for i in index]
        shapes = pixels.shapes[index]
        parts = [random_views(draw, shapes[i : i + 1], self.preprocess.crop) for i, draw in enumerate(draws)]
        return Views(*(np.concatenate(values) for values in zip(*parts, strict=True)))

    def _gather(self, pixels: Pixels, index: np.ndarray, views: np.ndarray) -> Tensor:
        features = torch.empty((len(index), *self.stem.shape), dtype=TORCH_FORMAT[self.stem.format])
        for view in np.unique(views).tolist():
            at = np.flatnonzero(views == view)
            features[at] = self._shelf(pixels, view).read(self._rows_of(pixels, view)[index[at]])
        return self._to_device(features)

    def _to_device(self, features: Tensor) -> Tensor:
        """16-bit numbers on the host → float32 on the device, channels-last where they are maps."""
        if self.device.type == "cuda":
            features = features.pin_memory()
        on_device = features.to(self.device, non_blocking=True).float()
        return on_device.contiguous(memory_format=torch.channels_last) if on_device.ndim == 4 else on_device

    def _rows_of(self, pixels: Pixels, view: int) -> np.ndarray:
        """(N,) where each image's features lie on the view's shelf."""
        key = (id(pixels), view)
        if key not in self._rows:
            row_of = self._shelf(pixels, view).row_of
            rows = np.array([row_of[_digest(pixels, i)] for i in range(len(pixels))], dtype=np.int64)
            self._rows[key] = (pixels, rows)  # with the pixels: as long as they live, no other object has their id
        return self._rows[key][1]

    def _shelf(self, pixels: Pixels, view: int) -> Shelf:
        resizing = f"{pixels.resize} {pixels.size} decoder {DECODER_VERSION}"
        key = (resizing, self.preprocess.crop, view)
        if key not in self._shelves:
            stem = self.stem
            parts = f"{FORMAT_VERSION} | {stem.key} | {stem.format} {stem.shape} | {key}"
            name = hashlib.blake2b(parts.encode(), digest_size=16).hexdigest()
            self._shelves[key] = Shelf(self.cache_dir / "features" / name, stem.shape, stem.format)
        return self._shelves[key]


def _digest(pixels: Pixels, i: int) -> bytes:
    return bytes.fromhex(pixels.files[i].digest)
