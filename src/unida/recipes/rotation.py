"""Rotations by quarter turns: which way is up? (RotNet; ROS; the SPA paper's comparison of pretext tasks)"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from unida.recipes.base import ImageRecipe


@dataclass(frozen=True)
class Rotation:
    """Every image turned counter-clockwise by 90° times its label, 0…3 (the direction of ROS's code).

    Attributes:
        quarters: the same turn for all images; None draws one of four for each.
    """

    quarters: int | None = None
    name: ClassVar[str] = "rotated images"

    @property
    def key(self) -> str:
        return "rotation" if self.quarters is None else f"rotation by {90 * self.quarters} degrees"

    def choose(self, count: int, draw: np.random.Generator) -> np.ndarray:
        return draw.integers(4, size=count) if self.quarters is None else np.full(count, self.quarters)

    def make_each(self, images: Tensor, choices: np.ndarray) -> tuple[Tensor, Tensor]:
        turned = torch.empty_like(images)
        for quarters in range(4):
            which = torch.from_numpy(np.flatnonzero(choices == quarters)).to(images.device)
            turned[which] = images[which].rot90(quarters, dims=(2, 3))
        return turned, torch.from_numpy(choices).to(images.device, non_blocking=True)


@dataclass(frozen=True)
class AnyRotation(Rotation):
    """One of four rotations for each image, drawn anew in every step, also where features are kept (`WaysRecipe`)."""

    @property
    def key(self) -> str:
        return "any rotation"

    @property
    def ways(self) -> tuple[ImageRecipe | None, ...]:
        return None, Rotation(1), Rotation(2), Rotation(3)
