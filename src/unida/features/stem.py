"""The frozen part of a backbone, whose output is computed once and kept."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from unida.features.engines import open_engine
from unida.models.backbone import Backbone
from unida.models.options import EngineName
from unida.models.weights import fingerprint

FeatureFormat = Literal["fp16", "bf16"]
AT_ONCE = 16  # images on a CPU: 64 are no faster, and take 1.5 GiB more (TinyViT-5M at 224 pixels; docs/performance.md)
TORCH_FORMAT = {"fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Stem:
    """The frozen part of a backbone.

    Attributes:
        run: images (B, 3, H, W) → the input of the rest of the network (B, *shape).
        key: identifies the stem: weights, tap, normalisation, and the engine if it is not torch.
    """

    run: Callable[[Tensor], Tensor]
    shape: tuple[int, ...]
    key: str
    format: FeatureFormat


def stem_of(backbone: Backbone, crop: int, number_format: FeatureFormat, engine: EngineName = "torch") -> Stem:
    """The part of a backbone that `Backbone.freeze` froze; BatchNorm there uses its kept statistics, also in a step."""
    backbone.eval()
    device = next(backbone.parameters()).device
    with torch.inference_mode():
        shape = tuple(backbone.stem(torch.zeros(1, 3, crop, crop, device=device)).shape[1:])
    compute, engine_key = open_engine(backbone, crop, engine)

    def run(images: Tensor) -> Tensor:
        was_training = backbone.training
        backbone.eval()
        try:
            return compute(images) if device.type != "cpu" else torch.cat([*map(compute, images.split(AT_ONCE))])
        finally:
            backbone.train(was_training)

    key = f"{fingerprint(backbone.frozen_state())} {backbone.frozen_at} {backbone.mean} {backbone.std}"
    return Stem(run, shape, f"{key} {engine_key}" if engine_key else key, number_format)
