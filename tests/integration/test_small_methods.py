"""Small methods that each use a part of the contract.

They are killed in every phase and resume to the same bits; two processes do what one does.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from small_methods import SMALL, register
from tiny_runs import (
    adapt_arguments,
    all_weights,
    assert_nearly_same_run,
    kill_after,
    lines_of,
    model_hash,
    run_here,
    run_two,
)

from unida.data.glyphs import GlyphFolders, write_glyphs
from unida.methods import METHODS
from unida.support.tensorfile import read_notes

STEPS = 12


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> GlyphFolders:
    out = tmp_path_factory.mktemp("small") / "data"
    return write_glyphs(out, shared=2, source_private=1, target_private=1, per_class=7, size=40)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    before = dict(METHODS)
    register()
    yield
    METHODS.clear()
    METHODS.update(before)


def arguments(folders: GlyphFolders, name: str, method: str, **changes: Any) -> list[str]:
    place = folders.source.parent.parent
    options = {"method": method, "steps": STEPS, "batch_size": 6, "checkpoint_every": STEPS, **changes}
    return adapt_arguments(folders.source, folders.target, place / name, place / "cache", **options)


def place_of(folders: GlyphFolders, name: str) -> Path:
    return folders.source.parent.parent / name


@pytest.fixture(scope="module")
def whole(folders: GlyphFolders) -> dict[tuple[str, str], Path]:
    """Runs that nobody disturbed, made when first asked for."""
    return {}


def undisturbed(folders: GlyphFolders, whole: dict[tuple[str, str], Path], method: str, train: str) -> Path:
    if (method, train) not in whole:
        name = f"whole {method} {train}"
        assert run_here(arguments(folders, name, method, train=train)) == 0
        whole[method, train] = place_of(folders, name)
    return whole[method, train]


# three-phases has steps 0…4 in its first phase, 5…7 in the third (the second has none), 8…11 in the last.
KILLS = {"three-phases": (3, 5, 8), "memory": (7,), "rotating": (4,), "two-turns": (5,)}


@pytest.mark.parametrize(("method", "step"), [(name, step) for name, steps in KILLS.items() for step in steps])
def test_killed_in_every_phase_it_resumes_to_the_same_bits(
    folders: GlyphFolders,
    whole: dict[tuple[str, str], Path],
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    step: int,
) -> None:
    expected = undisturbed(folders, whole, method, "all")
    name = f"killed {method} {step}"
    kill_after(step, monkeypatch, arguments(folders, name, method, train="all", checkpoint_every=step))
    run = place_of(folders, name)
    assert run_here(["adapt", "--out", str(run), "--resume"]) == 0
    assert model_hash(run) == model_hash(expected)
    assert lines_of(run) == lines_of(expected)
    assert (run / "predictions.csv").read_bytes() == (expected / "predictions.csv").read_bytes()
    ours, theirs = all_weights(run), all_weights(expected)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_frozen_features_are_resumed_too(
    folders: GlyphFolders, whole: dict[tuple[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = undisturbed(folders, whole, "rotating", "tail")
    run = place_of(folders, "killed tail")
    kill_after(7, monkeypatch, arguments(folders, run.name, "rotating", train="tail", checkpoint_every=7))
    assert run_here(["adapt", "--out", str(run), "--resume"]) == 0
    assert model_hash(run) == model_hash(expected)
    assert lines_of(run) == lines_of(expected)


def test_phases_take_their_turns(folders: GlyphFolders, whole: dict[tuple[str, str], Path]) -> None:
    run = undisturbed(folders, whole, "three-phases", "all")
    lines = [line for line in lines_of(run) if line["kind"] == "train"]
    assert [line["phase"] for line in lines] == ["source"] * 5 + ["both"] * 3 + ["target alone"] * 4
    assert ["closed" in line for line in lines] == [True] * 8 + [False] * 4
    # Adam keeps its rate; the others start again from the whole rate and fall.
    rates = [line["lr_backbone"] for line in lines]
    assert rates[0] == rates[5] == rates[6] == rates[7] == rates[8] == 0.001
    assert rates[0] > rates[1] > rates[4] and rates[8] > rates[9] > rates[11]
    log = (run / "log.txt").read_text()
    assert "phase 2 of 4: look, 0 steps" in log and "phase 4 of 4: target alone, 4 steps" in log
    kept = all_weights(run)
    assert {key.split("/")[1] for key in kept if key.startswith("optimiser/")} == {"goal"}
    assert read_notes(run / "checkpoint" / "resume.safetensors")["progress"].count('"phase": 3') == 1
    head = {key: value for key, value in kept.items() if key.startswith("method/head")}
    teacher = {key: value for key, value in kept.items() if key.startswith("method/teacher")}
    assert all(torch.equal(a, b) for a, b in zip(head.values(), teacher.values(), strict=True))  # no head learns there
    names = set(load_file(run / "checkpoint" / "model.safetensors"))
    assert "head.weight" in names and "prior" in names and not any(name.startswith("teacher") for name in names)


def test_turns_are_taken_when_they_are_due(folders: GlyphFolders, whole: dict[tuple[str, str], Path]) -> None:
    run = undisturbed(folders, whole, "two-turns", "all")
    losses = [(line["closed"], line["entropy"]) for line in lines_of(run) if line["kind"] == "train"]
    for step, ((closed, entropy), (closed_after, entropy_after)) in enumerate(itertools.pairwise(losses), 1):
        assert (closed != closed_after) == (step % 2 == 0)
        assert (entropy != entropy_after) == (step % 3 == 0)
    state = all_weights(run)
    steps = {float(value) for key, value in state.items() if key.startswith("optimiser/adapt") and key.endswith("step")}
    assert steps == {4.0}  # of Adam: 0, 3, 6, 9


def test_rotations_are_made_of_every_image_that_is_asked_for(
    folders: GlyphFolders, whole: dict[tuple[str, str], Path]
) -> None:
    for train in ("all", "tail"):
        state = all_weights(undisturbed(folders, whole, "rotating", train))
        assert int(state["method/seen"]) == STEPS * (6 + 6 + 5)
        assert state["method/upside_down"].any()


@pytest.mark.parametrize(("method", "train"), [("memory", "tail"), ("rotating", "all")])
def test_two_processes_equal_one(folders: GlyphFolders, method: str, train: str) -> None:
    """The memory needs `gather`. The backbone has no BatchNorm: its statistics are those of a process's own images."""
    options = {"train": train, "backbone": "test_vit"}
    one, two = (place_of(folders, f"{number} {method} {train}") for number in ("one", "two"))
    assert run_here(arguments(folders, one.name, method, **options)) == 0
    code, printed = run_two(arguments(folders, two.name, method, **options, devices=2))
    assert code == 0, printed
    assert_nearly_same_run(two, one)
    if method == "memory":  # 12 steps of 6 images: every one of 21 was seen
        assert (all_weights(two)["method/memory"].norm(dim=1) > 0.5).all()


def test_every_small_method_is_tried() -> None:
    assert set(KILLS) == {method.card.name for method in SMALL}
