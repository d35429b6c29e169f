"""A common frame for features of any network, measured on both domains without labels.

    d = f / ‖f‖                                  a feature's direction
    z = d − m, at unit length again              m: the mean direction of the image's own domain
    frame(f) = 10 · (√¾ z, ½)

Features of token models have signs, and lengths from 7 (TinyViT) to 47 (DINOv2). Heads without a bias were made for
others: the mean of pooled ReLU features points away from zero, and serves as the bias. Without it, a one-vs-all
classifier cannot say "no" to an image that looks like nothing it has seen. So the frame adds a constant. And it gives
every feature one length, on which the temperature of heads with unit rows depends. Pooled EfficientNet-Lite0 features
of photos have a length of 15, with a mean of half of it. Here it is 10, which is softer: it suits domains that look
less alike (docs/studies/features.md).

Each domain has its own mean: what all images of a place have in common is the place, not a class.
"""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LENGTH = 10.0
CONSTANT = 0.5  # as a share of the length
PRIOR_IMAGES = 30  # of the source that count in the target's mean: few target images show few classes
LEAST_MEAN = 0.45  # length of the mean direction of features that serve heads without a bias as they are
SAMPLED_IMAGES = 2000  # of each domain, to measure the means


class Frame(nn.Module):
    """Features (B, d) of a domain → (B, size). If it is off, they stay as they are."""

    source_mean: Tensor  # (d,)
    target_mean: Tensor  # (d,)

    def __init__(self, num_features: int, is_on: bool) -> None:
        super().__init__()
        self.is_on = is_on
        self.size = num_features + is_on
        if is_on:
            self.register_buffer("source_mean", torch.zeros(num_features))
            self.register_buffer("target_mean", torch.zeros(num_features))

    def forward(self, features: Tensor, domain: Literal["source", "target"]) -> Tensor:
        if not self.is_on:
            return features
        mean = self.source_mean if domain == "source" else self.target_mean
        z = F.normalize(F.normalize(features.float(), dim=1) - mean, dim=1)
        constant = z.new_full((z.shape[0], 1), LENGTH * CONSTANT)  # len(z) would fix the batch of an exported graph
        return torch.cat([z * (LENGTH * math.sqrt(1 - CONSTANT**2)), constant], dim=1)

    @torch.no_grad()
    def measure(self, source: Tensor, target: Tensor) -> None:
        """Set the means from features (N, d) of each domain."""
        self.measure_source(source)
        self.measure_target(target)

    @torch.no_grad()
    def measure_source(self, features: Tensor) -> None:
        """Set the source's mean from its features (N, d). Until the target is measured, it is the target's mean too."""
        if self.is_on:
            self.source_mean.copy_(_mean_direction(features))
            self.target_mean.copy_(self.source_mean)

    @torch.no_grad()
    def measure_target(self, features: Tensor) -> None:
        """Set the target's mean from its features (N, d) and the source's mean: no image of the source is needed."""
        if self.is_on:
            count = len(features)
            weighted = count * _mean_direction(features) + PRIOR_IMAGES * self.source_mean
            self.target_mean.copy_(weighted / (count + PRIOR_IMAGES))


def _mean_direction(features: Tensor) -> Tensor:
    return F.normalize(features.float(), dim=1).mean(dim=0)


def needs_frame(features: Tensor) -> bool:
    """Whether the mean of features (N, d) is too short to serve heads as a bias."""
    return float(_mean_direction(features).norm()) < LEAST_MEAN
