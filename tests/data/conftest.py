"""Fixtures of the tests of the cache."""

from pathlib import Path

import pytest
from tiny_pixels import make_images

from unida.data.folders import ImageFile, scan


@pytest.fixture
def files(tmp_path: Path) -> list[ImageFile]:
    return scan(make_images(tmp_path / "images"))[0]
