"""What a killed run needs to go on: one safetensors file, written aside, synced and renamed. No pickle.

One file, because a rename is atomic for a file but not for a folder: whoever reads it finds a whole checkpoint, the old
one or the new one.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from unida.errors import UserError


def write_atomically(tensors: dict[str, Tensor], metadata: dict[str, str], path: Path) -> None:
    """Save tensors so that `path` holds, at any moment, either what it held or all of the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(path.name + ".tmp")
    save_file({name: t.detach().cpu().contiguous() for name, t in tensors.items()}, aside, metadata)
    descriptor = os.open(aside, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(aside, path)


def read_metadata(path: Path) -> dict[str, str]:
    try:
        with safe_open(path, framework="pt") as file:
            return dict(file.metadata() or {})
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} cannot be read as a safetensors file: {error}") from error


def save_checkpoint(
    path: Path,
    method: nn.Module,
    optimisers: Mapping[str, torch.optim.Optimizer],
    step: int,
    seconds: float = 0.0,
    scaler: dict[str, Any] | None = None,
) -> None:
    """The state after `step` steps, which took `seconds`: weights, buffers and the optimisers, by turn.

    Samplers and augmentation have no state (`unida.data.sampling`), so the step number stands for them.
    """
    tensors = {f"method/{name}": tensor for name, tensor in method.state_dict().items()}
    numbers: dict[str, dict[str, dict[str, Any]]] = {turn: {} for turn in optimisers}
    for turn, optimiser in optimisers.items():
        for index, entries in optimiser.state_dict()["state"].items():
            for key, value in entries.items():
                if isinstance(value, Tensor):
                    tensors[f"optimiser/{turn}/{index}/{key}"] = value
                else:
                    numbers[turn].setdefault(str(index), {})[key] = value
    metadata = {
        "step": str(step),
        "seconds": str(seconds),
        "optimiser": json.dumps(numbers),
        "scaler": json.dumps(scaler or {}),
    }
    write_atomically(tensors, metadata, path)


def load_checkpoint(
    path: Path, method: nn.Module, optimisers: Mapping[str, torch.optim.Optimizer]
) -> tuple[int, float, dict[str, Any]]:
    """Restore a state in place. Returns the steps and seconds it had taken, and the gradient scaler's state."""
    metadata, tensors = read_metadata(path), load_file(path)
    try:
        _restore(metadata, tensors, method, optimisers)
        return int(metadata["step"]), float(metadata["seconds"]), json.loads(metadata["scaler"])
    except (LookupError, ValueError, RuntimeError) as error:  # names or shapes that are not those of today
        raise UserError(f"{path} was made by another version of unida: start anew with another --out") from error


def _restore(
    metadata: Mapping[str, str],
    tensors: Mapping[str, Tensor],
    method: nn.Module,
    optimisers: Mapping[str, torch.optim.Optimizer],
) -> None:
    method.load_state_dict({k.removeprefix("method/"): v for k, v in tensors.items() if k.startswith("method/")})
    numbers = json.loads(metadata["optimiser"])
    for turn, optimiser in optimisers.items():
        entries: dict[int, dict[str, Any]] = {int(i): dict(v) for i, v in numbers[turn].items()}
        parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
        for name, tensor in tensors.items():
            if name.startswith(f"optimiser/{turn}/"):
                _, _, index, key = name.split("/")
                entries.setdefault(int(index), {})[key] = _laid_out_like(parameters[int(index)], tensor)
        optimiser.load_state_dict({**optimiser.state_dict(), "state": entries})


def _laid_out_like(parameter: Tensor, state: Tensor) -> Tensor:
    """The file knows no memory format, but a fused optimiser walks parameter and state in step through memory."""
    return torch.empty_like(parameter, dtype=state.dtype).copy_(state) if state.shape == parameter.shape else state
