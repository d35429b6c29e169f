"""DANCE and the re-implementation of Zhu & Li as a user runs them: resumed, by two processes, with SPA, renamed."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from test_resume import assert_same_end
from tiny_runs import adapt_arguments, all_weights, dying_at_the_first_checkpoint, lines_of, run_here, run_two

import unida
from unida.data.glyphs import GlyphFolders, write_glyphs

METHODS = ("dance", "zhu")
OPTIONS = {"steps": 9, "batch_size": 6, "checkpoint_every": 5}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> GlyphFolders:
    """16 target images: the third batch of six ends one epoch and begins the next."""
    out = tmp_path_factory.mktemp("dance") / "data"
    return write_glyphs(out, shared=2, source_private=2, target_private=2, per_class=4, size=40)


def arguments(folders: GlyphFolders, out: Path, **changes: Any) -> list[str]:
    place = {"source": folders.source, "target": folders.target, "cache": out.with_name(f"cache of {out.name}")}
    return adapt_arguments(out=out, **{**place, **OPTIONS, **changes})


CHOICES = {
    "all": {"train": "all"},
    "head": {"train": "head"},
    "tail with SPA": {"train": "tail", "spa": True, "spa.vocabulary": 16},
}


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("method", METHODS)
def test_a_resumed_run_ends_as_one_that_was_not_stopped(
    folders: GlyphFolders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, choice: str
) -> None:
    """Killed after step 5: memory and centres come with the checkpoint."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    options = {"method": method, **CHOICES[choice]}
    assert run_here(arguments(folders, whole, **options)) == 0
    with dying_at_the_first_checkpoint(monkeypatch):
        run_here(arguments(folders, killed, **options))
    assert run_here(["adapt", "--out", str(killed), "--resume"]) == 0
    assert_same_end(killed, whole)
    ours, theirs = all_weights(killed), all_weights(whole)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    (memory,) = (tensor for name, tensor in ours.items() if name.endswith("memory.rows"))
    assert memory.shape[0] == 16 and (memory.norm(dim=1) > 0.5).all()
    model = load_file(whole / "checkpoint" / "model.safetensors")
    assert not any("memory" in name or "centres" in name for name in model)
    if choice == "head":
        loaded = unida.load(whole)
        assert loaded.evaluate().scalars() == pytest.approx(loaded.metrics, abs=1e-6)


@pytest.mark.parametrize("method", [{"method": "dance"}, {"method": "zhu", "train": "tail"}])
def test_two_processes_equal_one(folders: GlyphFolders, tmp_path: Path, method: dict[str, Any]) -> None:
    """DANCE compares the images of a batch across processes, with gradients. The backbone has no BatchNorm."""
    options = {"backbone": "test_vit", **method}
    assert run_here(arguments(folders, tmp_path / "one", **options)) == 0
    code, printed = run_two(arguments(folders, tmp_path / "two", **options, devices=2))
    assert code == 0, printed
    ours, theirs = all_weights(tmp_path / "two"), all_weights(tmp_path / "one")
    assert ours.keys() == theirs.keys()
    for key in ours:
        torch.testing.assert_close(ours[key], theirs[key], rtol=1e-3, atol=1e-5, msg=key)
    for line, expected in zip(lines_of(tmp_path / "two"), lines_of(tmp_path / "one"), strict=True):
        assert line.pop("kind") == expected.pop("kind") == "train"
        assert line == pytest.approx(expected, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_names_of_target_folders_change_no_weight(folders: GlyphFolders, tmp_path: Path, method: str) -> None:
    """Known classes become unknown, and unknown ones known."""
    names = [*folders.shared, *folders.target_private]
    for old, new in zip(names, [*names[1:], names[0]], strict=True):
        shutil.copytree(folders.target / old, tmp_path / "target" / new)
    for name, target in (("first", folders.target), ("renamed", tmp_path / "target")):
        assert run_here(arguments(folders, tmp_path / name, method=method, train="tail", target=target)) == 0
    ours, theirs = (all_weights(tmp_path / name) for name in ("first", "renamed"))
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
