"""Small models of timm's families, as a run trains them: all, the tail or the head, with words and without."""

import copy
from functools import cache
from typing import Any

import pytest
import timm
import torch
from few_steps import prepare, take_steps, with_wanted
from torch import Tensor

from unida.features.stem import TORCH_FORMAT
from unida.methods import METHODS
from unida.methods.base import Method, Problem, SourceBatch, TargetBatch
from unida.methods.build import build_method
from unida.methods.spa.options import SPAOptions, resolve
from unida.models.backbone import POOLED, Backbone, create_backbone

SMALL_SWIN: dict[str, Any] = {
    "pretrained_cfg_overlay": {"input_size": (3, 64, 64)},
    "img_size": 64,
    "window_size": 2,
    "embed_dim": 12,
    "depths": (1, 1, 2, 2),
    "num_heads": (1, 1, 2, 2),
}
SMALL_DINO: dict[str, Any] = {"embed_dim": 24, "depth": 4, "num_heads": 2, "dynamic_img_size": True}
SMALL_TINY_VIT: dict[str, Any] = {
    "embed_dims": (8, 16, 16, 32),
    "depths": (1, 1, 2, 2),
    "num_heads": (1, 1, 1, 1),
    "window_sizes": (4, 4, 4, 4),
}

# The model, how it is made smaller, and where its tail begins.
FAMILIES: dict[str, tuple[str, dict[str, Any], str]] = {
    "ResNet": ("test_resnet", {}, "layer3"),
    "EfficientNet": ("test_efficientnet", {}, "blocks.3"),
    "ConvNeXt": ("test_convnext", {}, "stages.2"),
    "ViT": ("test_vit", {}, "blocks.3"),
    "DINOv2": ("vit_small_patch14_dinov2", SMALL_DINO, "blocks.2"),
    "Swin": ("swin_tiny_patch4_window7_224", SMALL_SWIN, "layers.2"),
    "TinyViT": ("tiny_vit_5m_224", SMALL_TINY_VIT, "stages.2"),
    "MobileNetV2": ("mobilenetv2_035", {}, "blocks.5"),
    "MobileNetV4": ("mobilenetv4_conv_small_035", {}, "blocks.3"),
    "MambaOut": ("test_mambaout", {}, "stages.2"),
    "ByobNet": ("test_byobnet", {}, "stages.2"),
}
IMAGES, CLASSES = 4, 2
PROBLEM = Problem(CLASSES, num_source=IMAGES, num_target=IMAGES, steps=10, seed=3)


@cache
def first_backbone(family: str) -> Backbone:
    name, changes, _ = FAMILIES[family]
    torch.manual_seed(0)
    if not changes:
        return create_backbone(name, "none")
    return Backbone(timm.create_model(name, num_classes=0, **changes), name, (0.5,) * 3, (0.5,) * 3)


def make_backbone(family: str) -> Backbone:
    return copy.deepcopy(first_backbone(family))


@cache
def images_of(family: str) -> tuple[Tensor, Tensor]:
    size = 56 if family == "DINOv2" else 64  # patches of 14
    draw = torch.Generator().manual_seed(1)
    source, target = torch.randn(2, IMAGES, 3, size, size, generator=draw).unbind()
    return source, target + 1


def build(backbone: Backbone, words: bool) -> Method:
    spa = resolve(SPAOptions(spa=True, spa_vocabulary=4)) if words else None
    return build_method("ovanet", backbone, PROBLEM, METHODS["ovanet"].Options(), spa)


def maps_as_kept(features: Tensor) -> Tensor:
    """The layout in which a run hands on what it has kept."""
    return features.contiguous(memory_format=torch.channels_last) if features.ndim == 4 else features


# With words, a step needs all that one without needs, and the map: so the latter is left to maps and tokens once each.
TRAINED = [(family, train, True) for family in FAMILIES for train in ("all", "tail", "head")]
TRAINED += [(family, train, False) for family in ("ResNet", "ViT") for train in ("all", "tail", "head")]


@pytest.mark.parametrize(("family", "train", "words"), TRAINED)
def test_a_step_trains_what_it_should(family: str, train: str, words: bool) -> None:
    backbone = make_backbone(family)
    if train == "head":  # words need a map, other methods only vectors
        backbone.freeze(backbone.taps[-1] if words else POOLED, TORCH_FORMAT["fp16"], whole=True)
    elif train == "tail":
        backbone.freeze(backbone.default_tap, TORCH_FORMAT["fp16"])
    method = build(backbone, words)
    inputs = images_of(family)
    if train != "all":  # as in a run, steps begin with the features that are kept
        with torch.no_grad():
            inputs = tuple(maps_as_kept(backbone.eval().stem(images).half().float()) for images in inputs)  # type: ignore[assignment]
        backbone.starts_at_tap = True
    index = torch.arange(IMAGES)
    batches = SourceBatch(inputs[0], index % CLASSES, index), TargetBatch(inputs[1], index)
    prepare(method, batches)
    before = {name: parameter.clone() for name, parameter in backbone.named_parameters()}
    losses = take_steps(method, with_wanted(method, batches, 0))
    assert losses[0] and all(torch.tensor(value).isfinite() for value in losses[0].values())
    changed = {name for name, parameter in backbone.named_parameters() if not parameter.equal(before[name])}
    if train == "all":
        first = {id(parameter) for parameter in backbone.parameters_upto(backbone.taps[0])}
        assert any(id(backbone.get_parameter(name)) in first for name in changed)
    elif train == "tail":
        frozen = {id(parameter) for parameter in backbone.parameters_upto(backbone.default_tap)}
        behind = {name for name, parameter in backbone.named_parameters() if id(parameter) not in frozen}
        assert changed <= behind
        assert len(changed) > len(behind) / 2
    else:
        assert not changed


@pytest.mark.parametrize("family", FAMILIES)
def test_the_tail_begins_before_the_last_stage_and_all_is_timms(family: str) -> None:
    backbone, images = make_backbone(family).eval(), images_of(family)[0]
    model: Any = backbone.model
    assert backbone.default_tap == FAMILIES[family][2]
    with torch.no_grad():
        features, map_of_timm = backbone(images), model.forward_features(images)
        expected = model.forward_head(map_of_timm, pre_logits=True)
        assert torch.equal(backbone.run(images), map_of_timm)
        assert torch.equal(features, expected) and features.shape == (IMAGES, backbone.num_features)
        if family == "DINOv2":
            assert torch.equal(features, map_of_timm[:, 0])  # the class token
        for tap in backbone.taps:
            state = backbone.run(images, upto=tap)
            shape = backbone.spatial(state, tap).shape
            assert shape[1] == backbone.channels(tap) and shape[2] == shape[3] > 1
            tail = backbone.pool(backbone.run(maps_as_kept(state), after=tap))
            assert (tail - expected).norm() <= 1e-5 * expected.norm()
