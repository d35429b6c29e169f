"""The image files of a folder with the digests of their bytes, in an order that does not depend on names."""

import hashlib
import json
import logging
import os
import shutil
import stat
import zlib
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import TypeVar

import numpy as np

from unida.data.images import has_image_suffix, os_reason, why_no_image
from unida.errors import UserError
from unida.support.files import written_aside

logger = logging.getLogger("unida")

Progress = Callable[[int, int], None]  # (done, total)
Item = TypeVar("Item")
Result = TypeVar("Result")

# A remembered digest is valid while these are unchanged: size, mtime_ns, ctime_ns, inode. The change time is
# there because copying tools restore the modification time, and because it changes with the permissions.
Stamp = tuple[int, int, int, int]
Memo = dict[str, tuple[Stamp, str]]  # relative path → stamp, digest


@dataclass(frozen=True)
class ImageFile:
    """One picture file; ``digest`` is the hexadecimal digest of its bytes."""

    path: Path
    relative: str  # posix, to the scanned root
    bytes: int
    digest: str


@dataclass(frozen=True)
class Skipped:
    """A file that is left out, and why."""

    path: str
    reason: str


@dataclass(frozen=True)
class _Found:
    path: Path
    relative: str
    stamp: Stamp


def scan(
    root: str | os.PathLike[str], cache_dir: Path | None = None, progress: Progress | None = None
) -> tuple[list[ImageFile], list[Skipped]]:
    """Every image below ``root``, ordered by (digest, relative path), and every other file with the reason.

    Links are followed, except back to a folder above them. Hidden files and folders are
    ignored. With ``cache_dir``, digests of unchanged files are remembered from run to run.
    """
    folder = _existing_folder(root)
    found, skipped = _walk(folder)
    return _with_digests(folder, found, skipped, cache_dir, progress, whole=True)


def scan_listed(
    paths: Sequence[Path],
    root: str | os.PathLike[str],
    cache_dir: Path | None = None,
    progress: Progress | None = None,
) -> tuple[list[ImageFile], list[Skipped]]:
    """As `scan`, for an explicit list of files; a path that is listed twice counts once.

    ``paths`` are taken as they are (relative ones from the working folder); ``root`` only serves to name them
    in ``ImageFile.relative``.
    """
    folder = _existing_folder(root)
    different = dict.fromkeys(map(Path, paths))
    seen = [_look_at(path, Path(os.path.relpath(path, folder)).as_posix()) for path in different]
    found = [item for item in seen if isinstance(item, _Found)]
    skipped = [item for item in seen if isinstance(item, Skipped)]
    return _with_digests(folder, found, skipped, cache_dir, progress, whole=False)


def image_stamps(root: str | os.PathLike[str]) -> dict[Path, tuple[int, int]]:
    """Size and time of change (ns) of every image below ``root``. No file is opened: cheap to ask again and again."""
    return {found.path: found.stamp[:2] for found in _walk(_existing_folder(root))[0]}


def class_of(file: ImageFile) -> str | None:
    """The root's sub-folder that the file is in; None if it is directly in the root or outside it."""
    first, separator, _ = file.relative.partition("/")
    return first if separator and first != ".." else None


def labelled_by_folder(files: Sequence[ImageFile]) -> tuple[list[str], np.ndarray]:
    """Class names, sorted, and the class id of each file: int64 (N,)."""
    names: list[str] = []
    for file in files:
        name = class_of(file)
        if name is None:
            raise UserError(f"{file.path}: lies in no class folder; move it into the sub-folder of its class")
        names.append(name)
    classes = sorted(set(names))
    number = {name: i for i, name in enumerate(classes)}
    return classes, np.array([number[name] for name in names], dtype=np.int64)


def find_duplicates(files: Iterable[ImageFile]) -> list[list[ImageFile]]:
    """Groups of two or more files with the same bytes."""
    groups: dict[str, list[ImageFile]] = defaultdict(list)
    for file in files:
        groups[file.digest].append(file)
    return [group for group in groups.values() if len(group) > 1]


def digest_of(stream: BufferedReader) -> str:
    """blake2b of all bytes from the stream's position on, 32 hexadecimal digits."""
    return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def in_threads(function: Callable[[Item], Result], items: Iterable[Item]) -> Generator[Result, None, None]:
    """``map`` in one thread per processor, in order. Few items wait at a time, so memory use stays small."""
    workers = os.cpu_count() or 1
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) >= 4 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _existing_folder(root: str | os.PathLike[str]) -> Path:
    folder = Path(root)
    if not os.path.exists(folder):  # unlike Path.exists, never raises
        raise UserError(f"{folder}: no such folder; check the path")
    if not os.path.isdir(folder):
        raise UserError(f"{folder}: is a file, not a folder; give the folder that holds the images")
    try:
        os.scandir(folder).close()
    except OSError as error:
        raise UserError(f"{folder}: cannot be listed ({os_reason(error)}); check its permissions") from error
    return folder


