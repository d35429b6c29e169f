"""The word atlas of a report: patches of both domains that show each of SPA's words most strongly."""

from dataclasses import dataclass

import numpy as np
from PIL import Image

from unida.analysis.atlas import WordUse, patch_box, used_by, word_use, words_to_show
from unida.data.augment import centre_views
from unida.data.pixels import Pixels
from unida.methods.spa.method import SPA
from unida.reports.looking import some
from unida.reports.pictures import jpeg_uri
from unida.reports.rundata import RunData
from unida.runs.looking import Model

MOST_IMAGES = 200  # of the target
MOST_WORDS, PATCHES = 24, 5
PATCH_SIDE, PATCH_QUALITY = 72, 66


@dataclass(frozen=True)
class WordRow:
    number: int
    source_use: float  # in per cent of all locations
    target_use: float
    used_by: str  # "both", "source" or "target"
    source: list[str]  # pictures
    target: list[str]


def word_rows(data: RunData, model: Model, source_pixels: Pixels) -> list[WordRow]:
    """The words that are used most; first those that only one domain uses."""
    assert isinstance(model.method, SPA)
    target_pixels = model.pixels([data.paths[i] for i in some(len(data), MOST_IMAGES, "target in the atlas")])
    source, target = (
        word_use(model.method.words, model.views(pixels), PATCHES) for pixels in (source_pixels, target_pixels)
    )
    rows = [
        WordRow(
            number=word,
            source_use=100 * float(source.share[word]),
            target_use=100 * float(target.share[word]),
            used_by=used_by(source, target, word),
            source=_patches(source_pixels, source, word, model.info.crop),
            target=_patches(target_pixels, target, word, model.info.crop),
        )
        for word in words_to_show(source, target, MOST_WORDS)
    ]
    return sorted(rows, key=lambda row: row.used_by == "both")


def _patches(pixels: Pixels, use: WordUse, word: int, crop: int) -> list[str]:
    drawn = []
    for image, place in zip(use.images[word].tolist(), use.places[word].tolist(), strict=True):
        corner = centre_views(pixels.shapes[image : image + 1], crop)
        left, top, right, bottom = patch_box(place, use.grid, crop)
        whole = Image.fromarray(np.ascontiguousarray(pixels.image(image)))
        x, y = int(corner.left[0]), int(corner.top[0])
        patch = whole.resize(
            (PATCH_SIDE, PATCH_SIDE), Image.Resampling.BILINEAR, box=(x + left, y + top, x + right, y + bottom)
        )
        drawn.append(jpeg_uri(patch, PATCH_QUALITY))
    return drawn
