"""Runs of USFDA: the target's stage has no source, killed runs end with the same bits, two processes do as one."""

import dataclasses
import functools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny_runs import (
    adapt_arguments,
    all_weights,
    assert_nearly_same_run,
    assert_same_state,
    kill_after,
    lines_of,
    model_hash,
    note_reads,
    run_here,
    run_two,
)
from torch import nn
from torch.optim import Adam

from unida.data.glyphs import GlyphFolders, write_glyphs
from unida.methods.base import Sweep, Want
from unida.methods.usfda import USFDA
from unida.training.loop import Training

STEPS = 10  # five of each phase: every update of the procurement is taken
SPA = {"spa": True, "spa.vocabulary": 16, "spa.pretext": "on", "spa.pool": 64}
LEFT = "the source is left"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> GlyphFolders:
    out = tmp_path_factory.mktemp("usfda") / "data"
    return write_glyphs(out, shared=2, source_private=1, target_private=1, per_class=5, size=40)


def place_of(folders: GlyphFolders, name: str) -> Path:
    return folders.source.parent.parent / name


def arguments(folders: GlyphFolders, name: str, **changes: Any) -> list[str]:
    given = {"method": "usfda", "steps": STEPS, "bottleneck": 8, "spliced_images": 64, "train": "head", **changes}
    target = given.pop("target", folders.target)
    return adapt_arguments(folders.source, target, place_of(folders, name), place_of(folders, "cache"), **given)


def run(folders: GlyphFolders, name: str, **changes: Any) -> Path:
    assert run_here(arguments(folders, name, **changes)) == 0
    return place_of(folders, name)


@pytest.fixture(scope="module")
def whole(folders: GlyphFolders) -> Callable[[str], Path]:
    """Runs that nobody disturbed, made when first asked for."""
    made: dict[str, Path] = {}

    def of(train: str) -> Path:
        if train not in made:
            made[train] = run(folders, f"whole {train}", train=train)
        return made[train]

    return of


# ---- without the source ----------------------------------------------------------------------------------------------


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Whose images training is given, in order: every way to an image goes through the stream's inputs."""
    read: list[str] = []
    leave = USFDA.leave_source

    def leaving(method: USFDA, sweep: Sweep) -> None:
        read.append(LEFT)
        leave(method, sweep)

    note_reads(monkeypatch, read)
    monkeypatch.setattr(USFDA, "leave_source", leaving)
    return read


@pytest.mark.parametrize("train", ["all", "head"])
def test_the_first_stage_reads_the_source_alone_and_the_second_the_target_alone(
    folders: GlyphFolders, read: list[str], train: str
) -> None:
    out = run(folders, f"read {train}", train=train)
    left = read.index(LEFT)
    assert set(read[:left]) == {"source"} and set(read[left + 1 :]) == {"target"}
    assert len(read[left:]) > 5
    phases = [line["phase"] for line in lines_of(out) if line["kind"] == "train"]
    assert phases == ["procurement"] * 5 + ["deployment"] * 5


def test_with_words_too_the_second_stage_reads_no_source(folders: GlyphFolders, read: list[str]) -> None:
    run(folders, "read words", train="tail", **SPA)
    assert "source" in read and "source" not in read[read.index(LEFT) :]


