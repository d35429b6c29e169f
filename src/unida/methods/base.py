"""The contract between a method and everything around it.

A method is one `nn.Module` in one file that reads like its paper's pseudo-code. It never sees a target label: the
target batch has none.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from unida.models.backbone import Backbone
from unida.pretext.instance_count import InstanceCount, PretextBatch

Domain = Literal["source", "target"]
Requests = Mapping[Domain, Mapping[str, np.ndarray]]  # by domain and name, indices of images

NOTHING: Mapping[str, Tensor] = MappingProxyType({})


class SourceBatch(NamedTuple):
    images: Tensor  # (B, 3, H, W) float, normalised
    labels: Tensor  # (B,) int64 in 0…C−1
    indices: Tensor  # (B,) int64, which images of the source these are
    pretext: PretextBatch | None = None  # made of source images, for a method that asks for it
    extra: Mapping[str, Tensor] = NOTHING  # training views of the source images that the method requested, by name


class TargetBatch(NamedTuple):
    images: Tensor  # (B, 3, H, W) float, normalised
    indices: Tensor  # (B,) int64, which images of the target these are
    pretext: PretextBatch | None = None  # made of target images; its labels tell how it was made, no more
    extra: Mapping[str, Tensor] = NOTHING  # training views of the target images that the method requested, by name


class Scores(NamedTuple):
    logits: Tensor  # (B, C) over the source's classes
    unknown: Tensor  # (B,) in 0…1, higher means more likely unknown


class ParameterGroups(NamedTuple):
    backbone: Sequence[nn.Parameter]  # pretrained: learns slowly
    new: Sequence[nn.Parameter]  # starts from nothing: learns ten times faster


class Sweep(Protocol):
    """A look at all images of a domain, outside of the training steps: test views, evaluation mode, no gradients."""

    @property
    def source_labels(self) -> Tensor:
        """(N_s,) int64 in 0…C−1, the classes of the source's images. Of the target's there are none."""

    def __call__(
        self, domain: Domain, compute: Callable[[Tensor], Tensor] | None = None, limit: int | None = None
    ) -> Tensor:
        """(N, …) what `compute` (by default the method's `features`) makes of each image, in the order that batches'
        `indices` speak of; of the first `limit` images only, which are as good as random."""

    def pretext(self, domain: Domain, batches: int) -> Iterator[PretextBatch]:
        """So many batches of the method's pretext task, the same on all processes."""


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

    default_lr: float = 0.01  # of new layers, where the user says nothing (OVANet)
    default_steps: int = 10_000  # with a GPU, where the user says nothing (OVANet)
    unknown_threshold: float = 0.5  # an image whose unknown score is above is unknown
    round_every: int = 0  # steps between two calls of `on_round`; 0: never
    round_at_end: bool = False  # one more after the last step, where answers hang on what a round finds
    turns: tuple[str, ...] = ("goal",)  # a step's updates, one after the other, each with an optimiser of its own
    pretext: InstanceCount | None = None  # a task whose batches the loop is to make
    looks_at_target_batch: bool = True  # losses are made of the target batch's images, not only of requested ones
    looks_at_source: bool = False  # `on_round` sweeps over the source: its test views must be there
    balanced_source: bool = True  # source batches show every class equally often (OVANet); or each image equally often
    normalises_batches: bool = False  # BatchNorm in new layers: a process needs two images of a domain, or more
    lr_decay: float = 10.0  # the learning rate falls as (1 + lr_decay · t/T)^−0.75 (OVANet: 10)
    steps: int = 10_000  # T, and
    seed: int = 0  # of the run: see `begin`

    def __init__(self, backbone: Backbone, num_classes: int, options: Any) -> None:
        super().__init__()
        # Numbers of the last step that are no losses: functions, called when a step is logged.
        self.watched: dict[str, Callable[[], Tensor]] = {}
        self.backbone = backbone
        self.num_classes = num_classes
        self.options = options

    def parameter_groups(self, turn: str = "goal") -> ParameterGroups:
        """What a turn's optimiser updates."""
        pretrained = {id(p) for p in self.backbone.parameters()}
        return ParameterGroups(
            backbone=[p for p in self.parameters() if id(p) in pretrained and p.requires_grad],
            new=[p for p in self.parameters() if id(p) not in pretrained and p.requires_grad],
        )

    def begin(self, steps: int, seed: int) -> None:
        """Before training: how many steps the run has in all, and its seed."""
        self.steps, self.seed = steps, seed

    def requests(self, step: int) -> Requests:
        """Images that a step needs beside its batch: the batch's `extra` holds their training views by these names.

        A function of the step, the run's seed and the buffers alone, so that a resumed run asks for the same images.
        """
        return {}

    def training_step(self, source: SourceBatch, target: TargetBatch, step: int) -> dict[str, Tensor]:
        """One step's losses by name, weighted; the loop adds them up, steps the optimiser and logs each."""
        raise NotImplementedError  # abstract

    def on_round(self, step: int, sweep: Sweep) -> None:
        """Work over all images before the first step and after every `round_every` steps: clustering, memories.

        What it learns must live in buffers, so that a checkpoint holds it. After the first step it may change how
        features are scored, but not the features: an evaluation right after it takes those that it has seen.

        Args:
            sweep: `sweep("source")` and `sweep("target")` give the (N, d) features of all images of a domain.
        """

    def turn_losses(self, turn: str, source: SourceBatch, target: TargetBatch, step: int) -> dict[str, Tensor]:
        """The losses of one of several turns."""
        return self.training_step(source, target, step)

    def forward(self, source: SourceBatch, target: TargetBatch, step: int, turn: str = "goal") -> dict[str, Tensor]:
        """A turn's losses under the name that distributed wrappers intercept."""
        return self.turn_losses(turn, source, target, step)

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
