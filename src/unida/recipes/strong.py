"""Strong augmentation: an image that is turned, bent, recoloured and partly hidden, for losses on consistent answers.

Ours: all of it works on batches of normalised tensors, on their device. The ranges are those that are usual for
photos; they were not tuned. Zero is the mean colour of the pretraining images, so hidden parts are zero.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

# The columns of the choices, each uniform in 0…1.
TURN, SCALE, SHEAR, DOWN, RIGHT, CONTRAST, LIGHT, COLOUR, TOP, LEFT, SIDE = range(11)
COLUMNS = 11


@dataclass(frozen=True)
class Strong:
    """One image of each. Labels are the choices, (B, 11).

    Attributes:
        turn, shear: largest angles, in degrees.
        scale, contrast: largest factors; the smallest are one over them.
        shift: largest shift, as a share of the image's side.
        light: largest change, in standard deviations of the pretraining images' colours.
        colour: largest factor on the difference to grey; the smallest is 0, a grey image.
        hidden: largest side of the square that is hidden, as a share of the image's side.
    """

    turn: float = 30.0
    shear: float = 15.0
    scale: float = 1.25
    shift: float = 0.1
    contrast: float = 1.8
    light: float = 0.6
    colour: float = 1.5
    hidden: float = 0.5
    name: ClassVar[str] = "strongly augmented images"

    @property
    def key(self) -> str:
        numbers = (self.turn, self.shear, self.scale, self.shift, self.contrast, self.light, self.colour, self.hidden)
        return f"strong augmentation 1, {' '.join(f'{number:g}' for number in numbers)}"

    def choose(self, count: int, draw: np.random.Generator) -> np.ndarray:
        return draw.random((count, COLUMNS), dtype=np.float32)

    def make_each(self, images: Tensor, choices: np.ndarray) -> tuple[Tensor, Tensor]:
        drawn = torch.from_numpy(choices).to(images.device, non_blocking=True)
        made = self.hide(self.recolour(self.bend(images, drawn), drawn), drawn)
        return made.contiguous(memory_format=torch.channels_last), drawn

    def bend(self, images: Tensor, drawn: Tensor) -> Tensor:
        """Turn, scale, shear and shift about the centre; what comes in from outside is the mirrored image."""
        signed = 2 * drawn - 1
        turn, shear = (math.radians(most) * signed[:, at] for most, at in ((self.turn, TURN), (self.shear, SHEAR)))
        scale = torch.exp(math.log(self.scale) * signed[:, SCALE])
        cos, sin, slant = turn.cos() * scale, turn.sin() * scale, shear.tan()
        shift = 2 * self.shift  # a grid goes from −1 to 1
        rows = [cos, slant * cos - sin, shift * signed[:, RIGHT], sin, slant * sin + cos, shift * signed[:, DOWN]]
        grid = F.affine_grid(torch.stack(rows, dim=1).unflatten(1, (2, 3)), list(images.shape), align_corners=False)
        return F.grid_sample(images, grid, padding_mode="reflection", align_corners=False)

    def recolour(self, images: Tensor, drawn: Tensor) -> Tensor:
        """Change the distance to grey, then the distance to the image's mean, then the mean."""
        signed = 2 * drawn - 1
        grey = images.mean(dim=1, keepdim=True)
        images = grey + _per_image(self.colour * drawn[:, COLOUR]) * (images - grey)
        mean = images.mean(dim=(1, 2, 3), keepdim=True)
        contrast = torch.exp(math.log(self.contrast) * signed[:, CONTRAST])
        return mean + _per_image(contrast) * (images - mean) + _per_image(self.light * signed[:, LIGHT])

    def hide(self, images: Tensor, drawn: Tensor) -> Tensor:
        """Set a square to zero. Its centre is anywhere, so that a part of it may lie outside."""
        height, width = images.shape[-2:]
        half = self.hidden * drawn[:, SIDE] / 2
        down = (torch.arange(height, device=images.device) + 0.5) / height
        right = (torch.arange(width, device=images.device) + 0.5) / width
        rows = (down[None] - drawn[:, TOP, None]).abs() < half[:, None]
        columns = (right[None] - drawn[:, LEFT, None]).abs() < half[:, None]
        return images.masked_fill((rows[:, :, None] & columns[:, None, :])[:, None], 0.0)


def _per_image(numbers: Tensor) -> Tensor:
    """(B,) → (B, 1, 1, 1)."""
    return numbers[:, None, None, None]
