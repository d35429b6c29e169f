"""The contract between a method and everything around it.

A method is one `nn.Module` in one file that reads like its paper's pseudo-code. It never sees a target label: the
target batch has none.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from unida.models.backbone import Backbone


class SourceBatch(NamedTuple):
    images: Tensor  # (B, 3, H, W) float, normalised
    labels: Tensor  # (B,) int64 in 0…C−1
    indices: Tensor  # (B,) int64, which images of the source these are


class TargetBatch(NamedTuple):
    images: Tensor  # (B, 3, H, W) float, normalised
    indices: Tensor  # (B,) int64, which images of the target these are


class Scores(NamedTuple):
    logits: Tensor  # (B, C) over the source's classes
    unknown: Tensor  # (B,) in 0…1, higher means more likely unknown


class ParameterGroups(NamedTuple):
    backbone: Sequence[nn.Parameter]  # pretrained: learns slowly
    new: Sequence[nn.Parameter]  # starts from nothing: learns ten times faster


Sweep = Callable[[Literal["source", "target"]], Tensor]  # → (N, d) features of all images of a domain


class Method(nn.Module):
    """Base of all methods.

    Class attributes describe the method to `unida methods`; `Options` is a dataclass of its hyper-parameters, each with
    the source of its default.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    paper: ClassVar[str]
    settings: ClassVar[str]
    Options: ClassVar[type[Any]]

    unknown_threshold: float = 0.5  # an image whose unknown score is above is unknown
    round_every: int = 0  # steps between two calls of `on_round`; 0: never

    def __init__(self, backbone: Backbone, num_classes: int, options: Any) -> None:
        super().__init__()
        self.backbone = backbone
        self.num_classes = num_classes
        self.options = options

    def parameter_groups(self) -> ParameterGroups:
        pretrained = {id(p) for p in self.backbone.parameters()}
        return ParameterGroups(
            backbone=[p for p in self.parameters() if id(p) in pretrained and p.requires_grad],
            new=[p for p in self.parameters() if id(p) not in pretrained and p.requires_grad],
        )

    def training_step(self, source: SourceBatch, target: TargetBatch, step: int) -> dict[str, Tensor]:
        """One step's losses by name, weighted; the loop adds them up, steps the optimiser and logs each."""
        raise NotImplementedError  # abstract

    def on_round(self, step: int, sweep: Sweep) -> None:
        """Work over all images before step 0 and every `round_every` steps: clustering, memories.

        What it learns must live in buffers, so that a checkpoint holds it.

        Args:
            sweep: `sweep("source")` and `sweep("target")` give the (N, d) features of all images of a domain (test
                view, evaluation mode), in the order that batches' `indices` speak of.
        """

    def forward(self, source: SourceBatch, target: TargetBatch, step: int) -> dict[str, Tensor]:
        """The training step under the name that distributed wrappers intercept."""
        return self.training_step(source, target, step)

    def features(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) → (B, d)."""
        return self.backbone(images)

    def score(self, features: Tensor) -> Scores:
        """(B, d) → class logits and an unknown score in 0…1."""
        raise NotImplementedError  # abstract

    def decide(self, scores: Scores) -> Tensor:
        """(B,) labels: a source class, or C for "unknown"."""
        best = scores.logits.argmax(dim=1)
        return torch.where(scores.unknown > self.unknown_threshold, self.num_classes, best)
