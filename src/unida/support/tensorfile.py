"""Tensors in a safetensors file. It is written completely or not at all, and damage is found. No pickle.

The header holds a digest of all names, numbers and notes. It is computed when the file is written and compared when the
file is read: `benchmarks/digests.py` measures what that costs.
"""

import errno
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from unida.errors import UserError
from unida.support.files import written_aside

HEADER = "unida"  # the only entry of the file's header: safetensors does not keep the order of several
DIGEST = "digest"


def write_tensors(path: Path, tensors: Mapping[str, Tensor], notes: Mapping[str, str]) -> None:
    """Save tensors. At any moment, `path` holds all of the old content or all of the new."""
    on_host = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with written_aside(path) as aside:
            save_file(on_host, aside, {HEADER: json.dumps({DIGEST: digest_of(on_host, notes), **notes})})
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"{path} cannot be written ({_reason(error)}): free space, then continue with --resume"
        ) from error


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the notes; a UserError if one bit differs from what was written."""
    try:
        with safe_open(path, framework="pt") as file:
            notes = _notes(path, file.metadata())
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, ValueError) as error:
        raise UserError(f"{path} cannot be read as a safetensors file: {_reason(error)}") from error
    if notes.pop(DIGEST, None) != digest_of(tensors, notes):
        raise UserError(f"{path} is damaged: its content does not match its digest; use a copy, or train again")
    return tensors, notes


def read_notes(path: Path) -> dict[str, str]:
    """The notes alone, unchecked: for a quick look."""
    try:
        with safe_open(path, framework="pt") as file:
            return _notes(path, file.metadata())
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} cannot be read as a safetensors file: {_reason(error)}") from error


def _notes(path: Path, header: Mapping[str, str] | None) -> dict[str, str]:
    try:
        notes = json.loads((header or {})[HEADER])
        return {str(name): str(value) for name, value in notes.items()}
    except (LookupError, ValueError, AttributeError) as error:
        raise UserError(f"{path} is damaged, or was not written by this version of unida") from error


def digest_of(tensors: Mapping[str, Tensor], notes: Mapping[str, str]) -> str:
    """blake2b of everything that `write_tensors` is given, in any order."""
    digest = hashlib.blake2b(json.dumps(sorted(notes.items())).encode(), digest_size=16)
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _reason(error: Exception) -> str:
    """The system's reason; for a full disk, safetensors hides it in a text of its own."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = " ".join(str(error).split())
    return os.strerror(errno.ENOSPC) if f"os error {errno.ENOSPC}" in text.lower() else text
