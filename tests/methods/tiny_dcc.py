"""A small DCC, features that lie in bunches along axes, and batches with the images that a step wants."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from few_steps import Batches
from torch import Tensor, nn

from unida.methods.base import Problem
from unida.methods.dcc import DCC
from unida.methods.dcc_options import DCCOptions
from unida.recipes.base import Made

CLASSES = 4
NECK = 6


class Seen:
    """A sweep over features that are given: each domain's rows, and the source's labels."""

    def __init__(self, source: Tensor, labels: Tensor, target: Tensor) -> None:
        self.domains, self.source_labels = {"source": source, "target": target}, labels

    def __call__(self, domain: str, compute: Any = None, limit: int | None = None, recipe: str | None = None) -> Tensor:
        return self.domains[domain]

    def made(self, domain: str, recipe: str, batches: int) -> Iterator[Made]:
        raise AssertionError("DCC has no recipe")


def around(directions: Tensor, each: int, seed: int = 0) -> Tensor:
    """(D · each, d): features of any length close to each direction, one direction after the other."""
    draw = torch.Generator().manual_seed(seed)
    rows = directions.repeat_interleave(each, dim=0)
    noisy = rows + 0.05 * torch.randn(rows.shape, generator=draw)
    return noisy * (0.5 + torch.rand(len(rows), 1, generator=draw))


def scene(source: list[int], target: list[int], each: int = 8, each_target: int | None = None) -> Seen:
    """Source class i lies along axis source[i], the target has a bunch of images along each of its axes."""
    axes = torch.eye(NECK)
    labels = torch.arange(len(source)).repeat_interleave(each)
    return Seen(around(axes[source], each), labels, around(axes[target], each_target or each, seed=1))


USUAL = scene([0, 1, 2, 3], [0, 1, 2, 4, 5])  # class 3 is of the source alone, axes 4 and 5 of the target


def made_up(backbone: nn.Module, seen: Seen = USUAL, classes: int = CLASSES, seed: int = 5, **options: Any) -> DCC:
    """For the images of a scene; not clustered yet. It searches as published: that finds each bunch of a scene."""
    torch.manual_seed(2)
    small = {"clustering": "published", "bottleneck": NECK, "classes_per_batch": 2, "images_per_class": 3}
    small |= {"cluster_interval": 1, **options}
    problem = Problem(classes, len(seen.source_labels), len(seen.domains["target"]), steps=300, seed=seed)
    return DCC(backbone, problem, DCCOptions(**small))  # type: ignore[arg-type]


def clustered(backbone: nn.Module, seen: Seen = USUAL, **options: Any) -> DCC:
    """After its first round."""
    method = made_up(backbone, seen, **options)
    method.cluster(0, seen)
    return method


def wanted(method: DCC, step: int) -> dict[tuple[str, str], np.ndarray]:
    """The images that a step wants, by domain and name."""
    found: dict[tuple[str, str], np.ndarray] = {}
    for want in method.wants(step):
        assert want.recipe is None and want.indices is not None
        found[want.domain, want.name] = want.indices
    return found


def with_extras(method: DCC, batches: Batches, step: int, size: int = 8) -> Batches:
    """The batches with noise for the images that a step wants."""
    draw = torch.Generator().manual_seed(step)
    extra: dict[str, dict[str, Made]] = {"source": {}, "target": {}}
    for (domain, name), index in wanted(method, step).items():
        images = torch.randn(len(index), 3, size, size, generator=draw)
        extra[domain][name] = Made(images, torch.zeros(len(index)), torch.from_numpy(index)[:, None])
    return batches[0]._replace(extra=extra["source"]), batches[1]._replace(extra=extra["target"])
