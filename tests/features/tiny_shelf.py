"""Few pictures and the files that their features are kept in, for the tests of frozen stems."""

from pathlib import Path

from unida.data.folders import scan
from unida.data.pixels import Pixels, open_pixels

CROP = 32


def pixels_of(folder: Path, cache: Path) -> Pixels:
    return open_pixels(scan(folder)[0], resize="squash", size=40, cache_dir=cache)


def rows_files(cache: Path) -> list[Path]:
    return sorted((cache / "features").glob("*/rows.16"))
