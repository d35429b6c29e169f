"""Files are replaced whole, or stay as they were."""

import csv
import os
import sys
from pathlib import Path

import pytest

from unida.support.files import write_csv, write_text


def test_a_text_is_replaced_whole(tmp_path: Path) -> None:
    for text in ("a longer text\n", "short, with ä\r\n"):
        write_text(tmp_path / "note.txt", text)
        assert (tmp_path / "note.txt").read_bytes() == text.encode()
    assert os.listdir(tmp_path) == ["note.txt"]


def test_content_is_on_the_disk_before_the_name_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the old file stands until then."""
    write_text(tmp_path / "note.txt", "old")
    calls, replace = [], os.replace

    def synced(descriptor: int) -> None:
        calls.append((os.fstat(descriptor).st_size, (tmp_path / "note.txt").read_text()))

    def replaced(aside: Path, path: Path) -> None:
        calls.append((aside.read_text(), path))
        replace(aside, path)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    write_text(tmp_path / "note.txt", "newer")
    assert calls == [(5, "old"), ("newer", tmp_path / "note.txt")]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    write_text(tmp_path / "note.txt", "old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_text(tmp_path / "note.txt", "new")
    assert os.listdir(tmp_path) == ["note.txt"]
    assert (tmp_path / "note.txt").read_text() == "old"
    with pytest.raises(FileNotFoundError):
        write_text(tmp_path / "gone" / "note.txt", "new")


@pytest.mark.skipif(sys.platform != "linux", reason="file names are bytes on Linux alone")
def test_rows_come_back_as_they_were_whatever_the_names(tmp_path: Path) -> None:
    rows = [["path", "why"], ['odd, "name"\n.png', ""], [os.fsdecode(b"caf\xe9.png"), "Größe"]]
    write_csv(tmp_path / "rows.csv", rows)
    assert b"caf\xe9.png" in (tmp_path / "rows.csv").read_bytes()
    with (tmp_path / "rows.csv").open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        assert list(csv.reader(file)) == rows
