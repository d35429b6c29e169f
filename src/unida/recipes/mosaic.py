"""Mosaics: how many images is this one made of? (SPA: "Procurement of pretext-task samples")

A mosaic has g×g cells. Its label is the number of images that its cells were cut from: y is uniform in 1…g², the y
images are distinct, cells are given to them by a uniformly random surjection, and each cell is an independent crop that
lies inside its image. A mosaic of one image has g² independent crops too, so that seams do not show the label.
"""

from dataclasses import dataclass
from functools import cache
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torchvision.ops import roi_align

from unida.recipes.base import Made


class Layout(NamedTuple):
    """Where every cell of B mosaics comes from. Drawn on the host: a few bytes per cell."""

    instances: np.ndarray  # (B,) int64 in 1…g², distinct images of each mosaic
    image: np.ndarray  # (B, g²) int64, which image of the batch, row by row
    top: np.ndarray  # (B, g²) float in 0…1, of the image's height
    left: np.ndarray  # (B, g²) float in 0…1, of its width
    side: np.ndarray  # (B, g²) float in 0…1: top + side and left + side are at most 1
    flip: np.ndarray  # (B, g²) bool


@dataclass(frozen=True)
class Mosaic:
    """Mosaics of g×g cells. The label is the number of images in it, less one: 0…g²−1.

    Attributes:
        smallest: the smallest crop as a share of the image's side. The paper gives none; ½ is the side of a cell of
            2×2: squares of 112 to 224 of 224 pixels, none enlarged.
    """

    grid: int = 2
    smallest: float = 0.5
    pool: int = 1024
    name: ClassVar[str] = "mosaics"
    domains: ClassVar[tuple[str, ...]] = ("source", "target")

    @property
    def key(self) -> str:
        return f"mosaics, grid {self.grid}, smallest {self.smallest}"

    @property
    def cells(self) -> int:
        return self.grid**2

    def make_of_several(self, images: Tensor, of: np.ndarray, draw: np.random.Generator, count: int) -> Made:
        different = np.unique(of, return_index=True)[1]  # a mosaic of n images shows n different ones
        layout = self.draw_layout(count, different, draw)
        labels = torch.from_numpy(layout.instances - 1)
        return Made(
            assemble(images, layout, self.grid),
            labels.to(images.device, non_blocking=True),
            torch.from_numpy(of[layout.image]).to(images.device, non_blocking=True),
        )

    def draw_layout(self, mosaics: int, images: np.ndarray, draw: np.random.Generator) -> Layout:
        """Layouts of this many mosaics of `images` (N,). With fewer images than cells, counts end at N."""
        count = draw.integers(1, min(self.cells, len(images)) + 1, size=mosaics)
        chosen = draw.random((mosaics, len(images))).argsort(axis=1)[:, : self.cells]  # distinct, uniform
        owner = draw_surjections(count, self.cells, draw)
        side = draw.uniform(self.smallest, 1.0, size=owner.shape)
        return Layout(
            instances=count,
            image=images[np.take_along_axis(chosen, owner, axis=1)],
            top=draw.random(owner.shape) * (1 - side),
            left=draw.random(owner.shape) * (1 - side),
            side=side,
            flip=draw.random(owner.shape) < 0.5,
        )


def assemble(images: Tensor, layout: Layout, grid: int) -> Tensor:
    """Cut and paste all cells of all mosaics at once.

    Args:
        images: (N, 3, H, W).

    Returns:
        (B, 3, H, W) mosaics; if H or W is no multiple of g, they are made a little larger and resized.
    """
    height, width = images.shape[-2:]
    cell_height, cell_width = -(-height // grid), -(-width // grid)
    scale = np.array([width, height, width, height])
    corners = np.stack([layout.left, layout.top, layout.left + layout.side, layout.top + layout.side], axis=-1) * scale
    boxes = np.concatenate([layout.image[..., None], corners], axis=-1).reshape(-1, 5)
    on_device = torch.from_numpy(boxes).to(images.device, images.dtype, non_blocking=True)
    # One bilinear sample per pixel: a crop shrinks at most g times, which is fine for the paper's 2×2.
    cells = roi_align(images.contiguous(), on_device, (cell_height, cell_width), sampling_ratio=1, aligned=True)
    flip = torch.from_numpy(layout.flip.reshape(-1)).to(images.device, non_blocking=True)
    cells = torch.where(flip[:, None, None, None], cells.flip(3), cells)
    rows = cells.unflatten(0, (-1, grid, grid)).permute(0, 3, 1, 4, 2, 5)  # (B, 3, g, cell, g, cell)
    mosaics = rows.reshape(len(layout.instances), images.shape[1], grid * cell_height, grid * cell_width)
    if mosaics.shape[-2:] != (height, width):
        mosaics = torch.nn.functional.interpolate(mosaics, (height, width), mode="bilinear", align_corners=False)
    return mosaics.contiguous(memory_format=torch.channels_last)


def draw_surjections(count: np.ndarray, cells: int, draw: np.random.Generator) -> np.ndarray:
    """(B, cells) owners 0…count−1 of each cell, uniform over all surjections up to the owners' names.

    Cell by cell. The chance that a cell goes to an owner without one is the share of surjections in which it does.
    """
    new_owner = _chance_of_new_owner(cells)
    owners = np.empty((len(count), cells), dtype=np.int64)
    waiting = count.copy()  # owners without a cell
    for cell in range(cells):
        is_new = draw.random(len(count)) < new_owner[cells - cell, waiting, count]
        seen = count - waiting
        pick = draw.random(len(count))
        # New owners come in the order 0, 1, 2, …: their numbers mean nothing, as each stands for a random image.
        owners[:, cell] = np.where(is_new, seen, (pick * np.maximum(seen, 1)).astype(np.int64))
        waiting -= is_new
    return owners


@cache
def _chance_of_new_owner(cells: int) -> np.ndarray:
    """[r, u, y]: with r cells left and u of y owners without one, the chance that the next cell goes to one of them."""
    chance = np.zeros((cells + 1, cells + 1, cells + 1))
    for y in range(1, cells + 1):
        # [r][u]: number of maps of r cells to y owners that give each of u owners a cell; exact integers.
        ways = [[0] * (y + 1) for _ in range(cells + 1)]
        ways[0][0] = 1
        for r in range(1, cells + 1):
            for u in range(y + 1):
                as_new = u * ways[r - 1][u - 1] if u else 0
                ways[r][u] = as_new + (y - u) * ways[r - 1][u]
                chance[r, u, y] = as_new / ways[r][u] if ways[r][u] else 0.0
    return chance
