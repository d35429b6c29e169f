"""Files and classes may be called anything, and the output may go anywhere: nothing of it ends in a traceback."""

import csv
import io
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bad_input import AdaptWords, picture, words_of
from PIL import Image

import unida
from unida.cli import main
from unida.data.folders import Skipped
from unida.data.sheet import contact_sheet, side_by_side
from unida.data.show import show_answers
from unida.errors import UserError, printable
from unida.evaluation.predict import Prediction, Predictions
from unida.runs.summary import write_skipped

NOT_UTF8 = os.fsdecode(b"caf\xe9")  # Latin-1, from an old archive
ODD_NAMES = [
    "line\nbreak\r\n",
    "tab\there",
    "\x1b[31mred\x1b[0m\x07\x7f",
    "long " * 50,
    "שלום עולם",
    "\u202eturned around",
    "🦄👩‍👩‍👧",
    "e" + "\u0301" * 100,
    '"quoted", and more',
    " spaces ",
    "-",
]
STRICT = [{"PYTHONIOENCODING": "ascii:strict"}, {"PYTHONIOENCODING": "utf-8:strict"}, {"LC_ALL": "C"}]
linux = pytest.mark.skipif(sys.platform != "linux", reason="file names are bytes on Linux alone")


def rename_classes(work: Path, names: dict[str, str]) -> None:
    for side in ("source", "target"):
        for old, new in names.items():
            if (work / side / old).exists():
                (work / side / old).rename(work / side / new)


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        return list(csv.DictReader(file))


@linux
def test_a_run_with_odd_names_ends_and_can_be_resumed(work: Path, adapt_words: AdaptWords, cli: Any) -> None:
    names = {"star": "line\nbreak", "house": "tab\t\x1b[31m", "heart": "long " * 50, "key": NOT_UTF8, "tree": "🦄"}
    rename_classes(work, names)
    odd = work / "target" / "🦄" / f"a\n{NOT_UTF8}.png"
    odd.write_bytes(b"no picture")
    answer = cli(adapt_words({"--target-labels": True}))
    assert answer.code == 0, answer.err
    run = work / "runs/deep/one"
    classes = {path.name for path in (work / "source").iterdir()}
    assert set(unida.load(run).classes) == classes

    rows = rows_of(run / "predictions.csv")
    assert {row["path"] for row in rows} == {str(path) for path in (work / "target").rglob("*.png")}
    assert {row["label"] for row in rows} <= {*classes, "unknown", ""}
    assert [row["path"] for row in rows_of(run / "skipped.csv")] == [str(odd)]

    first = (run / "answers.png").read_bytes()
    for name in ("metrics.json", "answers.png", "predictions.csv"):
        (run / name).unlink()
    assert cli(["adapt", "--out", run, "--resume"]).code == 0
    assert (run / "answers.png").read_bytes() == first
    assert rows_of(run / "predictions.csv") == rows

    answer = cli(["evaluate", run])
    assert answer.code == 0
    assert r"line\nbreak" in answer.out and r"tab\t\x1b[31m" in answer.out
    answer = cli(["predict", run, work / "target", "--csv", "answers.csv"])
    assert answer.err == f"skipped {work}/target/🦄/a\\ncaf\\udce9.png: not an image, or damaged from its first bytes\n"
    assert {(row["path"], row["label"]) for row in rows_of(work / "answers.csv")} == {
        (row["path"], row["label"]) for row in rows
    }


@pytest.mark.parametrize("name", ODD_NAMES)
def test_tables_give_the_name_back(tmp_path: Path, name: str) -> None:
    Predictions([Prediction(f"{name}/1.png", name, 1, 0)], [Skipped(f"{name}/2.png", "why")]).write_csv(
        tmp_path / "answers.csv"
    )
    write_skipped(tmp_path / "skipped.csv", [Skipped(f"{name}/2.png", "why")])
    rows = rows_of(tmp_path / "answers.csv")
    assert [(row["path"], row["label"]) for row in rows] == [(f"{name}/1.png", name), (f"{name}/2.png", "")]
    assert rows_of(tmp_path / "skipped.csv") == [{"path": f"{name}/2.png", "reason": "why"}]


