"""A Gaussian for each class of the source, and losses on them (USFDA, CVPR 2020).

Results are float32. Under autocast, matrix products would be rounded to 16 bits: call these functions outside of it.
"""

from typing import NamedTuple

import torch
from torch import Tensor

RIDGE = 1e-3  # is added to each variance (a fork of USFDA's code)
ROUNDING = 1e-12  # share of a class's variances together that is added at least, for features that are very large
LEAST_GAP = 1e-6  # in the logarithm of `compactness_loss`; half a squared distance is about half the feature's size


class ClassGaussians(NamedTuple):
    means: Tensor  # (C, d)
    factors: Tensor  # (C, d, d) lower triangular; a covariance is factor · factorᵀ


def class_gaussians(features: Tensor, labels: Tensor, num_classes: int) -> ClassGaussians:
    """Mean and covariance of each class's features.

    0.001 is added to each variance. So a covariance can be inverted for every class: most have fewer images than the
    feature has numbers. A class of one image has no other variance; the released code divides by zero there.

    Args:
        features: (N, d).
        labels: (N,) int64 in 0…C−1. A class without images has its mean at 0.
    """
    d = features.shape[1]
    means, factors = torch.zeros(num_classes, d), torch.zeros(num_classes, d, d)
    exact, labels = features.cpu().double(), labels.cpu()  # float32 has too few digits for so small variances
    for c in range(num_classes):
        own = exact[labels == c]
        mean = own.sum(dim=0) / max(1, len(own))
        spread = (own - mean).T @ (own - mean) / max(1, len(own) - 1)
        spread.diagonal().add_(max(RIDGE, ROUNDING * float(spread.trace())))
        means[c], factors[c] = mean, torch.linalg.cholesky(spread)
    return ClassGaussians(means.to(features.device), factors.to(features.device))


def squared_distances(features: Tensor, gaussians: ClassGaussians) -> Tensor:
    """(B, d) → (B, C) squared Mahalanobis distances from the classes' means."""
    apart = features.float()[None] - gaussians.means[:, None]  # (C, B, d)
    white = torch.linalg.solve_triangular(gaussians.factors, apart.mT, upper=False)  # (C, d, B)
    return white.square().sum(dim=1).T


def compactness_loss(features: Tensor, labels: Tensor, gaussians: ClassGaussians) -> Tensor:
    """L_p: mean log( g_y² / Σ_c g_c² ), where g_c = log N_c(μ_c) − log N_c(f) is half a squared distance.

    It falls as a feature comes nearer to its own class than to the others (USFDA's released code; its paper writes the
    posterior of the own class, which grows). A gap below 1e-6 counts as 1e-6: of 0, the logarithm would be −∞.

    Args:
        features: (B, d).
        labels: (B,) int64.
    """
    logs = 2 * torch.log((squared_distances(features, gaussians) / 2).clamp_min(LEAST_GAP))
    return (logs.gather(1, labels[:, None]).squeeze(1) - logs.logsumexp(dim=1)).mean()


def samples(gaussians: ClassGaussians, classes: Tensor, noise: Tensor) -> Tensor:
    """Features of the classes' Gaussians.

    Args:
        classes: (B,) int64.
        noise: (B, d) standard normal.
    """
    return gaussians.means[classes] + (gaussians.factors[classes] @ noise[:, :, None]).squeeze(2)


def reconstruction_loss(found: Tensor, wanted: Tensor) -> Tensor:
    """Mean over the batch of the squared length of the difference, (B, d) each."""
    return (found.float() - wanted.float()).square().sum(dim=1).mean()
