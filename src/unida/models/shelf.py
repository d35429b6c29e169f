"""Rows of features on disk, made by a frozen stem.

A *shelf* is a folder: ``rows.16`` holds a row of 16-bit numbers per image, ``index`` the image's digest and the row's
checksum. Rows are appended, and a row counts once its entry in the index is whole: a kill leaves nothing half-written.
"""

import errno
import logging
import os
import weakref
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor

from unida.errors import UserError
from unida.models.backbone import Backbone
from unida.models.weights import fingerprint

log = logging.getLogger("unida")

FeatureFormat = Literal["fp16", "bf16"]
TORCH_FORMAT = {"fp16": torch.float16, "bf16": torch.bfloat16}
FORMAT_VERSION = 1  # raise it whenever the same key would hold other numbers
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
    """The features of one view of any number of images.

    Both files are held open together: where another process finds damage and puts new files in their place, whoever has
    the old ones goes on with those, by the places that it knows.
    """

    def __init__(self, folder: Path, shape: tuple[int, ...], number_format: FeatureFormat) -> None:
        self.folder, self.shape, self.format = folder, shape, TORCH_FORMAT[number_format]
        self.row_length = int(np.prod(shape))
        folder.mkdir(parents=True, exist_ok=True)
        self.lock = FileLock(folder.with_name(f"{folder.name}.lock"))  # held for moments, to write
        self.computing = FileLock(folder.with_name(f"{folder.name}.computing.lock"))  # held for minutes
        self.row_of: dict[bytes, int] = {}
        with self.lock:
            self._rows, self._index = self._open("rows.16"), self._open("index")
            self._trim_torn_ends()
            self.refresh()
            self._spot_check()

    def refresh(self) -> None:
        """Learn of rows that other processes have added."""
        start = len(self.row_of)
        for i, entry in enumerate(self._entries(start)):
            self.row_of[_padded(entry["digest"])] = start + i

    def append(self, digests: Sequence[bytes], features: Tensor) -> None:
        """Store the rows of images that are not here yet: with one twice, rows and entries would not match.

        Args:
            features: (B, *shape) float, on the host.
        """
        assert not any(digest in self.row_of for digest in digests)
        packed = features.to(self.format).contiguous()
        if not bool(packed.isfinite().all()):
            raise UserError(
                "features at this tap are too large for fp16: start a run in another --out with --feature-format bf16"
            )
        block = packed.view(torch.int16).numpy().reshape(len(digests), -1)
        entries = np.array([(d, zlib.crc32(row.tobytes())) for d, row in zip(digests, block, strict=True)], ENTRY)
        with self.lock:
            self.refresh()
            place = len(self.row_of)
            _write(self._rows, block.tobytes(), place * 2 * self.row_length)
            _write(self._index, entries.tobytes(), place * ENTRY.itemsize)
            self.refresh()

    def read(self, rows: np.ndarray) -> Tensor:
        """(B, *shape) in the stored format. Read, not mapped: the process's memory stays flat."""
        block = np.empty((len(rows), self.row_length), dtype=np.int16)
        for values, row in zip(block, rows.tolist(), strict=True):
            if os.preadv(self._rows, [values.data], row * 2 * self.row_length) != values.nbytes:
                raise OSError(errno.EIO, f"row {row} of {self.folder} ends early")
        return torch.from_numpy(block).view(self.format).reshape(len(rows), *self.shape)

    def _open(self, name: str) -> int:
        descriptor = os.open(self.folder / name, os.O_RDWR | os.O_CREAT)
        weakref.finalize(self, os.close, descriptor)
        return descriptor

    def _entries(self, start: int = 0) -> np.ndarray:
        """The index from an entry on, without one that is torn."""
        count = max(0, os.fstat(self._index).st_size // ENTRY.itemsize - start)
        return np.frombuffer(os.pread(self._index, count * ENTRY.itemsize, start * ENTRY.itemsize), dtype=ENTRY)

    def _trim_torn_ends(self) -> None:
        """Forget what a kill or a truncation left without its other half."""
        whole_rows = os.fstat(self._rows).st_size // (2 * self.row_length)
        entries = os.fstat(self._index).st_size / ENTRY.itemsize
        keep = min(whole_rows, int(entries))
        if keep < entries:
            log.warning("cached features in %s end early; computing the rest again", self.folder)
        os.truncate(self._index, keep * ENTRY.itemsize)

    def _spot_check(self) -> None:
        entries = self._entries()
        for row in np.unique(np.linspace(0, len(entries) - 1, min(SPOT_CHECKS, len(entries))).astype(int)):
            values = self.read(np.array([row])).view(torch.int16).numpy()
            if zlib.crc32(values.tobytes()) != int(entries[row]["crc32"]):
                log.warning("cached features in %s are damaged at row %d; computing all again", self.folder, row)
                self._start_anew()
                return

    def _start_anew(self) -> None:
        """New files, empty: what is written over would be read, in another order, by those who have the old ones."""
        for name in ("rows.16", "index"):
            (self.folder / name).unlink()
        self._rows, self._index = self._open("rows.16"), self._open("index")
        self.row_of.clear()


def _write(descriptor: int, content: bytes, place: int) -> None:
    if os.pwrite(descriptor, content, place) != len(content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.fsync(descriptor)


def _padded(digest: bytes) -> bytes:
    """numpy strips the zero bytes at the end of a fixed-length string."""
    return digest.ljust(16, b"\0")
