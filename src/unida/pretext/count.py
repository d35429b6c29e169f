"""How many images is this mosaic made of? The pretext task of SPA: a recipe, a head and a loss."""

from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import Tensor

from unida.losses.entropy import entropy
from unida.models.words import histogram
from unida.pretext.base import Classification
from unida.pretext.bins import merge_overlapping, parse_bins
from unida.recipes.base import Made
from unida.recipes.mosaic import Mosaic


class Count(Classification):
    """f_n on the word histogram.

    Args:
        words: K.
        bins: which numbers of images count as one class (`unida.pretext.bins`).
        pool: mosaics of each domain that are kept if the backbone is frozen.
    """

    name = "count"
    recipe: Mosaic
    bins: Tensor  # (g²,) int64, the class of each number of images

    def __init__(self, words: int, grid: int, bins: str, pool: int) -> None:
        super().__init__(words, grid**2)
        self.recipe = Mosaic(grid, pool=pool)
        self.looks_first = bins == "auto"
        self.register_buffer("bins", torch.tensor(parse_bins(bins, self.recipe.cells)))

    def classes_of(self, labels: Tensor) -> Tensor:
        """Labels are numbers of images, less one."""
        return self.bins[labels]

    def look(self, made: Iterable[Made], log_words: Callable[[Tensor], Tensor]) -> str:
        merged = self.merge_bins((log_words(it.images), it.labels) for it in made)
        classes = " ".join(str(bin + 1) for bin in merged)
        return f"pretext classes of 1 to {self.recipe.cells} images: {classes}"

    def merge_bins(self, seen: Iterable[tuple[Tensor, Tensor]]) -> tuple[int, ...]:
        """Merge numbers of images whose histograms have about the same entropy into one class.

        Args:
            seen: (log φ, labels) of batches of mosaics.
        """
        entropies, instances = [], []
        for log_words, labels in seen:
            entropies.append(entropy(histogram(log_words.flatten(1, -2))).cpu().numpy())
            instances.append(labels.cpu().numpy() + 1)
        merged = merge_overlapping(np.concatenate(entropies), np.concatenate(instances), self.recipe.cells)
        self.bins.copy_(torch.tensor(merged))
        return merged
