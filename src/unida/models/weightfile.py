"""A file of weights: read without pickle, and fitted into a timm model."""

import logging
import pickle
import sys
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
import timm
import torch
from torch import Tensor, nn

from unida.errors import UserError
from unida.models.hub import one_line
from unida.models.known import KNOWN
from unida.models.options import LITE0

log = logging.getLogger("unida")

# How timm names the layers of an inverted residual block, in running order.
TIMM_PLAIN_BLOCK = ("conv_dw", "bn1", "conv_pw", "bn2")
TIMM_EXPANDED_BLOCK = ("conv_pw", "bn1", "conv_dw", "bn2", "conv_pwl", "bn3")


class KeyStyle(NamedTuple):
    """How another library's file names the layers of a network that timm has too."""

    outer: dict[str, str]  # the file's name → timm's, for stem and head
    block: str  # blocks are numbered after this word,
    first_block: int  # from this number on
    plain_block: tuple[str, ...]  # layers of a block without expansion, in running order
    expanded_block: tuple[str, ...]
    classifier: str


LITE0_STYLE = KeyStyle(
    {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2"},
    block="_blocks",
    first_block=0,
    plain_block=("_depthwise_conv", "_bn1", "_project_conv", "_bn2"),
    expanded_block=("_expand_conv", "_bn0", "_depthwise_conv", "_bn1", "_project_conv", "_bn2"),
    classifier="_fc",
)
TORCHVISION_MOBILENETV2_STYLE = KeyStyle(
    {
        "features.0.0": "conv_stem",
        "features.0.1": "bn1",
        "features.18.0": "conv_head",
        "features.18.1": "bn2",
    },
    block="features",
    first_block=1,
    plain_block=("conv.0.0", "conv.0.1", "conv.1", "conv.2"),
    expanded_block=("conv.0.0", "conv.0.1", "conv.1.0", "conv.1.1", "conv.2", "conv.3"),
    classifier="classifier.1",
)


class Normalisation(NamedTuple):
    """Per-channel mean and deviation the weights were trained with, for pixels in 0…1."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


# The Lite0 file was trained on (pixel − 127) / 128, with pixels in 0…255.
LITE0_NORMALISATION = Normalisation((127 / 255,) * 3, (128 / 255,) * 3)

# Where networks have their classifier. timm's description of a network does not name every one that a file may have.
CLASSIFIERS = ("head", "head.fc", "head_dist", "fc", "classifier")

# What depends on the size of images. timm resamples it for another size.
POSITIONS = ("pos_embed", "attention_biases", "relative_position_bias_table")

TRANSFORMERS = ("embeddings.", "encoder.layer.", "vit.embeddings.", "dinov2.embeddings.", "resnet.embedder.")


class Unreadable(Exception):
    """Why a file gives no tensors."""


class Fit(NamedTuple):
    """A file's tensors for a model."""

    state: dict[str, Tensor]
    normalisation: Normalisation
    problem: str | None  # the first key that does not fit


def new_model(name: str, **timm_options: Any) -> nn.Module:
    """timm's model ``name`` without classifier, accepting any image size if the architecture can."""
    try:
        return timm.create_model(name, num_classes=0, dynamic_img_size=True, **timm_options)
    except TypeError as error:
        # Only token models know the option; the others take any size anyway and refuse the option.
        if "dynamic_img_size" not in str(error):
            raise
        return timm.create_model(name, num_classes=0, **timm_options)


def architecture(name: str) -> str:
    """timm names are ``architecture`` or ``architecture.tag``."""
    return name.partition(".")[0]


def timm_normalisation(model: Any) -> Normalisation:
    return Normalisation(tuple(model.pretrained_cfg["mean"]), tuple(model.pretrained_cfg["std"]))


def load_weight_file(model: nn.Module, name: str, path: Path) -> Normalisation:
    """Fill ``model``, timm's ``name`` without classifier, from ``path``; a UserError if anything does not fit."""
    try:
        content = read_tensors(path)
    except Unreadable as error:
        raise UserError(f"{path} is damaged, or no weight file ({error}): copy or download it again") from error
    state = _state_dict(content, path)
    fit = _fit(model, name, state)
    if fit.problem is not None:
        raise UserError(f"{path} does not fit backbone '{name}': {fit.problem}; {_advice(name, state)}")
    model.load_state_dict(fit.state, strict=False)
    return fit.normalisation


def read_tensors(path: Path) -> Any:
    """The content of a .safetensors or torch file; pickled objects are refused."""
    try:
        if path.suffix == ".safetensors":
            return safetensors.torch.load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except Exception as error:  # what is no weight file can raise anything
        if isinstance(error, pickle.UnpicklingError) and _is_torch_file(path):
            raise UserError(
                f"{path} holds more than plain tensors; pickled objects are never loaded: "
                f"re-save its state_dict as safetensors"
            ) from error
        is_long = isinstance(error, pickle.UnpicklingError)  # torch explains at length what does not help here
        raise Unreadable("it holds no tensors" if is_long else one_line(error)) from error


def _is_torch_file(path: Path) -> bool:
    """A zip archive, or a pickle as of old."""
    with path.open("rb") as file:
        return file.read(2) in (b"PK", b"\x80\x02")


def _state_dict(content: Any, path: Path) -> dict[str, Tensor]:
    """The state dict inside a checkpoint in float32, without the prefixes training wrappers put before its keys."""
    for wrapper in ("state_dict", "model_state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(wrapper), dict):
            content = content[wrapper]
    if not isinstance(content, dict) or not content:
        raise UserError(f"{path} holds no state dict: save the network's state_dict() as safetensors")
    odd = next((key for key, value in content.items() if not isinstance(value, Tensor)), None)
    if odd is not None:
        raise UserError(f"{path} holds no state dict, '{odd}' is no tensor: save state_dict() as safetensors")
    prefixes = ("module.", "model.", "_orig_mod.")
    while found := [p for p in prefixes if all(key.startswith(p) for key in content)]:
        content = {key.removeprefix(found[0]): value for key, value in content.items()}
    return {key: value.float() if value.is_floating_point() else value for key, value in content.items()}


def _fit(model: Any, name: str, state: dict[str, Tensor]) -> Fit:
    """``state`` as ``model`` wants it: renamed, without classifier, and with positions for its size of images."""
    normalisation = timm_normalisation(model)
    if architecture(name) == LITE0 and "_conv_stem.weight" in state:
        state = _in_timm_names(state, model, LITE0_STYLE)
        normalisation = LITE0_NORMALISATION
    elif architecture(name) == "mobilenetv2_100" and "features.0.0.weight" in state:
        state = _in_timm_names(state, model, TORCHVISION_MOBILENETV2_STYLE)
    state = _without_classifier(model, state)
    problem = _misfit(model, state)
    if problem is None:
        return Fit(state, normalisation, None)
    changed = _changed_by_timm(model, state)
    return Fit(state, normalisation, problem) if changed is None else Fit(changed, normalisation, None)


def _in_timm_names(state: dict[str, Tensor], model: Any, style: KeyStyle) -> dict[str, Tensor]:
    """``state`` under timm's names. By name and not by order: safetensors files do not keep the order."""
    names = dict(style.outer)
    paths = [f"blocks.{s}.{b}" for s, stage in enumerate(model.blocks) for b in range(len(stage))]
    for number, path in enumerate(paths, start=style.first_block):
        expanded = hasattr(model.get_submodule(path), "conv_pwl")
        ours = TIMM_EXPANDED_BLOCK if expanded else TIMM_PLAIN_BLOCK
        theirs = style.expanded_block if expanded else style.plain_block
        names |= {f"{style.block}.{number}.{t}": f"{path}.{o}" for t, o in zip(theirs, ours, strict=True)}
    renamed = {}
    for key, value in state.items():
        layer, _, leaf = key.rpartition(".")
        if layer != style.classifier:
            renamed[f"{names.get(layer, layer)}.{leaf}"] = value
    return renamed


def _without_classifier(model: Any, state: dict[str, Tensor]) -> dict[str, Tensor]:
    wanted = model.state_dict().keys()
    named = model.pretrained_cfg.get("classifier") or ()
    classifiers = {*CLASSIFIERS, *((named,) if isinstance(named, str) else named)}
    return {key: value for key, value in state.items() if key in wanted or key.rpartition(".")[0] not in classifiers}


def _misfit(model: nn.Module, state: dict[str, Tensor]) -> str | None:
    """The first key that does not fit, in words."""
    wanted = model.state_dict()
    for key, value in wanted.items():
        if key not in state:
            # Old torchvision files lack this counter, which does not change the outputs.
            if not key.endswith("num_batches_tracked"):
                return f"'{key}' is missing"
        elif state[key].shape != value.shape:
            return f"'{key}' has shape {tuple(state[key].shape)}, expected {tuple(value.shape)}"
    unexpected = next((key for key in state if key not in wanted), None)
    return None if unexpected is None else f"'{unexpected}' is unexpected"


def _changed_by_timm(model: Any, state: dict[str, Tensor]) -> dict[str, Tensor] | None:
    """``state`` after timm's own conversion of authors' files, and of positions to the model's size of images.

    None if it does not fit even so.
    """
    convert = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
    try:
        changed = _without_classifier(model, convert(state, model)) if convert else {}
    except Exception:  # of a file that is not meant for it, anything
        return None
    if _misfit(model, changed) is not None:
        return None
    for key, value in changed.items():
        if key in state and state[key].shape != value.shape:
            if not key.endswith(POSITIONS):  # timm would also make patches of another size
                return None
            log.info("weights: '%s' is resampled from %s to %s", key, tuple(state[key].shape), tuple(value.shape))
    return changed


def _advice(name: str, state: dict[str, Tensor]) -> str:
    """What to do with a file that does not fit."""
    for known in KNOWN:
        if architecture(known.name) != architecture(name):
            with torch.device("meta"):  # shapes alone
                other = new_model(known.name)
            if _fit(other, known.name, state).problem is None:
                return f"it fits --backbone {known.name}"
    if any(key.startswith(TRANSFORMERS) for key in state):
        return "its layers are named as in the transformers library: take timm's own file of this backbone"
    return "choose the backbone it was made for"
