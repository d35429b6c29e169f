"""Which runs a folder holds."""

from pathlib import Path

import pytest

from unida.errors import UserError
from unida.runs.folder import find_runs


def make_run(folder: Path, finished: bool = True) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.yaml").touch()
    if finished:
        (folder / "metrics.json").touch()
    return folder


def test_a_run_and_the_runs_of_a_folder_up_to_two_levels_below(tmp_path: Path) -> None:
    alone, one, two = (make_run(tmp_path / name) for name in ("alone", "all/one", "all/runs/two"))
    make_run(tmp_path / "all" / "begun", finished=False)
    make_run(tmp_path / "all" / "very" / "deep" / "three")
    (tmp_path / "all" / "other").mkdir()
    (tmp_path / "all" / "other" / "metrics.json").touch()  # of something else
    assert find_runs([alone]) == [alone]
    assert find_runs([tmp_path / "all", alone]) == [one, two, alone]


def test_a_run_that_is_found_twice_counts_once(tmp_path: Path) -> None:
    one = make_run(tmp_path / "all" / "one")
    (tmp_path / "link").symlink_to(one)
    assert find_runs([one, tmp_path / "all", tmp_path / "link"]) == [one]


def test_a_run_that_is_named_must_be_finished(tmp_path: Path) -> None:
    begun = make_run(tmp_path / "begun", finished=False)
    with pytest.raises(UserError, match=f"the run in {begun} is not finished: continue with unida adapt --out {begun}"):
        find_runs([begun])


@pytest.mark.parametrize("kind", ["nothing", "empty", "file", "unfinished"])
def test_a_folder_without_a_finished_run_is_named(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "place"
    if kind == "empty":
        place.mkdir()
    elif kind == "file":
        place.touch()
    elif kind == "unfinished":
        make_run(place / "one", finished=False)
    with pytest.raises(UserError, match=f"{place} holds no finished run: give the folder of a run"):
        find_runs([make_run(tmp_path / "good"), place])


def test_a_command_to_paste_is_quoted(tmp_path: Path) -> None:
    begun = make_run(tmp_path / "ctrl c", finished=False)
    with pytest.raises(UserError, match=f"continue with unida adapt --out '{begun}' --resume"):
        find_runs([begun])
