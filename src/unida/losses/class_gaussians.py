"""A Gaussian for each class of the source, and losses on them (USFDA, CVPR 2020).

All is float32. Under autocast, matrix products would be rounded to 16 bits: call these functions outside of it.
"""

from typing import NamedTuple

import torch
from torch import Tensor

SHRINKAGE = 0.1  # share of the identity in a covariance; most classes have fewer images than the feature has numbers
LEAST_VARIANCE = 1e-6  # if no class has two different images
EPSILON = 1e-6  # in the logarithm of `compactness_loss`; half a squared distance is about half the feature's size


class ClassGaussians(NamedTuple):
    means: Tensor  # (C, d)
    factors: Tensor  # (C, d, d) lower triangular; a covariance is factor · factorᵀ


def class_gaussians(features: Tensor, labels: Tensor, num_classes: int) -> ClassGaussians:
    """Mean and covariance of each class's features.

    A covariance is ¹⁄₁₀ of the way to v · identity, where v is the mean variance of a number within its class. So it
    can be inverted for every class, also for a class of one image. How the released code does that is not known.

    Args:
        features: (N, d).
        labels: (N,) int64 in 0…C−1. A class without images has its mean at 0.
    """
    features, d = features.float(), features.shape[1]
    means, spreads, squares = features.new_zeros(num_classes, d), features.new_zeros(num_classes, d, d), 0.0
    for c in range(num_classes):
        own = features[labels == c]
        if len(own):
            means[c] = own.mean(dim=0)
            centred = own - means[c]
            spreads[c] = centred.T @ centred / max(1, len(own) - 1)
            squares += float(centred.square().sum())
    variance = squares / max(1, len(features) * d)
    spreads *= 1 - SHRINKAGE
    spreads.diagonal(dim1=1, dim2=2).add_(SHRINKAGE * variance + LEAST_VARIANCE)
    return ClassGaussians(means, torch.linalg.cholesky(spreads))


def squared_distances(features: Tensor, gaussians: ClassGaussians) -> Tensor:
    """(B, d) → (B, C) squared Mahalanobis distances from the classes' means."""
    apart = features.float()[None] - gaussians.means[:, None]  # (C, B, d)
    white = torch.linalg.solve_triangular(gaussians.factors, apart.mT, upper=False)  # (C, d, B)
    return white.square().sum(dim=1).T


def compactness_loss(features: Tensor, labels: Tensor, gaussians: ClassGaussians) -> Tensor:
    """L_p: mean log( g_y² / Σ_c g_c² ), where g_c = log N_c(μ_c) − log N_c(f) is half a squared distance.

    It falls as a feature comes nearer to its own class than to the others (USFDA's released code; its paper writes the
    posterior of the own class, which grows).

    Args:
        features: (B, d).
        labels: (B,) int64.
    """
    logs = 2 * torch.log(squared_distances(features, gaussians) / 2 + EPSILON)
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
