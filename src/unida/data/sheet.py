"""Contact sheets: pictures of the data, for a person to check."""

from bisect import bisect_right
from collections.abc import Sequence
from math import ceil
from pathlib import Path

from PIL import Image, ImageDraw

from unida.data.images import BadImage, read_rgb
from unida.data.lettering import lettered
from unida.errors import UserError
from unida.support.files import written_aside

_MARGIN = 12  # around the sheet
_GAP = 6  # between thumbnails
_AISLE = 28  # between the source and the target half
_BELOW = 14  # between a group and the next caption
_FONT, _TITLE_FONT = 15, 20
_CAPTION, _TITLE = 22, 34  # heights of a caption and of a heading
# Grey paper, darker grey around pictures: product photos are white up to the edge and must not look like one.
_PAPER, _TILE, _INK, _FAINT = (238, 238, 238), (222, 222, 222), (25, 25, 25), (130, 130, 130)
_BROKEN, _CROSS = (180, 180, 180), (110, 110, 110)


def contact_sheet(
    groups: Sequence[tuple[str, Sequence[Path | Image.Image]]], out: Path, per_row: int = 8, thumb: int = 96
) -> Path:
    """Draw (caption, image files or images) groups below each other as a PNG; a group takes as many rows as it needs.

    Thumbnails keep their aspect; a file that cannot be read is a grey box with a cross. Returns `out`.
    """
    _check(out, thumb, per_row, len(groups))
    heights = [_CAPTION + _block_height(len(paths), per_row, thumb) + _BELOW for _, paths in groups]
    sheet = _blank(2 * _MARGIN + _block_width(per_row, thumb), 2 * _MARGIN + sum(heights) - _BELOW)
    top = _MARGIN
    for (caption, paths), height in zip(groups, heights, strict=True):
        _write(sheet, (_MARGIN, top), caption, sheet.width - 2 * _MARGIN)
        _draw_block(sheet, (_MARGIN, top + _CAPTION), paths, per_row, thumb)
        top += height
    return _save(sheet, out)


def side_by_side(
    rows: Sequence[tuple[str, Sequence[Path], Sequence[Path]]],
    out: Path,
    titles: tuple[str, str] = ("source", "target"),
    per_side: int = 5,
    thumb: int = 96,
) -> Path:
    """Draw (class, source files, target files) rows as a PNG, source left and target right. Returns `out`.

    At most `per_side` images of each side are shown; a side without images has a note.
    """
    _check(out, thumb, per_side, len(rows))
    half = _block_width(per_side, thumb)
    lefts = (_MARGIN, _MARGIN + half + _AISLE)
    row_height = _CAPTION + thumb + _BELOW
    sheet = _blank(2 * _MARGIN + 2 * half + _AISLE, 2 * _MARGIN + _TITLE + row_height * len(rows) - _BELOW)
    for left, title in zip(lefts, titles, strict=True):
        _write(sheet, (left, _MARGIN), title, half, size=_TITLE_FONT)
    for number, (caption, *sides) in enumerate(rows):
        top = _MARGIN + _TITLE + number * row_height
        _write(sheet, (_MARGIN, top), caption, sheet.width - 2 * _MARGIN)
        for left, paths in zip(lefts, sides, strict=True):
            _draw_block(sheet, (left, top + _CAPTION), paths[:per_side], per_side, thumb)
    middle = lefts[1] - _AISLE // 2
    ImageDraw.Draw(sheet).line([(middle, _MARGIN), (middle, sheet.height - _MARGIN)], fill=_BROKEN, width=2)
    return _save(sheet, out)


def _check(out: Path, thumb: int, columns: int, groups: int) -> None:
    if not groups:
        raise UserError(f"nothing to draw on {out}: give at least one class with images")
    if thumb < 16 or columns < 1:
        raise UserError(
            f"thumbnails of {thumb} pixels, {columns} a row: "
            "a contact sheet needs 16 pixels or more and 1 or more a row"
        )
    if Path(out).suffix.lower() != ".png":
        raise UserError(f"{out} is not a .png name: contact sheets are written as PNG")


def _block_width(columns: int, thumb: int) -> int:
    return columns * (thumb + _GAP) - _GAP


def _block_height(count: int, columns: int, thumb: int) -> int:
    """Height of the rows that `count` thumbnails fill; of a line of text if there are none."""
    return -(-count // columns) * (thumb + _GAP) - _GAP if count else _CAPTION


def _draw_block(
    sheet: Image.Image, corner: tuple[int, int], paths: Sequence[Path | Image.Image], columns: int, thumb: int
) -> None:
    if not paths:
        _write(sheet, corner, "(no images)", _block_width(columns, thumb), colour=_FAINT)
    for number, path in enumerate(paths):
        row, column = divmod(number, columns)
        sheet.paste(_tile(path, thumb), (corner[0] + column * (thumb + _GAP), corner[1] + row * (thumb + _GAP)))


def _tile(path: Path | Image.Image, thumb: int) -> Image.Image:
    """A thumb × thumb square: the whole picture, centred, or a grey box with a cross if it cannot be read."""
    try:
        picture = path if isinstance(path, Image.Image) else read_rgb(Path(path))
    except BadImage:
        box = Image.new("RGB", (thumb, thumb), _BROKEN)
        cross = ImageDraw.Draw(box)
        inset, last = thumb // 4, thumb - 1
        cross.line([(inset, inset), (last - inset, last - inset)], fill=_CROSS, width=3)
        cross.line([(inset, last - inset), (last - inset, inset)], fill=_CROSS, width=3)
        return box
    scale = thumb / max(picture.size)
    width, height = (max(1, round(side * scale)) for side in picture.size)
    tile = Image.new("RGB", (thumb, thumb), _TILE)
    small = picture.resize((width, height), Image.Resampling.LANCZOS)
    tile.paste(small, ((thumb - width) // 2, (thumb - height) // 2))
    return tile


def _write(
    sheet: Image.Image,
    corner: tuple[int, int],
    text: str,
    width: int,
    size: int = _FONT,
    colour: tuple[int, int, int] = _INK,
) -> None:
    """Write one line of text, cut with '…' if it is too long. It may hold any characters, like the names of folders."""
    draw = ImageDraw.Draw(sheet)
    shown, font = lettered(text[: width + 1], size)  # a letter takes a pixel or more
    if draw.textlength(shown, font=font) > width:
        ends = range(1, len(shown))
        fitting = bisect_right(ends, width, key=lambda end: ceil(draw.textlength(shown[:end] + "…", font=font)))
        shown = shown[:fitting] + "…" if fitting else ""
    draw.text(corner, shown, fill=colour, font=font)


def _blank(width: int, height: int) -> Image.Image:
    return Image.new("RGB", (width, height), _PAPER)


def _save(sheet: Image.Image, out: Path) -> Path:
    out = Path(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    with written_aside(out) as aside:
        sheet.save(aside, format="PNG", compress_level=1)  # 6 % larger, in less than half the time
    return out
