"""Runs of UAN, I-UAN and CMU: killed anywhere they end with the same bits, and two processes do what one does."""

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
    model_hash,
    run_here,
    run_two,
)
from torch import Tensor, nn

from unida.data.glyphs import GlyphFolders, write_glyphs
from unida.methods import METHODS

STEPS = 14  # of CMU: 2 in its first stage, 12 in its second
CHOICES: dict[str, dict[str, Any]] = {
    "uan": {"method": "uan"},
    "iuan": {"method": "iuan", "accuracy_gate": 0.3, "cut": 0.0},  # a gate that opens and closes
    "cmu": {"method": "cmu"},
    "cmu as released": {"method": "cmu", "as_released": True},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> GlyphFolders:
    out = tmp_path_factory.mktemp("uan") / "data"
    return write_glyphs(out, shared=2, source_private=1, target_private=1, per_class=5, size=40)


def arguments(folders: GlyphFolders, name: str, choice: str, **changes: Any) -> list[str]:
    place = folders.source.parent.parent
    options = {"steps": STEPS, "batch_size": 6, "checkpoint_every": STEPS, **CHOICES[choice], **changes}
    return adapt_arguments(folders.source, folders.target, place / name, place / "cache", **options)


@pytest.fixture(scope="module")
def whole() -> dict[str, Path]:
    """Runs that nobody disturbed, made when first asked for."""
    return {}


def undisturbed(folders: GlyphFolders, whole: dict[str, Path], choice: str) -> Path:
    if choice not in whole:
        whole[choice] = folders.source.parent.parent / f"whole {choice}"
        assert run_here(arguments(folders, whole[choice].name, choice, train="tail", regime="published")) == 0
    return whole[choice]


@pytest.mark.parametrize(("choice", "step"), [("iuan", 9), ("cmu", 2)])
def test_killed_it_resumes_to_the_same_bits(
    folders: GlyphFolders, whole: dict[str, Path], monkeypatch: pytest.MonkeyPatch, choice: str, step: int
) -> None:
    expected = undisturbed(folders, whole, choice)
    run = expected.with_name(f"killed {choice} {step}")
    words = arguments(folders, run.name, choice, train="tail", regime="published", checkpoint_every=step)
    kill_after(step, monkeypatch, words)
    assert run_here(["adapt", "--out", str(run), "--resume"]) == 0
    assert model_hash(run) == model_hash(expected) and lines_of(run) == lines_of(expected)
    assert_same_state(run, expected)


def test_the_gate_of_iuan_opened_and_was_closed(folders: GlyphFolders, whole: dict[str, Path]) -> None:
    """Or the runs above would not have shown anything of its margins."""
    run = undisturbed(folders, whole, "iuan")
    gates = [line["gate"] for line in lines_of(run) if line["kind"] == "train"]
    assert 0 < sum(gates) < STEPS
    state = all_weights(run)
    assert int(state["method/records"]) == sum(gates) and state["method/margins"].any()


def test_cmu_goes_through_its_stages(folders: GlyphFolders, whole: dict[str, Path]) -> None:
    run = undisturbed(folders, whole, "cmu")
    lines = [line for line in lines_of(run) if line["kind"] == "train"]
    assert [line["phase"] for line in lines] == ["source and ensemble"] * 2 + ["alignment"] * 12
    assert ["adversarial" in line for line in lines] == [False] * 2 + [True] * 12
    heads = [line["heads"] for line in lines[2:]]
    assert all(first == second for first, second in zip(heads[::2], heads[1::2], strict=True))  # every second step
    assert "of 3 classes look shared" in (run / "log.txt").read_text()
    state = all_weights(run)
    assert (state["method/highest"] > state["method/lowest"]).all()
    assert set(state["method/class_weights"].tolist()) == {0.0, 1.0}


@pytest.mark.parametrize("choice", CHOICES)
def test_the_model_has_what_answers_need_alone(folders: GlyphFolders, whole: dict[str, Path], choice: str) -> None:
    run = undisturbed(folders, whole, choice)
    names = set(load_file(run / "checkpoint" / "model.safetensors"))
    left_out = {"uan": {"adversary"}, "iuan": {"discriminator", "margins", "records"}}
    left_out["cmu"] = {"discriminator", "class_weights", "batch_bounds"}
    left_out["cmu as released"] = {"discriminator", "class_weights", "theta"}
    saved = {key.removeprefix("method/") for key in all_weights(run) if key.startswith("method/")}
    assert {name.split(".")[0] for name in saved - names} == left_out[choice]


@pytest.mark.parametrize("choice", ["uan", "iuan", "cmu"])
def test_names_of_target_folders_change_no_weight(folders: GlyphFolders, whole: dict[str, Path], choice: str) -> None:
    """Neither do they say which classes are shared: here all images get the name of a class of the source alone."""
    expected = undisturbed(folders, whole, choice)
    target = renamed(folders.target, expected.with_name(f"renamed for {choice}"), renamings(folders)["one"])
    changed = GlyphFolders(folders.source, target, (), (), ())
    run = expected.with_name(f"run renamed {choice}")
    assert run_here(arguments(changed, run.name, choice, train="tail", regime="published")) == 0
    assert_same_weights(run, expected)


@pytest.mark.parametrize("choice", ["uan", "cmu"])  # the first release has no number of the whole batch
def test_two_processes_equal_one(folders: GlyphFolders, monkeypatch: pytest.MonkeyPatch, choice: str) -> None:
    """Weights, margins and bounds are those of the whole batch.

    Dropout draws other numbers in each process, and BatchNorm has the statistics of its own share: both are left out.
    """

    def nothing(layer: nn.Module, features: Tensor) -> Tensor:
        return features

    for layer in (nn.Dropout, nn.BatchNorm1d):
        monkeypatch.setattr(layer, "forward", nothing)
    one, two = (folders.source.parent.parent / f"{number} {choice}" for number in ("one", "two"))
    options = {"train": "tail", "regime": "published", "backbone": "test_vit", "lr": 0.01, "steps": 4}
    assert run_here(arguments(folders, one.name, choice, **options)) == 0
    code, printed = run_two(arguments(folders, two.name, choice, **options, devices=2))
    assert code == 0, printed
    assert_nearly_same_run(two, one)


def test_every_method_of_the_family_is_tried() -> None:
    assert {choice["method"] for choice in CHOICES.values()} == {"uan", "iuan", "cmu"} <= set(METHODS)
