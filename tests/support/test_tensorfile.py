"""A file of tensors is whole or not there, and a bit that changed in it never goes unnoticed."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from unida.errors import UserError
from unida.support import tensorfile
from unida.support.tensorfile import read_notes, read_tensors, write_tensors

TENSORS = {
    "a": torch.tensor([[1.5, -2.0], [0.0, 3.25]]),
    "c": torch.tensor([[1.5, -2.0], [0.0, 3.0]]),  # one bit of the name and a few of the numbers differ from "a"
    "count": torch.tensor(7),
    "half": torch.tensor([1.0, 2.0, 3.0], dtype=torch.bfloat16),
    "flags": torch.tensor([True, False]),
}
NOTES = {"model": json.dumps({"classes": ["cup", "lamp"], "crop": 224}), "x": "1", "y": "2"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint" / "model.safetensors"


@pytest.fixture
def content(path: Path) -> bytes:
    write_tensors(path, TENSORS, NOTES)
    return path.read_bytes()


def assert_holds(path: Path, tensors: dict[str, Tensor] = TENSORS, notes: dict[str, str] = NOTES) -> None:
    found, found_notes = read_tensors(path)
    assert found_notes == notes and set(found) == set(tensors)
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name


def refusal(path: Path, read: Callable[[Path], object] = read_tensors) -> str:
    """What is said of a file that is refused: one line, with the file's name."""
    with pytest.raises(UserError) as caught:
        read(path)
    message = str(caught.value)
    assert "\n" not in message and str(path) in message
    return message


# Round trips


def test_tensors_and_notes_come_back_as_they_were(path: Path) -> None:
    tensors = {
        **TENSORS,
        "none": torch.zeros(0, 3),
        "transposed": torch.arange(6.0).reshape(2, 3).T,
        "channels last": torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        "learned": torch.nn.Parameter(torch.ones(2)),
        "bytes": torch.tensor([0, 255], dtype=torch.uint8),
    }
    notes = {**NOTES, "name": 'Größe 椅子 \n " \\ \0', "": "nothing"}
    write_tensors(path, tensors, notes)
    assert_holds(path, tensors, notes)


def test_no_tensors_and_no_notes_are_a_file_too(path: Path) -> None:
    write_tensors(path, {}, {})
    assert read_tensors(path) == ({}, {})


def test_the_same_content_gives_the_same_bytes_whatever_its_order(path: Path, content: bytes) -> None:
    write_tensors(path, dict(reversed(TENSORS.items())), NOTES)
    assert path.read_bytes() == content


def test_notes_can_be_read_alone(path: Path, content: bytes) -> None:
    notes = read_notes(path)
    assert {name: notes[name] for name in NOTES} == NOTES


# Damage


def test_a_flipped_bit_anywhere_is_found(path: Path, content: bytes) -> None:
    """Every bit of the file: of the header's length, the header, and the numbers."""
    assert len(content) > 500
    damaged = bytearray(content)
    for place in range(len(content)):
        for bit in range(8):
            damaged[place] ^= 1 << bit
            path.write_bytes(damaged)
            refusal(path)
            damaged[place] ^= 1 << bit
    path.write_bytes(damaged)
    assert_holds(path)


def test_every_bit_of_many_numbers_counts(path: Path) -> None:
    tensors = {"weights": torch.randn(200, 100, generator=torch.Generator().manual_seed(0))}
    write_tensors(path, tensors, NOTES)
    content = path.read_bytes()
    for place in range(len(content) - 80_000, len(content), 997):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        assert "is damaged" in refusal(path)


def test_other_bytes_of_the_header_are_found_too(path: Path, content: bytes) -> None:
    """Not by a bit, but in good form: two tensors exchange their names, a note gets another value."""
    for old, new in ((b'"a":', b'"c":'), (b"lamp", b"sofa"), (b"[2,2]", b"[4,1]"), (b'"BOOL"', b'"U8"  ')):
        swapped = content.replace(old, new, 1)
        if old == b'"a":':
            before, _, after = content.partition(b'"a":')
            swapped = (before + b'"?":' + after).replace(b'"c":', b'"a":').replace(b'"?":', b'"c":')
        assert swapped != content and len(swapped) == len(content)
        path.write_bytes(swapped)
        refusal(path)


