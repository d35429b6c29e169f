"""`--frame auto` in the published regime: measured on the pretrained features of both domains, without labels."""

import logging
from dataclasses import replace
from typing import Literal

import torch

from unida.analysis.auto_tap import seeded_backbone
from unida.analysis.taps import some_images
from unida.config import Config
from unida.data.augment import Preprocess
from unida.data.domains import Source, Target
from unida.models.backbone import refuse_crop
from unida.models.frame import needs_frame

log = logging.getLogger("unida")

IMAGES = 64  # of each domain


@torch.inference_mode()
def choose_frame(config: Config, source: Source, target: Target, device: torch.device) -> Literal["on", "off"]:
    """On if the mean of pooled features is too short to serve heads without a bias."""
    backbone = seeded_backbone(config, device).eval()
    refuse_crop(backbone, config.data.crop)
    preprocess = Preprocess(config.data.crop, backbone.mean, backbone.std, device)
    features = []
    for name, domain in (("source", source), ("target", target)):
        index = some_images(len(domain.pixels), IMAGES, name, config.training.seed)
        features.append(backbone(preprocess.test_view(domain.pixels, index)).float())
    if not needs_frame(torch.cat(features)):
        return "off"
    log.info("frame: on, because the mean of the backbone's features is short (--frame off leaves them as they are)")
    return "on"


def with_frame(config: Config, frame: str) -> Config:
    return replace(config, model=replace(config.model, frame=frame))  # type: ignore[arg-type]
