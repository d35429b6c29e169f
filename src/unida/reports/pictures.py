"""Small pictures inside a report. All of them together stay below a number of bytes, whatever they show."""

import base64
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from PIL import Image, ImageDraw

from unida.data.folders import in_threads
from unida.data.images import BadImage, read_rgb
from unida.data.lettering import lettered

MOST_BYTES = 4_500_000  # of all thumbnails of a report, as text
MOST_SHEET_BYTES = 1_500_000  # of the sheet of tiles that a map shows
SIZES = (
    (176, 78),
    (144, 74),
    (112, 68),
    (88, 60),
    (64, 50),
)  # side in pixels, quality of the JPEG; the last always fits
TILES = ((56, 66), (44, 58), (32, 50))  # the same for tiles
GREY, INK = (176, 176, 176), (64, 64, 64)


@dataclass(frozen=True)
class Thumbnail:
    uri: str
    width: int
    height: int


@dataclass(frozen=True)
class TileSheet:
    """Many small square pictures in one JPEG: row by row, `columns` in each."""

    uri: str
    columns: int
    rows: int


def thumbnails(paths: Iterable[str]) -> dict[str, Thumbnail]:
    """A small JPEG of each file, each once. A file that gives no picture has a grey tile with its name."""
    different = list(dict.fromkeys(paths))
    largest = SIZES[0][0]
    pictures = list(in_threads(lambda path: small_picture(path, largest), different))
    for side, quality in SIZES:
        made = [_thumbnail(picture, side, quality) for picture in pictures]
        if sum(len(one.uri) for one in made) <= MOST_BYTES:
            break
    return dict(zip(different, made, strict=True))


def small_picture(path: str, side: int) -> Image.Image:
    """The picture, not larger than side × side, or a grey tile with the file's name."""
    try:
        picture = read_rgb(path, at_least=side)
    except BadImage:
        return grey_tile(path, side)
    picture.thumbnail((side, side), Image.Resampling.LANCZOS)
    return picture


def grey_tile(path: str, side: int) -> Image.Image:
    """For an image that is gone."""
    tile = Image.new("RGB", (side, side), GREY)
    name, font = lettered(path.rpartition("/")[2], max(9, side // 12))
    letters = max(6, side // 8)
    lines = [name[start : start + letters] for start in range(0, min(len(name), 5 * letters), letters)]
    ImageDraw.Draw(tile).multiline_text((6, 6), "\n".join(lines), fill=INK, font=font)
    return tile


def _thumbnail(picture: Image.Image, side: int, quality: int) -> Thumbnail:
    small = picture.copy()
    small.thumbnail((side, side), Image.Resampling.LANCZOS)
    return Thumbnail(jpeg_uri(small, quality), small.width, small.height)


def jpeg_uri(picture: Image.Image, quality: int) -> str:
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=quality, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


def tile_sheet(paths: Sequence[str]) -> TileSheet:
    """Squares cut from the middle of each picture, in one sheet: a JPEG of its own would double each one's size."""
    largest = TILES[0][0]
    tiles = list(in_threads(lambda path: _square(path, largest), paths))
    columns = max(1, round(len(tiles) ** 0.5))
    rows = -(-len(tiles) // columns)
    for side, quality in TILES:
        sheet = Image.new("RGB", (columns * side, rows * side), GREY)
        for number, tile in enumerate(tiles):
            row, column = divmod(number, columns)
            sheet.paste(tile.resize((side, side), Image.Resampling.LANCZOS), (column * side, row * side))
        uri = jpeg_uri(sheet, quality)
        if len(uri) <= MOST_SHEET_BYTES:
            break
    return TileSheet(uri, columns, rows)


def _square(path: str, side: int) -> Image.Image:
    try:
        picture = read_rgb(path, at_least=side)
    except BadImage:
        return grey_tile(path, side)
    edge = min(picture.size)
    left, top = (picture.width - edge) // 2, (picture.height - edge) // 2
    return picture.resize((side, side), Image.Resampling.BOX, box=(left, top, left + edge, top + edge))
