"""Decoded images, in memory or mapped from the pack on disk that holds them (`unida.data.packs`)."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from unida.data.folders import ImageFile, Progress, Skipped, in_threads
from unida.data.images import BadImage, ResizeMode
from unida.data.packs import (
    DamagedPackError,
    Guard,
    build_under_lock,
    cache_error,
    decode,
    pack_key,
    read_pack,
    strict_error,
)

Offsets = TypeVar("Offsets", np.ndarray, torch.Tensor)


@dataclass(frozen=True, eq=False, repr=False)
class Pixels:
    """Decoded images of N files, in memory or mapped from disk.

    Files that gave no picture are not among ``files``, so labels must be looked up through ``files``.
    """

    files: list[ImageFile]
    skipped: list[Skipped]
    resize: ResizeMode
    size: int
    shapes: np.ndarray  # int64 (N, 2): heights, widths
    _starts: np.ndarray  # int64 (N,): where each image begins in the buffer
    _buffer: np.ndarray  # uint8 (all bytes of the pack,)
    _places: np.ndarray  # int64 (N,): the number of each image in the pack
    _guard: Guard | None  # None: the images were decoded by this process and never left its memory

    def __len__(self) -> int:
        return len(self.files)

    def image(self, i: int) -> np.ndarray:
        """A view of one whole image: uint8 (H, W, 3)."""
        self._check(np.array([i]))
        return self._view(i)

    def _view(self, i: int) -> np.ndarray:
        height, width = self.shapes[i]
        start = self._starts[i]
        return self._buffer[start : start + height * width * 3].reshape(height, width, 3)

    def _check(self, index: np.ndarray) -> None:
        """Compare the images at ``index`` with their checksums, if this process has not read them before."""
        if self._guard is None:
            return
        for i in index[~self._guard.checked[self._places[index]]]:
            self._guard.compare(self._places[i], self._view(i))

    def windows(
        self, index: np.ndarray | torch.Tensor, top: Offsets, left: Offsets
    ) -> tuple[np.ndarray, Offsets, Offsets]:
        """An S×S window of each image. It contains the crop at (top, left), which is at most S×S.

        Args:
            index: (B,) which images.
            top, left: (B,) the crop's corner in the whole image.

        Returns:
            uint8 (B, S, S, 3), and the crop's corner inside these windows: (B,) each, of the kind given.
        """
        index = _to_numpy(index)
        self._check(index)
        size = self.size
        if self.resize == "squash":
            rows = self._starts[index] // (size * size * 3)
            return self._buffer.reshape(-1, size, size, 3)[rows], top, left
        corners = np.stack([_to_numpy(top), _to_numpy(left)], axis=1)
        window_corners = corners.clip(0, self.shapes[index] - size)
        windows = np.empty((len(index), size, size, 3), dtype=np.uint8)
        for window, i, (y, x) in zip(windows, index, window_corners, strict=True):
            window[:] = self._view(i)[y : y + size, x : x + size]
        inside = corners - window_corners
        return windows, _like(top, inside[:, 0]), _like(left, inside[:, 1])

    def in_memory(self, processes: int = 1) -> "Pixels":
        """The same, read into memory if all processes together need at most a quarter of the free memory."""
        if self._buffer.nbytes > _quarter_of_free_memory() // processes:
            return self
        guard = None if self._guard is None else Guard.of(self._guard.folder, self._guard.checksums)
        loaded = replace(self, _buffer=np.array(self._buffer), _guard=guard)
        loaded._check(np.arange(len(loaded)))
        return loaded

    def subset(self, index: np.ndarray | torch.Tensor | Sequence[int]) -> "Pixels":
        """The images at ``index`` (integers or a mask), sharing the buffer; ``skipped`` stays as it is."""
        rows = np.arange(len(self))[_to_numpy(index)]
        files = [self.files[i] for i in rows]
        return replace(
            self,
            files=files,
            shapes=self.shapes[rows],
            _starts=self._starts[rows],
            _places=self._places[rows],
        )


def open_pixels(
    files: Sequence[ImageFile],
    *,
    resize: ResizeMode,
    size: int = 256,
    cache_dir: Path,
    strict: bool = False,
    progress: Progress | None = None,
    memory_limit: int | None = None,
) -> Pixels:
    """The pixels of all files: from the cache, or decoded now and kept there.

    Args:
        files: as from `unida.data.folders.scan`; their order is the order of the images.
        resize: "squash" to size × size, or "short" side to ``size``.
        size: pixels.
        cache_dir: where packs are kept.
        strict: a file that gives no picture is a UserError instead of being skipped.
        progress: called with (done, total) while decoding, from the calling thread.
        memory_limit: bytes up to which the pixels are held in memory instead of mapped from disk; by default
            a quarter of the memory that is free now.
    """
    folder = Path(cache_dir) / "pixels" / pack_key(files, resize, size)
    try:
        try:
            meta = read_pack(folder, len(files))
        except (FileNotFoundError, DamagedPackError):
            meta = build_under_lock(folder, files, resize, size, strict, progress)
        if strict and meta.bad:
            first, reason = min(meta.bad.items())
            raise strict_error(files[first], reason)
        buffer = _load_buffer(folder / "pixels.u8", meta.total_bytes, memory_limit)
    except OSError as error:
        raise cache_error(Path(cache_dir), error) from error
    return Pixels(
        files=[file for i, file in enumerate(files) if i not in meta.bad],
        skipped=[Skipped(str(files[i].path), reason) for i, reason in sorted(meta.bad.items())],
        resize=resize,
        size=size,
        shapes=meta.shapes,
        _starts=meta.ends - meta.shapes.prod(axis=1) * 3,
        _buffer=buffer,
        _places=np.arange(len(meta.shapes)),
        _guard=Guard.of(folder, meta.checksums),
    )


def decode_in_memory(files: Sequence[ImageFile], mode: ResizeMode, size: int) -> Pixels:
    """The pixels of a few files, decoded now and not cached: for images that are used once."""
    decoded = list(in_threads(partial(decode, mode=mode, size=size), files))
    good = [(file, pixels) for file, pixels in zip(files, decoded, strict=True) if isinstance(pixels, np.ndarray)]
    skipped = [
        Skipped(str(file.path), str(bad)) for file, bad in zip(files, decoded, strict=True) if isinstance(bad, BadImage)
    ]
    return replace(decoded_pixels(good, mode, size), skipped=skipped)


def decoded_pixels(good: Sequence[tuple[ImageFile, np.ndarray]], mode: ResizeMode, size: int) -> Pixels:
    """Pixels of images that are decoded and resized already, each with the file that it came from."""
    shapes = np.array([pixels.shape[:2] for _, pixels in good], dtype=np.int64).reshape(-1, 2)
    lengths = shapes.prod(axis=1) * 3
    return Pixels(
        files=[file for file, _ in good],
        skipped=[],
        resize=mode,
        size=size,
        shapes=shapes,
        _starts=np.cumsum(lengths) - lengths,
        _buffer=np.concatenate([pixels.reshape(-1) for _, pixels in good]) if good else np.empty(0, np.uint8),
        _places=np.arange(len(good)),
        _guard=None,
    )


def _load_buffer(path: Path, total_bytes: int, memory_limit: int | None) -> np.ndarray:
    limit = _quarter_of_free_memory() if memory_limit is None else memory_limit
    if total_bytes == 0 or total_bytes <= limit:
        return np.fromfile(path, dtype=np.uint8)
    return np.asarray(np.memmap(path, dtype=np.uint8, mode="r"))


def _quarter_of_free_memory() -> int:
    try:
        pages = os.sysconf("SC_AVPHYS_PAGES")
    except ValueError:  # macOS does not count free pages
        pages = os.sysconf("SC_PHYS_PAGES") // 2
    return pages * os.sysconf("SC_PAGE_SIZE") // 4


def _to_numpy(values: np.ndarray | torch.Tensor | Sequence[int]) -> np.ndarray:
    return values.cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)


def _like(given: Offsets, values: np.ndarray) -> Offsets:
    return torch.from_numpy(values).to(given) if isinstance(given, torch.Tensor) else values.astype(given.dtype)
