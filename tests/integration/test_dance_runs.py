"""DANCE and the re-implementation of Zhu & Li as a user runs them: resumed, by two processes, with SPA, renamed."""

import functools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from test_resume import assert_same_end
from tiny_runs import (
    adapt_arguments,
    all_weights,
    assert_same_state,
    dying_at_the_first_checkpoint,
    lines_of,
    run_here,
    run_two,
)

import unida
from unida.data.glyphs import GlyphFolders, write_glyphs

METHODS = ("dance", "zhu")
OPTIONS = {"steps": 7, "batch_size": 6, "checkpoint_every": 5}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> GlyphFolders:
    """16 target images: the third batch of six ends one epoch and begins the next."""
    out = tmp_path_factory.mktemp("dance") / "data"
    return write_glyphs(out, shared=2, source_private=2, target_private=2, per_class=4, size=40)


def arguments(folders: GlyphFolders, out: Path, **changes: Any) -> list[str]:
    place = {"source": folders.source, "target": folders.target, "cache": out.with_name(f"cache of {out.name}")}
    return adapt_arguments(out=out, **{**place, **OPTIONS, **changes})


CHOICES: dict[str, dict[str, Any]] = {
    "dance": {"method": "dance", "train": "all"},
    "zhu": {"method": "zhu", "train": "head"},
    "dance with SPA": {"method": "dance", "train": "tail", "spa": True, "spa.vocabulary": 16},
}


@pytest.fixture(scope="module")
def whole(folders: GlyphFolders) -> Callable[[str], Path]:
    """Runs that nobody disturbed, made when first asked for."""

    @functools.cache
    def of(choice: str) -> Path:
        out = folders.source.parent.parent / f"whole {choice}"
        assert run_here(arguments(folders, out, **CHOICES[choice])) == 0
        return out

    return of


@pytest.mark.parametrize("choice", CHOICES)
def test_a_resumed_run_ends_as_one_that_was_not_stopped(
    folders: GlyphFolders, whole: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, choice: str
) -> None:
    """Killed after step 5: memory and centres come with the checkpoint."""
    expected, killed = whole(choice), tmp_path / "killed"
    with dying_at_the_first_checkpoint(monkeypatch):
        run_here(arguments(folders, killed, **CHOICES[choice]))
    assert run_here(["adapt", "--out", str(killed), "--resume"]) == 0
    assert_same_end(killed, expected)
    assert_same_state(killed, expected)
    (memory,) = (tensor for name, tensor in all_weights(killed).items() if name.endswith("memory.rows"))
    assert memory.shape[0] == 16 and (memory.norm(dim=1) > 0.5).all()
    model = load_file(expected / "checkpoint" / "model.safetensors")
    assert not any("memory" in name or "centres" in name for name in model)
    loaded = unida.load(expected)
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
def test_names_of_target_folders_change_no_weight(
    folders: GlyphFolders, whole: Callable[[str], Path], tmp_path: Path, method: str
) -> None:
    """Known classes become unknown, and unknown ones known."""
    names = [*folders.shared, *folders.target_private]
    for old, new in zip(names, [*names[1:], names[0]], strict=True):
        shutil.copytree(folders.target / old, tmp_path / "target" / new)
    renamed = {**CHOICES[method], "target": tmp_path / "target"}
    assert run_here(arguments(folders, tmp_path / "renamed", **renamed)) == 0
    assert_same_state(tmp_path / "renamed", whole(method))
