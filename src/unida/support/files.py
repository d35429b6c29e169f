"""Files that are written completely or not at all."""

import contextlib
import csv
import io
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def written_aside(path: Path, shared: bool = False) -> Iterator[Path]:
    """Write to the path that this yields; it then replaces `path` in one step.

    A reader never finds half a file, even after a kill.

    Args:
        shared: several processes may write the file at the same time; the last one wins.
    """
    aside = path.with_name(f"{path.name}.{secrets.token_hex(8)}.tmp" if shared else f"{path.name}.tmp")
    try:
        yield aside
        descriptor = os.open(aside, os.O_RDONLY)
        try:
            os.fsync(descriptor)  # or a power cut could leave the new name without content
        finally:
            os.close(descriptor)
        os.replace(aside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            aside.unlink()
        raise


def write_text(path: Path, text: str) -> None:
    """Write text. File names in it may not be valid UTF-8: they are bytes, and stay as they are."""
    with written_aside(path) as aside:
        aside.write_text(text, newline="", encoding="utf-8", errors="surrogateescape")


def csv_text(rows: Iterable[Iterable[str]]) -> str:
    """The rows as comma-separated values."""
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue()


def write_csv(path: Path, rows: Iterable[Iterable[str]]) -> None:
    """The rows, the header first, as comma-separated values."""
    write_text(path, csv_text(rows))