def drawn(sheet: Path) -> np.ndarray:
    with Image.open(sheet) as image:
        return np.asarray(image.convert("RGB")).copy()


@pytest.mark.parametrize("name", [*ODD_NAMES, NOT_UTF8])
def test_every_caption_is_one_line_on_the_sheet(tmp_path: Path, name: str) -> None:
    red = tmp_path / "red.png"
    Image.new("RGB", (40, 40), (220, 20, 20)).save(red)
    usual = drawn(contact_sheet([("", [red] * 3)], tmp_path / "usual.png", per_row=3))
    odd = drawn(contact_sheet([(name, [red] * 3)], tmp_path / "odd.png", per_row=3))
    rows, columns = np.nonzero((usual != odd).any(axis=2))
    assert len(rows), "nothing is written"
    assert rows.max() < 40, "it runs into the pictures"
    assert columns.max() < odd.shape[1] - 10
    escaped = drawn(contact_sheet([(printable(name), [red] * 3)], tmp_path / "escaped.png", per_row=3))
    assert np.array_equal(odd, escaped)
    side_by_side([(name, [red], [red])], tmp_path / "pair.png", (name, name))


def test_what_has_no_picture_is_escaped() -> None:
    assert printable("a\nb\tc\x1b[31m\x7f\u202e\u200d" + NOT_UTF8) == r"a\nb\tc\x1b[31m\x7f\u202e\u200dcaf\udce9"
    assert printable("Größe, 椅子 🦄 \\n") == "Größe, 椅子 🦄 \\n"


def test_the_count_behind_a_long_name_stays_in_the_picture(tmp_path: Path) -> None:
    red = picture(tmp_path / "red.png", 0)
    sheets = [
        show_answers([(str(red), "long " * 50)] * count, tmp_path / f"{count}.png", per_class=8) for count in (9, 10)
    ]
    assert not np.array_equal(*map(drawn, sheets))


def test_the_message_of_an_error_stays_one_line(work: Path, adapt_words: AdaptWords, cli: Any) -> None:
    shutil.copy(picture(work / "source" / "star" / "one\n.png", 1), work / "source" / "star" / "two.png")
    answer = cli(adapt_words({}))
    assert answer.code == 2
    assert answer.err.count("\n") == 1
    assert r"one\n.png and " in answer.err
    assert str(UserError("a\nb")) == r"a\nb"


