"""SPA with a dozen words on a tiny backbone, and eight images of each domain with mosaics of them."""

from typing import Any

import numpy as np
import pytest
import torch
from few_steps import Batches
from torch import Tensor, nn

from unida.methods import METHODS
from unida.methods.base import Problem, SourceBatch, TargetBatch
from unida.methods.build import build_method
from unida.methods.spa.method import PRETEXT, SPA
from unida.methods.spa.options import PRESETS, SPAOptions, resolve
from unida.models.backbone import Backbone, create_backbone
from unida.recipes.mosaic import Mosaic

CLASSES, WORDS, SIZE, IMAGES = 4, 12, 64, 8
PROBLEM = Problem(CLASSES, num_source=IMAGES, num_target=IMAGES, steps=100, seed=3)

# Those whose first phase trains no backbone. Their own tests say what SPA adds to them.
FROZEN = {"usfda", "inheritune", "ati", "sta"}
every_method = pytest.mark.parametrize("name", [name for name in METHODS if name not in FROZEN])
every_preset = pytest.mark.parametrize("preset", PRESETS)


def make_backbone(train: str = "all", name: str = "test_resnet.r160_in1k") -> Backbone:
    torch.manual_seed(0)
    backbone = create_backbone(name, "none")
    if train == "head":
        backbone.freeze(backbone.taps[-1], torch.float16, whole=True)
    elif train == "tail":
        backbone.freeze(backbone.default_tap, torch.float16)
    return backbone


def build(
    name: str = "ovanet", preset: str = "paper", train: str = "all", backbone: Backbone | None = None, **choices: Any
) -> SPA:
    """With a dozen words and the pretext task, whatever the preset says; `choices` without the prefix spa_."""
    given = {
        "spa_vocabulary": WORDS,
        "spa_pretext": "on",
        **{f"spa_{choice}": value for choice, value in choices.items()},
    }
    options = resolve(SPAOptions(spa=True, spa_preset=preset, **given))  # type: ignore[arg-type]
    under = make_backbone(train) if backbone is None else backbone
    method = build_method(name, under, PROBLEM, METHODS[name].Options(), options)
    assert isinstance(method, SPA)
    return method.train()


def make_batches(grid: int = 2) -> Batches:
    """Eight images of each domain, the target's brighter, and mosaics of them."""
    draw = torch.Generator().manual_seed(1)
    labels = torch.arange(IMAGES) % CLASSES
    source = torch.randn(CLASSES, 3, SIZE, SIZE, generator=draw)[labels]
    source = source + 0.2 * torch.randn(IMAGES, 3, SIZE, SIZE, generator=draw)
    target = torch.randn(IMAGES, 3, SIZE, SIZE, generator=draw) + 1
    index = torch.arange(IMAGES)
    mosaics = [
        {PRETEXT: Mosaic(grid).make_of_several(images, index.numpy(), np.random.default_rng(i), IMAGES)}
        for i, images in enumerate((source, target))
    ]
    return SourceBatch(source, labels, index, mosaics[0]), TargetBatch(target, index, mosaics[1])


def without_mosaics(batches: Batches) -> Batches:
    return batches[0]._replace(extra={}), batches[1]._replace(extra={})


def with_labels(batches: Batches, table: Tensor) -> Batches:
    """The same mosaics, with other numbers for labels: the old ones' places in a table."""
    source, target = (
        {PRETEXT: batch.extra[PRETEXT]._replace(labels=table[batch.extra[PRETEXT].labels])} for batch in batches
    )
    return batches[0]._replace(extra=source), batches[1]._replace(extra=target)


def state(method: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in method.state_dict().items()}


def moved(before: dict[str, Tensor], method: nn.Module) -> set[str]:
    """Which parts have changed: h (the backbone), V, f_n, and f_g (all else). Statistics are no weights."""
    places = {"method.backbone.backbone.": "h", "method.backbone.vocabulary.": "V", "task.": "f_n", "method.": "f_g"}
    parameters = dict(method.named_parameters())
    changed = [name for name, tensor in before.items() if name in parameters and not parameters[name].equal(tensor)]
    return {next(part for prefix, part in places.items() if name.startswith(prefix)) for name in changed}
