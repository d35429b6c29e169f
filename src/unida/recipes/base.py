"""What a recipe is: it makes new images from images.

If the images are pixels, a recipe works on the current batch. If the backbone is frozen up to a tap, what the recipe
makes is kept as features (`unida.features`), like other images. Methods do not see the difference.
"""

from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from torch import Tensor


class Made(NamedTuple):
    """Images that a recipe made, or a frozen stem's output for them."""

    images: Tensor  # (B, 3, H, W)
    labels: Tensor  # (B, …) how each was made: a class, or a map of numbers
    of: Tensor  # (B, P) int64, which images of the domain each was made from


class Recipe(Protocol):
    """Makes images. `name` is what it makes, for people; `key` has every number that changes the result."""

    @property
    def name(self) -> str: ...

    @property
    def key(self) -> str: ...


@runtime_checkable
class ImageRecipe(Recipe, Protocol):
    """Makes one image from each image: rotations, masks, strong augmentation."""

    def choose(self, count: int, draw: np.random.Generator) -> np.ndarray:
        """(count, …) all random choices, a row for each image. A row depends on the draw alone, not on the images."""

    def make_each(self, images: Tensor, choices: np.ndarray) -> tuple[Tensor, Tensor]:
        """(B, 3, H, W) normalised images and (B, …) choices → (B, 3, H, W) new images and (B, …) labels."""


@runtime_checkable
class WaysRecipe(ImageRecipe, Protocol):
    """An image recipe with few ways to make an image, such as four rotations. A choice is the number of a way.

    If the backbone is frozen, each way is kept by itself, and a step draws one of them for each image. Views of a plain
    image recipe are drawn once: with few views, an image would be seen in few of the ways.
    """

    @property
    def ways(self) -> "tuple[ImageRecipe | None, ...]":
        """Each as a recipe without draws of its own; None leaves the image as it is."""


@runtime_checkable
class SetRecipe(Recipe, Protocol):
    """Makes images from several images of a domain: mosaics, splices."""

    @property
    def pool(self) -> int:
        """How many of each domain are made and kept if the backbone is frozen."""

    @property
    def domains(self) -> tuple[str, ...]:
        """The domains of whose images they are made, "source" or "target": the others need no pool."""

    def make_of_several(self, images: Tensor, of: np.ndarray, draw: np.random.Generator, count: int) -> Made:
        """New images.

        Args:
            images: (N, 3, H, W) of one domain, normalised.
            of: (N,) which image each one is; an image may come twice.
            count: how many to make.
        """
