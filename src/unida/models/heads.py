"""Classifier heads."""

import torch
from torch import Tensor, nn

from unida.losses.one_vs_all import split_one_vs_all


class OneVsAllHead(nn.Linear):
    """C two-way classifiers on one feature: a bias-free linear layer d → 2C (facts of OVANet's released code)."""

    def __init__(self, num_features: int, num_classes: int) -> None:
        super().__init__(num_features, 2 * num_classes, bias=False)

    def forward(self, features: Tensor) -> Tensor:
        """(B, d) → (B, 2, C); channel 0 "not this class", channel 1 "is this class"."""
        return split_one_vs_all(super().forward(features))

    @torch.no_grad()
    def normalise_rows(self) -> None:
        """Rescale each of the 2C rows to unit L2 norm, in place."""
        self.weight.div_(self.weight.norm(dim=1, keepdim=True).clamp_min(1e-12))
