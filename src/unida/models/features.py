"""Features at a tap, computed once per image and view and kept on disk.

When the layers up to a tap are frozen, what they make of an image never changes. View 0 is the central crop (the test
view); views 1…V are random crops and mirrors that depend on the image's content and the view's number alone. So other
methods, seeds, pairs and folders that hold the same image find its features there.

A *shelf* is the folder ``<cache_dir>/features/<key>``, made for one view: ``rows.16`` holds a row of 16-bit numbers per
image, ``index`` the image's digest and the row's checksum. Rows are appended, and a row counts once its entry in the
index is whole, so a kill leaves nothing half-written. The key is made of the backbone's weights, the tap, the
normalisation, the resizing, the crop, the view and the number format: a shelf never goes stale.
"""

import errno
import hashlib
import logging
import os
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor

from unida.data.augment import Preprocess, Views, centre_views, random_views
from unida.data.cache import DECODER_VERSION, Pixels
from unida.data.sampling import generator
from unida.errors import UserError
from unida.models.backbone import Backbone
from unida.models.weights import fingerprint
from unida.progress import duration, progress

log = logging.getLogger("unida")

FeatureFormat = Literal["fp16", "bf16"]
TORCH_FORMAT = {"fp16": torch.float16, "bf16": torch.bfloat16}
FORMAT_VERSION = 1  # raise it whenever the same key would hold other numbers
BATCH = 64  # images computed and stored at a time
SPOT_CHECKS = 34  # rows whose checksum is verified when a shelf is opened
ENTRY = np.dtype([("digest", "S16"), ("crc32", "<u4")])  # of the index


@dataclass(frozen=True)
class Stem:
    """The frozen part of a backbone.

    Attributes:
        run: images (B, 3, H, W) → what the rest of the network starts from (B, *shape).
        key: tells it from every other stem: weights, tap, normalisation.
    """

    run: Callable[[Tensor], Tensor]
    shape: tuple[int, ...]
    key: str
    format: FeatureFormat


def stem_of(backbone: Backbone, crop: int, number_format: FeatureFormat) -> Stem:
    """The part of a backbone that `Backbone.freeze` froze; BatchNorm there uses its kept statistics."""
    backbone.eval()
    device = next(backbone.parameters()).device
    with torch.inference_mode():
        shape = tuple(backbone.stem(torch.zeros(1, 3, crop, crop, device=device)).shape[1:])
    key = f"{fingerprint(backbone)} {backbone.frozen_at} {backbone.mean} {backbone.std}"
    return Stem(backbone.stem, shape, key, number_format)


