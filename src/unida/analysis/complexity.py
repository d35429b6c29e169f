"""`unida analyze complexity`: parameters and multiply-adds of a method, without and with SPA's words.

Counted as in the SPA paper's table. ResNet-50, 25 source classes and ptflops' rules give its four figures: 23.661 →
25.686 M parameters (23.6616 is cut off in the paper, and rounded here) and 4.120 → 4.223 G multiply-adds. This needs V
on the last map, with nothing after it. The paper's text has V after Res3, with a block like Res4 after V: that gives
other figures.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from unida.analysis.options import ComplexityOptions
from unida.answering.alone import Answering
from unida.methods import METHODS
from unida.methods.base import Problem
from unida.methods.build import build_method
from unida.methods.spa.options import SPAOptions, resolve
from unida.models.backbone import Backbone, create_backbone, refuse_crop
from unida.models.options import NO_WEIGHTS
from unida.models.words import Words

NORMALISATIONS = (nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.GroupNorm)
ACTIVATIONS = (nn.ReLU, nn.ReLU6, nn.SiLU, nn.GELU, nn.Hardswish)
POOLINGS = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d)


@dataclass(frozen=True)
class Complexity:
    parameters: int
    multiply_adds: int  # for one image


def compare(options: ComplexityOptions) -> tuple[Complexity, Complexity]:
    """The cost of the method alone, and of the method on words with the pretext task's head."""
    options.check()
    backbone = create_backbone(options.backbone, NO_WEIGHTS)
    refuse_crop(backbone, options.crop)
    return (
        count(_without_words(backbone, options), options.crop),
        count(_with_words(backbone, options), options.crop),
    )


def comparison_lines(options: ComplexityOptions) -> list[str]:
    plain, with_words = compare(options)
    label = f"{options.method} + SPA"
    lines = [
        f"{options.backbone}, {options.classes} classes, one image of {options.crop} × {options.crop} pixels; "
        f"{options.words} words",
        "",
        f"{'':{len(label)}}  parameters (M)  multiply-adds (G)",
    ]
    for name, cost in ((options.method, plain), (label, with_words)):
        lines.append(
            f"{name:{len(label)}}  {cost.parameters / 1e6:14.3f}  {cost.multiply_adds / 1e9:17.3f}"
            f"   ({cost.parameters:,} parameters)"
        )
    return lines


@torch.inference_mode()
def count(network: Answering, crop: int) -> Complexity:
    """Parameters, and the multiply-adds of answering for one image.

    ptflops' rules: count the products of convolutions, linear layers and attention, 2 for each normalised element, and
    1 for each output of an activation and each input of a pooling; a histogram pools the words of all locations. Sums,
    softmax and biases do not count.
    """
    elements = 0

    def add(times: int, tensor: Tensor) -> None:
        nonlocal elements
        elements += times * tensor.numel()

    hooks = []
    for module in network.modules():
        if isinstance(module, NORMALISATIONS):
            hooks.append(module.register_forward_hook(lambda _, inputs, output: add(2, inputs[0])))
        elif isinstance(module, (*ACTIVATIONS, Words)):  # what Words gives is pooled
            hooks.append(module.register_forward_hook(lambda _, inputs, output: add(1, output)))
        elif isinstance(module, POOLINGS):
            hooks.append(module.register_forward_hook(lambda _, inputs, output: add(1, inputs[0])))
    try:
        with FlopCounterMode(display=False) as counter:
            network.eval()(torch.zeros(1, 3, crop, crop))
    finally:
        for hook in hooks:
            hook.remove()
    products = counter.get_total_flops() // 2  # torch counts a multiply-add as two
    return Complexity(sum(p.numel() for p in network.parameters()), products + elements)


def _without_words(backbone: Backbone, options: ComplexityOptions) -> Answering:
    own = METHODS[options.method].Options()
    with torch.random.fork_rng():
        return Answering(build_method(options.method, backbone, Problem(options.classes), own, None))


def _with_words(backbone: Backbone, options: ComplexityOptions) -> Answering:
    """SPA as in the paper: the histogram of words is the method's feature, and f_n runs on it too."""
    own, choices = METHODS[options.method].Options(), SPAOptions(True, "paper", spa_vocabulary=options.words)
    with torch.random.fork_rng():
        spa: Any = build_method(options.method, backbone, Problem(options.classes), own, resolve(choices))

    def ask_f_n(words: nn.Module, images: object, histogram: Tensor) -> None:
        spa.task.head(histogram)

    spa.words.register_forward_hook(ask_f_n)  # on words: `features` may add layers, such as DCC's neck
    return Answering(spa)
