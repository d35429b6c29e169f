"""A method's phases walked by hand, where all images of a domain are those of one batch: the loop without its files."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from unida.answering.alone import Answering
from unida.methods.base import DomainName, Losses, Method, Phase, Scores, SourceBatch, TargetBatch, Turn
from unida.recipes.base import ImageRecipe, Made, SetRecipe
from unida.training.optim import build_optimiser
from unida.training.options import TrainingOptions

Batches = tuple[SourceBatch, TargetBatch]

COMPLETE = TrainingOptions(lr=0.02, backbone_lr=0.002)


def phases_of(method: Method) -> Sequence[Phase]:
    """Its phases. They are asked for once, as the loop does: SPA takes the backbone of that moment as pretrained."""
    kept = vars(method)
    if "phases_of_test" not in kept:
        kept["phases_of_test"] = tuple(method.phases())
    found: tuple[Phase, ...] = kept["phases_of_test"]
    return found


def turn_of(method: Method, name: str = "goal", phase: int = 0) -> Turn:
    (turn,) = (turn for turn in phases_of(method)[phase].turns if turn.name == name)
    return turn


def losses_of(method: Method, batches: Batches, turn: str = "goal", step: int = 0) -> Losses:
    """Of a turn of the first phase, by the name that distributed wrappers call."""
    losses: Losses = method(turn_of(method, turn).losses, *with_wanted(method, batches, step), step)
    return losses


def decided(method: Method, scores: Scores) -> Tensor:
    """(B,) the answers for images with these scores."""
    with patch.object(method, "score", lambda _: scores):
        return Answering(method).of_features(torch.empty(0)).prediction


def total(losses: Losses) -> Tensor:
    return torch.stack(list(losses.values())).sum()


class Looking:
    """The `Sweep` over the images of a batch."""

    def __init__(self, method: Method, batches: Batches) -> None:
        self.method, self.of = method, dict(zip(("source", "target"), batches, strict=True))
        self.source_labels = batches[0].labels
        self.recipes: set[str] = set()  # that were asked for

    def __call__(
        self,
        domain: DomainName,
        compute: Callable[[Tensor], Tensor] | None = None,
        limit: int | None = None,
        recipe: str | None = None,
    ) -> Tensor:
        images = self.of[domain].images[:limit]
        if recipe is not None:
            self.recipes.add(recipe)
            images = make(self.method, recipe, images, np.arange(len(images)), number=0).images
        return (compute or self.method.features)(images)

    def made(self, domain: DomainName, recipe: str, batches: int) -> Iterator[Made]:
        images = self.of[domain].images
        return (make(self.method, recipe, images, np.arange(len(images)), number) for number in range(batches))


def make(method: Method, recipe: str, images: Tensor, index: np.ndarray, number: int) -> Made:
    """What one of the method's recipes makes of images; `number` seeds the draw."""
    made_by, draw = method.recipes[recipe], np.random.default_rng(number)
    if isinstance(made_by, SetRecipe):
        return made_by.make_of_several(images, index, draw, len(images))
    assert isinstance(made_by, ImageRecipe)
    return Made(*made_by.make_each(images, made_by.choose(len(images), draw)), torch.from_numpy(index)[:, None])


def prepare(method: Any, batches: Batches, rounds: bool = False) -> Any:
    """The work before the first step: the first phase's start and, if `rounds`, its first round. Then training mode."""
    start = phases_of(method)[0].start
    if start is not None:
        with torch.no_grad():
            start(Looking(method.eval(), batches))
    if rounds:
        take_round(method, batches, 0)
    return method.train()


def take_round(method: Method, batches: Batches, step: int) -> None:
    """The first phase's round, if it has one."""
    work = phases_of(method)[0].round
    if work is not None:
        with torch.no_grad():
            work.work(step, Looking(method.eval(), batches))
    method.train()


def with_wanted(method: Method, batches: Batches, step: int) -> Batches:
    """The batches with what the method wants beside them in a step. What they hold already stays."""
    of: dict[str, SourceBatch | TargetBatch] = dict(zip(("source", "target"), batches, strict=True))
    extra: dict[str, dict[str, Made]] = {"source": dict(batches[0].extra), "target": dict(batches[1].extra)}
    for want in (want for want in method.wants(step) if want.name not in extra[want.domain]):
        index = np.arange(len(of[want.domain].images)) if want.indices is None else want.indices
        images = of[want.domain].images[torch.from_numpy(index)]
        if want.recipe is not None:
            found = make(method, want.recipe, images, index, step)
        else:
            found = Made(images, torch.zeros(len(index)), torch.from_numpy(index)[:, None])
        extra[want.domain][want.name] = found
    return batches[0]._replace(extra=extra["source"]), batches[1]._replace(extra=extra["target"])


def take_steps(
    method: Method,
    batches: Batches | Callable[[int], Batches],
    steps: int = 1,
    turns: tuple[str, ...] | None = None,
) -> list[dict[str, float]]:
    """Steps of the first phase, as the loop takes them. Returns each step's losses.

    Args:
        batches: the same for every step, or those of a step.
        turns: only these.
    """
    taken = [turn for turn in phases_of(method)[0].turns if turns is None or turn.name in turns]
    assert turns is None or len(taken) == len(turns)
    optimisers = {turn.name: build_optimiser(turn, COMPLETE) for turn in taken}
    by_step = []
    for step in range(steps):
        given = with_wanted(method, batches(step) if callable(batches) else batches, step)
        losses: Losses = {}
        for turn in (turn for turn in taken if turn.due is None or turn.due(step)):
            of_turn = method(turn.losses, *given, step)
            total(of_turn).backward()
            optimisers[turn.name].step()
            method.zero_grad(set_to_none=True)
            losses |= of_turn
        by_step.append({name: loss.item() for name, loss in losses.items()})
    return by_step
