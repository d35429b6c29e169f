"""Images with a hole, with what was there as labels (context encoders, Pathak et al. 2016)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from unida.recipes.lab import to_pixels
from unida.recipes.small import shrunk, small_size


@dataclass(frozen=True)
class Hole:
    """A square of every image is hidden: it has the mean colour of the pretraining images, which is zero.

    Labels: (B, 4, h, w) uint8, the small picture in 0…255, and 1 where it is hidden. The square lies on whole pixels of
    the small picture, so that hidden and shown ones do not mix.

    Attributes:
        mean, std: of the backbone's input, to get back to pixels.
        side: of the square, as a share of the image's side. ½ hides a quarter of the image, as Pathak et al. do.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    side: float = 0.5
    name: ClassVar[str] = "images with a hole"

    @property
    def key(self) -> str:
        return f"{self!r} 1"

    def choose(self, count: int, draw: np.random.Generator) -> np.ndarray:
        """(count, 2) in 0…1: how far the square is from the top and from the left."""
        return draw.random((count, 2))

    def make_each(self, images: Tensor, choices: np.ndarray) -> tuple[Tensor, Tensor]:
        hidden = self.hidden(small_size(images), choices).to(images.device)  # (B, 1, h, w)
        covered = F.interpolate(hidden.float(), images.shape[-2:], mode="nearest") > 0
        small = (255 * shrunk(to_pixels(images, self.mean, self.std))).round().to(torch.uint8)
        made = images.masked_fill(covered, 0.0).contiguous(memory_format=torch.channels_last)
        return made, torch.cat([small, hidden.to(torch.uint8)], dim=1)

    def hidden(self, size: tuple[int, int], choices: np.ndarray) -> Tensor:
        """(B, 1, h, w) bool: every place inside the picture is equally likely."""
        along = []
        for length, far in zip(size, choices.T, strict=True):
            side = max(1, round(self.side * length))
            start = np.floor(far * (length - side + 1))[:, None]
            at = np.arange(length)
            along.append((at >= start) & (at < start + side))
        return torch.from_numpy(along[0][:, None, :, None] & along[1][:, None, None, :])
