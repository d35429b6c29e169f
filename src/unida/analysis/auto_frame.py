"""`--frame auto` in the published regime: measured on the pretrained features of both domains, without labels."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from unida.analysis.auto_tap import seeded_backbone
from unida.analysis.taps import some_images
from unida.config import Config
from unida.data.augment import Preprocess
from unida.data.domains import Source, Target
from unida.data.pixels import Pixels
from unida.models.backbone import refuse_crop
from unida.models.frame import needs_frame

log = logging.getLogger("unida")

IMAGES = 64  # of each domain

_known: dict[tuple[object, ...], Tensor] = {}  # features that this process has seen: a worker makes many runs of a grid


def choose_frame(config: Config, source: Source, target: Target, device: torch.device) -> Literal["on", "off"]:
    """On if the mean of pooled features is too short to serve heads without a bias."""
    looked_at = [
        (domain.pixels, some_images(len(domain.pixels), IMAGES, name, config.training.seed))
        for name, domain in (("source", source), ("target", target))
    ]
    key = _key(config, looked_at)
    if key not in _known:
        _known[key] = _features(config, looked_at, device)
    if not needs_frame(_known[key]):
        return "off"
    log.info("frame: on, because the mean of the backbone's features is short (--frame off leaves them as they are)")
    return "on"


@torch.inference_mode()
def _features(config: Config, looked_at: Sequence[tuple[Pixels, np.ndarray]], device: torch.device) -> Tensor:
    backbone = seeded_backbone(config, device).eval()
    refuse_crop(backbone, config.data.crop)
    preprocess = Preprocess(config.data.crop, backbone.mean, backbone.std, device)
    return torch.cat([backbone(preprocess.test_view(pixels, index)).float() for pixels, index in looked_at]).cpu()


def _key(config: Config, looked_at: Sequence[tuple[Pixels, np.ndarray]]) -> tuple[object, ...]:
    """All that the features depend on: the network and its weights, the images and how they are cut."""
    model, weights = config.model, config.model.weights
    is_file = weights is not None and Path(weights).is_file()
    changed = Path(weights).stat().st_mtime_ns if weights is not None and is_file else None
    digests = tuple(pixels.files[i].digest for pixels, index in looked_at for i in index)
    shapes = tuple((pixels.resize, pixels.size) for pixels, _ in looked_at)
    return model.backbone, weights, changed, config.training.seed, config.data.crop, shapes, digests


def with_frame(config: Config, frame: str) -> Config:
    return replace(config, model=replace(config.model, frame=frame))  # type: ignore[arg-type]
