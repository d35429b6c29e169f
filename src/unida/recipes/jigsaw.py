"""Jigsaws: in which order are the nine tiles of this image? (Noroozi and Favaro 2016; JiGen, Carlucci et al. 2019)

There are 9! orders. As in the papers, a few that differ in as many places as possible are used, and beside them the
order of the image as it is. JiGen's optional grey tiles are left out.
"""

from dataclasses import dataclass
from functools import cache
from itertools import chain, permutations
from math import factorial
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

GRID = 3
SHUFFLED = 30  # orders beside the image as it is (JiGen)


@dataclass(frozen=True)
class Jigsaw:
    """Every image cut into 3×3 tiles that lie in one of 31 orders. The label is the order's number; 0 is as it was."""

    name: ClassVar[str] = "jigsaws"

    @property
    def key(self) -> str:
        return f"jigsaw, {GRID}x{GRID} tiles, {SHUFFLED} orders, 1"

    def choose(self, count: int, draw: np.random.Generator) -> np.ndarray:
        return draw.integers(SHUFFLED + 1, size=count)

    def make_each(self, images: Tensor, choices: np.ndarray) -> tuple[Tensor, Tensor]:
        """Up to two rows and columns at the border are cut off, so that tiles are equal; then the image is enlarged.

        That is done for every order, so that it does not tell the label.
        """
        size = images.shape[-2:]
        tile, border = [side // GRID for side in size], [side % GRID // 2 for side in size]
        cut = images[:, :, border[0] : border[0] + GRID * tile[0], border[1] : border[1] + GRID * tile[1]]
        tiles = cut.unflatten(3, (GRID, tile[1])).unflatten(2, (GRID, tile[0]))  # (B, 3, g, h, g, w)
        tiles = tiles.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)  # (B, g², 3, h, w)
        order = torch.from_numpy(far_orders()[choices]).to(images.device, non_blocking=True)
        tiles = tiles[torch.arange(len(images), device=images.device)[:, None], order]
        rows = tiles.unflatten(1, (GRID, GRID)).permute(0, 3, 1, 4, 2, 5)
        made = rows.reshape(len(images), images.shape[1], GRID * tile[0], GRID * tile[1])
        if made.shape[-2:] != size:
            made = F.interpolate(made, size, mode="bilinear", align_corners=False)
        labels = torch.from_numpy(choices).to(images.device, non_blocking=True)
        return made.contiguous(memory_format=torch.channels_last), labels


@cache
def far_orders(count: int = SHUFFLED) -> np.ndarray:
    """(1 + count, 9) int64: the order as it is, then others that differ from all before in as many places as possible.

    Greedy: the next one has the largest Hamming distance to the nearest of those before; of these, it has the largest
    sum of distances to all before (Noroozi's code looks at this sum alone); of these, it is the first by the alphabet.
    Entry i is the tile that lies at place i.
    """
    places = GRID**2
    entries = chain.from_iterable(permutations(range(places)))
    every = np.fromiter(entries, dtype=np.int8, count=places * factorial(places)).reshape(-1, places).T.copy()
    chosen = [0]  # the first by the alphabet is the order as it is
    total, smallest = np.zeros(every.shape[1], dtype=np.int32), np.full(every.shape[1], places, dtype=np.int32)
    for _ in range(count):
        distance = np.zeros(every.shape[1], dtype=np.int32)
        for row in every:  # a sum over rows this long is many times faster than one over nine columns
            distance += row != row[chosen[-1]]
        total += distance
        np.minimum(smallest, distance, out=smallest)
        chosen.append(int((smallest * (places * count + 1) + total).argmax()))
    return every[:, chosen].T.astype(np.int64)
