"""A trained model as one self-describing safetensors file: weights, classes, preprocessing and the method's options."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import torch
from safetensors.torch import load_file

from unida.config import Config, method_options, spa_options
from unida.data.images import ResizeMode
from unida.data.sampling import torch_seed
from unida.errors import UserError
from unida.methods import METHODS
from unida.methods.base import Method
from unida.methods.spa import SPA
from unida.models.backbone import POOLED, create_backbone
from unida.models.shelf import TORCH_FORMAT, FeatureFormat
from unida.models.weights import NO_WEIGHTS
from unida.training.checkpoint import read_metadata, write_atomically


@dataclass(frozen=True)
class ModelInfo:
    """What is needed, beside the weights, to answer for a picture."""

    method: str
    options: dict[str, Any]
    spa: dict[str, Any] | None  # its options, where the method has words under it
    backbone: str
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    resize: ResizeMode
    image_size: int
    crop: int
    frozen_at: str | None  # features at this place are rounded as they were in training
    feature_format: FeatureFormat


def build_method(config: Config, num_classes: int) -> Method:
    """The configured method on its pretrained backbone. New layers are drawn from a stream of the run's seed."""
    torch.manual_seed(torch_seed(config.training.seed, "backbone"))  # for weights that are random on purpose
    backbone = create_backbone(config.model.backbone, config.model.weights)
    if config.model.train in ("tail", "head"):
        tap = POOLED if config.model.train == "head" else config.model.tap or backbone.default_tap
        backbone.freeze(tap, TORCH_FORMAT[config.model.feature_format])
    kind, seed = METHODS[config.training.method], config.training.seed
    if config.spa.spa:
        return _on_channels_last(SPA(kind, backbone, num_classes, config.hyper, config.spa, seed))
    torch.manual_seed(torch_seed(seed, "new layers"))
    return _on_channels_last(kind(backbone, num_classes, config.hyper))


def save_model(path: Path, method: Method, config: Config, classes: tuple[str, ...]) -> None:
    info = ModelInfo(
        method=config.training.method,
        options=asdict(config.hyper),
        spa=asdict(config.spa) if config.spa.spa else None,
        backbone=config.model.backbone,
        classes=classes,
        mean=method.backbone.mean,
        std=method.backbone.std,
        resize=config.data.resize,
        image_size=config.data.image_size,
        crop=config.data.crop,
        frozen_at=method.backbone.frozen_at,
        feature_format=config.model.feature_format,
    )
    write_atomically(method.state_dict(), {"unida": json.dumps(asdict(info))}, path)


def load_model(path: Path) -> tuple[Method, ModelInfo]:
    """The method with its trained weights, in evaluation mode, and how to feed it."""
    metadata = read_metadata(path)
    if "unida" not in metadata:
        raise UserError(f"{path} is not a model of unida: its header does not describe one")
    raw = {"spa": None, **json.loads(metadata["unida"])}  # which is newer than some files
    info = ModelInfo(**{**raw, "classes": tuple(raw["classes"]), "mean": tuple(raw["mean"]), "std": tuple(raw["std"])})
    if info.method not in METHODS or info.resize not in get_args(ResizeMode):
        raise UserError(f"{path} was made by another version of unida: it has no method {info.method!r}")
    kind, hyper = METHODS[info.method], method_options(info.method, info.options)
    with torch.random.fork_rng():  # what is drawn here is overwritten below; the caller's draws are his own
        backbone = create_backbone(info.backbone, NO_WEIGHTS)
        backbone.mean, backbone.std = info.mean, info.std
        if info.frozen_at is not None:
            backbone.freeze(info.frozen_at, TORCH_FORMAT[info.feature_format])
        if info.spa is None:
            method = kind(backbone, len(info.classes), hyper)
        else:
            method = SPA(kind, backbone, len(info.classes), hyper, spa_options(info.spa))
    method.load_state_dict(load_file(path))
    return _on_channels_last(method).eval(), info


def _on_channels_last(method: Method) -> Method:
    method.to(memory_format=torch.channels_last)
    return method
