"""A shelf gives back what was put there, to any number of processes; a row that was damaged is never given out."""

import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from unida.errors import UserError
from unida.features.shelf import ENTRY, SPOT_CHECKS, Shelf

ROWS = 2 * SPOT_CHECKS  # so that some are not looked at when the shelf is opened


def shelf_in(folder: Path, kind: torch.dtype = torch.float16, width: int = 1) -> Shelf:
    return Shelf(folder / "shelf", (width,), kind)


def names_of(count: int) -> list[bytes]:
    return [number.to_bytes(16, "big") for number in range(1, count + 1)]


def full_shelf(folder: Path, width: int = 3) -> tuple[Shelf, Tensor]:
    shelf = shelf_in(folder, width=width)
    values = torch.randn(ROWS, width, generator=torch.Generator().manual_seed(0)).half()
    shelf.append(names_of(ROWS), values)
    return shelf, values


def flip_bit(path: Path, place: int, bit: int = 0) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        (before,) = file.read(1)
        file.seek(place)
        file.write(bytes([before ^ 1 << bit]))


@pytest.mark.parametrize("row", range(ROWS))
def test_a_flipped_bit_in_any_row_is_found_when_the_row_is_first_read(row: int, tmp_path: Path) -> None:
    shelf, values = full_shelf(tmp_path)
    flip_bit(tmp_path / "shelf" / "rows.16", row * shelf.row_bytes + row % shelf.row_bytes, bit=row % 8)
    others = np.delete(np.arange(ROWS), row)
    assert torch.equal(shelf.read(others), values[others]), "the other rows are as they were"
    with pytest.raises(UserError) as caught:
        shelf.read(np.array([0, row]))
    message = str(caught.value)
    assert str(tmp_path / "shelf") in message and "--resume" in message and "\n" not in message
    again = shelf_in(tmp_path, width=3)
    assert not again.row_of, "the next opening has to compute them again"
    again.append(names_of(ROWS), values)
    assert torch.equal(again.read(np.arange(ROWS)), values)


