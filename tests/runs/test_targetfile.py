"""The target's file: what comes back is what was written, and a file that does not fit is named in one line."""

import hashlib
import json
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from unida.answering.alone import Scored
from unida.answering.options import AnsweringOptions
from unida.answering.target import Rule, TargetAnswers
from unida.answering.together import Kept
from unida.config import Config, config_from_options
from unida.errors import UserError
from unida.runs.targetfile import load_target, save_target
from unida.support.tensorfile import read_tensors, write_tensors

CONFIG = config_from_options({"steps": 10})
RULE = Rule(3, 0.4, "user")


def saved(path: Path, neighbours: int = 3, config: Config = CONFIG) -> tuple[TargetAnswers, list[str]]:
    rng = np.random.default_rng(0)
    directions = torch.from_numpy(rng.normal(size=(20, 6))).half()
    probabilities = torch.from_numpy(rng.random((20, 4))).float().softmax(dim=1)
    scored = Scored(directions / directions.norm(dim=1, keepdim=True), probabilities, torch.rand(20))
    target = TargetAnswers(scored, 0.3, AnsweringOptions(neighbours=neighbours))
    digests = [hashlib.blake2b(bytes([i]), digest_size=16).hexdigest() for i in range(20)]
    pixels: Any = SimpleNamespace(files=[SimpleNamespace(digest=digest) for digest in digests])
    save_target(path, target.answers, target.kept, RULE, pixels, config)
    return target, digests


def assert_equal(found: Any, expected: Any) -> None:
    for field in fields(expected):
        ours, theirs = getattr(found, field.name), getattr(expected, field.name)
        if isinstance(theirs, torch.Tensor):
            assert ours.dtype == theirs.dtype and torch.equal(ours, theirs), field.name
        else:
            assert ours == theirs, field.name


@pytest.mark.parametrize("neighbours", [0, 3])
def test_what_is_written_comes_back(tmp_path: Path, neighbours: int) -> None:
    target, digests = saved(tmp_path / "target.safetensors", neighbours)
    found = load_target(tmp_path / "target.safetensors", RULE, CONFIG)
    assert [bytes(row).hex() for row in found.digests.tolist()] == digests
    assert_equal(found.answers, target.answers)
    if neighbours:
        assert isinstance(found.kept, Kept)
        assert_equal(found.kept, target.kept)
    else:
        assert found.kept is None


def test_a_file_of_another_way_to_answer_is_named(tmp_path: Path) -> None:
    """The weights may be the same, but the model's threshold is for other scores."""
    saved(tmp_path / "t.safetensors")
    with pytest.raises(UserError, match="belongs to another run"):
        load_target(tmp_path / "t.safetensors", replace(RULE, threshold=0.3), CONFIG)


def error_of(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        load_target(path, RULE, CONFIG)
    text = str(caught.value)
    assert text.startswith(str(path)) and "\n" not in text
    return text


def test_a_file_of_another_run_is_named(tmp_path: Path) -> None:
    saved(tmp_path / "t.safetensors", config=config_from_options({"steps": 11}))
    assert "belongs to another run" in error_of(tmp_path / "t.safetensors")


def test_a_file_that_is_damaged_or_missing_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    assert "No such file" in error_of(path)
    saved(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-3] + bytes([whole[-3] ^ 4]) + whole[-2:])
    assert "is damaged" in error_of(path)
    path.write_bytes(whole[: len(whole) // 2])
    assert "cannot be read" in error_of(path)


CHANGES: dict[str, Any] = {
    "no answers": lambda tensors, numbers: tensors.pop("prediction"),
    "no digests": lambda tensors, numbers: tensors.pop("digests"),
    "no cosines": lambda tensors, numbers: tensors.pop("cosines"),
    "no λ": lambda tensors, numbers: numbers.pop("own_weight"),
    "a number too many": lambda tensors, numbers: numbers.update(other=1),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_of_another_version_is_named(tmp_path: Path, change: str) -> None:
    """Its digest fits: it was written like this."""
    path = tmp_path / "t.safetensors"
    saved(path)
    tensors, notes = read_tensors(path)
    numbers = json.loads(notes["target"])
    CHANGES[change](tensors, numbers)
    write_tensors(path, tensors, {**notes, "target": json.dumps(numbers)})
    assert "another version of unida" in error_of(path)
    write_tensors(path, tensors, {name: notes[name] for name in ("run", "rule")})
    assert "another version of unida" in error_of(path)
