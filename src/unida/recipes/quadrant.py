"""Quadrants: which quarter of an image is this? (Sun et al. 2019; the SPA paper's "patch-loc")"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from unida.recipes.base import ImageRecipe


@dataclass(frozen=True)
class Quadrant:
    """A quarter of every image, enlarged to the image's size. Labels: 0 top left, 1 top right, 2 and 3 below.

    Attributes:
        which: the same quarter of all images; None draws one of four for each.
    """

    which: int | None = None
    name: ClassVar[str] = "quarters of images"

    @property
    def key(self) -> str:
        return "quadrant" if self.which is None else f"quadrant {self.which}"

    def choose(self, count: int, draw: np.random.Generator) -> np.ndarray:
        return draw.integers(4, size=count) if self.which is None else np.full(count, self.which)

    def make_each(self, images: Tensor, choices: np.ndarray) -> tuple[Tensor, Tensor]:
        height, width = images.shape[-2:]
        half = -(-height // 2), -(-width // 2)
        made = torch.empty_like(images)
        for which in np.unique(choices).tolist():
            at = torch.from_numpy(np.flatnonzero(choices == which)).to(images.device)
            top, left = (height - half[0]) * (which // 2), (width - half[1]) * (which % 2)
            part = images[at, :, top : top + half[0], left : left + half[1]]
            made[at] = F.interpolate(part, (height, width), mode="bilinear", align_corners=False)
        return made, torch.from_numpy(choices).to(images.device, non_blocking=True)


@dataclass(frozen=True)
class AnyQuadrant(Quadrant):
    """One of four quarters of each image, drawn anew in every step, also where features are kept (`WaysRecipe`)."""

    @property
    def key(self) -> str:
        return "any quadrant"

    @property
    def ways(self) -> tuple[ImageRecipe | None, ...]:
        return tuple(Quadrant(which) for which in range(4))
