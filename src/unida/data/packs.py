"""Packs: every image decoded and resized once, to uint8 on disk; later runs start from there.

A *pack* is the folder ``<cache_dir>/pixels/<key>``: ``pixels.u8`` holds the images one after another,
``meta.json`` their shapes, checksums and the files that gave no picture. The key is made of the files'
digests and of how they were decoded, so a pack is never out of date, and moving or renaming images costs nothing.
Every image is compared with its checksum the first time that a process reads it: `benchmarks/digests.py` measures what
that costs.
"""

import errno
import hashlib
import json
import logging
import os
import secrets
import shutil
import stat
import zlib
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import PIL
from filelock import FileLock, Timeout

from unida.data.folders import ImageFile, Progress, digest_of, in_threads, remove
from unida.data.images import BadImage, ResizeMode, decode_rgb, os_reason, resize
from unida.errors import UserError

logger = logging.getLogger("unida")

DECODER_VERSION = 1  # raise it whenever decoding or resizing gives other pixels than before
SPOT_CHECKS = 34  # images compared with their checksums on opening, so that most damage is found early
SECONDS_TO_REMOVE = 10  # a process that holds a pack's lock for longer is building it again


@dataclass(frozen=True, eq=False, repr=False)
class Guard:
    """Compares each image of a pack with its checksum the first time that this process reads it."""

    folder: Path  # the pack
    checksums: np.ndarray  # uint32 (all images of the pack,)
    checked: np.ndarray  # bool (all images of the pack,)

    @classmethod
    def of(cls, folder: Path, checksums: np.ndarray) -> "Guard":
        return cls(folder, checksums, np.zeros(len(checksums), dtype=bool))

    def compare(self, place: int, image: np.ndarray) -> None:
        """Raise a UserError and remove the pack if the image is not what was written.

        Args:
            place: which image of the pack.
            image: its bytes, contiguous.
        """
        if zlib.crc32(image.data) != self.checksums[place]:
            raise _damage_error(self.folder, place)
        self.checked[place] = True


@dataclass(frozen=True)
class Meta:
    """What ``meta.json`` says; ``bad`` maps positions in the list of all files to reasons."""

    shapes: np.ndarray  # int64 (N, 2), of the good images
    checksums: np.ndarray  # uint32 (N,): crc32 of each good image's bytes
    bad: dict[int, str]

    @property
    def ends(self) -> np.ndarray:
        """Where each image ends in the buffer: int64 (N,)."""
        return np.cumsum(self.shapes.prod(axis=1) * 3)

    @property
    def total_bytes(self) -> int:
        return int(self.shapes.prod(axis=1).sum() * 3)


class DamagedPackError(Exception):
    """A pack that must be built again; the message is the reason."""


def pack_key(files: Sequence[ImageFile], mode: ResizeMode, size: int) -> str:
    pillow_major = PIL.__version__.split(".")[0]
    parts = [f"decoder {DECODER_VERSION}, pillow {pillow_major}, {mode} {size}", *(f.digest for f in files)]
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()


