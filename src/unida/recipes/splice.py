"""Spliced images: two images on the two sides of a random curve (USFDA: the negative images of its procurement).

The curve is a parabola from one side of the image to the other. It starts and ends anywhere on these sides, and passes
near the centre. So a spliced image always shows a part of both images.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from unida.recipes.base import Made


class Cuts(NamedTuple):
    """How B images are spliced. Drawn on the host: a few bytes for each. Places are shares of the side, 0…1."""

    images: np.ndarray  # (B, 2) int64, which image of the batch is shown first, above or left of the curve; and second
    is_vertical: np.ndarray  # (B,) bool: the curve runs from the top to the bottom; if not, from left to right
    ends: np.ndarray  # (B, 2) where it starts and where it ends, across its direction
    middle: np.ndarray  # (B, 2) a point that it passes: along its direction, and across it


@dataclass(frozen=True)
class Splice:
    """Images spliced of two. The label is 1 if the curve is vertical, else 0; `of` names the two images.

    The classes of the two images are not known here. Who uses spliced images looks them up by `of`.

    Attributes:
        window: the curve passes the centre at most this far away, as a share of the side (released code of USFDA: 30 of
            224 pixels).
    """

    window: float = 30 / 224
    pool: int = 2048
    name: ClassVar[str] = "spliced images"
    domains: ClassVar[tuple[str, ...]] = ("source",)

    @property
    def key(self) -> str:
        return f"spliced images, window {self.window:.6f}"

    def make_of_several(self, images: Tensor, of: np.ndarray, draw: np.random.Generator, count: int) -> Made:
        different = np.unique(of, return_index=True)[1]
        cuts = self.draw_cuts(count, different, draw)
        return Made(
            splice(images, cuts),
            torch.from_numpy(cuts.is_vertical.astype(np.int64)).to(images.device, non_blocking=True),
            torch.from_numpy(of[cuts.images]).to(images.device, non_blocking=True),
        )

    def draw_cuts(self, count: int, images: np.ndarray, draw: np.random.Generator) -> Cuts:
        """`count` cuts through two different of `images` (N,). A single image is spliced with itself."""
        first = draw.integers(len(images), size=count)
        step = draw.integers(1, max(2, len(images)), size=count)  # around the circle of images, never back to the first
        return Cuts(
            images=np.stack([images[first], images[(first + step) % len(images)]], axis=1),
            is_vertical=draw.random(count) < 0.5,
            ends=draw.random((count, 2)),
            middle=0.5 + draw.uniform(-self.window, self.window, size=(count, 2)),
        )


def splice(images: Tensor, cuts: Cuts) -> Tensor:
    """(N, 3, H, W) → (B, 3, H, W), all cuts at once."""
    height, width = images.shape[-2:]
    is_vertical = torch.from_numpy(cuts.is_vertical).to(images.device)[:, None, None]
    down, right = ((torch.arange(side, device=images.device) + 0.5) / side for side in (height, width))
    above = down[None, :, None] < _curve(cuts, right)[:, None, :]
    left = right[None, None, :] < _curve(cuts, down)[:, :, None]
    is_first = torch.where(is_vertical, left, above)[:, None]  # (B, 1, H, W)
    first, second = (images[torch.from_numpy(which).to(images.device)] for which in cuts.images.T)
    return torch.where(is_first, first, second).contiguous(memory_format=torch.channels_last)


def _curve(cuts: Cuts, along: Tensor) -> Tensor:
    """(B, L) the curves at places (L,) along their direction: the parabola through both ends and the middle point.

    It is the straight line between the ends, plus a bend that is 0 at both.
    """
    start, end, x, y = (torch.from_numpy(values).to(along)[:, None] for values in (*cuts.ends.T, *cuts.middle.T))
    bend = (y - start - (end - start) * x) / (x * (1 - x))  # x is near ½, never 0 or 1
    return start + (end - start) * along + bend * along * (1 - along)
