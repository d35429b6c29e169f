"""timm models as an ordered chain of named stages, so that they can be cut at any of them.

A *tap* is the end of a stage. The tensor between two stages is the model's own: a feature map or a row of
tokens. Weights keep timm's own names after the prefix ``model.``.
"""

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from timm.models.convnext import ConvNeXt
from timm.models.efficientnet import EfficientNet
from timm.models.mobilenetv3 import MobileNetV3
from timm.models.resnet import ResNet
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from unida.errors import UserError
from unida.models.weights import build_model
from unida.support.random import torch_seed
from unida.support.suggest import did_you_mean

POOLED = "pooled"  # the place after the last tap: the feature vectors


@dataclass(frozen=True)
class Stage:
    """A named link of the chain.

    ``calls`` are the modules or methods of the model that run one after the other; ``owns`` are the names
    of the modules and bare parameters that belong to the stage.
    """

    name: str
    calls: tuple[str, ...]
    owns: tuple[str, ...]


class Backbone(nn.Module):
    """A timm model without classifier, as a chain of stages.

    Attributes: ``name`` (timm's), ``taps`` (stage names in order), ``num_features`` (size of the pooled
    vector), ``mean`` and ``std`` (per channel, for inputs in 0…1), ``input_size`` (height, width).
    """

    def __init__(self, model: nn.Module, name: str, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__()
        timm_model: Any = model
        self.model = model
        self.name = name
        self.mean = mean
        self.std = std
        self.input_size: tuple[int, int] = tuple(timm_model.pretrained_cfg["input_size"][1:])
        self.num_features: int = getattr(timm_model, "head_hidden_size", None) or timm_model.num_features
        self._stages = stages_of(model)
        self._channels: dict[str, int] = {}
        self.frozen_at: str | None = None  # a tap, or POOLED
        self.stored_as = torch.float32
        self.starts_at_tap = False  # forward is given the stem's output
        self.keeps_statistics = False  # BatchNorm normalises by its pretrained statistics, also in training
        self.taps = tuple(stage.name for stage in self._stages)

    def run(self, x: Tensor, after: str | None = None, upto: str | None = None) -> Tensor:
        """Run the stages after tap ``after``, up to and with tap ``upto``.

        None means from the images (B, 3, H, W), and through the last tap.
        """
        start = 0 if after is None else self.position(after) + 1
        stop = len(self._stages) if upto is None else self.position(upto) + 1
        if stop < start:
            raise UserError(f"tap '{upto}' comes before tap '{after}' in backbone '{self.name}'")
        for stage in self._stages[start:stop]:
            for path in stage.calls:
                x = _resolve(self.model, path)(x)
        return x

    def pool(self, state: Tensor) -> Tensor:
        """The state at the last tap → feature vectors (B, num_features), by timm's own pooling."""
        timm_model: Any = self.model
        if state.requires_grad and state.dim() == 4 and state.is_contiguous(memory_format=torch.channels_last):
            # The mean's gradient has another layout. With it, the last BatchNorm's backward pass alone takes a third
            # of a tail step on a CPU.
            state.register_hook(lambda gradient: gradient.contiguous(memory_format=torch.channels_last))
        return timm_model.forward_head(state, pre_logits=True)

    def forward(self, x: Tensor) -> Tensor:
        """Images (B, 3, H, W) → feature vectors (B, num_features).

        With ``starts_at_tap``, x is the output of `stem` instead of images.
        """
        state = self.state(x)
        return state if self.frozen_at == POOLED else self.pool(state)

    def state(self, x: Tensor, upto: str | None = None) -> Tensor:
        """The input of `forward` → the state at tap ``upto``, by default the last.

        With the whole backbone frozen there is one state: the pooled vectors.
        """
        if self.frozen_at is None:
            return self.run(x, upto=upto)
        if not self.starts_at_tap:
            x = self.stem(x).to(self.stored_as).float()  # rounded like kept features
        return x if self.frozen_at == POOLED else self.run(x, after=self.frozen_at, upto=upto)

    def freeze(self, tap: str, stored_as: torch.dtype, whole: bool = False) -> None:
        """Keep features at ``tap`` as ``stored_as``, and train only what follows it: nothing after `POOLED`.

        Args:
            whole: train nothing of what follows either.
        """
        if tap != POOLED:
            self.position(tap)
        self.frozen_at, self.stored_as = tap, stored_as
        frozen = self.model.parameters() if tap == POOLED or whole else self.parameters_upto(tap)
        for parameter in frozen:
            parameter.requires_grad_(False)

    def train(self, mode: bool = True) -> "Backbone":
        super().train(mode)
        if self.keeps_statistics:
            for layer in self.modules():
                if isinstance(layer, nn.modules.batchnorm._BatchNorm):
                    layer.eval()
        return self

    def stem(self, images: Tensor) -> Tensor:
        """The output of the frozen part for images (B, 3, H, W): the state at its tap, or the pooled vectors."""
        if self.frozen_at == POOLED:
            return self.pool(self.run(images))
        return self.run(images, upto=self.frozen_at)

    @property
    def default_tap(self) -> str:
        """Where to cut for tail training: before the last stage, which has a tenth to a quarter of the arithmetic.

        A backbone that has no such place is a UserError.
        """
        timm_model: Any = self.model
        if len(self.taps) > 1:
            if isinstance(timm_model, VisionTransformer):
                return f"blocks.{len(timm_model.blocks) * 3 // 4 - 1}"
            if isinstance(timm_model, EfficientNet | MobileNetV3):
                return f"blocks.{len(timm_model.blocks) - 2}"
            if isinstance(timm_model, ConvNeXt | ResNet):
                return self.taps[-3 if isinstance(timm_model, ConvNeXt) else -2]
        # Others: the last tap before a fifth of the weights. That is before the last stage, or a quarter of the blocks
        # of a plain token model; a norm or a narrow convolution that may follow has less.
        used = {tap: sum(p.numel() for p in self.parameters_upto(tap)) for tap in self.taps}
        for tap in reversed(self.taps):
            if 5 * (used[self.taps[-1]] - used[tap]) >= used[self.taps[-1]]:
                return tap
        raise UserError(f"--train tail: backbone {self.name!r} cannot be cut into two parts: use --train all or head")

    def channels(self, tap: str) -> int:
        """N_d, the number of channels of the state at ``tap``."""
        self.position(tap)
        if not self._channels:
            self._channels = self._measure_channels()
        return self._channels[tap]

    def spatial(self, state: Tensor, tap: str, image_size: tuple[int, int] | None = None) -> Tensor:
        """The state at ``tap`` as a map (B, N_d, H, W), for any layout of the model.

        Token models lose the form of their grid: it is taken as square unless ``image_size`` (height, width
        of the images) is given.
        """
        self.position(tap)
        if isinstance(state, Tensor) and state.ndim == 4:
            return state.permute(0, 3, 1, 2) if self._channels_come_last(state) else state
        if not isinstance(state, Tensor) or state.ndim != 3:  # some models pass lists of maps on
            raise UserError(f"backbone '{self.name}' has no spatial map at tap '{tap}': choose another backbone")
        prefix = getattr(self.model, "num_prefix_tokens", int(hasattr(self.model, "cls_token")))
        tokens = state[:, prefix:]  # without class and register tokens
        height, width = self._token_grid(tokens.shape[1], image_size)
        return tokens.transpose(1, 2).unflatten(2, (height, width))

    def parameters_upto(self, tap: str) -> Iterator[nn.Parameter]:
        """The parameters used through ``tap``."""
        is_upto = self._names_upto(tap)
        return (parameter for name, parameter in self.model.named_parameters() if is_upto(name))

    def frozen_state(self) -> dict[str, Tensor]:
        """Parameters and buffers that the output of `stem` depends on. Training does not change them."""
        assert self.frozen_at is not None, "nothing is frozen"
        everything = self.model.state_dict()
        if self.frozen_at == POOLED:
            return everything
        is_upto = self._names_upto(self.frozen_at)
        return {name: tensor for name, tensor in everything.items() if is_upto(name)}

    def _names_upto(self, tap: str) -> Callable[[str], bool]:
        """Whether the parameter or buffer of this name belongs to a stage through ``tap``."""
        owned = tuple(name for stage in self._stages[: self.position(tap) + 1] for name in stage.owns)
        prefixes = tuple(f"{name}." for name in owned)
        return lambda name: name in owned or name.startswith(prefixes)

    def position(self, tap: str) -> int:
        """The tap's place in `taps`; a name that is not there is a UserError."""
        if tap in self.taps:
            return self.taps.index(tap)
        hint = did_you_mean(tap, self.taps)
        raise UserError(f"backbone {self.name!r} has no tap {tap!r}{hint}; taps are {', '.join(self.taps)}")

    def _measure_channels(self) -> dict[str, int]:
        """Channels at every tap, from a run on shapes alone (no memory, no arithmetic)."""
        if self._stages[0].calls == ("forward_features",):
            timm_model: Any = self.model
            return {self.taps[0]: timm_model.num_features}
        shadow = _shapes_only(self)
        state = torch.empty(1, 3, *self.input_size, device="meta", dtype=next(self.parameters()).dtype)
        channels: dict[str, int] = {}
        with torch.no_grad():
            for before, tap in zip((None, *self.taps), self.taps, strict=False):
                state = shadow.run(state, after=before, upto=tap)
                channels[tap] = shadow.spatial(state, tap, self.input_size).shape[1]
        return channels

    def _channels_come_last(self, state: Tensor) -> bool:
        if getattr(self.model, "output_fmt", "NCHW") == "NHWC":
            return True
        features = getattr(self.model, "num_features", None)
        is_fallback = self._stages[0].calls == ("forward_features",)
        return is_fallback and state.shape[1] != features and state.shape[3] == features

    def _token_grid(self, count: int, image_size: tuple[int, int] | None) -> tuple[int, int]:
        """Height and width of a grid of ``count`` tokens, of the same proportions as the image."""
        aspect = 1.0 if image_size is None else image_size[0] / image_size[1]
        height, width = round(math.sqrt(count * aspect)), round(math.sqrt(count / aspect))
        if count == 0 or height * width != count:
            raise UserError(
                f"the {count} tokens of backbone '{self.name}' form no grid of the image's proportions: "
                f"give image_size, or use square images"
            )
        return height, width


def create_backbone(name: str, weights: str | Path | None = None) -> Backbone:
    """The timm model ``name`` with its weights, as a chain of stages.

    ``weights``: a file, ``"none"`` for random weights, or None for the pretrained ones (see
    ``unida.models.weights``).
    """
    model, normalisation = build_model(name, weights)
    return Backbone(model, name, normalisation.mean, normalisation.std)


def open_backbone(name: str, weights: str | Path | None, seed: int) -> Backbone:
    """As `create_backbone`; weights that are random on purpose are drawn from the run's seed."""
    torch.manual_seed(torch_seed(seed, "backbone"))
    return create_backbone(name, weights)


@torch.no_grad()
def refuse_crop(backbone: Backbone, crop: int, features: Callable[[Tensor], Tensor] | None = None) -> None:
    """Some networks take only certain sizes: try one black picture before the long work begins.

    Args:
        features: of a network around the backbone, in evaluation mode, to try instead of the backbone.
    """
    if features is None:
        features = backbone.eval()
    try:
        features(torch.zeros(1, 3, crop, crop, device=next(backbone.parameters()).device))
    except (AssertionError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise UserError(f"--crop {crop}: backbone {backbone.name!r} cannot take it ({reason})") from error


def stages_of(model: Any) -> tuple[Stage, ...]:
    """The chain of a timm model; one stage if it is no chain."""
    builders: dict[Any, Callable[[Any], tuple[Stage, ...]]] = {
        ResNet: _resnet_stages,
        EfficientNet: _efficientnet_stages,
        MobileNetV3: _mobilenetv3_stages,
        VisionTransformer: _vit_stages,
        ConvNeXt: _convnext_stages,
    }
    for family, builder in builders.items():
        # A subclass with its own forward may run the stages in another order.
        if isinstance(model, family) and type(model).forward_features is family.forward_features:
            return builder(model)
    return _traced_stages(model) or _single_stage(model)


def _resnet_stages(model: Any) -> tuple[Stage, ...]:
    layers = [_modules_in_a_row(f"layer{i}", f"layer{i}") for i in range(1, 5)]
    return (_modules_in_a_row("stem", "conv1", "bn1", "act1", "maxpool"), *layers)


def _mobilenetv3_stages(model: Any) -> tuple[Stage, ...]:
    blocks = [_modules_in_a_row(f"blocks.{i}", f"blocks.{i}") for i in range(len(model.blocks))]
    return (_modules_in_a_row("stem", "conv_stem", "bn1"), *blocks)


def _efficientnet_stages(model: Any) -> tuple[Stage, ...]:
    return (*_mobilenetv3_stages(model), _modules_in_a_row("head", "conv_head", "bn2"))


def _vit_stages(model: Any) -> tuple[Stage, ...]:
    embed = Stage(
        "embed",
        calls=("patch_embed", "_pos_embed", "patch_drop", "norm_pre"),
        owns=(
            "patch_embed",
            "cls_token",
            "reg_token",
            "dist_token",
            "pos_embed",
            "pos_drop",
            "patch_drop",
            "norm_pre",
        ),
    )
    blocks = [_modules_in_a_row(f"blocks.{i}", f"blocks.{i}") for i in range(len(model.blocks))]
    return (embed, *blocks, _modules_in_a_row("norm", "norm"))


def _convnext_stages(model: Any) -> tuple[Stage, ...]:
    stages = [_modules_in_a_row(f"stages.{i}", f"stages.{i}") for i in range(len(model.stages))]
    return (_modules_in_a_row("stem", "stem"), *stages, _modules_in_a_row("norm", "norm_pre"))


def _traced_stages(model: Any) -> tuple[Stage, ...]:
    """The chain of any other model, by watching which of its modules feeds which; empty if it is no chain.

    This looks at tensors without numbers. A model file is read into a model of random weights, which must give the
    chain that the run had; comparing outputs could give another, as a position embedding that the chain forgets is
    often zero in a new model.
    """
    try:
        calls, images, result = _watch_calls(model)
    except Exception:  # of any type: some models need numbers, such as sizes that they compute
        return ()
    state, version = images, 0
    stages: list[Stage] = []
    for call in calls:
        if call.given is not state or call.version != version or not isinstance(call.output, Tensor):
            return ()
        # A stage begins with weights, and leaves what it is given as it is: it may be kept.
        if stages and (not call.has_weights or call.works_in_place):
            stages[-1] = _modules_in_a_row(stages[-1].name, *stages[-1].calls, call.name)
        else:
            stages.append(_modules_in_a_row(call.name, call.name))
        state, version = call.output, call.output_version
    is_chain = result is state and state._version == version and len({call.name for call in calls}) == len(calls)
    return tuple(stages) if is_chain and len(stages) > 1 else ()


class _Call(NamedTuple):
    """A call of a module. A tensor's version counts what was written into it."""

    name: str
    given: Any  # None unless it is one tensor
    version: int  # of what was given
    works_in_place: bool
    has_weights: bool
    output: Any
    output_version: int


@torch.no_grad()
def _watch_calls(model: Any) -> tuple[list[_Call], Tensor, Any]:
    """What ``forward_features`` calls, in order; its input and its output."""
    calls: list[_Call] = []

    def watched(name: str, has_weights: bool, forward: Callable[..., Any], *given: Any, **named: Any) -> Any:
        alone = given[0] if len(given) == 1 and not named and isinstance(given[0], Tensor) else None
        version = 0 if alone is None else alone._version
        output = forward(*given, **named)
        in_place = alone is not None and alone._version != version
        after = output._version if isinstance(output, Tensor) else 0
        calls.append(_Call(name, alone, version, in_place, has_weights, output, after))
        return output

    shadow = _shapes_only(model)
    for name in _links(model):
        module = _resolve(shadow, name)
        module.forward = partial(watched, name, bool(module.state_dict()), module.forward)
    images = torch.empty(1, 3, *model.pretrained_cfg["input_size"][1:], device="meta")
    return calls, images, shadow.forward_features(images)


def _links(model: nn.Module) -> Iterator[str]:
    """The model's modules; instead of the one that holds most weights, its parts if they are in a row."""
    whole = sum(p.numel() for p in model.parameters())
    for name, child in model.named_children():
        has_most = isinstance(child, nn.Sequential) and sum(p.numel() for p in child.parameters()) > whole / 2
        if has_most or isinstance(child, nn.ModuleList):
            yield from (f"{name}.{part}" for part, _ in child.named_children())
        else:
            yield name


def _shapes_only(module: Any) -> Any:
    """A copy in evaluation mode that computes shapes alone: no memory, no arithmetic."""
    shapes = {id(t): torch.empty_like(t, device="meta") for t in (*module.parameters(), *module.buffers())}
    return copy.deepcopy(module, shapes).eval()  # the memo gives a bare shape instead of every tensor


def _single_stage(model: Any) -> tuple[Stage, ...]:
    """Any other model: all of ``forward_features`` in one stage, without modules that only the pooling uses."""
    pooling = ("head", "fc_norm", "head_norm", "attn_pool", "pre_logits", "head_drop", "global_pool")
    names = [name for name, _ in (*model.named_children(), *model.named_parameters(recurse=False))]
    return (Stage("final", ("forward_features",), tuple(name for name in names if name not in pooling)),)


def _modules_in_a_row(name: str, *modules: str) -> Stage:
    return Stage(name, calls=modules, owns=modules)


def _resolve(model: Any, path: str) -> Any:
    """The module or method at a dotted path."""
    for part in path.split("."):
        model = getattr(model, part)
    return model
