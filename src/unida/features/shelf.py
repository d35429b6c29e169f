"""Rows of numbers on disk: features that a frozen stem made, and the labels of made images.

A *shelf* is a folder: ``rows.16`` holds a row of numbers per image, ``index`` the image's digest and the row's
checksum. Rows are appended. A row is valid when its entry in the index is complete: a kill leaves no half row.
Every row is compared with its checksum the first time that a process reads it.
"""

import errno
import logging
import os
import weakref
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor

from unida.errors import UserError

log = logging.getLogger("unida")

SPOT_CHECKS = 34  # rows whose checksum is compared when a shelf is opened, so that damage is found early
ENTRY = np.dtype([("digest", "S16"), ("crc32", "<u4")])  # of the index


class Shelf:
    """Rows of one kind for any number of images.

    Both files are held open together. If another process finds damage and makes new files, a process with the old
    files open continues with them, and with the row numbers that it knows.
    """

    def __init__(self, folder: Path, shape: tuple[int, ...], kind: torch.dtype) -> None:
        self.folder, self.shape, self.kind = folder, shape, kind
        self.row_bytes = int(np.prod(shape)) * kind.itemsize
        self._checksums = np.zeros(0, dtype=np.uint32)
        self._checked = np.zeros(0, dtype=bool)  # rows that this process has compared with their checksums
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
        """Read the entries of rows that other processes have added."""
        start = len(self.row_of)
        entries = self._entries(start)
        for i, entry in enumerate(entries):
            self.row_of[_padded(entry["digest"])] = start + i
        self._checksums = np.concatenate([self._checksums[:start], entries["crc32"]])
        self._checked = np.concatenate([self._checked[:start], np.zeros(len(entries), dtype=bool)])

    def append(self, digests: Sequence[bytes], values: Tensor) -> None:
        """Store the rows of images that are not here yet. If one came twice, rows and entries would not match.

        Args:
            values: (B, *shape), on the host.
        """
        assert not any(digest in self.row_of for digest in digests)
        if not digests:
            return
        packed = values.to(self.kind).contiguous()
        if not bool(packed.isfinite().all()):
            raise UserError(
                "features at this tap are too large for fp16: start a run in another --out with --feature-format bf16"
            )
        block = packed.reshape(len(digests), -1).view(torch.uint8).numpy()
        entries = np.array([(d, zlib.crc32(row.tobytes())) for d, row in zip(digests, block, strict=True)], ENTRY)
        with self.lock:
            self.refresh()
            new = [n for n, digest in enumerate(digests) if digest not in self.row_of]  # not of another process
            block, entries, place = block[new], entries[new], len(self.row_of)
            _write(self._rows, block.tobytes(), place * self.row_bytes)
            _write(self._index, entries.tobytes(), place * ENTRY.itemsize)
            self.refresh()

    def read(self, rows: np.ndarray) -> Tensor:
        """(B, *shape) in the stored format. Read, not mapped, so that memory use does not grow."""
        block = self._read(rows)
        new = rows[~self._checked[rows]]
        if len(new) and (damaged := self._damaged(rows, block)) is not None:
            with self.lock:
                self._start_anew()
            raise UserError(
                f"kept features in {self.folder} are damaged at row {damaged} and were removed: continue with "
                "--resume, which computes them again"
            )
        self._checked[rows] = True
        return torch.from_numpy(block).view(self.kind).reshape(len(rows), *self.shape)

    def _read(self, rows: np.ndarray) -> np.ndarray:
        block = np.empty((len(rows), self.row_bytes), dtype=np.uint8)
        for values, row in zip(block, rows.tolist(), strict=True):
            if os.preadv(self._rows, [values.data], row * self.row_bytes) != values.nbytes:
                raise OSError(errno.EIO, f"row {row} of {self.folder} ends early")
        return block

    def _damaged(self, rows: np.ndarray, block: np.ndarray) -> int | None:
        """The first row that does not match its checksum and was not compared before."""
        for row, values in zip(rows.tolist(), block, strict=True):
            if not self._checked[row] and zlib.crc32(values.data) != self._checksums[row]:
                return int(row)
        return None

    def _open(self, name: str) -> int:
        descriptor = os.open(self.folder / name, os.O_RDWR | os.O_CREAT)
        weakref.finalize(self, os.close, descriptor)
        return descriptor

    def _entries(self, start: int = 0) -> np.ndarray:
        """The index from an entry on, without an incomplete last entry."""
        count = max(0, os.fstat(self._index).st_size // ENTRY.itemsize - start)
        return np.frombuffer(os.pread(self._index, count * ENTRY.itemsize, start * ENTRY.itemsize), dtype=ENTRY)

    def _trim_torn_ends(self) -> None:
        """Cut the index to complete rows, after a kill or a truncation."""
        whole_rows = os.fstat(self._rows).st_size // self.row_bytes
        entries = os.fstat(self._index).st_size / ENTRY.itemsize
        keep = min(whole_rows, int(entries))
        if keep < entries:
            log.warning("kept features in %s end early; computing the rest again", self.folder)
        os.truncate(self._index, keep * ENTRY.itemsize)

    def _spot_check(self) -> None:
        count = len(self.row_of)
        if count < len(self._checksums):  # two rows with one digest: one of them may belong to another image
            log.warning("the index of kept features in %s is damaged; computing all again", self.folder)
            self._start_anew()
            return
        rows = np.unique(np.linspace(0, count - 1, min(SPOT_CHECKS, count)).astype(int))
        if (damaged := self._damaged(rows, self._read(rows))) is not None:
            log.warning("kept features in %s are damaged at row %d; computing all again", self.folder, damaged)
            self._start_anew()

    def _start_anew(self) -> None:
        """Make new, empty files: a process with the old files open must not read new rows in another order."""
        for name in ("rows.16", "index"):
            (self.folder / name).unlink(missing_ok=True)
        self._rows, self._index = self._open("rows.16"), self._open("index")
        self.row_of.clear()


def _write(descriptor: int, content: bytes, place: int) -> None:
    """Not synced to the disk, which would take longer than a training step: checksums tell what a power cut lost."""
    if os.pwrite(descriptor, content, place) != len(content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _padded(digest: bytes) -> bytes:
    """numpy strips the zero bytes at the end of a fixed-length string."""
    return digest.ljust(16, b"\0")
