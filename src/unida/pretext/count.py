"""How many images is this mosaic made of? The pretext task of SPA: a recipe, a head and a loss."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unida.losses.entropy import entropy
from unida.models.words import histogram
from unida.pretext.bins import merge_overlapping, parse_bins
from unida.recipes.mosaic import Mosaic


class Result(NamedTuple):
    loss: Tensor  # ()
    correct: Tensor  # (B,) bool


class Count(nn.Module):
    """f_n on the word histogram. It is dropped when training ends.

    Args:
        words: K.
        bins: which numbers of images count as one class (`unida.pretext.bins`).
        pool: mosaics of each domain that are kept if the backbone is frozen.
    """

    bins: Tensor  # (g²,) int64, the class of each number of images

    def __init__(self, words: int, grid: int, bins: str, pool: int) -> None:
        super().__init__()
        self.recipe = Mosaic(grid, pool=pool)
        self.head = nn.Linear(words, self.recipe.cells)
        self.register_buffer("bins", torch.tensor(parse_bins(bins, self.recipe.cells)))

    def forward(self, log_words: Tensor, labels: Tensor) -> Result:
        """The cross-entropy of f_n.

        Args:
            log_words: (B, U, K) log φ of mosaics.
            labels: (B,) the number of images in each, less one.
        """
        shares = histogram(log_words)
        logits = self.head(shares * shares.shape[1]).float()  # times K: like the heads, f_n needs numbers around 1
        classes = self.bins[labels]
        return Result(F.cross_entropy(logits, classes), logits.detach().argmax(dim=1) == classes)

    def merge_bins(self, seen: Iterable[tuple[Tensor, Tensor]]) -> tuple[int, ...]:
        """Merge numbers of images whose histograms have about the same entropy into one class.

        Args:
            seen: (log φ, labels) of batches of mosaics.
        """
        entropies, instances = [], []
        for log_words, labels in seen:
            entropies.append(entropy(histogram(log_words)).cpu().numpy())
            instances.append(labels.cpu().numpy() + 1)
        merged = merge_overlapping(np.concatenate(entropies), np.concatenate(instances), self.recipe.cells)
        self.bins.copy_(torch.tensor(merged))
        return merged
