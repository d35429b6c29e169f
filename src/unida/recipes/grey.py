"""Images without colour, with their colours as labels (Zhang et al. 2016; Larsson et al. 2017)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from unida.recipes.lab import lightness, srgb_to_lab, to_pixels
from unida.recipes.small import shrunk


@dataclass(frozen=True)
class Grey:
    """Every image with its lightness in all three channels. Labels: (B, 2, h, w) int8, a and b of a small picture.

    a and b lie in −108…98. Whole numbers are fine enough for bins of 10, and take little room beside kept features.

    Attributes:
        mean, std: of the backbone's input, to get back to pixels.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    name: ClassVar[str] = "images without colour"

    @property
    def key(self) -> str:
        return f"{self!r} 1"

    def choose(self, count: int, draw: np.random.Generator) -> np.ndarray:
        """Nothing is random."""
        return np.zeros(count, dtype=np.int64)

    def make_each(self, images: Tensor, choices: np.ndarray) -> tuple[Tensor, Tensor]:
        pixels = to_pixels(images, self.mean, self.std)
        shift, scale = (images.new_tensor(numbers)[:, None, None] for numbers in (self.mean, self.std))
        made = (lightness(pixels) / 100 - shift) / scale
        colours = srgb_to_lab(shrunk(pixels))[:, 1:].round()
        return made.contiguous(memory_format=torch.channels_last), colours.to(torch.int8)
