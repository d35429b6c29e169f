"""Names on pictures: a font that has their letters, and another form of those that no font has."""

import unicodedata
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from PIL import ImageFont

from unida.errors import printable

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont

# Asked in this order when Pillow's own font, which is small, lacks a letter. Pillow looks for these names where the
# system has its fonts.
WIDE_FONTS = (
    "DejaVuSans.ttf",  # Latin, Greek, Cyrillic, Arabic, Hebrew
    "NotoSansCJK-Regular.ttc",
    "Arial Unicode.ttf",  # macOS
    "segoeui.ttf",  # Windows
    "YuGothM.ttc",
    "msyh.ttc",
)
NO_LETTER = "\U0010ffff"  # no font has it: it is drawn as the box that stands for what is missing


def lettered(text: str, size: int) -> tuple[str, Font]:
    """The text as it can be drawn, and the font to draw it with. Pillow's own is taken wherever it has all letters."""
    text = unicodedata.normalize("NFC", printable(text))
    different = frozenset(text)
    fewest, best = len(different), 0
    for number in range(1 + len(WIDE_FONTS)):
        lacking = sum(not _has(number, letter) for letter in different)
        if lacking < fewest or number == 0:
            fewest, best = lacking, number
        if not fewest:
            break
    font = _font(best, size)
    assert font is not None
    return "".join(letter if _has(best, letter) else _other_form(best, letter) for letter in text), font


def _other_form(number: int, letter: str) -> str:
    """Without its accents ("u" for "ü"), or, if that does not help, by its number in Unicode ("\\u30ab")."""
    plain = "".join(part for part in unicodedata.normalize("NFKD", letter) if not unicodedata.combining(part))
    if plain and plain != letter and all(_has(number, part) for part in plain):
        return plain
    return letter.encode("unicode_escape").decode()


@lru_cache(maxsize=64)
def _font(number: int, size: int) -> Font | None:
    """Pillow's own, then WIDE_FONTS; None if the system has no such font."""
    if number == 0:
        return ImageFont.load_default(size=size)
    name = WIDE_FONTS[number - 1]
    inside = _of_matplotlib(name)
    try:
        return ImageFont.truetype(name if inside is None else str(inside), size)
    except OSError:
        return None


def _of_matplotlib(name: str) -> Path | None:
    """Matplotlib brings DejaVu along; found without importing it."""
    spec = find_spec("matplotlib")
    if spec is None or spec.origin is None:
        return None
    file = Path(spec.origin).parent / "mpl-data" / "fonts" / "ttf" / name
    return file if file.is_file() else None


@lru_cache(maxsize=4096)
def _has(number: int, letter: str) -> bool:
    """Whether the font draws this letter as something else than what it draws for a letter that it lacks."""
    font = _font(number, 24)
    if font is None:
        return False
    try:
        return _drawn(font, letter) != _drawn(font, NO_LETTER)
    except UnicodeEncodeError:  # a bitmap font, of a Pillow without FreeType
        return False


def _drawn(font: Font, letter: str) -> tuple[tuple[int, int], bytes]:
    mask = font.getmask(letter)
    return mask.size, bytes(mask)
