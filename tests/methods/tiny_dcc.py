"""A small DCC, features that lie in bunches along axes, and batches with the images that a step asks for."""

from typing import Any

import torch
from torch import Tensor, nn

from unida.methods.base import SourceBatch, TargetBatch
from unida.methods.dcc import DCC, DCCOptions

CLASSES = 4
NECK = 6
Batches = tuple[SourceBatch, TargetBatch]


def made_up(backbone: nn.Module, classes: int = CLASSES, **options: Any) -> DCC:
    torch.manual_seed(2)
    small = {"bottleneck": NECK, "classes_per_batch": 2, "images_per_class": 3, "cluster_interval": 1, **options}
    method = DCC(backbone, classes, DCCOptions(**small))  # type: ignore[arg-type]
    method.begin(steps=300, seed=5)
    return method


class Seen:
    """A sweep over features that are given: each domain's rows, and the source's labels."""

    def __init__(self, source: Tensor, labels: Tensor, target: Tensor) -> None:
        self.domains, self.source_labels = {"source": source, "target": target}, labels

    def __call__(self, domain: str, compute: Any = None, limit: int | None = None) -> Tensor:
        return self.domains[domain]

    def pretext(self, domain: str, batches: int) -> Any:
        raise AssertionError("DCC has no pretext task")


def around(directions: Tensor, each: int, seed: int = 0) -> Tensor:
    """(D · each, d): features of any length close to each direction, one direction after the other."""
    draw = torch.Generator().manual_seed(seed)
    rows = directions.repeat_interleave(each, dim=0)
    noisy = rows + 0.05 * torch.randn(rows.shape, generator=draw)
    return noisy * (0.5 + torch.rand(len(rows), 1, generator=draw))


def scene(source: list[int], target: list[int], each: int = 8) -> Seen:
    """Source class i lies along axis source[i], the target has a bunch of images along each of its axes."""
    axes = torch.eye(NECK)
    labels = torch.arange(len(source)).repeat_interleave(each)
    return Seen(around(axes[source], each), labels, around(axes[target], each, seed=1))


def extras(method: DCC, step: int, size: int = 8) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Noise for the images that a step asks for."""
    draw = torch.Generator().manual_seed(step)
    asked = method.requests(step)
    source, target = (
        {name: torch.randn(len(index), 3, size, size, generator=draw) for name, index in asked[domain].items()}
        for domain in ("source", "target")  # type: ignore[union-attr]
    )
    return source, target


def with_extras(method: DCC, batches: Batches, step: int) -> Batches:
    source, target = extras(method, step)
    return batches[0]._replace(extra=source), batches[1]._replace(extra=target)
