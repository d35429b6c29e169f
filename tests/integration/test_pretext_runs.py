"""Runs with other pretext tasks: kept labels that are pictures, resuming, and the sheets of the command line."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tiny_runs import adapt_arguments, all_weights, assert_same_state, kill_after, lines_of, run_here

import unida
from unida.config import config_from_options, fingerprint_of
from unida.data.glyphs import GlyphFolders, write_glyphs


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> GlyphFolders:
    out = tmp_path_factory.mktemp("pretext") / "data"
    return write_glyphs(out, shared=2, source_private=1, target_private=1, per_class=4, size=40)


def words_of(folders: GlyphFolders, out: Path, task: str, **changes: Any) -> list[str]:
    given = {"train": "tail", "regime": "published", "spa": True, "spa.vocabulary": 16, "spa.task": task, **changes}
    cache = folders.source.parent.parent / "cache"
    return adapt_arguments(folders.source, folders.target, out, cache, **given)


def test_a_killed_run_ends_with_the_same_bits_and_kept_pictures(
    folders: GlyphFolders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Colorization asks most of a run: it looks at images first, and its labels are pictures on a shelf."""
    given = {"steps": 2, "checkpoint_every": 1}
    whole, killed = (words_of(folders, tmp_path / name, "colorization", **given) for name in ("whole", "killed"))
    assert run_here(whole) == 0
    kill_after(1, monkeypatch, killed)
    assert run_here([*killed, "--resume"]) == 0
    assert_same_state(tmp_path / "killed", tmp_path / "whole")
    line = lines_of(tmp_path / "whole")[0]
    assert line.keys() >= {"colorization", "colorization_accuracy_source", "colorization_accuracy_target"}
    weights = all_weights(tmp_path / "whole")["method/task.weights"]
    assert len(weights) == 313 and weights.std() > 0  # measured before training
    run = unida.load(tmp_path / "whole")
    assert run.evaluate().scalars() == pytest.approx(run.metrics, abs=1e-6)  # without the task's head


def test_runs_that_are_older_than_the_option_keep_their_fingerprint() -> None:
    """Their config names no task: it is the one that counts."""
    given = {"spa": True, "spa_pretext": "on"}
    plain, count, other = (
        fingerprint_of(config_from_options({**given, **task}))
        for task in ({}, {"spa_task": "count"}, {"spa_task": "rotation"})
    )
    assert plain == count != other


@pytest.mark.parametrize("task", ["count", "jigsaw", "colorization", "inpainting"])
def test_a_sheet_shows_what_a_task_makes(task: str, folders: GlyphFolders, tmp_path: Path, cli: Any) -> None:
    out = tmp_path / "sheet.png"
    answer = cli(["data", "show", folders.target, "--task", task, "--per-class", "4", "--out", out])
    assert (answer.code, answer.out) == (0, f"wrote {out}\n")
    groups = 3 if task in ("colorization", "inpainting") else 5
    with Image.open(out) as sheet:
        tall = sheet.height / groups
        rows = np.asarray(sheet.convert("RGB"), dtype=float)
    assert 100 < tall < 140
    seen, made = (rows[int(tall * i) + 40 : int(tall * i) + 120] for i in (0, 1 if groups == 3 else 2))
    assert np.abs(seen - made).mean() > 5  # the pictures as they are look different


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--task", "jigsaw", "--target", "other"], "--task shows the pictures of one folder"),
        (["--task", "jigsaw", "--per-class", "0"], "--per-class is 0"),
        (["--task", "puzzle"], "puzzle"),
    ],
)
def test_a_sheet_that_cannot_be_made_is_refused(
    words: list[str], message: str, folders: GlyphFolders, tmp_path: Path, cli: Any
) -> None:
    answer = cli(["data", "show", folders.target, *words, "--out", tmp_path / "sheet.png"])
    assert answer.code == 2 and message in answer.err and answer.err.count("\n") == 1
    assert not (tmp_path / "sheet.png").exists()


def test_a_folder_without_pictures_is_refused(tmp_path: Path, cli: Any) -> None:
    (tmp_path / "empty").mkdir()
    answer = cli(["data", "show", tmp_path / "empty", "--task", "rotation", "--out", tmp_path / "sheet.png"])
    assert answer.code == 2 and "holds no image" in answer.err
    (tmp_path / "empty" / "bad.png").write_bytes(b"no picture")
    answer = cli(["data", "show", tmp_path / "empty", "--task", "rotation", "--out", tmp_path / "sheet.png"])
    assert answer.code == 2 and answer.err.count("\n") == 1
