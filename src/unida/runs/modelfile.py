"""A trained model as one self-describing file: weights, classes, preprocessing and the method's options.

It holds only what is needed to answer. What is needed only to train is in the checkpoint.
"""

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, get_args

import torch

from unida.answering.target import Rule
from unida.config import Config, fingerprint_of, method_options, spa_options
from unida.data.domains import Source, Target
from unida.data.images import ResizeMode
from unida.errors import UserError
from unida.features.stem import TORCH_FORMAT, FeatureFormat
from unida.methods import METHODS
from unida.methods.base import Method, Problem
from unida.methods.build import build_method
from unida.models.backbone import POOLED, create_backbone, open_backbone
from unida.models.options import KEPT, NO_WEIGHTS
from unida.support.tensorfile import read_tensors, write_tensors


@dataclass(frozen=True)
class ModelInfo:
    """What is needed, beside the weights, to answer for a picture."""

    method: str
    options: dict[str, Any]
    spa: dict[str, Any] | None  # its options, if the method has words under it
    backbone: str
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    resize: ResizeMode
    image_size: int
    crop: int
    frozen_at: str | None  # features at this place are rounded as they were in training
    feature_format: FeatureFormat
    framed: bool  # whether the heads see features in a frame
    rule: Rule  # how it answers: neighbours, and the threshold for unknown images
    run: str  # fingerprint of the config that it was trained with


def build_for_run(config: Config, source: Source, target: Target) -> Method:
    """The configured method on its pretrained backbone."""
    training = config.training
    assert training.steps is not None  # complete
    backbone = open_backbone(config.model.backbone, config.model.weights, training.seed)
    backbone.keeps_statistics = training.regime == KEPT
    stored_as = TORCH_FORMAT[config.model.feature_format]
    if config.model.train == "tail":
        backbone.freeze(config.model.tap or backbone.default_tap, stored_as)
    elif config.model.train == "head":  # words need a map, other methods only vectors
        backbone.freeze(config.spa.spa_tap or backbone.taps[-1] if config.spa.spa else POOLED, stored_as, whole=True)
    assert training.regime != "auto" and config.model.frame != "auto"  # complete, and measured
    problem = Problem(
        num_classes=len(source.classes),
        num_source=len(source.pixels),
        num_target=len(target.pixels),
        steps=training.steps,
        seed=training.seed,
        regime=training.regime,
        framed=config.model.frame == "on",
    )
    return build_method(training.method, backbone, problem, config.method, config.spa if config.spa.spa else None)


def save_model(path: Path, method: Method, config: Config, classes: tuple[str, ...], rule: Rule) -> None:
    info = ModelInfo(
        method=config.training.method,
        options=asdict(config.method),
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
        framed=config.model.frame == "on",
        rule=rule,
        run=fingerprint_of(config),
    )
    answering = {name: tensor for name, tensor in method.state_dict().items() if not name.startswith(method.run_only)}
    write_tensors(path, answering, {"model": json.dumps(asdict(info))})


def load_model(path: Path, config: Config | None = None) -> tuple[Method, ModelInfo]:
    """The method with its trained weights, in evaluation mode, and how to prepare its images.

    Args:
        config: of the run that the model must belong to.
    """
    tensors, notes = read_tensors(path)
    if "model" not in notes:
        raise UserError(f"{path} is not a model: it may be a checkpoint, which only --resume uses")
    try:
        info = _read_info(json.loads(notes["model"]))
        method = _build_for_answers(info)
        missing, unexpected = method.load_state_dict(tensors, strict=False)
        if unexpected or any(not name.startswith(method.run_only) for name in missing):
            raise ValueError(f"weights {sorted({*missing, *unexpected})[:3]} do not fit")
    except (UserError, ValueError, TypeError, LookupError, AttributeError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{path} was made by another version of unida ({reason}): train again") from error
    if config is not None and info.run != fingerprint_of(config):
        raise UserError(f"{path} belongs to another run than the config.yaml beside it: put this run's own file back")
    return method.eval(), info


def _read_info(raw: dict[str, Any]) -> ModelInfo:
    if set(raw) != {field.name for field in fields(ModelInfo)}:
        raise ValueError("its description has other fields")
    lists = {name: tuple(raw[name]) for name in ("classes", "mean", "std")}
    info = ModelInfo(**{**raw, **lists, "rule": Rule.from_plain(raw["rule"])})
    if info.method not in METHODS:
        raise ValueError(f"there is no method {info.method!r}")
    if info.resize not in get_args(ResizeMode) or not 0 < info.crop <= info.image_size:
        raise ValueError("its resize mode or crop is not valid")
    if not all(isinstance(number, float) for number in (*info.mean, *info.std)):
        raise ValueError("its normalisation is not a list of numbers")
    if not info.classes or not all(isinstance(name, str) for name in info.classes):
        raise ValueError("its classes are not names")
    return info


def _build_for_answers(info: ModelInfo) -> Method:
    with torch.random.fork_rng():  # what is drawn here is overwritten later; the caller's random state must not change
        backbone = create_backbone(info.backbone, NO_WEIGHTS)
        backbone.mean, backbone.std = info.mean, info.std
        if info.frozen_at is not None:
            backbone.freeze(info.frozen_at, TORCH_FORMAT[info.feature_format], whole=True)  # nothing learns here
        spa = None if info.spa is None else spa_options(info.spa)
        options = method_options(info.method, info.options)
        problem = Problem(len(info.classes), framed=info.framed)
        return build_method(info.method, backbone, problem, options, spa)
