"""Pictures of noise, and a cache of them, for the tests of what is kept and what is given out."""

from pathlib import Path

import numpy as np
from PIL import Image

from unida.data.folders import ImageFile
from unida.data.images import ResizeMode
from unida.data.pixels import Pixels, open_pixels

SIZE = 24


def make_images(root: Path, count: int = 9) -> Path:
    """Noise of varied shapes, one file format for all."""
    root.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(count)
    for i in range(count):
        shape = (*rng.integers(20, 70, 2), 3)
        Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8)).save(root / f"{i}.png")
    return root


def open_in(folder: Path, files: list[ImageFile], mode: ResizeMode = "squash", **options: object) -> Pixels:
    return open_pixels(files, resize=mode, size=SIZE, cache_dir=folder / "cache", **options)  # type: ignore[arg-type]
