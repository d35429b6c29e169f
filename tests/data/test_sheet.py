from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from unida.data.sheet import contact_sheet, side_by_side
from unida.errors import UserError

RED, BLUE = (220, 20, 20), (20, 20, 220)


def picture(path: Path, colour: tuple[int, int, int], size: tuple[int, int] = (40, 40)) -> Path:
    Image.new("RGB", size, colour).save(path)
    return path


def box(sheet: Path, colour: tuple[int, int, int]) -> tuple[int, int, int, int] | None:
    """Left, top, right, bottom of the pixels of about this colour (PNG sources, so nearly exact)."""
    with Image.open(sheet) as image:
        assert image.format == "PNG"
        near = np.abs(np.asarray(image.convert("RGB"), dtype=int) - colour).max(axis=-1) < 12
    return Image.fromarray(near).getbbox()


def size(sheet: Path) -> tuple[int, int]:
    with Image.open(sheet) as image:
        return image.size


def test_thumbnails_keep_their_aspect(tmp_path: Path) -> None:
    wide = picture(tmp_path / "wide.png", RED, (400, 100))
    out = contact_sheet([("wide", [wide])], tmp_path / "sheet.png", thumb=64)
    assert out == tmp_path / "sheet.png"
    found = box(out, RED)
    assert found is not None
    assert (found[2] - found[0], found[3] - found[1]) == (64, 16)


def test_a_picture_one_pixel_thin_is_still_drawn(tmp_path: Path) -> None:
    thin = picture(tmp_path / "thin.png", RED, (1, 3000))
    found = box(contact_sheet([("thin", [thin])], tmp_path / "sheet.png", thumb=64), RED)
    assert found is not None
    assert (found[2] - found[0], found[3] - found[1]) == (1, 64)


def test_a_group_wraps_to_more_rows(tmp_path: Path) -> None:
    red = picture(tmp_path / "red.png", RED)
    one = size(contact_sheet([("a", [red] * 4)], tmp_path / "one.png", per_row=4, thumb=32))
    two = size(contact_sheet([("a", [red] * 5)], tmp_path / "two.png", per_row=4, thumb=32))
    assert two[0] == one[0]
    assert two[1] >= one[1] + 32


def test_captions_are_written_and_never_leave_the_sheet(tmp_path: Path) -> None:
    red = picture(tmp_path / "red.png", RED)
    short = contact_sheet([("mug", [red])], tmp_path / "short.png", per_row=3)
    other = contact_sheet([("pen", [red])], tmp_path / "other.png", per_row=3)
    long = contact_sheet([("mug " * 200, [red])], tmp_path / "long.png", per_row=3)
    assert size(short) == size(long)
    assert short.read_bytes() != other.read_bytes()
    ink, edge = box(long, (25, 25, 25)), size(long)[0]
    assert ink is not None
    assert edge // 2 < ink[2] <= edge - 10


def test_broken_and_missing_files_are_grey_boxes_with_a_cross(tmp_path: Path) -> None:
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"not a picture")
    red = picture(tmp_path / "red.png", RED)
    out = contact_sheet([("a", [broken, tmp_path / "gone.jpg", red])], tmp_path / "sheet.png", thumb=64)
    grey, cross, good = box(out, (180, 180, 180)), box(out, (110, 110, 110)), box(out, RED)
    assert grey is not None
    assert cross is not None
    assert good is not None
    assert grey[2] - grey[0] > 2 * 64  # two boxes beside each other
    assert grey[0] < cross[0] < cross[2] < grey[2] < good[0]


def test_side_by_side_puts_source_left_and_target_right(tmp_path: Path) -> None:
    red, blue = picture(tmp_path / "red.png", RED), picture(tmp_path / "blue.png", BLUE)
    rows = [("mug", [red] * 9, [blue]), ("ruler", [red], []), ("phone", [], [blue])]
    out = side_by_side(rows, tmp_path / "deep" / "pair.png", ("amazon", "dslr"), per_side=2, thumb=48)
    left, right = box(out, RED), box(out, BLUE)
    assert left is not None
    assert right is not None
    middle = size(out)[0] / 2
    assert left[2] < middle < right[0]
    assert left[2] - left[0] < 3 * 48  # no more than per_side
    assert left[3] < right[3]  # the last row has a target picture only


def test_pairs_with_the_sides_swapped_differ(tmp_path: Path) -> None:
    red, blue = picture(tmp_path / "red.png", RED), picture(tmp_path / "blue.png", BLUE)
    one = side_by_side([("mug", [red], [blue])], tmp_path / "one.png")
    other = side_by_side([("mug", [blue], [red])], tmp_path / "other.png")
    assert box(one, RED) == box(other, BLUE)
    assert box(one, BLUE) == box(other, RED)


def test_what_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    red = picture(tmp_path / "red.png", RED)
    with pytest.raises(UserError, match="nothing to draw"):
        contact_sheet([], tmp_path / "sheet.png")
    with pytest.raises(UserError, match=r"sheet\.jpg is not a \.png name"):
        side_by_side([("a", [red], [red])], tmp_path / "sheet.jpg")
    with pytest.raises(UserError, match="thumbnails of 8 pixels"):
        contact_sheet([("a", [red])], tmp_path / "sheet.png", thumb=8)
