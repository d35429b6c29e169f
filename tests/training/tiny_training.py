"""A run in miniature: noise for images, one linear layer for a backbone. A step takes a millisecond."""

from collections.abc import Callable
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from unida.config import Config, config_from_options
from unida.methods.base import Method, SourceBatch, TargetBatch
from unida.training.loop import Training

StartRun = Callable[..., Training]


class Tiny(Method):
    """Has a buffer, as BatchNorm has, and dropout: what a resumed run must restore beside the weights."""

    def __init__(self) -> None:
        backbone: Any = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 4), nn.BatchNorm1d(4), nn.Dropout(0.2))
        super().__init__(backbone, num_classes=3, options=None)
        self.head = nn.Linear(4, 3)

    def training_step(self, source: SourceBatch, target: TargetBatch, step: int) -> dict[str, Tensor]:
        logits = self.head(self.features(source.images)).float()
        target_logits = self.head(self.features(target.images)).float()
        return {
            "closed": nn.functional.cross_entropy(logits, source.labels),
            "spread": 0.1 * target_logits.square().mean(),
        }


def make_config(**changes: Any) -> Config:
    return config_from_options({"steps": 12, "batch_size": 6, "log_every": 1, "checkpoint_every": 4, **changes})


def make_method(kind: Callable[[], Method] = Tiny) -> Method:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return kind()


def saved_weights(training: Training) -> dict[str, Tensor]:
    tensors = load_file(training.checkpoint)
    return {k.removeprefix("method/"): v for k, v in tensors.items() if k.startswith("method/")}
