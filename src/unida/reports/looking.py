"""A finished run's model looks again at some images: features for the map, words for the atlas.

Features of a frozen backbone are taken from the run's cache, if they are still there.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from unida.config import Config
from unida.data.augment import Preprocess
from unida.data.folders import scan_listed
from unida.data.listed import used_source
from unida.data.options import usable_cache
from unida.data.pixels import Pixels, decode_in_memory
from unida.errors import UserError
from unida.features.inputs import Inputs
from unida.features.kept import FeatureInputs
from unida.features.stem import stem_of
from unida.methods.base import Method
from unida.runs.modelfile import ModelInfo, load_model
from unida.support.processes import open_fabric_for_answers
from unida.support.random import generator

AT_ONCE = 16  # images
MOST_SOURCE = 240  # images that a report looks at again


@dataclass(frozen=True)
class Model:
    method: Method
    info: ModelInfo
    config: Config
    inputs: Inputs | Preprocess

    def pixels(self, paths: Sequence[str]) -> Pixels:
        """The decoded images of these files; those that cannot be read are left out."""
        files, _ = scan_listed([Path(path) for path in paths], Path(), cache_dir=None)
        pixels = decode_in_memory(files, self.info.resize, self.info.image_size)
        if len(pixels) == 0:
            raise UserError("none of its images can be read")
        return pixels

    def views(self, pixels: Pixels) -> Iterator[Tensor]:
        """What the method sees of the images, some at a time."""
        for start in range(0, len(pixels), AT_ONCE):
            yield self.inputs.test_view(pixels, np.arange(start, min(start + AT_ONCE, len(pixels))))

    @torch.inference_mode()
    def directions(self, pixels: Pixels) -> Tensor:
        """(N, d) features at unit length."""
        parts = [self.method.features(view).float().cpu() for view in self.views(pixels)]
        return F.normalize(torch.cat(parts), dim=1)


@dataclass(frozen=True)
class SomeSource:
    """Some images of the source, and the class of each."""

    pixels: Pixels
    names: list[str]
    count: int  # of all images that the run learned from


def open_model(folder: Path, config: Config) -> Model:
    method, info = load_model(folder / "checkpoint" / "model.safetensors", config)
    device = open_fabric_for_answers().device
    method.to(device)
    preprocess = Preprocess(info.crop, info.mean, info.std, device)
    if config.model.train != "head":  # kept features are found by the weights before training, which are gone
        return Model(method, info, config, preprocess)
    backbone = method.backbone
    stem = stem_of(backbone, info.crop, info.feature_format, config.model.engine)
    inputs = FeatureInputs(preprocess, stem, 0, usable_cache(config.data.cache))
    backbone.starts_at_tap = True
    return Model(method, info, config, inputs)


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
