"""What a killed run needs to continue: one file, written under another name, synced and renamed.

One file, because a rename is atomic for a file but not for a folder: a reader finds a complete checkpoint, the
old one or the new one.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unida.errors import UserError
from unida.support.tensorfile import read_tensors, write_tensors


@dataclass(frozen=True)
class Progress:
    """How far a run has come. Samplers and augmentation have no state, so the step number stands for them."""

    step: int  # steps taken
    phase: int = 0  # phase of the last step
    seconds: float = 0.0  # that the run took so far
    scaler: dict[str, Any] = field(default_factory=dict)  # state of the gradient scaler
    losses: dict[str, dict[str, float]] = field(default_factory=dict)  # by turn, the last ones
    run: str = ""  # fingerprint of the run's config


def save_checkpoint(path: Path, method: nn.Module, optimisers: Mapping[str, Optimizer], progress: Progress) -> None:
    """The state after a step: weights, buffers and the phase's optimisers, by turn."""
    tensors = {f"method/{name}": tensor for name, tensor in method.state_dict().items()}
    numbers: dict[str, dict[str, dict[str, Any]]] = {turn: {} for turn in optimisers}
    for turn, optimiser in optimisers.items():
        for index, entries in optimiser.state_dict()["state"].items():
            for key, value in entries.items():
                if isinstance(value, Tensor):
                    tensors[f"optimiser/{turn}/{index}/{key}"] = value
                else:
                    numbers[turn].setdefault(str(index), {})[key] = value
    write_tensors(path, tensors, {"progress": json.dumps(asdict(progress)), "optimiser": json.dumps(numbers)})


class Checkpoint:
    """A checkpoint that was read from its file, to be put back into a method and its optimisers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tensors, self.notes = read_tensors(path)
        try:
            self.progress = Progress(**json.loads(self.notes["progress"]))
        except (LookupError, ValueError, TypeError) as error:
            raise self._other_version() from error

    def restore_method(self, method: nn.Module) -> None:
        own = {k.removeprefix("method/"): v for k, v in self.tensors.items() if k.startswith("method/")}
        try:
            method.load_state_dict(own)
        except RuntimeError as error:  # names or shapes of another version
            raise self._other_version() from error

    def restore_optimisers(self, optimisers: Mapping[str, Optimizer]) -> None:
        try:
            numbers = json.loads(self.notes["optimiser"])
            for turn, optimiser in optimisers.items():
                self._restore(turn, optimiser, numbers[turn])
        except (LookupError, ValueError, RuntimeError) as error:
            raise self._other_version() from error

    def _restore(self, turn: str, optimiser: Optimizer, numbers: dict[str, dict[str, Any]]) -> None:
        entries: dict[int, dict[str, Any]] = {int(i): dict(v) for i, v in numbers.items()}
        parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
        prefix = f"optimiser/{turn}/"
        for name, tensor in self.tensors.items():
            if name.startswith(prefix):
                index, key = name.removeprefix(prefix).split("/")
                entries.setdefault(int(index), {})[key] = _laid_out_like(parameters[int(index)], tensor)
        optimiser.load_state_dict({**optimiser.state_dict(), "state": entries})

    def _other_version(self) -> UserError:
        return UserError(f"{self.path} was made by another version of unida: start again with another --out")


def _laid_out_like(parameter: Tensor, state: Tensor) -> Tensor:
    """The state in the parameter's memory format: the file has none, but a fused optimiser needs both equal."""
    return torch.empty_like(parameter, dtype=state.dtype).copy_(state) if state.shape == parameter.shape else state
