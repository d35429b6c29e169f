"""The contract between a method and everything around it.

A method is one `nn.Module` in one file that reads like its paper's pseudo-code. A plain method only writes
`training_step` and `score`. It never sees a target label: the target batch has none.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
from torch import Tensor, nn

from unida.methods.card import Card
from unida.models.backbone import Backbone
from unida.models.frame import SAMPLED_IMAGES, Frame
from unida.models.options import KEPT, PUBLISHED
from unida.recipes.base import Made, Recipe

DomainName = Literal["source", "target"]
DOMAINS: tuple[DomainName, DomainName] = ("source", "target")
Losses = dict[str, Tensor]

NOTHING: Mapping[str, Made] = MappingProxyType({})
NO_RECIPES: Mapping[str, Recipe] = MappingProxyType({})


class SourceBatch(NamedTuple):
    images: Tensor  # (B, 3, H, W) float, normalised; B is 0 in a phase without a source
    labels: Tensor  # (B,) int64 in 0…C−1
    indices: Tensor  # (B,) int64, which images of the source these are
    extra: Mapping[str, Made] = NOTHING  # what the method wants beside them, by name


class TargetBatch(NamedTuple):
    images: Tensor  # (B, 3, H, W) float, normalised; B is 0 in a phase that does not use the target's batch
    indices: Tensor  # (B,) int64, which images of the target these are
    extra: Mapping[str, Made] = NOTHING  # what the method wants beside them; labels only say how an image was made


TurnLosses = Callable[[SourceBatch, TargetBatch, int], Losses]


class Scores(NamedTuple):
    logits: Tensor  # (B, C) over the source's classes
    unknown: Tensor  # (B,) in 0…1, higher means more likely unknown


@dataclass(frozen=True)
class Problem:
    """What a method knows about the run. To answer, it needs only the number of classes."""

    num_classes: int  # C, of the source
    num_source: int = 0  # images
    num_target: int = 0
    steps: int = 1  # of the whole run
    seed: int = 0
    regime: Literal["kept", "published"] = PUBLISHED  # how it trains (docs/backbones.md)
    framed: bool = False  # whether heads see features in a `Frame`


class Sweep(Protocol):
    """A pass over all images of a domain, between training steps: test views, evaluation mode, no gradients."""

    @property
    def source_labels(self) -> Tensor:
        """(N_s,) int64 in 0…C−1, the classes of the source's images. The target has none."""

    def __call__(
        self,
        domain: DomainName,
        compute: Callable[[Tensor], Tensor] | None = None,
        limit: int | None = None,
        recipe: str | None = None,
    ) -> Tensor:
        """(N, …) the result of `compute` (by default the method's `features`, or `source_features`) for each image.

        The order is that of the batches' `indices`.

        Args:
            limit: only the first `limit` images. Files are ordered by digest, so these are a random sample.
            recipe: name of one of the method's recipes. It makes a new image from each image first.
        """

    def made(self, domain: DomainName, recipe: str, batches: int) -> Iterator[Made]:
        """`batches` batches of what a recipe makes from several images, the same on all processes."""


@dataclass(frozen=True)
class Want:
    """Images that a step needs beside its batch. `extra[name]` of the domain's batch holds them.

    Attributes:
        indices: training views of these images, all of them on every process; None: of the batch's images.
        recipe: name of one of the method's recipes, to apply to them.
    """

    name: str
    domain: DomainName
    indices: np.ndarray | None = None
    recipe: str | None = None


class Group(NamedTuple):
    """Parameters that learn at one rate: --lr for new ones, --backbone-lr for pretrained ones, times `scale`."""

    parameters: Sequence[nn.Parameter]
    pretrained: bool = False
    scale: float = 1.0


@dataclass(frozen=True)
class Turn:
    """One update of a step: its losses, what they update, and how.

    Attributes:
        losses: weighted losses by name; the loop adds them up, steps the optimiser and logs each.
        decay: a; the learning rate falls as (1 + a · t/T)^−0.75 over the phase; 0 keeps it (OVANet: 10).
        due: whether the turn is taken at a step; None: always.
    """

    losses: TurnLosses
    groups: Sequence[Group]
    name: str = "goal"
    optimiser: Literal["sgd", "adam"] = "sgd"
    decay: float = 10.0
    due: Callable[[int], bool] | None = None


@dataclass(frozen=True)
class Round:
    """Work over all images, before a phase's first step and again after every `every` steps: clustering, memories.

    Its results must be in buffers, so that a checkpoint holds them. After the first step it may change how features are
    scored, but not the features: an evaluation right after it uses the features that the round computed.

    Attributes:
        work: called with the number of steps taken and a `Sweep`.
        at_end: take it after the phase's last step too, because answers depend on its results.
    """

    work: Callable[[int, Sweep], None]
    every: int
    at_end: bool = False