def read_pack(folder: Path, count: int) -> Meta:
    """Read and verify a pack's meta; FileNotFoundError if there is no pack at all."""
    if not os.path.lexists(folder):
        raise FileNotFoundError(errno.ENOENT, "no pack", str(folder))
    try:
        _size_of_file(folder / "meta.json")
        content = json.loads((folder / "meta.json").read_bytes())
        if content.pop("checksum") != _checksum(content):
            raise DamagedPackError("meta.json does not match its checksum")
        meta = Meta(
            shapes=np.array(content["shapes"], dtype=np.int64).reshape(-1, 2),
            checksums=np.array(content["crc32"], dtype=np.uint32),
            bad={int(i): str(reason) for i, reason in content["bad"]},
        )
        on_disk = _size_of_file(folder / "pixels.u8")
    except KeyError as error:
        raise DamagedPackError(f"meta.json has no {error}") from error
    except (FileNotFoundError, NotADirectoryError, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise DamagedPackError(f"meta.json or pixels.u8 is missing or unreadable: {error!r}") from error
    fits = len(meta.shapes) == len(meta.checksums) == count - len(meta.bad)
    if not fits or any(not 0 <= i < count for i in meta.bad):
        raise DamagedPackError("meta.json does not fit the list of files")
    if on_disk != meta.total_bytes:
        raise DamagedPackError(f"pixels.u8 has {on_disk} bytes instead of {meta.total_bytes}")
    _spot_check(folder / "pixels.u8", meta)
    return meta


def _size_of_file(path: Path) -> int:
    """Its bytes. Anything but a regular file is damage: opening a pipe would wait forever."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise DamagedPackError(f"{path.name} is not a file")
    return status.st_size


def _checksum(content: dict[str, Any]) -> int:
    """Checksum of the content of ``meta.json``."""
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def _spot_check(path: Path, meta: Meta) -> None:
    ends = meta.ends
    with open(path, "rb") as stream:
        for i in np.unique(np.linspace(0, len(ends) - 1, min(SPOT_CHECKS, len(ends))).astype(np.int64)):
            start = int(ends[i - 1]) if i > 0 else 0
            stream.seek(start)
            if zlib.crc32(stream.read(int(ends[i]) - start)) != meta.checksums[i]:
                raise DamagedPackError(f"image {i} of pixels.u8 does not match its checksum")


def build_under_lock(
    folder: Path,
    files: Sequence[ImageFile],
    mode: ResizeMode,
    size: int,
    strict: bool,
    progress: Progress | None,
) -> Meta:
    """Build the pack, unless another process built it while this one waited for the lock."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = _lock_of(folder)
    try:
        holding = lock.acquire(timeout=0)
    except Timeout:
        logger.info("another process is decoding the same images; waiting for it")
        holding = lock.acquire(timeout=-1)
    with holding:
        try:
            return read_pack(folder, len(files))
        except FileNotFoundError:
            pass
        except DamagedPackError as damage:
            logger.warning("cached pixels in %s are damaged (%s); decoding again", folder, damage)
            remove(folder)
        _remove_stale(folder)
        aside = folder.with_name(f"{folder.name}.tmp-{secrets.token_hex(8)}")
        try:
            aside.mkdir()
            meta = _write_pack(aside, files, mode, size, strict, progress)
            os.rename(aside, folder)
            _sync_folder(folder.parent)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        return meta


def _lock_of(folder: Path) -> FileLock:
    return FileLock(folder.with_name(f"{folder.name}.lock"))


def _remove_stale(folder: Path) -> None:
    """Remove what killed processes left half-written; a pack whose lock is held is being written now."""
    for leftover in folder.parent.glob("*.tmp-*"):
        key = leftover.name.partition(".")[0]
        if key == folder.name:  # we hold this lock
            shutil.rmtree(leftover, ignore_errors=True)
            continue
        try:
            with _lock_of(leftover.with_name(key)).acquire(timeout=0):
                shutil.rmtree(leftover, ignore_errors=True)
        except Timeout:
            continue


def _write_pack(
    folder: Path,
    files: Sequence[ImageFile],
    mode: ResizeMode,
    size: int,
    strict: bool,
    progress: Progress | None,
) -> Meta:
    shapes: list[tuple[int, int]] = []
    checksums: list[int] = []
    bad: dict[int, str] = {}
    work = partial(decode, mode=mode, size=size)
    with open(folder / "pixels.u8", "wb") as stream, closing(in_threads(work, files)) as decoded:
        for i, pixels in enumerate(decoded):
            if isinstance(pixels, BadImage):
                if strict:
                    raise strict_error(files[i], str(pixels))
                bad[i] = str(pixels)
            else:
                stream.write(pixels.data)
                checksums.append(zlib.crc32(pixels.data))
                shapes.append(pixels.shape[:2])
            if progress is not None:
                progress(i + 1, len(files))
        _sync_file(stream)
    content = {"shapes": shapes, "crc32": checksums, "bad": list(bad.items())}
    with open(folder / "meta.json", "wb") as stream:
        stream.write(json.dumps({**content, "checksum": _checksum(content)}).encode())
        _sync_file(stream)
    _sync_folder(folder)
    return Meta(np.array(shapes, dtype=np.int64).reshape(-1, 2), np.array(checksums, dtype=np.uint32), bad)


def decode(file: ImageFile, mode: ResizeMode, size: int) -> np.ndarray | BadImage:
    """uint8 (H, W, 3), or why there is no picture."""
    try:
        with open(file.path, "rb") as stream:
            if digest_of(stream) != file.digest:  # new pixels must not be stored under the old key
                raise UserError(f"{file.path}: changed while the folder was being read; run again")
            return resize(decode_rgb(stream), mode, size)
    except OSError as error:
        raise UserError(f"{file.path}: can no longer be read ({os_reason(error)}); run again") from error
    except BadImage as error:
        return error


def _sync_file(stream: BinaryIO) -> None:
    stream.flush()
    os.fsync(stream.fileno())


def _sync_folder(folder: Path) -> None:
    """Make names in the folder survive a power cut, as `_sync_file` does contents."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def strict_error(file: ImageFile, reason: str) -> UserError:
    return UserError(f"{file.path}: {reason}; fix or remove the file, or run without --strict to skip it")


def _damage_error(folder: Path, place: int) -> UserError:
    """Remove the pack, so that the next run decodes the images again."""
    with suppress(OSError), _lock_of(folder).acquire(timeout=SECONDS_TO_REMOVE):
        remove(folder)
    what = f"cached pixels in {folder} are damaged at image {place}"
    if os.path.lexists(folder):
        return UserError(f"{what}: remove that folder, then run again or continue with --resume")
    return UserError(f"{what} and were removed: run again or continue with --resume, which decodes the images again")


def cache_error(cache_dir: Path, error: OSError) -> UserError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return UserError(
            f"{cache_dir}: disk full while caching pixels; free space or choose another folder with --cache"
        )
    culprit = f": {error.filename}" if error.filename else ""
    return UserError(
        f"{cache_dir}: cannot be used as cache ({os_reason(error)}{culprit}); choose another folder with --cache"
    )
