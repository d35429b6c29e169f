"""A finished run's model looks again at some images.

Features of a frozen part are taken from the run's cache, if they are still there.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from unida.config import Config
from unida.data.augment import Preprocess
from unida.data.folders import scan_listed
from unida.data.options import usable_cache
from unida.data.pixels import Pixels, decode_in_memory
from unida.errors import UserError
from unida.features.inputs import Inputs
from unida.features.kept import FeatureInputs
from unida.features.stem import stem_of
from unida.methods.base import Method
from unida.runs.modelfile import ModelInfo, load_model
from unida.support.processes import open_fabric_for_answers

AT_ONCE = 16  # images


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


def open_model(folder: Path, config: Config) -> Model:
    method, info = load_model(folder / "checkpoint" / "model.safetensors", config)
    device = open_fabric_for_answers().device
    method.to(device)
    preprocess = Preprocess(info.crop, info.mean, info.std, device)
    backbone = method.backbone
    if backbone.frozen_at is None:
        return Model(method, info, config, preprocess)
    stem = stem_of(backbone, info.crop, info.feature_format, config.model.engine)
    inputs = FeatureInputs(preprocess, stem, 0, usable_cache(config.data.cache))
    backbone.starts_at_tap = True
    return Model(method, info, config, inputs)
