"""Which way is up? (RotNet; used for domain adaptation by Xu et al. 2019 and Mishra et al. 2021)

One random rotation of each image. Xu et al. show images that are not turned more often, and learn classes from those
alone; here the method has its own images, so the four turns are equally likely.
"""

from collections.abc import Sequence

from unida.pretext.base import Classification
from unida.recipes.rotation import AnyRotation


class RotationTask(Classification):
    name = "rotation"

    def __init__(self, words: int, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__(words, 4)
        self.recipe = AnyRotation()
