"""Which quarter of an image is this? (Sun et al. 2019)"""

from collections.abc import Sequence

from unida.pretext.base import Classification
from unida.recipes.quadrant import AnyQuadrant


class PatchLocation(Classification):
    name = "patch_location"

    def __init__(self, words: int, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__(words, 4)
        self.recipe = AnyQuadrant()
