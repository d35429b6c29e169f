"""Parts of the source-free methods of Kundu et al. (USFDA, InheriTune; CVPR 2020): layers behind a frozen backbone."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from unida.models.backbone import Backbone

HIDDEN = 1024


class Extractor(nn.Sequential):
    """F: a feature of the backbone → (B, size). Its shape is that of the released code."""

    def __init__(self, num_features: int, size: int = 256) -> None:
        super().__init__(
            nn.Linear(num_features, HIDDEN),
            nn.ELU(),
            nn.Linear(HIDDEN, HIDDEN),
            nn.BatchNorm1d(HIDDEN),
            nn.ELU(),
            nn.Linear(HIDDEN, size),
            nn.ELU(),
            nn.Linear(size, size),
            nn.BatchNorm1d(size),
            nn.ELU(),
        )


class Decoder(nn.Sequential):
    """G: (B, size) → a feature of the backbone. Its shape is that of USFDA's released code."""

    def __init__(self, size: int, num_features: int) -> None:
        super().__init__(
            nn.Linear(size, HIDDEN),
            nn.ELU(),
            nn.Linear(HIDDEN, HIDDEN),
            nn.BatchNorm1d(HIDDEN),
            nn.ELU(),
            nn.Linear(HIDDEN, num_features),
            nn.ELU(),
            nn.Linear(num_features, num_features),
        )


class SplitLogits(NamedTuple):
    """Logits of one softmax, in two parts."""

    known: Tensor  # (B, C) of the source's classes
    negative: Tensor  # (B, N) of negative classes: what is none of the source's classes

    @property
    def joined(self) -> Tensor:
        """(B, C + N)."""
        return torch.cat(self, dim=1)


class SplitHead(nn.Module):
    """C_s and C_n: two linear classifiers with one softmax over both."""

    def __init__(self, size: int, num_classes: int, num_negative: int) -> None:
        super().__init__()
        self.known = nn.Linear(size, num_classes)
        self.negative = nn.Linear(size, num_negative)

    def forward(self, features: Tensor) -> SplitLogits:
        """(B, size) → logits in float32."""
        return SplitLogits(self.known(features).float(), self.negative(features).float())


def keep_pretrained(network: nn.Module) -> bool:
    """Freeze the pretrained backbone in a network: its weights and its BatchNorm statistics stay as they are.

    New layers around it, such as SPA's words, are left alone.

    Returns:
        Whether some of its weights could learn before.
    """
    backbones = [part for part in network.modules() if isinstance(part, Backbone)]
    could_learn = any(p.requires_grad for backbone in backbones for p in backbone.parameters())
    for backbone in backbones:
        backbone.requires_grad_(False)
        backbone.keeps_statistics = True
    return could_learn
