"""A folder that fills up: each new picture is answered once, and the answers are appended to a csv file.

The csv file is all the memory there is. Each row names the file with its size and time of change; a file that is there
with all three is not answered again, also after a restart. Files are answered when two looks found them unchanged.
"""

import csv
import io
import os
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

from filelock import FileLock, Timeout

from unida.data.folders import Skipped, image_stamps
from unida.errors import UserError
from unida.evaluation.predict import COLUMNS, Predictions
from unida.support.files import csv_text

HEADER = (*COLUMNS, "bytes", "changed_ns")
AT_ONCE = 64  # files that are answered before rows are written

Key = tuple[str, str, str]  # path, bytes, changed_ns
Stamp = tuple[int, int]
Answer = Callable[[Sequence[Path]], Predictions]
Sort = Callable[[Path, str], object]  # a file and its label


class Log:
    """The csv file of answers. Rows are appended whole; half a row, from a kill, is cut off when it is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.labels: dict[Key, str] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = _whole_rows(path.read_bytes()) if path.exists() else b""
        rows = list(csv.reader(io.StringIO(whole.decode("utf-8", "surrogateescape"), newline="")))
        if rows and tuple(rows[0]) != HEADER:
            raise UserError(f"--csv {path} holds something else than answers of --watch: choose another file")
        for row in rows[1:]:
            self.labels[row[0], row[5], row[6]] = row[1]
        if path.exists():
            os.truncate(path, len(whole))
        if not rows:
            self._write([HEADER])

    def append(self, rows: Sequence[tuple[str, ...]]) -> None:
        self._write(rows)
        self.labels |= {(row[0], row[5], row[6]): row[1] for row in rows}

    def _write(self, rows: Sequence[tuple[str, ...]]) -> None:
        with open(self.path, "ab") as stream:
            stream.write(csv_text(rows).encode("utf-8", "surrogateescape"))
            stream.flush()
            os.fsync(stream.fileno())


def _whole_rows(content: bytes) -> bytes:
    """Up to the last end of a line that is not inside quotes."""
    end = len(content)
    while (end := content.rfind(b"\r\n", 0, end)) >= 0:
        if content.count(b'"', 0, end) % 2 == 0:
            return content[: end + 2]
    return b""


def watch(
    folder: Path, log: Path, answer: Answer, every: float, move: Sort | None = None, copy: Sort | None = None
) -> Generator[Predictions, None, None]:
    """Look at the folder again and again; yields what was answered, which is nothing most of the time.

    Args:
        log: the csv file.
        every: seconds between two looks.
        move, copy: called for each answered file, a copy before its row is written, a move after it: if the process is
            killed between them, nothing is lost and nothing is answered twice.
    """
    lock = FileLock(f"{log}.lock")
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout as error:
        raise UserError(f"--csv {log}: another process is writing there; stop it, or choose another file") from error
    try:
        opened, before = Log(log), dict[Path, Stamp]()
        while True:
            now = image_stamps(folder)
            if move is not None:
                _move_the_rest(opened, now, move)
            new = [path for path, stamp in now.items() if _key(path, stamp) not in opened.labels]
            ready = [path for path in new if now[path] == before.get(path) and now[path][0] > 0]
            for start in range(0, len(ready), AT_ONCE):
                yield _take(ready[start : start + AT_ONCE], now, opened, answer, move, copy)
            before = now
            yield Predictions()
            time.sleep(every)
    finally:
        lock.release()
        Path(lock.lock_file).unlink(missing_ok=True)


def _take(
    paths: Sequence[Path],
    stamps: dict[Path, Stamp],
    log: Log,
    answer: Answer,
    move: Sort | None,
    copy: Sort | None,
) -> Predictions:
    """Answer some files. One that changed or went away meanwhile is left out: a later look finds it again."""
    answers = _answer(paths, answer)
    same = {str(path) for path in paths if _stamp(path) == stamps[path]}
    answers = Predictions((p for p in answers if p.path in same), (s for s in answers.skipped if s.path in same))
    for prediction in answers if copy is not None else ():
        assert copy is not None
        copy(Path(prediction.path), prediction.label)
    log.append([(*row, *_key(Path(row[0]), stamps[Path(row[0])])[1:]) for row in answers.rows()])
    for prediction in answers if move is not None else ():
        assert move is not None
        move(Path(prediction.path), prediction.label)
    return answers


def _answer(paths: Sequence[Path], answer: Answer) -> Predictions:
    """One by one if they cannot be answered together: one bad file must not stop the others."""
    try:
        return answer(paths)
    except UserError as error:
        if len(paths) == 1:
            return Predictions(skipped=[Skipped(str(paths[0]), str(error))])
    parts = [_answer([path], answer) for path in paths]
    return Predictions((p for part in parts for p in part), (s for part in parts for s in part.skipped))


def _move_the_rest(log: Log, stamps: dict[Path, Stamp], move: Sort) -> None:
    """Files that were answered before a kill, and not moved any more."""
    for path, stamp in list(stamps.items()):
        if label := log.labels.get(_key(path, stamp)):
            move(path, label)
            del stamps[path]


def _key(path: Path, stamp: Stamp) -> Key:
    return str(path), str(stamp[0]), str(stamp[1])


def _stamp(path: Path) -> Stamp | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns
