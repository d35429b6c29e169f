"""Runs of ATI-λ: without steps it is blind to names too, and with steps it is killed and shared as others are."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny_runs import (
    adapt_arguments,
    assert_nearly_same_run,
    assert_same_state,
    kill_after,
    lines_of,
    model_hash,
    run_here,
    run_two,
)

from unida.data.glyphs import GlyphFolders, write_glyphs


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> GlyphFolders:
    out = tmp_path_factory.mktemp("ati") / "data"
    return write_glyphs(out, shared=2, source_private=1, target_private=1, per_class=5, size=40)


def place_of(folders: GlyphFolders, name: str) -> Path:
    return folders.source.parent.parent / name


def arguments(folders: GlyphFolders, name: str, **changes: Any) -> list[str]:
    given = {"method": "ati", "steps": 4, "batch_size": 6, "train": "head", "views": 1, **changes}
    target = given.pop("target", folders.target)
    return adapt_arguments(folders.source, target, place_of(folders, name), place_of(folders, "cache"), **given)


def run(folders: GlyphFolders, name: str, **changes: Any) -> Path:
    assert run_here(arguments(folders, name, **changes)) == 0
    return place_of(folders, name)


def test_names_of_target_folders_change_nothing_and_all_is_solved(folders: GlyphFolders) -> None:
    other = place_of(folders, "renamed")
    for i, path in enumerate(sorted(folders.target.rglob("*.png"), reverse=True)):
        (other / f"zz{i % 2}").mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, other / f"zz{i % 2}" / f"{i}.png")
    first, second = run(folders, "first", train=None), run(folders, "second", target=other)  # head is the default
    assert model_hash(first) == model_hash(second) and lines_of(first) == []
    saved = load_file(first / "checkpoint" / "model.safetensors")
    own = {name.split(".")[0] for name in saved} - {"backbone", "frame"}
    assert own == {"closed", "class_means", "cost", "target_centre", "target_spread"}  # the map is not needed
    assert saved["cost"] > 0 and saved["class_means"].isfinite().all()


def test_killed_and_on_two_processes_the_steps_end_as_in_one(
    folders: GlyphFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"regime": "published"}
    one, two, killed = run(folders, "one", **options), place_of(folders, "two"), place_of(folders, "killed")
    kill_after(2, monkeypatch, arguments(folders, killed.name, checkpoint_every=2, **options))
    assert run_here(["adapt", "--out", str(killed), "--resume"]) == 0
    assert_same_state(killed, one)
    code, printed = run_two(arguments(folders, two.name, **options, devices=2))
    assert code == 0, printed
    assert_nearly_same_run(two, one)
    learnt = load_file(one / "checkpoint" / "resume.safetensors")["method/map"]
    assert not torch.equal(learnt, torch.eye(len(learnt)))