def test_a_file_that_ends_early_is_refused_wherever_it_ends(path: Path, content: bytes) -> None:
    for length in range(len(content)):
        path.write_bytes(content[:length])
        refusal(path)


def test_a_file_with_more_at_its_end_is_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content + b"\0")
    refusal(path)


@pytest.mark.parametrize("read", [read_tensors, read_notes])
def test_what_is_no_such_file_is_refused(read: Callable[[Path], object], tmp_path: Path) -> None:
    assert "cannot be read" in refusal(tmp_path / "gone.safetensors", read)
    (tmp_path / "folder").mkdir()
    assert "cannot be read" in refusal(tmp_path / "folder", read)
    (tmp_path / "empty").touch()
    refusal(tmp_path / "empty", read)
    (tmp_path / "text").write_text("certainly no tensors, and long enough to have a header of its own")
    refusal(tmp_path / "text", read)
    save_file(TENSORS, tmp_path / "foreign")
    assert "not written by this version of unida" in refusal(tmp_path / "foreign", read)
    save_file(TENSORS, tmp_path / "other", {"unida": "[1, 2]"})
    assert "not written by this version of unida" in refusal(tmp_path / "other", read)


def test_a_file_without_a_digest_is_refused(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "bare", {"unida": json.dumps(NOTES)})
    refusal(tmp_path / "bare")


# Writing


def full_disk(*_: object) -> None:
    raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


def interrupted_disk(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def failed_write(path: Path) -> str:
    """What is said when a write fails; the file is as it was, and nothing lies beside it."""
    beside = sorted(path.parent.iterdir()) if path.parent.is_dir() else None
    with pytest.raises(UserError) as caught:
        write_tensors(path, {"a": torch.zeros(3)}, {"new": "notes"})
    message = str(caught.value)
    assert "\n" not in message and str(path) in message and "--resume" in message
    assert beside is None or sorted(path.parent.iterdir()) == beside
    return message


@pytest.mark.parametrize(
    ("where", "failing"),
    [("save_file", full_disk), ("os.fsync", interrupted_disk), ("os.replace", interrupted_disk)],
)
def test_a_full_disk_leaves_the_old_file_and_gives_one_line(
    where: str, failing: Callable[..., None], path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{tensorfile.__name__}.{where}", failing)
    assert "(No space left on device)" in failed_write(path)
    monkeypatch.undo()
    assert path.read_bytes() == content
    assert_holds(path)


def test_a_disk_that_fills_up_in_the_middle_leaves_nothing_half_written(
    path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(tensors: object, aside: Path, notes: object) -> None:
        aside.write_bytes(content[:100])
        full_disk()

    monkeypatch.setattr(tensorfile, "save_file", half)
    failed_write(path)
    assert path.read_bytes() == content


def test_a_folder_in_the_way_is_one_line(path: Path, tmp_path: Path) -> None:
    path.mkdir(parents=True)
    assert "Is a directory" in failed_write(path)
    (tmp_path / "file").touch()
    failed_write(tmp_path / "file" / "model.safetensors")


def test_content_is_on_the_disk_before_the_name_is(path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the old file stands until then."""
    calls, replace = [], os.replace

    def synced(descriptor: int) -> None:
        calls.append(("synced", os.fstat(descriptor).st_size, path.read_bytes() == content))

    def replaced(aside: Path, to: Path) -> None:
        calls.append(("replaced", aside.stat().st_size, to.read_bytes() == content))
        replace(aside, to)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    write_tensors(path, {"a": torch.zeros(3)}, {})
    size = path.stat().st_size
    assert calls == [("synced", size, True), ("replaced", size, True)]
    assert_holds(path, {"a": torch.zeros(3)}, {})
    assert os.listdir(path.parent) == [path.name]
