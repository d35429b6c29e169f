"""Build a method from its options. Only this module knows how to add SPA to it."""

from typing import Any

import torch

from unida.methods import METHODS
from unida.methods.base import Method, Problem
from unida.methods.spa.backbone import WordBackbone
from unida.methods.spa.method import SPA
from unida.methods.spa.options import SPAOptions
from unida.models.backbone import Backbone
from unida.support.random import torch_seed


def build_method(name: str, backbone: Backbone, problem: Problem, options: Any, spa: SPAOptions | None) -> Method:
    """The method on a backbone. New layers are drawn from streams of the run's seed.

    Args:
        spa: with every choice made; None for the method without words.
    """
    seed, feature = problem.seed, backbone
    if spa is not None:
        torch.manual_seed(torch_seed(seed, "words"))
        words: Any = WordBackbone(backbone, spa)
        feature = words
    torch.manual_seed(torch_seed(seed, "new layers"))
    method = METHODS[name].load()(feature, problem, options)
    method = method if spa is None else SPA(method, spa)
    method.to(memory_format=torch.channels_last)
    return method
