"""A network small enough to follow by hand, and batches for it."""

import pytest
import torch
from torch import Tensor, nn

from unida.methods.base import SourceBatch, TargetBatch


class ToyBackbone(nn.Module):
    """A convolution, batch normalisation and average pooling: 3 channels → 8 features. Remembers what it saw."""

    num_features = 8

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.seen: list[Tensor] = []

    def forward(self, images: Tensor) -> Tensor:
        self.seen.append(images.detach().clone())
        return self.norm(self.conv(images)).relu().mean(dim=(2, 3))


@pytest.fixture
def toy_backbone() -> ToyBackbone:
    torch.manual_seed(0)
    return ToyBackbone()


@pytest.fixture
def batches() -> tuple[SourceBatch, TargetBatch]:
    """Twelve source images of four classes, ten target images from another distribution."""
    draw = torch.Generator().manual_seed(1)
    labels = torch.arange(12) % 4
    patterns = torch.randn(4, 3, 8, 8, generator=draw)
    source = patterns[labels] + 0.3 * torch.randn(12, 3, 8, 8, generator=draw)
    target = 2 * torch.randn(10, 3, 8, 8, generator=draw) + 1
    return SourceBatch(source, labels, torch.arange(12)), TargetBatch(target, torch.arange(10))
