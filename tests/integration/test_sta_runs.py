"""Runs of STA and RTN: STA killed in its first step ends with the same bits, and two processes do what one does."""

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
    run_here,
    run_two,
)
from torch import Tensor, nn

from unida.data.glyphs import GlyphFolders, write_glyphs

STEPS = 14  # of STA: 2, 2, 8 and 2 in its stages
CHOICES: dict[str, dict[str, Any]] = {
    "sta": {"method": "sta", "bottleneck": 16},
    "rtn": {"method": "rtn", "bottleneck": 16, "quadruples": True},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> GlyphFolders:
    out = tmp_path_factory.mktemp("sta") / "data"
    return write_glyphs(out, shared=2, source_private=1, target_private=1, per_class=5, size=40)


def arguments(folders: GlyphFolders, name: str, choice: str, **changes: Any) -> list[str]:
    place = folders.source.parent.parent
    options = {"steps": STEPS, "batch_size": 6, "checkpoint_every": STEPS, "train": "tail", "regime": "published"}
    options |= {**CHOICES[choice], **changes}
    return adapt_arguments(folders.source, folders.target, place / name, place / "cache", **options)


@pytest.fixture(scope="module")
def whole() -> dict[str, Path]:
    """Runs that nobody disturbed, made when first asked for."""
    return {}


def undisturbed(folders: GlyphFolders, whole: dict[str, Path], choice: str) -> Path:
    if choice not in whole:
        whole[choice] = folders.source.parent.parent / f"whole {choice}"
        assert run_here(arguments(folders, whole[choice].name, choice)) == 0
    return whole[choice]


def test_sta_goes_through_its_stages(folders: GlyphFolders, whole: dict[str, Path]) -> None:
    lines = [line for line in lines_of(undisturbed(folders, whole, "sta")) if line["kind"] == "train"]
    assert [line["phase"] for line in lines] == ["separation"] * 4 + ["adaptation"] * 10
    assert ["separation" in line for line in lines] == [False] * 2 + [True] * 2 + [False] * 10
    assert ["unknown" in line for line in lines] == [False] * 12 + [True] * 2


def test_killed_while_it_separates_sta_resumes_to_the_same_bits(
    folders: GlyphFolders, whole: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the first step of stage 2, where a second optimiser has just begun to move."""
    expected = undisturbed(folders, whole, "sta")
    run = expected.with_name("killed")
    kill_after(3, monkeypatch, arguments(folders, run.name, "sta", checkpoint_every=3))
    assert run_here(["adapt", "--out", str(run), "--resume"]) == 0
    assert lines_of(run) == lines_of(expected)
    assert_same_state(run, expected)


@pytest.mark.parametrize(
    ("choice", "left_out"), [("sta", {"binary", "separator", "discriminator"}), ("rtn", {"residual"})]
)
def test_the_model_has_what_answers_need_alone(
    folders: GlyphFolders, whole: dict[str, Path], choice: str, left_out: set[str]
) -> None:
    run = undisturbed(folders, whole, choice)
    names = set(load_file(run / "checkpoint" / "model.safetensors"))
    saved = {key.removeprefix("method/") for key in all_weights(run) if key.startswith("method/")}
    assert {name.split(".")[0] for name in saved - names} == left_out


@pytest.mark.parametrize("choice", CHOICES)
def test_names_of_target_folders_change_no_weight(folders: GlyphFolders, whole: dict[str, Path], choice: str) -> None:
    expected = undisturbed(folders, whole, choice)
    target = renamed(folders.target, expected.with_name(f"renamed for {choice}"), renamings(folders)["one"])
    changed = GlyphFolders(folders.source, target, (), (), ())
    run = expected.with_name(f"run renamed {choice}")
    assert run_here(arguments(changed, run.name, choice)) == 0
    assert_same_weights(run, expected)


@pytest.mark.parametrize("choice", CHOICES)
def test_two_processes_equal_one(folders: GlyphFolders, monkeypatch: pytest.MonkeyPatch, choice: str) -> None:
    """Images are chosen from the whole batch, and the discrepancy is that of the whole batch.

    BatchNorm has the statistics of a process's own share: it is left out.
    """

    def nothing(layer: nn.Module, features: Tensor) -> Tensor:
        return features

    monkeypatch.setattr(nn.BatchNorm1d, "forward", nothing)
    one, two = (folders.source.parent.parent / f"{number} {choice}" for number in ("one", "two"))
    options = {"backbone": "test_vit", "lr": 0.01, "steps": 8}
    assert run_here(arguments(folders, one.name, choice, **options)) == 0
    code, printed = run_two(arguments(folders, two.name, choice, **options, devices=2))
    assert code == 0, printed
    assert_nearly_same_run(two, one)
