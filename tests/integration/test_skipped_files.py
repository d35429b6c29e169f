"""Files that give no picture, and copies: skipped, counted and listed, or refused on demand."""

import csv
import json
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bad_input import (
    AdaptWords,
    Options,
    assert_refuses,
    copies_in_a_class,
    copies_in_both_folders,
    copies_in_two_classes,
    picture,
)


def bomb() -> bytes:
    """A PNG of a few bytes that says it has 60,000 × 60,000 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    parts = chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(bytes(1000))), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def add_bad_files(folder: Path) -> dict[str, str]:
    """Put files that give no picture into a folder. Returns a part of the reason expected for each."""
    sound = picture(folder / "sound.png", len(folder.parts)).read_bytes()
    (folder / "sound.png").unlink()
    files = {
        "truncated.png": (sound[: len(sound) // 2], "truncated"),
        "empty.jpg": (b"", "empty file"),
        "text.jpg": (b"this is no picture", "not an image"),
        "bomb.png": (bomb(), "too many pixels"),
        "notes.txt": (b"this is no picture", "not an image file: .txt"),
        "phone.HEIC": (b"not read", "a picture in a format that is not read (.HEIC): convert it to jpg or png"),
    }
    for name, (content, _) in files.items():
        (folder / name).write_bytes(content)
    return {str(folder / name): reason for name, (_, reason) in files.items()}


def assert_listed(rows: dict[str, str], reasons: dict[str, str]) -> None:
    assert rows.keys() == reasons.keys()
    for path, reason in reasons.items():
        assert reason in rows[path]


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def count_in_json(path: Path) -> int:
    """How many images were evaluated."""
    rows = json.loads(path.read_text())["per_class"]
    return sum(row["n"] for row in rows if row["kind"] != "unknown")  # that row sums up the private ones


def test_bad_files_are_skipped_counted_and_listed(work: Path, adapt_words: AdaptWords, cli: Any) -> None:
    of_source = add_bad_files(work / "source" / "star")
    of_target = add_bad_files(work / "target" / "key")
    answer = cli(adapt_words({"--target-labels": True}))
    assert answer.code == 0, answer.err
    run = work / "runs/deep/one"

    log = (run / "log.txt").read_text()
    assert "source: 16 images of 4 classes; target: 20 images" in log
    for side in ("source", "target"):
        assert f"skipped 6 file(s) of the {side}:" in log
    for path in (*of_source, *of_target):
        assert f"  {path}: " in log

    assert_listed({row["path"]: row["reason"] for row in rows_of(run / "skipped.csv")}, of_source | of_target)
    predictions = rows_of(run / "predictions.csv")
    assert_listed({row["path"]: row["skipped"] for row in predictions if row["skipped"]}, of_target)
    assert sum(row["label"] != "" for row in predictions) == 20
    assert count_in_json(run / "metrics.json") == 20

    answer = cli(["predict", run, work / "target", "--csv", "answers.csv"])
    assert answer.code == 0
    answers = rows_of(work / "answers.csv")
    assert len(answers) == 26
    assert_listed({row["path"]: row["skipped"] for row in answers if row["skipped"]}, of_target)
    assert answer.out.startswith("20 images, ")
    for path in of_target:
        assert f"skipped {path}: " in answer.err


@pytest.mark.parametrize(
    ("name", "side"),
    [
        ("truncated.png", "source/star"),
        ("empty.jpg", "target/key"),
        ("text.jpg", "source/star"),
        ("bomb.png", "target/key"),
    ],
)
def test_strict_stops_at_the_first_bad_file(
    name: str, side: str, work: Path, adapt_words: AdaptWords, cli: Any
) -> None:
    reasons = add_bad_files(work / side)
    bad = work / side / name
    for path in map(Path, reasons):
        if path != bad:
            os.unlink(path)
    words = adapt_words({"--strict": True})
    assert_refuses(cli, words, work, (str(bad), reasons[str(bad)], "without --strict"))


def test_strict_also_stops_at_what_an_earlier_run_skipped(work: Path, adapt_words: AdaptWords, cli: Any) -> None:
    """The cache remembers which files gave no picture."""
    (work / "source" / "star" / "half.png").write_bytes(b"no picture, and no other test's")
    assert cli(adapt_words({})).code == 0
    words = adapt_words({"--strict": True, "--out": "second"})
    assert_refuses(cli, words, work, ("half.png", "without --strict"))


@pytest.mark.parametrize(
    ("arrange", "choice", "lost"),
    [
        (copies_in_a_class, "drop", 1),
        (copies_in_two_classes, "drop", 1),
        (copies_in_both_folders, "drop", 1),
        (copies_in_both_folders, "keep", 0),
    ],
)
def test_copies_are_dropped_or_kept_on_demand(
    arrange: Callable[[Path], Options],
    choice: str,
    lost: int,
    work: Path,
    adapt_words: AdaptWords,
    cli: Any,
) -> None:
    arrange(work)
    files = {side: sum(path.is_file() for path in (work / side).rglob("*")) for side in ("source", "target")}
    side_of_copy = "target" if arrange is copies_in_both_folders else "source"
    files[side_of_copy] -= lost
    words = adapt_words({"--duplicates": choice, "--target-labels": True})
    answer = cli(words)
    assert answer.code == 0, answer.err
    assert f"source: {files['source']} images of 4 classes; target: {files['target']} images" in answer.err
    assert ("dropped 1 copy of another file" in answer.err) is bool(lost)
    run = work / "runs/deep/one"
    copies = [row for row in rows_of(run / "skipped.csv") if row["reason"].startswith("copy of ")]
    assert len(copies) == lost
    for row in copies:
        original = Path(row["reason"].removeprefix("copy of "))
        assert Path(row["path"]).read_bytes() == original.read_bytes() and row["path"] != str(original)
    # Evaluation looks at the same images as the run did.
    assert cli(["evaluate", run, "--json", "again.json"]).code == 0
    assert count_in_json(work / "again.json") == count_in_json(run / "metrics.json") == files["target"]


@pytest.mark.parametrize("command", ["adapt", "check"])
def test_a_source_folder_without_images_is_named(command: str, work: Path, adapt_words: AdaptWords, cli: Any) -> None:
    (work / "source" / "moon").mkdir()
    (work / "source" / ".hidden").mkdir()
    answer = cli([command, *adapt_words({})[1:]])
    assert answer.code == 0, answer.err
    assert "source: folder 'moon' holds no image that is read, so it is no class\n" in answer.err
    assert answer.err.count("so it is no class") == 1
