"""Files that are there whole or not at all."""

import contextlib
import csv
import io
import os
from collections.abc import Iterable
from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Write aside, then rename: a reader, or a kill at any moment, never meets half a file.

    File names in the text may be no UTF-8: they are bytes, and are written as they are.
    """
    aside = path.with_name(path.name + ".tmp")
    try:
        with aside.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())  # or a power cut could leave the new name with no content behind it
        os.replace(aside, path)
    except OSError:
        with contextlib.suppress(OSError):
            aside.unlink()
        raise


def write_csv(path: Path, rows: Iterable[Iterable[str]]) -> None:
    """The rows, the header first, as comma-separated values."""
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    write_text(path, text.getvalue())
