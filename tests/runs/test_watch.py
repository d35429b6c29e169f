"""A watched folder: each file once, whatever is killed when. No network is needed: answers are made up."""

import csv
from collections.abc import Sequence
from pathlib import Path

import pytest

from unida.data.folders import Skipped
from unida.errors import UserError
from unida.evaluation.predict import Prediction, Predictions
from unida.runs.sorting import sort_file
from unida.runs.watch import Log, watch


def made_up(asked: list[str]) -> object:
    """Answers "cat" for all but files that are called bad; notes what it was asked for."""

    def answer(paths: Sequence[Path]) -> Predictions:
        asked.extend(path.name for path in paths)
        good = [Prediction(str(path), "cat", 0.9, 0.1) for path in paths if path.stem != "bad"]
        return Predictions(good, [Skipped(str(path), "damaged") for path in paths if path.stem == "bad"])

    return answer


def look(count: int, *arguments: object, **options: object) -> list[str]:
    """The files that some looks answer."""
    asked: list[str] = []
    folder, log = arguments
    looks = watch(folder, log, made_up(asked), every=0.0, **options)  # type: ignore[arg-type]
    seen = 0
    for found in looks:
        seen += not found and not found.skipped
        if seen == count:
            break
    looks.close()
    return asked


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    for name in ("a.png", "bad.png", 'odd "\r\n,.png', "empty.png", "notes.txt"):
        (tmp_path / "in" / name).write_text("" if name == "empty.png" else name)
    return tmp_path / "in"


def rows(log: Path) -> list[dict[str, str]]:
    with open(log, newline="") as stream:
        return list(csv.DictReader(stream))


def test_each_file_is_answered_once_also_after_a_restart(folder: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    assert look(1, folder, log) == []  # one look cannot know whether a file still grows
    assert sorted(look(3, folder, log)) == ["a.png", "bad.png", 'odd "\r\n,.png']
    assert look(3, folder, log) == []
    assert {row["skipped"] for row in rows(log) if "bad" in row["path"]} == {"damaged"}
    (folder / "a.png").write_text("another picture")
    assert look(3, folder, log) == ["a.png"]
    assert len(rows(log)) == 4
    assert not (tmp_path / "log.csv.lock").exists()


def test_half_a_row_is_cut_off(folder: Path, tmp_path: Path) -> None:
    """Killed at any byte of what it wrote: whole rows stay, the others are answered again."""
    log = tmp_path / "log.csv"
    look(3, folder, log)
    whole = log.read_bytes()
    complete = rows(log)
    for end in range(len(whole)):
        log.write_bytes(whole[:end])
        kept = Log(log).labels
        assert set(kept) <= {(row["path"], row["bytes"], row["changed_ns"]) for row in complete}
    log.write_bytes(whole[:-3])
    assert len(look(3, folder, log)) == 1
    assert sorted(map(str, rows(log))) == sorted(map(str, complete))


def test_a_file_that_grows_or_changes_meanwhile_waits(folder: Path, tmp_path: Path) -> None:
    asked: list[str] = []

    def answer(paths: Sequence[Path]) -> Predictions:
        asked.extend(path.name for path in paths)
        if len(asked) <= 3:
            (folder / "a.png").write_text("more" * len(asked))  # while it is being answered
        return Predictions(Prediction(str(path), "cat", 0.9, 0.1) for path in paths)

    looks = watch(folder, tmp_path / "log.csv", answer, every=0.0)
    found = [next(looks) for _ in range(8)]
    looks.close()
    assert asked.count("a.png") == 2
    assert [p.path for part in found for p in part].count(str(folder / "a.png")) == 1


def test_one_file_that_raises_does_not_stop_the_others(folder: Path, tmp_path: Path) -> None:
    def answer(paths: Sequence[Path]) -> Predictions:
        if any(path.name == "bad.png" for path in paths):
            raise UserError("a score is not finite")
        return Predictions(Prediction(str(path), "cat", 0.9, 0.1) for path in paths)

    looks = watch(folder, tmp_path / "log.csv", answer, every=0.0)
    found = [next(looks) for _ in range(4)]
    looks.close()
    assert [len(part) for part in found] == [0, 2, 0, 0]
    assert [item.reason for part in found for item in part.skipped] == ["a score is not finite"]


def test_a_move_that_was_cut_off_is_completed(folder: Path, tmp_path: Path) -> None:
    log, out = tmp_path / "log.csv", tmp_path / "out"
    look(3, folder, log)  # answered, and killed before the move
    moved = look(1, folder, log, move=lambda file, label: sort_file(file, label, out, move=True))
    assert moved == [] and (out / "cat" / "a.png").read_text() == "a.png"
    assert sorted(path.name for path in folder.iterdir()) == ["bad.png", "empty.png", "notes.txt"]


def test_a_csv_of_something_else_or_in_use_is_refused(folder: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_bytes(b"path,label\r\na,b\r\n")
    with pytest.raises(UserError, match="something else"):
        look(1, folder, log)
    assert log.read_bytes() == b"path,label\r\na,b\r\n"
    first = watch(folder, tmp_path / "other.csv", made_up([]), every=0.0)  # type: ignore[arg-type]
    next(first)
    with pytest.raises(UserError, match="another process"):
        look(1, folder, tmp_path / "other.csv")
    first.close()


@pytest.mark.parametrize("move", [True, False])
def test_nothing_is_overwritten(move: bool, tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.png").write_text(name)
    out = tmp_path / "out"
    placed = [sort_file(tmp_path / name / "a.png", "cat", out, move) for name in ("one", "two", "three")]
    assert [path.name for path in placed] == ["a.png", "a (2).png", "a (3).png"]
    assert [path.read_text() for path in placed] == ["one", "two", "three"]
    assert (tmp_path / "one" / "a.png").exists() != move
    if not move:
        assert sort_file(tmp_path / "two" / "a.png", "cat", out, move) == placed[1]  # the copy is there already
    assert len(list((out / "cat").iterdir())) == 3  # nothing half-made is left


def test_a_link_is_moved_as_the_file_it_shows(tmp_path: Path) -> None:
    (tmp_path / "real.png").write_text("picture")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "link.png").symlink_to("../real.png")
    placed = sort_file(tmp_path / "in" / "link.png", "cat", tmp_path / "deep" / "out", move=True)
    assert placed.read_text() == "picture" and not placed.is_symlink()
    assert (tmp_path / "real.png").exists() and not (tmp_path / "in" / "link.png").is_symlink()


def test_a_class_that_is_no_folder_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("")
    with pytest.raises(UserError, match="cannot be the name of a folder"):
        sort_file(tmp_path / "a.png", "../x", tmp_path / "out", move=True)
