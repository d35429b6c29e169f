"""Files that `unida predict` moves: a record says where each went, whatever happens."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from unida.runs import sorting


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_record_says_where_each_file_went(copied_run: Path, work: Path, cli: Any) -> None:
    (work / "target" / "notes.txt").write_text("no picture")
    before = {str(path): path.read_bytes() for path in (work / "target").rglob("*.png")}
    answer = cli(["predict", "run", work / "target", "--csv", "a.csv", "--json", "a.json", "--move-to", "sorted"])
    assert answer.code == 0, answer.err
    rows = rows_of(work / "a.csv")
    moved = {row["path"]: row["moved_to"] for row in rows if row["label"]}
    assert {path: Path(to).read_bytes() for path, to in moved.items()} == before
    assert [row["moved_to"] for row in rows if row["skipped"]] == [""]
    assert {answer["path"]: answer["moved_to"] for answer in json.loads(Path("a.json").read_text())["answers"]} == moved


def test_a_printed_record_says_it_too(copied_run: Path, work: Path, cli: Any) -> None:
    answer = cli(["predict", "run", work / "target", "--csv", "-", "--move-to", "sorted"])
    assert answer.code == 0, answer.err
    rows = list(csv.DictReader(answer.out.splitlines()))
    assert len(rows) == 20 and all(Path(row["moved_to"]).is_file() for row in rows)


def test_one_image_is_not_many(copied_run: Path, work: Path, cli: Any) -> None:
    answer = cli(["predict", "run", next((work / "target").rglob("*.png")), "--csv", "a.csv"])
    assert answer.code == 0 and answer.out.startswith("1 image, ")


def test_files_that_stay_have_no_such_column(copied_run: Path, work: Path, cli: Any) -> None:
    for _ in range(2):  # nothing is lost if this record is written again
        assert cli(["predict", "run", work / "target", "--csv", "a.csv", "--copy-to", "sorted"]).code == 0
    assert "moved_to" not in rows_of(work / "a.csv")[0]


def test_the_record_has_what_was_moved_before_an_error(
    copied_run: Path, work: Path, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, left = sorting._link, [3]

    def fail_after_three(file: Path, target: Path) -> None:
        if not left[0]:
            raise FileExistsError if target.exists() else PermissionError(13, "Permission denied")
        left[0] -= 1
        link(file, target)

    monkeypatch.setattr(sorting, "_link", fail_after_three)
    answer = cli(["predict", "run", work / "target", "--csv", "a.csv", "--move-to", "sorted"])
    assert answer.code == 2 and "cannot be written (Permission denied)" in answer.err
    moved = [row for row in rows_of(work / "a.csv") if row["moved_to"]]
    assert len(moved) == 3
    assert all(Path(row["moved_to"]).is_file() and not Path(row["path"]).exists() for row in moved)