def shown_by(words: list[str], encoding: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a command prints to a terminal of this encoding, where each letter that it lacks is an error."""
    with monkeypatch.context() as patch, io.TextIOWrapper(io.BytesIO(), encoding=encoding) as terminal:
        patch.setattr(sys, "stdout", terminal)
        main(words)
        terminal.flush()
        terminal.seek(0)
        return terminal.read()


@linux
def test_what_a_terminal_cannot_show_is_escaped(
    work: Path, tiny: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (work / "target" / "key" / f"{NOT_UTF8}\n.png").write_bytes(b"no picture")
    shutil.copy(picture(work / "source" / "star" / "one.png", 1), work / "target" / "tree" / f"{NOT_UTF8}.png")
    rename_classes(work, {"arrow": NOT_UTF8, "key": "Größe\x1b[31m"})
    shutil.rmtree(work / "source" / NOT_UTF8)
    for i in range(2):
        picture(work / "source" / NOT_UTF8 / f"{i}.png", 10 + i)  # the smallest class: it is named
    options = {"--source": "source", "--target": "target", "--duplicates": "keep", **tiny}
    shown = shown_by(["check", *words_of(options)], "ascii", monkeypatch)
    assert r"from 2 (caf\udce9) to " in shown
    assert r"caf\udce9\n.png: not an image" in shown
    assert r"tree/caf\udce9.png" in shown  # as a copy of a picture of the source


@linux
def test_evaluate_on_a_terminal_that_cannot_show_the_classes(
    work: Path, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename_classes(work, {"key": NOT_UTF8})
    words = ["evaluate", str(finished), "--target", str(work / "target")]
    assert r"    caf\udce9 " in shown_by(words, "utf-8", monkeypatch)


@linux
@pytest.mark.parametrize("environment", STRICT, ids=lambda it: "".join(it.values()))
def test_a_name_that_the_user_gave_is_shown_somehow(work: Path, shell: Any, environment: dict[str, str]) -> None:
    answer = shell(["data", "show", "source", "--out", f"{NOT_UTF8}.png"], **environment)
    assert (answer.code, answer.out) == (0, "wrote caf\\udce9.png\n"), answer.err
    assert (work / f"{NOT_UTF8}.png").exists()


def dotted(path: Path) -> str:
    return f"./{path.name}"


def around(path: Path) -> str:
    return f"../{path.parent.name}/{path.name}"


def linked(path: Path) -> str:
    Path("link.png").symlink_to(path)
    return "link.png"


def same(path: Path) -> str:
    return path.name


@pytest.mark.parametrize("other", [dotted, around, linked, same])
def test_every_given_path_is_answered_in_the_given_order(
    finished: Path, work: Path, monkeypatch: pytest.MonkeyPatch, other: Callable[[Path], str]
) -> None:
    folder = work / "target" / "star"
    monkeypatch.chdir(folder)
    a, b, *_ = sorted(folder.iterdir())
    run = unida.load(finished)
    alone = {path.name: run.predict([path])[0] for path in (a, b)}
    assert alone[a.name][1:] != alone[b.name][1:]
    given = [b.name, a.name, other(a), b.name]
    predictions = run.predict(given)
    assert [p.path for p in predictions] == given
    assert [p.label for p in predictions] == [alone[name].label for name in (b.name, a.name, a.name, b.name)]
    scores = [alone[name].unknown_score for name in (b.name, a.name, a.name, b.name)]
    assert [p.unknown_score for p in predictions] == pytest.approx(scores, abs=1e-5)
    assert predictions.skipped == []


def test_every_given_path_that_gives_no_picture_is_skipped_under_its_name(
    finished: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(work / "target" / "star")
    good = sorted(os.listdir())[0]
    Path("empty.png").touch()
    given = ["./empty.png", good, "gone.png", Path("empty.png"), "./gone.png"]
    predictions = unida.load(finished).predict(given)
    assert [p.path for p in predictions] == [good]
    assert [(item.path, item.reason) for item in predictions.skipped] == [
        ("./empty.png", "empty file"),
        ("gone.png", "no such file or directory"),
        ("empty.png", "empty file"),
        ("./gone.png", "no such file or directory"),
    ]


def run_without_a_reader(words: list[str], folder: Path, *broken: str) -> "subprocess.CompletedProcess[bytes]":
    """The command with the `broken` ones of stdout and stderr closed at their other end."""
    reader, writer = os.pipe()
    os.close(reader)
    stdout, stderr = (writer if name in broken else subprocess.PIPE for name in ("stdout", "stderr"))
    # Buffered, as for a user: then the pipe's end is only met when Python empties its buffers.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    try:
        return subprocess.run(
            [sys.executable, "-m", "unida", *words],
            stdout=stdout,
            stderr=stderr,
            cwd=folder,
            env=environment,
            timeout=1200,
            check=False,
        )
    finally:
        os.close(writer)


@pytest.mark.parametrize(
    ("words", "broken"),
    [
        (["data", "list"], ("stdout",)),
        (["adapt", "--help"], ("stdout", "stderr")),
        (["methods"], ("stdout", "stderr")),
        (["--help"], ("stdout",)),
        (["data", "verify", "office31", "."], ("stdout",)),
    ],
)
def test_nobody_reads_the_output(tmp_path: Path, words: list[str], broken: tuple[str, ...]) -> None:
    """`unida … | head`: quiet, with the exit code of a tool that the closed pipe ended."""
    done = run_without_a_reader(words, tmp_path, *broken)
    assert done.returncode == 141
    assert not done.stderr


def test_an_error_that_nobody_reads(tmp_path: Path) -> None:
    done = run_without_a_reader(["no such command"], tmp_path, "stderr")
    assert (done.returncode, done.stdout) == (141, b"")


def test_no_output_at_all_is_no_error(tmp_path: Path) -> None:
    """The caller has closed it."""
    done = subprocess.run(
        ["sh", "-c", '"$0" -m unida methods >&-', sys.executable], capture_output=True, cwd=tmp_path, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
