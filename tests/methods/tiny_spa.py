"""SPA with a dozen words on a tiny backbone, eight images of each domain, and steps as the loop takes them."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from unida.config import TrainingOptions
from unida.methods import METHODS
from unida.methods.base import Method, SourceBatch, TargetBatch
from unida.methods.spa.method import SPA
from unida.methods.spa.options import PRESETS, SPAOptions, resolve
from unida.models.backbone import POOLED, Backbone, create_backbone
from unida.recipes.mosaic import InstanceCount, PretextBatch
from unida.training.optim import build_optimisers

CLASSES, WORDS, SIZE = 4, 12, 64
Batches = tuple[SourceBatch, TargetBatch]

every_method = pytest.mark.parametrize("name", METHODS)
every_preset = pytest.mark.parametrize("preset", PRESETS)


def make_backbone(train: str = "all") -> Backbone:
    torch.manual_seed(0)
    backbone = create_backbone("test_resnet.r160_in1k", "none")
    if train != "all":
        backbone.freeze(POOLED if train == "head" else backbone.default_tap, torch.float16)
    return backbone


def build(name: str = "ovanet", preset: str = "paper", train: str = "all", **choices: Any) -> SPA:
    """With a dozen words and the pretext task, whatever the preset says; `choices` without the prefix spa_."""
    given = {
        "spa_vocabulary": WORDS,
        "spa_pretext": "on",
        **{f"spa_{choice}": value for choice, value in choices.items()},
    }
    options = resolve(SPAOptions(spa=True, spa_preset=preset, **given))  # type: ignore[arg-type]
    return SPA(METHODS[name], make_backbone(train), CLASSES, METHODS[name].Options(), options, seed=3).train()


def make_batches() -> Batches:
    """Eight images of each domain, the target's brighter, and mosaics of them."""
    draw = torch.Generator().manual_seed(1)
    labels = torch.arange(8) % CLASSES
    source = torch.randn(CLASSES, 3, SIZE, SIZE, generator=draw)[labels]
    source = source + 0.2 * torch.randn(8, 3, SIZE, SIZE, generator=draw)
    target = torch.randn(8, 3, SIZE, SIZE, generator=draw) + 1
    mosaics = [InstanceCount(2).make(images, np.random.default_rng(i)) for i, images in enumerate((source, target))]
    indices = torch.arange(8)
    return SourceBatch(source, labels, indices, mosaics[0]), TargetBatch(target, indices, mosaics[1])


def without_mosaics(batches: Batches) -> Batches:
    return batches[0]._replace(pretext=None), batches[1]._replace(pretext=None)


class Looking:
    """The loop's look at all images, on those of a batch."""

    def __init__(self, method: Method, batches: Batches) -> None:
        self.method, self.of = method, dict(zip(("source", "target"), batches, strict=True))

    def __call__(
        self, domain: str, compute: Callable[[Tensor], Tensor] | None = None, limit: int | None = None
    ) -> Tensor:
        return (compute or self.method.features)(self.of[domain].images[:limit])

    def pretext(self, domain: str, batches: int) -> Iterator[PretextBatch]:
        images, task = self.of[domain].images, self.method.pretext
        assert task is not None
        return (task.make(images, np.random.default_rng(number)) for number in range(batches))


def prepare(method: SPA, batches: Batches) -> SPA:
    """The round before the first step."""
    if method.round_every:
        with torch.no_grad():
            method.eval().on_round(0, Looking(method, batches))
    return method.train()  # type: ignore[return-value]


def take_steps(method: SPA, batches: Batches, steps: int = 1, turns: tuple[str, ...] | None = None) -> dict[str, float]:
    """As the loop does. Returns the last step's losses."""
    optimisers = build_optimisers(method, TrainingOptions(lr=0.02))
    losses: dict[str, Tensor] = {}
    for step in range(steps):
        for turn in turns or method.turns:
            of_turn = method(*batches, step, turn)
            torch.stack(list(of_turn.values())).sum().backward()
            optimisers[turn].step()
            method.zero_grad(set_to_none=True)
            losses |= of_turn
    return {name: loss.item() for name, loss in losses.items()}


def state(method: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in method.state_dict().items()}


def moved(before: dict[str, Tensor], method: nn.Module) -> set[str]:
    """Which parts have changed: h (the backbone), V, f_n, and f_g (all else). Statistics are no weights."""
    places = {"base.backbone.backbone.": "h", "base.backbone.words.": "V", "count.": "f_n", "base.": "f_g"}
    parameters = dict(method.named_parameters())
    changed = [name for name, tensor in before.items() if name in parameters and not parameters[name].equal(tensor)]
    return {next(part for prefix, part in places.items() if name.startswith(prefix)) for name in changed}