def test_asking_for_the_source_in_the_second_stage_is_an_error(
    folders: GlyphFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wants(method: USFDA, step: int) -> list[Want]:
        return [Want("spliced", "source", recipe="spliced")]

    def leave(method: USFDA, sweep: Sweep) -> None:
        sweep("source")

    def learn(method: USFDA, sweep: Sweep) -> None:
        method.source_labels.copy_(sweep.source_labels)

    for name, change in (("wants", wants), ("leave_source", leave), ("leave_source", learn)):
        with monkeypatch.context() as patch:
            patch.setattr(USFDA, name, change)
            with pytest.raises(
                AssertionError, match=r"phase 'deployment' (has no source|does not sweep over the source)"
            ):
                run(folders, f"asking {change.__name__}")


def test_the_second_stage_needs_nothing_of_the_source_but_weights(
    folders: GlyphFolders, whole: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Source, labels and Gaussians are taken away when it starts; the run ends with the same model."""
    expected, set_optimisers = whole("head"), Training._set_optimisers

    def robbed(training: Training) -> None:
        set_optimisers(training)
        if training.phase.name == "deployment":
            method = training.method
            assert isinstance(method, USFDA) and (method.source_labels == -1).all()
            stream, source = training.stream, training.stream.source
            stream.source = dataclasses.replace(source, pixels=None, labels=source.labels[:0])  # type: ignore[arg-type]
            stream.source_samplers.clear()
            for buffer in (method.means, method.factors, method.source_labels):
                buffer.fill_(7)
            for parameter in method.decoder.parameters():
                parameter.data.fill_(7.0)

    monkeypatch.setattr(Training, "_set_optimisers", robbed)
    out = run(folders, "robbed")
    assert model_hash(out) == model_hash(expected)
    assert (out / "predictions.csv").read_bytes() == (expected / "predictions.csv").read_bytes()


def test_names_of_target_folders_change_no_weight(folders: GlyphFolders, whole: Callable[[str], Path]) -> None:
    other = place_of(folders, "renamed")
    for i, path in enumerate(sorted(folders.target.rglob("*.png"), reverse=True)):
        (other / f"zz{i % 2}").mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, other / f"zz{i % 2}" / f"{i}.png")
    ours, theirs = (all_weights(it) for it in (run(folders, "strangers", target=other), whole("head")))
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


# ---- what is kept ----------------------------------------------------------------------------------------------------


def test_the_model_file_holds_what_answers_and_the_backbone_as_it_was(whole: Callable[[str], Path]) -> None:
    names = set(load_file(whole("all") / "checkpoint" / "model.safetensors"))
    saved = {name.removeprefix("method/") for name in all_weights(whole("all")) if name.startswith("method/")}
    left_out = {name.split(".")[0] for name in saved - names}
    assert left_out == {"source_extractor", "decoder", "means", "factors", "source_labels"}
    assert {name.split(".")[0] for name in names} == {"backbone", "extractor", "head"}


@pytest.mark.parametrize(("train", "step"), [("head", 2), ("head", 5), ("all", 7)])
def test_killed_in_each_stage_it_resumes_to_the_same_bits(
    folders: GlyphFolders, whole: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, train: str, step: int
) -> None:
    expected, name = whole(train), f"killed {train} {step}"
    kill_after(step, monkeypatch, arguments(folders, name, train=train, checkpoint_every=step))
    assert run_here(["adapt", "--out", str(place_of(folders, name)), "--resume"]) == 0
    assert_same_state(place_of(folders, name), expected)
    assert lines_of(place_of(folders, name)) == lines_of(expected)


# ---- several processes -----------------------------------------------------------------------------------------------


class WithoutNorm(nn.Sequential):
    """An extractor, or a decoder, without BatchNorm: its statistics are those of a process's own images."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(nn.Linear(inputs, 16), nn.ELU(), nn.Linear(16, outputs))


def test_two_processes_do_what_one_does(folders: GlyphFolders, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spliced images of one class, and the weights' range over the batch, must be those of the whole batch."""
    monkeypatch.setattr("unida.methods.usfda.Extractor", WithoutNorm)
    monkeypatch.setattr("unida.methods.usfda.Decoder", WithoutNorm)
    # Adam gives a gradient of 1e-8 a whole step, to either side by its last bits. With a large eps it is a small step.
    monkeypatch.setattr("unida.training.optim.Adam", functools.partial(Adam, eps=1e-2))
    options = {"batch_size": 6, "lr": 0.01}
    one, two = run(folders, "one", **options), place_of(folders, "two")
    code, printed = run_two(arguments(folders, two.name, **options, devices=2))
    assert code == 0, printed
    assert_nearly_same_run(two, one)