@pytest.mark.parametrize("row", range(ROWS))
def test_a_flipped_bit_in_any_row_is_found_by_a_process_that_opens_the_shelf_later(
    row: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    full_shelf(tmp_path)
    flip_bit(tmp_path / "shelf" / "rows.16", row * 6 + 5, bit=7)
    shelf = shelf_in(tmp_path, width=3)
    if shelf.row_of:  # not one of those that are looked at on opening
        with pytest.raises(UserError, match=f"damaged at row {row} "):
            shelf.read(np.arange(ROWS))
    else:
        assert f"damaged at row {row};" in caplog.text
    assert not shelf_in(tmp_path, width=3).row_of


def test_both_ways_of_finding_damage_are_used(tmp_path: Path) -> None:
    """The tests above would not see it if opening looked at all rows, or at none."""
    found_late = []
    for row in (0, 1, ROWS - 1):
        full_shelf(tmp_path / str(row))
        flip_bit(tmp_path / str(row) / "shelf" / "rows.16", row * 6)
        found_late.append(bool(shelf_in(tmp_path / str(row), width=3).row_of))
    assert found_late == [False, True, False]


@pytest.mark.parametrize("place", range(ENTRY.itemsize))
@pytest.mark.parametrize("row", [1, 2])  # opening looks at row 2, not at row 1
def test_a_flipped_bit_in_the_index_never_gives_out_a_wrong_row(row: int, place: int, tmp_path: Path) -> None:
    """In a checksum, the row looks damaged. In a name, the image counts as missing: its own name finds nothing."""
    _, values = full_shelf(tmp_path)

    flip_bit(tmp_path / "shelf" / "index", row * ENTRY.itemsize + place)
    shelf = shelf_in(tmp_path, width=3)
    if names_of(ROWS)[row] in shelf.row_of:
        with pytest.raises(UserError, match=f"damaged at row {row} "):
            shelf.read(np.array([row]))
    for name, expected in zip(names_of(ROWS), values, strict=True):
        if name in shelf.row_of:
            assert torch.equal(shelf.read(np.array([shelf.row_of[name]]))[0], expected)


def test_a_row_is_compared_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf, _ = full_shelf(tmp_path)
    compared, crc32 = [], zlib.crc32
    monkeypatch.setattr("unida.features.shelf.zlib.crc32", lambda data: compared.append(1) or crc32(data))
    for _ in range(3):
        shelf.read(np.array([3, 5, 3]))
    assert len(compared) <= 3  # 3 twice in the first batch at most


def test_a_shelf_that_another_process_finds_damaged_is_read_on_as_it_was(tmp_path: Path) -> None:
    """Written over in place, the rows would be other images' now: in another order, under the reader's feet."""
    names = [bytes([number]) * 16 for number in range(1, 8)]
    numbers = torch.arange(1.0, 8.0)[:, None]
    reader = shelf_in(tmp_path)
    reader.append(names[:5], numbers[:5])
    with (tmp_path / "shelf" / "rows.16").open("r+b") as rows:
        rows.write(b"\xff")  # of the first image
    finder = shelf_in(tmp_path)
    assert not finder.row_of
    finder.append(names[4::-1], numbers[:5].flip(0))

    def read(shelf: Shelf, which: slice) -> list[float]:
        return shelf.read(np.array([shelf.row_of[name] for name in names[which]])).flatten().tolist()

    assert read(reader, slice(1, 5)) == [2, 3, 4, 5]
    reader.append(names[5:], numbers[5:])  # continues in the files that it has open
    assert read(reader, slice(1, 7)) == [2, 3, 4, 5, 6, 7]
    assert read(finder, slice(0, 5)) == [1, 2, 3, 4, 5]
    assert read(shelf_in(tmp_path), slice(0, 5)) == [1, 2, 3, 4, 5]


def test_rows_of_another_process_are_found_and_checked(tmp_path: Path) -> None:
    first, second = shelf_in(tmp_path), shelf_in(tmp_path)
    names = names_of(4)
    first.append(names[:2], torch.tensor([[1.0], [2.0]]))
    second.append(names[2:], torch.tensor([[3.0], [4.0]]))
    first.refresh()
    assert first.read(np.array([first.row_of[name] for name in names])).flatten().tolist() == [1, 2, 3, 4]
    flip_bit(tmp_path / "shelf" / "rows.16", 3 * 2)
    second.refresh()
    with pytest.raises(UserError, match="damaged at row 3 "):
        second.read(np.array([3]))


def test_numbers_too_large_for_the_format_are_refused(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "shelf", (2,), torch.float16)
    with pytest.raises(UserError, match="--feature-format bf16"):
        shelf.append([b"0" * 16], torch.tensor([[1e6, 0.0]]))
    large = Shelf(tmp_path / "large", (2,), torch.bfloat16)
    large.append([b"0" * 16], torch.tensor([[1e6, 0.0]]))
    assert large.read(np.array([0])).float()[0, 0] == pytest.approx(1e6, rel=0.01)


@pytest.mark.parametrize(
    ("kind", "shape"),
    [(torch.float16, (2, 3)), (torch.bfloat16, (4,)), (torch.int64, ()), (torch.int64, (4,)), (torch.uint8, (2, 2))],
)
def test_rows_of_any_shape_and_kind_come_back_as_they_were(
    kind: torch.dtype, shape: tuple[int, ...], tmp_path: Path
) -> None:
    values = torch.arange(3 * int(np.prod(shape))).reshape(3, *shape).to(kind)
    Shelf(tmp_path / "shelf", shape, kind).append(names_of(3), values)
    again = Shelf(tmp_path / "shelf", shape, kind).read(np.array([2, 0, 1, 2]))
    assert again.dtype == kind and torch.equal(again, values[[2, 0, 1, 2]])


def test_a_digest_that_ends_in_zero_bytes_is_found_again(tmp_path: Path) -> None:
    digest = bytes(range(1, 13)) + b"\0" * 4
    shelf_in(tmp_path).append([digest], torch.tensor([[2.0]]))
    again = shelf_in(tmp_path)
    assert again.read(np.array([again.row_of[digest]])).item() == 2.0


def test_a_shelf_refuses_a_second_row_of_the_same_image(tmp_path: Path) -> None:
    shelf = shelf_in(tmp_path)
    shelf.append([b"0" * 16], torch.tensor([[1.0]]))
    with pytest.raises(AssertionError):
        shelf.append([b"1" * 16, b"0" * 16], torch.tensor([[2.0], [3.0]]))


@pytest.mark.parametrize("shape", [(), (3,), (2, 2)])
def test_no_rows_are_no_change(shape: tuple[int, ...], tmp_path: Path) -> None:
    """What was killed between two shelves finds everything on the first."""
    shelf = Shelf(tmp_path / "shelf", shape, torch.float16)
    shelf.append([], torch.zeros(0, *shape))
    assert not shelf.row_of and (tmp_path / "shelf" / "rows.16").stat().st_size == 0
