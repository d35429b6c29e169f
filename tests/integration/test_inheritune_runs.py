"""Runs of InheriTune: the client has no source, a killed run ends with the same bits, two processes do as one."""

import dataclasses
import functools
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
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
from unida.methods.base import Sweep
from unida.methods.inheritune import InheriTune
from unida.training.loop import Training

LEFT = "the source is left"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> GlyphFolders:
    out = tmp_path_factory.mktemp("inheritune") / "data"
    return write_glyphs(out, shared=2, source_private=1, target_private=1, per_class=5, size=40)


def place_of(folders: GlyphFolders, name: str) -> Path:
    return folders.source.parent.parent / name


def arguments(folders: GlyphFolders, name: str, **changes: Any) -> list[str]:
    given = {"method": "inheritune", "steps": 8, "bottleneck": 8, "train": "head", **changes}
    target = given.pop("target", folders.target)
    return adapt_arguments(folders.source, target, place_of(folders, name), place_of(folders, "cache"), **given)


def run(folders: GlyphFolders, name: str, **changes: Any) -> Path:
    assert run_here(arguments(folders, name, **changes)) == 0
    return place_of(folders, name)


@pytest.fixture(scope="module")
def whole(folders: GlyphFolders) -> Path:
    """A run that nobody disturbed."""
    return run(folders, "whole")


def test_the_client_reads_the_target_alone_and_needs_of_the_source_only_weights(
    folders: GlyphFolders, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Source, labels and clusters are taken away when it starts. Names of target folders are others, too."""
    read: list[str] = []
    leave, set_optimisers = InheriTune.leave_source, Training._set_optimisers

    def leaving(method: InheriTune, sweep: Sweep) -> None:
        read.append(LEFT)
        leave(method, sweep)

    def robbed(training: Training) -> None:
        set_optimisers(training)
        if training.phase.name == "client":
            stream, source, method = training.stream, training.stream.source, training.method
            assert isinstance(method, InheriTune)
            stream.source = dataclasses.replace(source, pixels=None, labels=source.labels[:0])  # type: ignore[arg-type]
            stream.source_samplers.clear()
            method.centres.fill_(7)
            method.is_cluster.fill_(False)

    other = place_of(folders, "renamed")
    for i, path in enumerate(sorted(folders.target.rglob("*.png"), reverse=True)):
        (other / f"zz{i % 2}").mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, other / f"zz{i % 2}" / f"{i}.png")
    note_reads(monkeypatch, read)
    monkeypatch.setattr(InheriTune, "leave_source", leaving)
    monkeypatch.setattr(Training, "_set_optimisers", robbed)
    out = run(folders, "robbed", target=other)
    left = read.index(LEFT)
    assert set(read[:left]) == {"source"} and set(read[left + 1 :]) == {"target"} and len(read[left:]) > 4
    assert model_hash(out) == model_hash(whole)
    phases = [line["phase"] for line in lines_of(out) if line["kind"] == "train"]
    assert phases == ["vendor"] * 4 + ["client"] * 4


def test_killed_in_the_client_it_resumes_to_the_same_bits(
    folders: GlyphFolders, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its two turns, whose optimisers and pseudo-labels are in the checkpoint."""
    kill_after(5, monkeypatch, arguments(folders, "killed", checkpoint_every=5))
    assert run_here(["adapt", "--out", str(place_of(folders, "killed")), "--resume"]) == 0
    assert_same_state(place_of(folders, "killed"), whole)
    assert lines_of(place_of(folders, "killed")) == lines_of(whole)


class WithoutNorm(nn.Sequential):
    """An extractor without BatchNorm: its statistics are those of a process's own images."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(nn.Linear(inputs, 16), nn.ELU(), nn.Linear(16, outputs))


def test_two_processes_do_what_one_does(folders: GlyphFolders, monkeypatch: pytest.MonkeyPatch) -> None:
    """Features are spliced, and weights scaled, over the whole batch."""
    monkeypatch.setattr("unida.methods.inheritune.Extractor", WithoutNorm)
    # Adam gives a gradient of 1e-8 a whole step, to either side by its last bits. With a large eps it is a small step.
    monkeypatch.setattr("unida.training.optim.Adam", functools.partial(Adam, eps=1e-2))
    options = {"batch_size": 6, "lr": 0.01}
    one, two = run(folders, "one", **options), place_of(folders, "two")
    code, printed = run_two(arguments(folders, two.name, **options, devices=2))
    assert code == 0, printed
    assert_nearly_same_run(two, one)
    assert not torch.equal(*(all_weights(one)[f"method/{part}.0.weight"] for part in ("extractor", "source_extractor")))
