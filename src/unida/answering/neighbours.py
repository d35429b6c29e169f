"""The nearest images of each image, by the cosine of their features. Memory grows with the number of images, no faster.

    up to EXACT images      every pair is compared, a block of rows at a time
    above                   fewer dimensions first (PCA); then images are put into cells around centres, and each image
                            is compared with those in the cells near its own

There is no library for it here on purpose: the answers must not depend on what else is installed.
`benchmarks/together.py` measures time, memory and how many true neighbours are found.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from unida.support.random import generator

EXACT = 20_000  # images up to which every pair is compared: about 20 s on two cores
BLOCK = 2**24  # cosines at a time
DIMENSIONS = 128  # after PCA
CELL = 1000  # images in a cell, on average
PROBES = 10  # cells to search for an image
SAMPLE = 50_000  # images that PCA and cells are found from
LLOYD = 8  # rounds of k-means for the centres


class Nearest(NamedTuple):
    others: Tensor  # (N, k) int32, the nearest first; the image itself is left out
    cosine: Tensor  # (N, k) float32


def nearest(directions: Tensor, k: int) -> Nearest:
    """The k nearest rows of each row.

    Args:
        directions: (N, d) of unit length, k < N.
    """
    if len(directions) <= EXACT:
        points = directions.float()
        parts = [_among(points, rows, points, None, k) for rows in _blocks(len(points), len(points))]
        return Nearest(*(torch.cat(column) for column in zip(*parts, strict=True)))
    return _nearest_in_cells(_fewer_dimensions(directions), k)


def _blocks(count: int, width: int) -> Iterator[Tensor]:
    """Rows 0…count−1, so many at a time that a matrix of `width` columns stays small."""
    return iter(torch.arange(count).split(max(1, BLOCK // max(width, 1))))


def _among(points: Tensor, rows: Tensor, candidates: Tensor, names: Tensor | None, k: int) -> tuple[Tensor, Tensor]:
    """The k nearest candidates of some rows. `names` are the rows that the candidates are, in rising order."""
    cosine = points[rows] @ candidates.T
    places = rows if names is None else torch.searchsorted(names, rows)
    cosine[torch.arange(len(rows)), places] = -math.inf  # the image itself
    best = cosine.topk(k, dim=1)
    found = best.indices if names is None else names[best.indices]
    return found.to(torch.int32), best.values


def _fewer_dimensions(directions: Tensor) -> Tensor:
    """(N, d) → (N, DIMENSIONS) of unit length: the directions in which a sample of the images differs most."""
    sample = _sample(directions)
    _, vectors = torch.linalg.eigh(sample.T @ sample)  # of rising size
    axes = vectors[:, -DIMENSIONS:]
    return torch.cat([F.normalize(part.float() @ axes, dim=1) for part in directions.split(SAMPLE)])


def _sample(rows: Tensor) -> Tensor:
    index = generator(0, "sample of images").choice(len(rows), size=min(SAMPLE, len(rows)), replace=False)
    return rows[torch.from_numpy(index)].float()


def _nearest_in_cells(points: Tensor, k: int) -> Nearest:
    centres = _centres(_sample(points), max(1, len(points) // CELL))
    home = _closest(points, centres)
    sizes = torch.bincount(home, minlength=len(centres))
    members = home.argsort(stable=True).split(sizes.tolist())
    between = (centres @ centres.T).fill_diagonal_(math.inf)  # or rounding may put another centre before a cell's own
    near = between.argsort(dim=1, descending=True)  # cells, the nearest first
    index = torch.empty(len(points), k, dtype=torch.int32)
    cosine = torch.empty(len(points), k)
    for cell, rows in enumerate(members):
        enough = int((sizes[near[cell]].cumsum(0) <= k).sum()) + 1  # cells that hold more than k images
        cells = near[cell, : max(PROBES, enough)]
        names = torch.cat([members[other] for other in cells.tolist()]).sort().values
        candidates = points[names]
        for some in _blocks(len(rows), len(names)):
            index[rows[some]], cosine[rows[some]] = _among(points, rows[some], candidates, names, k)
    return Nearest(index, cosine)


def _centres(sample: Tensor, count: int) -> Tensor:
    """(count, d): k-means by cosine, from random images. An empty cell keeps its centre."""
    index = generator(0, "centres of cells").choice(len(sample), size=min(count, len(sample)), replace=False)
    centres = sample[torch.from_numpy(index)]
    for _ in range(LLOYD):
        home = _closest(sample, centres)
        sums = torch.zeros_like(centres).index_add_(0, home, sample)
        filled = torch.bincount(home, minlength=len(centres)) > 0
        centres = torch.where(filled[:, None], F.normalize(sums, dim=1), centres)
    return centres


def _closest(points: Tensor, centres: Tensor) -> Tensor:
    """(N,) the centre of the largest cosine."""
    return torch.cat([(points[rows] @ centres.T).argmax(dim=1) for rows in _blocks(len(points), len(centres))])
