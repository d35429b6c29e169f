"""A checkpoint is whole or not there, is no pickle, and restores every bit."""

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from tiny_training import make_method, optimiser_of
from torch.optim import Adam, Optimizer

from unida.errors import UserError
from unida.methods.base import Method
from unida.support import tensorfile
from unida.support.tensorfile import read_tensors, write_tensors
from unida.training.checkpoint import Checkpoint, Progress, save_checkpoint


def state_of(method: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in method.state_dict().items()}


def assert_same_bits(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


def train(method: torch.nn.Module, optimiser: Optimizer, steps: range) -> None:
    for step in steps:
        torch.manual_seed(step)
        optimiser.zero_grad()
        method.head(method.backbone(torch.randn(5, 3, 8, 8))).square().sum().backward()  # type: ignore[operator]
        optimiser.step()


def save(path: Path, method: Method, optimiser: Optimizer, **progress: Any) -> None:
    save_checkpoint(path, method, {"goal": optimiser}, Progress(**{"step": 3, **progress}))


def restore(path: Path, method: Method, optimiser: Optimizer) -> Progress:
    found = Checkpoint(path)
    found.restore_method(method)
    found.restore_optimisers({"goal": optimiser})
    return found.progress


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "c.safetensors"


def other_method() -> Method:
    """With other weights: all must come from the file."""
    method = make_method()
    with torch.no_grad():
        for tensor in (*method.parameters(), *method.buffers()):
            tensor.add_(1)
    return method


def test_the_next_steps_after_loading_have_the_same_bits(path: Path) -> None:
    method = make_method()
    optimiser = optimiser_of(method, lr=0.01)
    train(method, optimiser, range(3))
    save(path, method, optimiser)
    train(method, optimiser, range(3, 6))
    other = other_method()
    other_optimiser = optimiser_of(other, lr=0.01)
    assert restore(path, other, other_optimiser) == Progress(step=3)
    train(other, other_optimiser, range(3, 6))
    assert_same_bits(state_of(other), state_of(method))


def test_channels_last_weights_continue_with_the_same_bits(path: Path) -> None:
    """The fused optimiser walks through memory: momentum in another memory format would meet the wrong weights."""

    def make() -> tuple[Method, Optimizer]:
        method = make_method()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            convolution = torch.nn.Conv2d(3, 3, 3, padding=1)
        method.backbone = torch.nn.Sequential(convolution, method.backbone)  # type: ignore[assignment]
        method.to(memory_format=torch.channels_last)
        return method, optimiser_of(method, lr=0.01)

    method, optimiser = make()
    train(method, optimiser, range(3))
    save(path, method, optimiser)
    train(method, optimiser, range(3, 5))
    other, other_optimiser = make()
    restore(path, other, other_optimiser)
    train(other, other_optimiser, range(3, 5))
    assert_same_bits(state_of(other), state_of(method))


def test_momentum_is_restored_exactly(path: Path) -> None:
    method = make_method()
    optimiser = optimiser_of(method)
    train(method, optimiser, range(2))
    save(path, method, optimiser)
    other = make_method()
    other_optimiser = optimiser_of(other)
    restore(path, other, other_optimiser)
    saved, restored = optimiser.state_dict(), other_optimiser.state_dict()
    assert len(saved["state"]) == len(list(method.parameters()))
    for index, entries in saved["state"].items():
        assert entries["momentum_buffer"].abs().sum() > 0
        assert torch.equal(entries["momentum_buffer"], restored["state"][index]["momentum_buffer"])
    assert [g["initial_lr"] for g in restored["param_groups"]] == [g["initial_lr"] for g in saved["param_groups"]]


def test_each_turn_gets_its_own_optimiser_back(path: Path) -> None:
    method, other = make_method(), other_method()
    optimisers = {"goal": optimiser_of(method), "pretext": Adam(method.parameters(), lr=0.01)}
    for optimiser in optimisers.values():
        train(method, optimiser, range(2))
    save_checkpoint(path, method, optimisers, Progress(step=2))
    restored = {"goal": optimiser_of(other), "pretext": Adam(other.parameters(), lr=0.01)}
    checkpoint = Checkpoint(path)
    checkpoint.restore_method(other)
    checkpoint.restore_optimisers(restored)
    for turn in optimisers:
        train(method, optimisers[turn], range(2, 4))
        train(other, restored[turn], range(2, 4))
    assert_same_bits(state_of(other), state_of(method))


def test_how_far_the_run_has_come_is_kept(path: Path) -> None:
    method = make_method()
    scaler = {"scale": 65536.0, "growth_factor": 2.0, "_growth_tracker": 3}
    losses = {"goal": {"closed": 0.1 + 0.2, "spread": 1e-9}, "pretext": {}}
    progress = Progress(step=7, phase=2, seconds=1.5, scaler=scaler, losses=losses, run="a run")
    save_checkpoint(path, method, {"goal": optimiser_of(method)}, progress)
    assert Checkpoint(path).progress == progress


def test_numbers_of_the_optimiser_are_kept(path: Path) -> None:
    method = make_method()
    optimiser = torch.optim.Adagrad(method.parameters())
    train(method, optimiser, range(2))
    optimiser.state[next(method.parameters())]["note"] = 7  # a state that is no tensor
    save(path, method, optimiser)
    other = make_method()
    other_optimiser = torch.optim.Adagrad(other.parameters())
    restore(path, other, other_optimiser)
    assert other_optimiser.state[next(other.parameters())]["note"] == 7


def test_the_file_is_safetensors_and_no_pickle(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise AssertionError("pickle was used")

    for name in ("dump", "dumps", "load", "loads", "Pickler", "Unpickler"):
        monkeypatch.setattr(f"pickle.{name}", refuse)
    monkeypatch.setattr(torch, "save", refuse)
    monkeypatch.setattr(torch, "load", refuse)
    method = make_method()
    optimiser = optimiser_of(method)
    train(method, optimiser, range(1))
    save(path, method, optimiser)
    restore(path, method, optimiser)

    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    assert "__metadata__" in json.loads(content[8 : 8 + length])
    with safe_open(path, framework="pt") as file:
        names = set(file.keys())
    assert {f"method/{name}" for name in method.state_dict()} <= names
    assert "optimiser/goal/0/momentum_buffer" in names


@pytest.mark.parametrize("failing", ["replace", "fsync"])
def test_a_write_that_is_cut_off_leaves_the_old_file_whole(
    path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    method = make_method()
    optimiser = optimiser_of(method)
    save(path, method, optimiser, step=1)
    before = path.read_bytes()

    def cut_off(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tensorfile.os, failing, cut_off)
    with pytest.raises(KeyboardInterrupt):
        save(path, method, optimiser, step=2)
    monkeypatch.undo()
    assert path.read_bytes() == before
    save(path, method, optimiser, step=3)  # what was left aside is in nobody's way
    assert Checkpoint(path).progress.step == 3
    assert os.listdir(path.parent) == ["c.safetensors"]


def test_the_file_is_on_disk_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rename that a power cut lets overtake the data would leave an empty file under the good name."""
    events: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(tensorfile.os, "fsync", lambda fd: (events.append("fsync"), fsync(fd)))
    monkeypatch.setattr(tensorfile.os, "replace", lambda a, b: (events.append("replace"), replace(a, b)))
    method = make_method()
    save(tmp_path / "new" / "c.safetensors", method, optimiser_of(method))
    assert events[:2] == ["fsync", "replace"]


@pytest.mark.parametrize(
    "change", ["an optimiser without a name", "a layer that is gone", "no progress", "progress of another kind"]
)
def test_a_checkpoint_of_another_layout_is_reported(path: Path, change: str) -> None:
    method = make_method()
    optimiser = optimiser_of(method)
    save(path, method, optimiser)
    tensors, notes = read_tensors(path)
    if change == "an optimiser without a name":
        notes["optimiser"] = "{}"
    elif change == "no progress":
        del notes["progress"]
    elif change == "progress of another kind":
        notes["progress"] = json.dumps({"steps": 3})
    else:
        del tensors["method/head.weight"]
    write_tensors(path, tensors, notes)
    reported = r"c\.safetensors was made by another version of unida: start again with another --out"
    with pytest.raises(UserError, match=reported):
        restore(path, method, optimiser)


@pytest.mark.parametrize("content", [b"", b"not a checkpoint at all", b"\x08" + b"\0" * 7 + b"{}      "[:4]])
def test_a_damaged_file_is_named(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"c\.safetensors cannot be read"):
        Checkpoint(path)


@pytest.mark.parametrize("where", ["in the middle", "in the last byte"])
def test_a_single_wrong_bit_is_found(path: Path, where: str) -> None:
    method = make_method()
    optimiser = optimiser_of(method)
    train(method, optimiser, range(1))
    save(path, method, optimiser)
    content = bytearray(path.read_bytes())
    (length,) = struct.unpack("<Q", content[:8])
    place = len(content) - 1 if where == "in the last byte" else (8 + length + len(content)) // 2
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"c\.safetensors is damaged"):
        Checkpoint(path)