def _walk(root: Path) -> tuple[list[_Found], list[Skipped]]:
    """All files below root that are not hidden: images, and the rest."""
    found: list[_Found] = []
    skipped: list[Skipped] = []
    to_visit: list[tuple[Path, tuple[tuple[int, int], ...]]] = [(root, ())]
    while to_visit:
        folder, above = to_visit.pop()
        try:
            status = folder.stat()
            names = sorted(os.listdir(folder))
        except OSError as error:
            skipped.append(Skipped(str(folder), f"folder cannot be listed: {os_reason(error)}"))
            continue
        identity = (status.st_dev, status.st_ino)
        if identity in above:
            skipped.append(Skipped(str(folder), "link back to a folder above it"))
            continue
        for path in (folder / name for name in names if not name.startswith(".")):
            if os.path.isdir(path):  # unlike Path.is_dir, never raises
                to_visit.append((path, (*above, identity)))
                continue
            seen = _look_at(path, path.relative_to(root).as_posix())
            if isinstance(seen, _Found):
                found.append(seen)
            else:
                skipped.append(seen)
    return found, skipped


def _look_at(path: Path, relative: str) -> _Found | Skipped:
    if not has_image_suffix(path):
        return Skipped(str(path), why_no_image(path))
    try:
        status = path.stat()
    except OSError as error:
        points_nowhere = isinstance(error, FileNotFoundError) and os.path.islink(path)
        return Skipped(str(path), "link to nothing" if points_nowhere else os_reason(error))
    if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait forever
        return Skipped(str(path), "not a regular file")
    return _Found(path, relative, (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino))


def _with_digests(
    root: Path,
    found: list[_Found],
    skipped: list[Skipped],
    cache_dir: Path | None,
    progress: Progress | None,
    whole: bool,
) -> tuple[list[ImageFile], list[Skipped]]:
    """Digests for all, from the memo if it is still valid; ``whole``: forget files that were not found."""
    memo_path = None if cache_dir is None else _memo_path(cache_dir, root)
    old = {} if memo_path is None else _read_memo(memo_path)
    known = {item.path: old[item.relative][1] for item in found if _still_holds(item, old)}
    to_hash = [item for item in found if item.path not in known]
    unreadable: list[Skipped] = []
    for done, (item, digest) in enumerate(zip(to_hash, in_threads(_digest_or_error, to_hash), strict=True), 1):
        if isinstance(digest, OSError):
            unreadable.append(Skipped(str(item.path), os_reason(digest)))
        else:
            known[item.path] = digest
        if progress is not None:
            progress(len(found) - len(to_hash) + done, len(found))
    readable = [item for item in found if item.path in known]
    new: Memo = {item.relative: (item.stamp, known[item.path]) for item in readable}
    if not whole:
        new = {**old, **new}
    if memo_path is not None and new != old:
        _write_memo(memo_path, new)
    files = [ImageFile(i.path, i.relative, i.stamp[0], known[i.path]) for i in readable]
    return sorted(files, key=lambda f: (f.digest, f.relative)), sorted([*skipped, *unreadable], key=lambda s: s.path)


def _digest_or_error(item: _Found) -> str | OSError:
    try:
        with open(item.path, "rb") as stream:
            return digest_of(stream)
    except OSError as error:
        return error


def _still_holds(item: _Found, memo: Memo) -> bool:
    return item.relative in memo and memo[item.relative][0] == item.stamp


def _memo_path(cache_dir: Path, root: Path) -> Path:
    name = hashlib.blake2b(os.fsencode(os.path.abspath(root)), digest_size=16).hexdigest()
    return Path(cache_dir) / "digests" / f"{name}.json"


def _read_memo(path: Path) -> Memo:
    """The memo, or an empty one if it is missing or damaged: a wrong digest would be worse than none."""
    try:
        checksum, _, body = path.read_bytes().partition(b"\n")
        if int(checksum) != zlib.crc32(body):
            return {}
        return {relative: (tuple(stamp), digest) for relative, (stamp, digest) in json.loads(body).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _write_memo(path: Path, memo: Memo) -> None:
    body = json.dumps(memo).encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if os.path.isdir(path):
            remove(path)
        with written_aside(path, shared=True) as aside:
            aside.write_bytes(b"%d\n%s" % (zlib.crc32(body), body))
    except OSError as error:
        logger.warning("digests are not remembered: %s: %s", path, os_reason(error))


def remove(path: Path) -> None:
    """Remove a file or a link, or a folder with its content."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)
