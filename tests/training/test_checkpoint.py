"""A checkpoint is whole or not there, is no pickle, and restores every bit."""

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from tiny_training import Tiny, make_method

from unida.config import TrainingOptions
from unida.errors import UserError
from unida.training import checkpoint
from unida.training.checkpoint import load_checkpoint, read_metadata, save_checkpoint, write_atomically
from unida.training.optim import build_optimiser


def state_of(method: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in method.state_dict().items()}


def assert_same_bits(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


def train(method: torch.nn.Module, optimiser: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        torch.manual_seed(step)
        optimiser.zero_grad()
        method.head(method.backbone(torch.randn(5, 3, 8, 8))).square().sum().backward()  # type: ignore[operator]
        optimiser.step()


def test_the_next_steps_after_loading_have_the_same_bits(tmp_path: Path) -> None:
    options = TrainingOptions(lr=0.01)
    method = make_method()
    optimiser = build_optimiser(method, options)
    train(method, optimiser, range(3))
    save_checkpoint(tmp_path / "c.safetensors", method, {"goal": optimiser}, 3)
    train(method, optimiser, range(3, 6))

    with torch.random.fork_rng():
        torch.manual_seed(99)
        other = Tiny()  # other weights: all must come from the file
    other_optimiser = build_optimiser(other, options)
    assert load_checkpoint(tmp_path / "c.safetensors", other, {"goal": other_optimiser}) == (3, 0.0, {})
    train(other, other_optimiser, range(3, 6))
    assert_same_bits(state_of(other), state_of(method))


def test_channels_last_weights_go_on_with_the_same_bits(tmp_path: Path) -> None:
    """The fused optimiser walks through memory: momentum in another memory format would meet the wrong weights."""

    def make() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        method = make_method()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            convolution = torch.nn.Conv2d(3, 3, 3, padding=1)
        method.backbone = torch.nn.Sequential(convolution, method.backbone)  # type: ignore[assignment]
        method.to(memory_format=torch.channels_last)
        return method, build_optimiser(method, TrainingOptions(lr=0.01))

    method, optimiser = make()
    train(method, optimiser, range(3))
    save_checkpoint(tmp_path / "c.safetensors", method, {"goal": optimiser}, 3)
    train(method, optimiser, range(3, 5))
    other, other_optimiser = make()
    load_checkpoint(tmp_path / "c.safetensors", other, {"goal": other_optimiser})
    train(other, other_optimiser, range(3, 5))
    assert_same_bits(state_of(other), state_of(method))


def test_momentum_is_restored_exactly(tmp_path: Path) -> None:
    method = make_method()
    optimiser = build_optimiser(method, TrainingOptions())
    train(method, optimiser, range(2))
    save_checkpoint(tmp_path / "c.safetensors", method, {"goal": optimiser}, 2)
    other = make_method()
    other_optimiser = build_optimiser(other, TrainingOptions())
    load_checkpoint(tmp_path / "c.safetensors", other, {"goal": other_optimiser})
    saved, restored = optimiser.state_dict(), other_optimiser.state_dict()
    assert len(saved["state"]) == len(list(method.parameters()))
    for index, entries in saved["state"].items():
        assert entries["momentum_buffer"].abs().sum() > 0
        assert torch.equal(entries["momentum_buffer"], restored["state"][index]["momentum_buffer"])
    assert [g["initial_lr"] for g in restored["param_groups"]] == [g["initial_lr"] for g in saved["param_groups"]]


def test_numbers_of_the_optimiser_and_the_gradient_scaler_are_kept(tmp_path: Path) -> None:
    method = make_method()
    optimiser = torch.optim.Adagrad(method.parameters())
    train(method, optimiser, range(2))
    optimiser.state[next(method.parameters())]["note"] = 7  # a state that is no tensor
    scaler = {"scale": 65536.0, "growth_factor": 2.0, "_growth_tracker": 3}
    save_checkpoint(tmp_path / "c.safetensors", method, {"goal": optimiser}, 2, 1.5, scaler)
    other = make_method()
    other_optimiser = torch.optim.Adagrad(other.parameters())
    assert load_checkpoint(tmp_path / "c.safetensors", other, {"goal": other_optimiser}) == (2, 1.5, scaler)
    assert other_optimiser.state[next(other.parameters())]["note"] == 7


def test_the_file_is_safetensors_and_no_pickle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise AssertionError("pickle was used")

    for name in ("dump", "dumps", "load", "loads", "Pickler", "Unpickler"):
        monkeypatch.setattr(f"pickle.{name}", refuse)
    monkeypatch.setattr(torch, "save", refuse)
    monkeypatch.setattr(torch, "load", refuse)
    method = make_method()
    optimiser = build_optimiser(method, TrainingOptions())
    train(method, optimiser, range(1))
    path = tmp_path / "c.safetensors"
    save_checkpoint(path, method, {"goal": optimiser}, 1)
    load_checkpoint(path, method, {"goal": optimiser})

    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    assert header["__metadata__"]["step"] == "1"
    with safe_open(path, framework="pt") as file:
        names = set(file.keys())
    assert {f"method/{name}" for name in method.state_dict()} <= names
    assert "optimiser/goal/0/momentum_buffer" in names


@pytest.mark.parametrize("failing", ["replace", "fsync"])
def test_a_write_that_is_cut_off_leaves_the_old_file_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    path = tmp_path / "c.safetensors"
    write_atomically({"x": torch.zeros(3)}, {"step": "1"}, path)
    before = path.read_bytes()

    def cut_off(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint.os, failing, cut_off)
    with pytest.raises(KeyboardInterrupt):
        write_atomically({"x": torch.ones(3)}, {"step": "2"}, path)
    monkeypatch.undo()
    assert path.read_bytes() == before
    write_atomically({"x": torch.ones(3)}, {"step": "3"}, path)  # what was left aside is in nobody's way
    assert read_metadata(path)["step"] == "3"
    assert os.listdir(tmp_path) == ["c.safetensors"]


def test_the_file_is_on_disk_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rename that a power cut lets overtake the data would leave an empty file under the good name."""
    events: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(checkpoint.os, "fsync", lambda fd: (events.append("fsync"), fsync(fd)))
    monkeypatch.setattr(checkpoint.os, "replace", lambda a, b: (events.append("replace"), replace(a, b)))
    write_atomically({"x": torch.zeros(3)}, {}, tmp_path / "new" / "c.safetensors")
    assert events[:2] == ["fsync", "replace"]


@pytest.mark.parametrize("change", ["one optimiser, without a name", "a layer that is gone", "no seconds"])
def test_a_checkpoint_of_another_layout_is_told(tmp_path: Path, change: str) -> None:
    path = tmp_path / "c.safetensors"
    method = make_method()
    optimisers = {"goal": build_optimiser(method, TrainingOptions())}
    save_checkpoint(path, method, optimisers, 2)
    metadata, tensors = read_metadata(path), load_file(path)
    if change == "one optimiser, without a name":
        metadata["optimiser"] = "{}"
    elif change == "no seconds":
        del metadata["seconds"]
    else:
        del tensors["method/head.weight"]
    write_atomically(tensors, metadata, path)
    told = r"c\.safetensors was made by another version of unida: start anew with another --out"
    with pytest.raises(UserError, match=told):
        load_checkpoint(path, method, optimisers)


@pytest.mark.parametrize("content", [b"", b"not a checkpoint at all", b"\x08" + b"\0" * 7 + b"{}      "[:4]])
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "c.safetensors"
    path.write_bytes(content)
    method = make_method()
    with pytest.raises(UserError, match=r"c\.safetensors cannot be read"):
        load_checkpoint(path, method, {"goal": build_optimiser(method, TrainingOptions())})
