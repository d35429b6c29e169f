"""A run in miniature: noise for images, one linear layer for a backbone. A step takes a millisecond."""

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unida.config import Config, complete, config_from_options
from unida.data.domains import Source, Target
from unida.data.pixels import Pixels
from unida.features.inputs import PixelInputs
from unida.methods.base import Losses, Method, Phase, Problem, SourceBatch, TargetBatch
from unida.recipes.base import Recipe
from unida.recipes.mosaic import Mosaic
from unida.recipes.rotation import Rotation
from unida.training.batches import BatchStream
from unida.training.checkpoint import Checkpoint
from unida.training.loop import Training
from unida.training.optim import build_optimiser
from unida.training.options import TrainingOptions

StartRun = Callable[..., Training]
MakeMethod = Callable[[Problem], Method]

BALANCED, SHUFFLED = Phase(turns=()), Phase(turns=(), source="shuffled")
RECIPES: dict[str, Recipe] = {"turned": Rotation(), "upside down": Rotation(2), "mosaics": Mosaic(2)}
SOURCE_LABELS = np.array([0, 1, 1, 1, 1, 1, 1, 1, 2])  # balanced or not is easy to see


class Tiny(Method):
    """Has a buffer, as BatchNorm has, and dropout: what a resumed run must restore beside the weights."""

    def __init__(self, problem: Problem) -> None:
        backbone: Any = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 4), nn.BatchNorm1d(4), nn.Dropout(0.2))
        backbone.num_features = 4
        super().__init__(backbone, problem, options=None)
        self.head = nn.Linear(4, 3)

    def training_step(self, source: SourceBatch, target: TargetBatch, step: int) -> Losses:
        logits = self.head(self.features(source.images)).float()
        target_logits = self.head(self.features(target.images)).float()
        return {
            "closed": nn.functional.cross_entropy(logits, source.labels),
            "spread": 0.1 * target_logits.square().mean(),
        }


def make_config(**changes: Any) -> Config:
    given = {"regime": "published", "steps": 12, "batch_size": 6, "log_every": 1, "checkpoint_every": 4, **changes}
    return complete(config_from_options(given), has_gpu=False)


def make_options(**changes: Any) -> TrainingOptions:
    return make_config(**changes).training


def make_method(kind: MakeMethod = Tiny, steps: int = 12, seed: int = 0) -> Method:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return kind(Problem(num_classes=3, num_source=9, num_target=6, steps=steps, seed=seed))


def optimiser_of(method: Method, **options: Any) -> Optimizer:
    """Of the one turn that a plain method has."""
    (phase,) = method.phases()
    (turn,) = phase.turns
    return build_optimiser(turn, make_options(**options))


def saved(training: Training) -> Checkpoint:
    assert training.checkpoint is not None
    return Checkpoint(training.checkpoint)


def saved_weights(training: Training) -> dict[str, Tensor]:
    tensors = saved(training).tensors
    return {k.removeprefix("method/"): v for k, v in tensors.items() if k.startswith("method/")}


def saved_step(training: Training) -> int:
    return saved(training).progress.step


def lines_of(training: Training) -> list[dict[str, Any]]:
    assert training.metrics is not None
    return [json.loads(line) for line in training.metrics.path.read_text().splitlines()]


def inputs_of(crop: int = 8) -> PixelInputs:
    return PixelInputs(crop, (0.5,) * 3, (0.25,) * 3, torch.device("cpu"))


def stream_of(pixels: Pixels, rank: int = 0, processes: int = 1, seed: int = 4) -> BatchStream:
    return BatchStream(
        Source(pixels.subset(np.arange(9)), SOURCE_LABELS, ("a", "b", "c")),
        Target(pixels.subset(np.arange(9, 15))),
        inputs_of(),
        make_config(seed=seed),
        SimpleNamespace(global_rank=rank, world_size=processes),  # type: ignore[arg-type]
        RECIPES,
    )
