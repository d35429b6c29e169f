"""What two processes, a second call and another machine find in a run's folder."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from tiny_runs import adapt_arguments, run_here

import unida
from unida.data.glyphs import GlyphFolders
from unida.runs import folder


@pytest.fixture
def finished(glyphs: GlyphFolders, tmp_path: Path) -> Path:
    run = tmp_path / "run"
    assert run_here(adapt_arguments(glyphs.source, glyphs.target, run, tmp_path / "cache", steps=2)) == 0
    return run


def test_a_folder_in_which_another_process_works_is_refused(
    finished: Path, glyphs: GlyphFolders, capsys: pytest.CaptureFixture[str]
) -> None:
    (finished / "metrics.json").unlink()
    with FileLock(finished / ".lock"):
        assert run_here(["adapt", "--out", str(finished), "--resume"]) == 2
    assert "another process is working there" in capsys.readouterr().err
    assert run_here(["adapt", "--out", str(finished), "--resume"]) == 0
    assert not (finished / ".lock").exists()


@pytest.mark.parametrize("still_at_work", [True, False])
def test_of_two_runs_that_start_together_the_later_one_changes_nothing(
    glyphs: GlyphFolders,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    still_at_work: bool,
) -> None:
    """The other one begins after this one has found the folder empty."""
    run, other = tmp_path / "run", FileLock(tmp_path / "run" / ".lock")
    complete = folder.complete

    def overtaken(*arguments: Any) -> Any:
        run.mkdir(exist_ok=True)
        (run / "config.yaml").write_text("the other's")
        if still_at_work:
            other.acquire()
        return complete(*arguments)

    monkeypatch.setattr(folder, "complete", overtaken)
    assert run_here(adapt_arguments(glyphs.source, glyphs.target, run, tmp_path / "cache")) == 2
    said = "another process is working there" if still_at_work else "already holds other files"
    assert f"error: --out {run}" in (err := capsys.readouterr().err) and said in err
    assert (run / "config.yaml").read_text() == "the other's"
    assert (run / ".lock").exists() == still_at_work
    other.release()


def test_a_lock_that_a_kill_left_behind_is_in_nobodys_way(glyphs: GlyphFolders, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / ".lock").touch()
    assert run_here(adapt_arguments(glyphs.source, glyphs.target, run, tmp_path / "cache", steps=1)) == 0


def test_a_second_call_on_a_finished_run_changes_nothing_and_says_so(
    finished: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # the test runner listens there
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    capsys.readouterr()
    assert run_here(["adapt", "--out", str(finished), "--resume"]) == 0
    assert capsys.readouterr().err.startswith(f"the run in {finished} is finished already: results are there")
    assert {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()} == before


def test_a_run_without_its_last_file_is_not_finished(finished: Path) -> None:
    (finished / "metrics.json").unlink()
    with pytest.raises(unida.UserError, match="not finished"):
        unida.load(finished)


def test_nothing_to_resume_is_said_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_here(["adapt", "--out", str(tmp_path / "typo"), "--resume"]) == 2
    assert "holds no run to resume" in capsys.readouterr().err


def test_a_copied_run_is_evaluated_without_its_cache(finished: Path, tmp_path: Path) -> None:
    expected = json.loads((finished / "metrics.json").read_text())["last_step"]
    shutil.rmtree(tmp_path / "cache")
    assert unida.load(finished).evaluate().scalars() == pytest.approx(expected)


def test_predictions_come_in_the_order_of_the_paths(finished: Path, glyphs: GlyphFolders) -> None:
    paths = sorted(glyphs.target.rglob("*.png"))[:4][::-1]
    wanted = [paths[2], paths[0], paths[3], paths[0]]
    predictions = unida.load(finished).predict([*wanted, glyphs.target / "gone.png"])
    assert [p.path for p in predictions] == [str(path) for path in wanted]
    assert [Path(item.path).name for item in predictions.skipped] == ["gone.png"]


def test_strict_refuses_files_of_another_kind(
    glyphs: GlyphFolders, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "target"
    shutil.copytree(glyphs.target, target)
    (target / "notes.txt").write_text("not a picture")
    words = adapt_arguments(glyphs.source, target, tmp_path / "run", tmp_path / "cache", steps=1, target_labels=None)
    assert run_here([*words, "--strict"]) == 2
    assert "notes.txt" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
