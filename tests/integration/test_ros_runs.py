"""ROS as a user runs it: resumed in both stages, by two processes, on a target with other names, rehearsed."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from test_resume import assert_same_end
from tiny_runs import (
    adapt_arguments,
    all_weights,
    assert_nearly_same_run,
    assert_same_state,
    kill_after,
    last_step,
    lines_of,
    model_hash,
    run_here,
    run_two,
)

from unida.data.glyphs import GlyphFolders, write_glyphs

OPTIONS = {"method": "ros", "steps": 8, "batch_size": 6, "checkpoint_every": 1, "bottleneck": 8, "labelled_batch": 8}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> GlyphFolders:
    out = tmp_path_factory.mktemp("ros") / "data"
    return write_glyphs(out, shared=2, source_private=1, target_private=1, per_class=6, size=40)


def arguments(folders: GlyphFolders, out: Path, **changes: Any) -> list[str]:
    place = {"source": folders.source, "target": folders.target, "cache": out.with_name(f"cache of {out.name}")}
    return adapt_arguments(out=out, **{**place, **OPTIONS, **changes})


SPA = {"spa": True, "spa.preset": "paper", "spa.vocabulary": 16, "spa.pool": 64}
CHOICES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {  # after which steps it is killed
    "all": ((2, 4), {"train": "all"}),
    "SPA": ((6,), {"train": "tail", **SPA}),
}


@pytest.mark.parametrize("choice", CHOICES)
def test_killed_in_either_stage_it_resumes_to_the_same_bits(
    folders: GlyphFolders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, choice: str
) -> None:
    """Known and unknown images come with the checkpoint: after step 4, the second stage has begun."""
    whole = tmp_path / "whole"
    steps, changes = CHOICES[choice]
    assert run_here(arguments(folders, whole, **changes)) == 0
    lines = lines_of(whole)
    assert [line["phase"] for line in lines] == ["separation"] * 4 + ["adaptation"] * 4
    assert all("rotation" in line for line in lines)  # some images are known
    for step in steps:
        killed = tmp_path / f"killed {step}"
        kill_after(step, monkeypatch, arguments(folders, killed, **changes))
        assert run_here(["adapt", "--out", str(killed), "--resume"]) == 0
        assert_same_end(killed, whole)
        assert_same_state(killed, whole)


def test_in_the_second_stage_two_processes_equal_one(folders: GlyphFolders, tmp_path: Path) -> None:
    """Labelled and known images are whole on each, and the classifier's statistics are those of the whole target batch.

    Not in the first: BatchNorm makes of a share of a batch something else than of the whole. So it has no steps here.
    """
    changes = {"train": "tail", "backbone": "test_vit", "separation_share": 0.01, "checkpoint_every": 8, "steps": 6}
    one, two = tmp_path / "one", tmp_path / "two"
    assert run_here(arguments(folders, one, **changes)) == 0
    code, printed = run_two(arguments(folders, two, **changes, devices=2))
    assert code == 0, printed
    assert_nearly_same_run(two, one)
    ours, theirs = (all_weights(run)["method/group"] for run in (two, one))
    assert torch.equal(ours, theirs) and ours.any()


def test_two_processes_go_through_both_stages(folders: GlyphFolders, tmp_path: Path) -> None:
    code, printed = run_two(arguments(folders, tmp_path / "two", train="all", devices=2))
    assert code == 0, printed
    assert printed.count("target images are taken as known") == 1  # one process speaks
    assert [line["phase"] for line in lines_of(tmp_path / "two")] == ["separation"] * 4 + ["adaptation"] * 4


def test_names_of_target_folders_change_no_weight(folders: GlyphFolders, tmp_path: Path) -> None:
    first, second, target = tmp_path / "first", tmp_path / "second", tmp_path / "renamed"
    for number, path in enumerate(sorted(folders.target.rglob("*.png"), reverse=True)):
        (target / f"class{number % 5}").mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target / f"class{number % 5}" / f"{number}.png")
    assert run_here(arguments(folders, first, train="head")) == 0
    assert run_here(arguments(folders, second, train="head", target=target)) == 0
    assert model_hash(first) == model_hash(second)
    assert lines_of(first) == lines_of(second)
    assert last_step(first) != last_step(second)  # evaluation did read the names


def test_it_can_be_rehearsed(folders: GlyphFolders, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["check", *arguments(folders, tmp_path / "run", train="tail")[1:]]
    assert run_here(words) == 0
    assert "steps" in capsys.readouterr().out
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"batch_size": 1}, "--batch-size 1 is one image in each process, but ros has BatchNorm, which needs two"),
        ({"labelled_batch": 1}, "--labelled-batch is 1: it must be at least 2"),
        ({"separation_share": 1}, "--separation-share is 1.0: it must be above 0 and below 1"),
    ],
)
def test_what_cannot_work_ends_with_one_line(
    folders: GlyphFolders, tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], said: str
) -> None:
    assert run_here(arguments(folders, tmp_path / "run", **changes)) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if "error" in line.lower()]
    assert len(errors) == 1 and errors[0].startswith(f"error: {said}")
    assert not (tmp_path / "run").exists()