@dataclass(frozen=True)
class Phase:
    """A part of the run with turns of its own. A phase may have no steps: it then only has its start and first round.

    Attributes:
        share: of the run's steps.
        start: work before the first step, and before the first round.
        source: how its batch is drawn: every class equally often (OVANet), each image equally often, or not at all.
        target: whether losses use the target's batch, not only images that `wants` names.
        sweeps: the domains that `start` and `round` sweep over.
        sweeps_made: domains and recipes, if they sweep over what a recipe makes of each image.
    """

    turns: Sequence[Turn]
    name: str = "training"
    share: float = 1.0
    start: Callable[[Sweep], None] | None = None
    round: Round | None = None
    source: Literal["balanced", "shuffled"] | None = "balanced"
    target: bool = True
    sweeps: tuple[DomainName, ...] = ("target",)
    sweeps_made: tuple[tuple[DomainName, str], ...] = ()


def spans(phases: Sequence[Phase], steps: int) -> list[range]:
    """The steps of each phase, out of 0…steps−1. If no phase has a share of them, there are none."""
    ends = accumulate(phase.share for phase in phases)
    whole = sum(phase.share for phase in phases) or 1
    edges = [0, *(round(steps * end / whole) for end in ends)]
    return [range(start, end) for start, end in pairwise(edges)]


class Method(nn.Module):
    """Base of all methods.

    Attributes:
        card: its name, paper and options, for people and for the command line.
        recipes: by name, how to make images that `wants` and sweeps ask for.
        run_only: names of parameters and buffers that training needs and answering does not. They stay out of the
            model file. A name stands for all names that begin with it.
        unknown_threshold: an image with a larger unknown score is unknown.
        watched: numbers of the last step that are not losses, as functions. They are called when a step is logged.
    """

    card: ClassVar[Card]
    recipes: Mapping[str, Recipe] = NO_RECIPES
    run_only: tuple[str, ...] = ()
    unknown_threshold: float = 0.5

    def __init__(self, backbone: Backbone, problem: Problem, options: Any) -> None:
        super().__init__()
        self.watched: dict[str, Callable[[], Tensor]] = {}
        self.backbone, self.problem, self.options = backbone, problem, options
        self.frame = Frame(backbone.num_features, problem.framed)

    @property
    def num_classes(self) -> int:
        return self.problem.num_classes

    def training_step(self, source: SourceBatch, target: TargetBatch, step: int) -> Losses:
        """A step's losses by name, weighted."""
        raise NotImplementedError  # abstract

    def phases(self) -> Sequence[Phase]:
        """The parts of a run. Called once, before training."""
        return (self.plain_phase(),)

    def plain_phase(self, target: bool = True) -> Phase:
        """All steps in one phase. In the kept regime, heads that can be solved are: before the first step and after the
        last one. If nothing else can learn, that is all, and there is no step.
        """
        turns = (Turn(self.training_step, self.groups()),)
        if self.problem.regime != KEPT or type(self).solve is Method.solve:
            start = self.measure_frame if self.frame.is_on else None
            return Phase(turns=turns, target=target, start=start, sweeps=DOMAINS if start else ("target",))
        if not any(p.requires_grad for p in self.backbone.parameters()):
            return Phase(turns=(), share=0, start=self.solve, target=target, sweeps=DOMAINS)
        work = Round(lambda step, sweep: self.solve(sweep), every=self.problem.steps, at_end=True)
        return Phase(turns=turns, target=target, round=work, sweeps=DOMAINS)

    def solve(self, sweep: Sweep) -> None:
        """Measure the frame, and set the heads to the best ones for the features as they are (kept regime).

        A method that has none learns by steps in both regimes.
        """
        raise NotImplementedError  # abstract

    def measure_frame(self, sweep: Sweep) -> None:
        """Set the frame from the features of a random part of each domain."""
        if self.frame.is_on:
            self.frame.measure(*(sweep(domain, self.backbone, SAMPLED_IMAGES) for domain in DOMAINS))

    def groups(self) -> tuple[Group, Group]:
        """Everything that can learn: the backbone, and the new layers."""
        pretrained = {id(p) for p in self.backbone.parameters()}
        learning = [p for p in self.parameters() if p.requires_grad]
        return (
            Group([p for p in learning if id(p) in pretrained], pretrained=True),
            Group([p for p in learning if id(p) not in pretrained]),
        )

    def wants(self, step: int) -> Sequence[Want]:
        """Images that a step needs beside its batch.

        A function of the step, the run's seed and the buffers alone, so that a resumed run asks for the same images.
        """
        return ()

    def measures(self) -> Mapping[str, Callable[[Tensor], Tensor]]:
        """Numbers that `--track` can ask for, by name: (B, 3, H, W) images → (B, …) values, whose mean is reported."""
        return {}

    def features(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) → (B, d)."""
        return self.backbone(images)

    def source_features(self, images: Tensor) -> Tensor:
        """`features` of images of the source, for a method that treats them otherwise."""
        return self.features(images)

    def score(self, features: Tensor) -> Scores:
        """(B, d) → class logits and an unknown score in 0…1."""
        raise NotImplementedError  # abstract

    def forward(self, losses: TurnLosses, source: SourceBatch, target: TargetBatch, step: int) -> Losses:
        """A turn's losses. Wrappers for precision and several processes intercept `forward`, so losses go through it.

        The argument is the turn's function, not the turn: wrappers search all arguments for tensors.
        """
        return losses(source, target, step)
