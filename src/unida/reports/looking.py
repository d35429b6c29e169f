"""Which images a report looks at again, and the plane of its map."""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from unida.data.listed import used_source
from unida.data.options import usable_cache
from unida.data.pixels import Pixels
from unida.runs.looking import Model
from unida.support.random import generator

MOST_SOURCE = 240  # images that a report looks at again


@dataclass(frozen=True)
class SomeSource:
    """Some images of the source, and the class of each."""

    pixels: Pixels
    names: list[str]
    count: int  # of all images that the run learned from


def some_source(model: Model, skipped: Collection[str]) -> SomeSource:
    """Some images of those that the run learned from. `skipped`: the paths of files that it left out."""
    options = model.config.data
    used = used_source(options, model.info.classes, skipped, usable_cache(options.cache))
    listed = dict(sorted((str(path), name) for path, name in used))
    paths = list(listed)
    pixels = model.pixels([paths[i] for i in some(len(paths), MOST_SOURCE, "source images of a report")])
    return SomeSource(pixels, [listed[str(file.path)] for file in pixels.files], len(listed))


def some(count: int, most: int, purpose: str) -> np.ndarray:
    """(M,) numbers of at most so many items, drawn at random, rising. The same in every report."""
    if count <= most:
        return np.arange(count)
    return np.sort(generator(0, purpose).choice(count, size=most, replace=False))


def principal_plane(features: Tensor) -> Tensor:
    """(N, d) → (N, 2): the plane in which the rows differ most (PCA), the larger spread first."""
    centred = (features - features.mean(dim=0)).double()
    _, _, axes = torch.linalg.svd(centred, full_matrices=False)
    plane = axes[:2] if len(axes) > 1 else F.pad(axes, (0, 0, 0, 2 - len(axes)))
    signs = torch.where(plane.sum(dim=1, keepdim=True) < 0, -1.0, 1.0)  # or one library draws it mirrored
    return (centred @ (plane * signs).T).float()
