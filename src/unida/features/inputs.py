"""The network's input: views of images, and images that recipes make from them."""

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from unida.data.augment import Preprocess
from unida.data.pixels import Pixels
from unida.recipes.base import ImageRecipe, Made, Recipe, SetRecipe
from unida.support.random import generator


class Inputs(Protocol):
    """Images, or the kept output of the backbone's frozen part. Methods do not see the difference."""

    device: torch.device

    def training_view(self, pixels: Pixels, index: np.ndarray, draw: np.random.Generator, part: slice) -> Tensor:
        """A random view of each image at `index[part]`.

        Args:
            index: (B,) the global batch. The draw is made for all of it, so that it does not depend on how many
                processes share the batch.
            part: this process's slice.
        """

    def test_view(self, pixels: Pixels, index: np.ndarray) -> Tensor:
        """The central crop of each image at `index` (B,)."""

    def made(
        self, recipe: Recipe, pixels: Pixels, index: np.ndarray, draw: np.random.Generator, part: slice, views: Tensor
    ) -> Made:
        """What a recipe makes from the images at `index[part]`.

        Args:
            views: of these images; a recipe for several images may use them.
        """

    def made_test_view(self, recipe: ImageRecipe, pixels: Pixels, index: np.ndarray) -> Tensor:
        """What a recipe makes from the central crop of each image at `index` (B,); the same in every run."""


class PixelInputs(Preprocess):
    """Images from pixels, for a backbone that is trained whole."""

    def made(
        self, recipe: Recipe, pixels: Pixels, index: np.ndarray, draw: np.random.Generator, part: slice, views: Tensor
    ) -> Made:
        if isinstance(recipe, SetRecipe):
            # Each process makes them of its own images, by draws of its own.
            own = draw.spawn((part.start or 0) + 1)[-1]
            return recipe.make_of_several(views, index[part], own, len(views))
        assert isinstance(recipe, ImageRecipe)
        images = self.training_view(pixels, index, draw, part)  # not `views`: a made image gets a view of its own
        made, labels = recipe.make_each(images, recipe.choose(len(index), draw)[part])
        return Made(made, labels, torch.from_numpy(index[part, None]).to(self.device, non_blocking=True))

    def made_test_view(self, recipe: ImageRecipe, pixels: Pixels, index: np.ndarray) -> Tensor:
        return recipe.make_each(
            self.test_view(pixels, index), choices_of(recipe, pixels, index, np.zeros(len(index), dtype=np.int64))
        )[0]


def choices_of(recipe: ImageRecipe, pixels: Pixels, index: np.ndarray, views: np.ndarray) -> np.ndarray:
    """Choices that depend on each image's content and its view's number, not on the run."""
    numbered = zip(index.tolist(), views.tolist(), strict=True)
    draws = (generator(0, f"{recipe.key} of {pixels.files[i].digest}", view) for i, view in numbered)
    return np.concatenate([recipe.choose(1, draw) for draw in draws])