class Shelf:
    """The features of one view of any number of images."""

    def __init__(self, folder: Path, shape: tuple[int, ...], number_format: FeatureFormat) -> None:
        self.folder, self.shape, self.format = folder, shape, TORCH_FORMAT[number_format]
        self.row_length = int(np.prod(shape))
        folder.mkdir(parents=True, exist_ok=True)
        self._rows = os.open(folder / "rows.16", os.O_RDWR | os.O_CREAT)
        self.lock = FileLock(folder.with_name(f"{folder.name}.lock"))  # held for moments, to write
        self.computing = FileLock(folder.with_name(f"{folder.name}.computing.lock"))  # held for minutes
        self.row_of: dict[bytes, int] = {}
        with self.lock:
            self._trim_torn_ends()
            self.refresh()
            self._spot_check()

    def refresh(self) -> None:
        """Learn of rows that other processes have added."""
        entries = np.fromfile(self._index, dtype=ENTRY, offset=len(self.row_of) * ENTRY.itemsize)
        start = len(self.row_of)
        for i, entry in enumerate(entries):
            self.row_of[_padded(entry["digest"])] = start + i

    def append(self, digests: Sequence[bytes], features: Tensor) -> None:
        """Store the rows of images that are not here yet.

        Args:
            features: (B, *shape) float, on the host.
        """
        packed = features.to(self.format).contiguous()
        if not bool(packed.isfinite().all()):
            raise UserError(
                "features at this tap are too large for fp16: start a run in another --out with --feature-format bf16"
            )
        block = packed.view(torch.int16).numpy().reshape(len(digests), -1)
        entries = np.array([(d, zlib.crc32(row.tobytes())) for d, row in zip(digests, block, strict=True)], ENTRY)
        with self.lock, open(self._index, "ab") as index:
            self.refresh()
            written = os.pwrite(self._rows, block.tobytes(), len(self.row_of) * 2 * self.row_length)
            if written != block.nbytes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._rows)
            index.write(entries.tobytes())
            index.flush()
            os.fsync(index.fileno())
            self.refresh()

    def read(self, rows: np.ndarray) -> Tensor:
        """(B, *shape) in the stored format. Read, not mapped: the process's memory stays flat."""
        block = np.empty((len(rows), self.row_length), dtype=np.int16)
        for values, row in zip(block, rows.tolist(), strict=True):
            if os.preadv(self._rows, [values.data], row * 2 * self.row_length) != values.nbytes:
                raise OSError(errno.EIO, f"row {row} of {self.folder} ends early")
        return torch.from_numpy(block).view(self.format).reshape(len(rows), *self.shape)

    @cached_property
    def _index(self) -> Path:
        path = self.folder / "index"
        path.touch()
        return path

    def _trim_torn_ends(self) -> None:
        """Forget what a kill or a truncation left without its other half."""
        whole_rows = os.fstat(self._rows).st_size // (2 * self.row_length)
        entries = self._index.stat().st_size / ENTRY.itemsize
        keep = min(whole_rows, int(entries))
        if keep < entries:
            log.warning("cached features in %s end early; computing the rest again", self.folder)
        os.truncate(self._index, keep * ENTRY.itemsize)

    def _spot_check(self) -> None:
        entries = np.fromfile(self._index, dtype=ENTRY)
        for row in np.unique(np.linspace(0, len(entries) - 1, min(SPOT_CHECKS, len(entries))).astype(int)):
            values = self.read(np.array([row])).view(torch.int16).numpy()
            if zlib.crc32(values.tobytes()) != int(entries[row]["crc32"]):
                log.warning("cached features in %s are damaged at row %d; computing all again", self.folder, row)
                os.truncate(self._index, 0)
                self.row_of.clear()
                return


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

    def training_view(self, pixels: Pixels, index: np.ndarray, draw: np.random.Generator, part: slice) -> Tensor:
        """A random one of the kept views of each image at `index[part]`: (B, *shape) float32 on the device."""
        chosen = draw.integers(1, self.views + 1, size=len(index))[part]
        return self._gather(pixels, index[part], chosen)

    def test_view(self, pixels: Pixels, index: np.ndarray) -> Tensor:
        """The central crop's features: (B, *shape) float32 on the device."""
        return self._gather(pixels, index, np.zeros(len(index), dtype=np.int64))

    def count_missing(self, sets: Sequence[tuple[Pixels, bool]]) -> int:
        """How many views are still to be computed; arguments as in `prepare`."""
        return sum(len(missing) for *_, missing in self._jobs(sets))

    def prepare(self, sets: Sequence[tuple[Pixels, bool]], visible: bool) -> None:
        """Compute what is not there yet. Tells how much it is and how long it takes, then shows progress.

        Args:
            sets: images, and whether their training views are needed beside the test view.
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
            raise UserError(
                f"{self.cache_dir}: cannot keep features there ({error.strerror}): free space or choose another --cache"
            ) from error

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

    def _jobs(self, sets: Sequence[tuple[Pixels, bool]]) -> list[tuple[Pixels, int, np.ndarray]]:
        """(images, view, indices of those without features), where there are any."""
        jobs, counted = [], set[tuple[bytes, int]]()
        for pixels, training in sets:
            for view in range(self.views + 1 if training else 1):
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


def _padded(digest: bytes) -> bytes:
    """numpy strips the zero bytes at the end of a fixed-length string."""
    return digest.ljust(16, b"\0")
