"""Runs of GDA and of the re-implementation of OSHT-SC: killed, renamed, by two processes, and without the source."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from test_honesty import assert_same_weights, renamed, renamings
from tiny_runs import (
    adapt_arguments,
    all_weights,
    assert_nearly_same_run,
    assert_same_state,
    kill_after,
    lines_of,
    note_reads,
    run_here,
    run_two,
)
from torch import Tensor, nn

from unida.data.glyphs import GlyphFolders, write_glyphs
from unida.methods.base import Sweep
from unida.methods.osht_sc import OSHTSC

CHOICES: dict[str, dict[str, Any]] = {
    # Pseudo-labels begin at step 2, and change from step 4 on.
    "gda": {"method": "gda", "steps": 8, "first_share": 0.25, "hold_share": 0.25},
    "osht-sc": {"method": "osht-sc", "steps": 8},  # four of each part
}
LEFT = "the source is left"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> GlyphFolders:
    out = tmp_path_factory.mktemp("gda") / "data"
    return write_glyphs(out, shared=2, source_private=1, target_private=1, per_class=5, size=40)


def arguments(folders: GlyphFolders, name: str, choice: str, **changes: Any) -> list[str]:
    place = folders.source.parent.parent
    options = {"bottleneck": 8, "batch_size": 6, "lr": 0.05, "train": "head", **CHOICES[choice], **changes}
    target = options.pop("target", folders.target)
    return adapt_arguments(folders.source, target, place / name, place / "cache", **options)


@pytest.fixture(scope="module")
def whole(folders: GlyphFolders) -> Callable[[str], Path]:
    """Runs that nobody disturbed, made when first asked for."""

    @functools.cache
    def of(choice: str) -> Path:
        assert run_here(arguments(folders, f"whole {choice}", choice)) == 0
        return folders.source.parent.parent / f"whole {choice}"

    return of


@pytest.mark.parametrize(("choice", "step"), [("gda", 3), ("osht-sc", 5)])
def test_killed_it_resumes_to_the_same_bits(
    folders: GlyphFolders, whole: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, choice: str, step: int
) -> None:
    """With votes and the first pseudo-labels; in the target's part, between two rounds."""
    expected = whole(choice)
    run = expected.with_name(f"killed {choice}")
    kill_after(step, monkeypatch, arguments(folders, run.name, choice, checkpoint_every=step))
    assert run_here(["adapt", "--out", str(run), "--resume"]) == 0
    assert_same_state(run, expected)
    assert lines_of(run) == lines_of(expected)


@pytest.mark.parametrize(("choice", "buffers"), [("gda", ("votes", "first_labels")), ("osht-sc", ("pseudo_labels",))])
def test_labels_were_found_and_stay_out_of_the_model(
    whole: Callable[[str], Path], choice: str, buffers: tuple[str, ...]
) -> None:
    """Or the run above would not have shown anything of them."""
    state, model = all_weights(whole(choice)), load_file(whole(choice) / "checkpoint" / "model.safetensors")
    for name in buffers:
        assert len(state[f"method/{name}"].unique()) > 1
    assert not any(name.startswith((*buffers, "discriminator", "counted")) for name in model)


@pytest.mark.parametrize("choice", CHOICES)
def test_names_of_target_folders_change_no_weight(
    folders: GlyphFolders, whole: Callable[[str], Path], choice: str
) -> None:
    expected = whole(choice)
    target = renamed(folders.target, expected.with_name(f"target for {choice}"), renamings(folders)["rotated"])
    run = expected.with_name(f"renamed {choice}")
    assert run_here(arguments(folders, run.name, choice, target=target)) == 0
    assert_same_weights(run, expected)


@pytest.mark.parametrize("choice", CHOICES)
def test_two_processes_equal_one(folders: GlyphFolders, monkeypatch: pytest.MonkeyPatch, choice: str) -> None:
    """Entropies, votes, the prior and mutual information are those of the whole batch. Without dropout: it differs."""

    def nothing(layer: nn.Module, features: Tensor) -> Tensor:
        return features

    monkeypatch.setattr(nn.Dropout, "forward", nothing)
    one, two = (folders.source.parent.parent / f"{number} {choice}" for number in ("one", "two"))
    assert run_here(arguments(folders, one.name, choice, lr=0.01)) == 0
    code, printed = run_two(arguments(folders, two.name, choice, lr=0.01, devices=2))
    assert code == 0, printed
    assert_nearly_same_run(two, one)


def test_on_the_target_no_image_of_the_source_is_read(folders: GlyphFolders, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    meet = OSHTSC.meet_target

    def leaving(method: OSHTSC, sweep: Sweep) -> None:
        read.append(LEFT)
        meet(method, sweep)

    note_reads(monkeypatch, read)
    monkeypatch.setattr(OSHTSC, "meet_target", leaving)
    assert run_here(arguments(folders, "read", "osht-sc", train="all")) == 0
    left = read.index(LEFT)
    assert set(read[:left]) == {"source"} and set(read[left + 1 :]) == {"target"}
    phases = [line["phase"] for line in lines_of(folders.source.parent.parent / "read") if line["kind"] == "train"]
    assert phases == ["source"] * 4 + ["target"] * 4
