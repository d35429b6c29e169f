"""In which order are the nine tiles? (JiGen, Carlucci et al. 2019)

JiGen shows ordered images more often, and learns classes from those alone; here the method has its own images, so the
31 orders are equally likely.
"""

from collections.abc import Sequence

from unida.pretext.base import Classification
from unida.recipes.jigsaw import SHUFFLED, Jigsaw


class JigsawTask(Classification):
    name = "jigsaw"

    def __init__(self, words: int, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__(words, SHUFFLED + 1)
        self.recipe = Jigsaw()
