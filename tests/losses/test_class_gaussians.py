"""Gaussians of classes and the losses on them, against NumPy and torch's own distributions in float64."""

import numpy as np
import pytest
import torch
from torch.distributions import MultivariateNormal

from unida.losses.class_gaussians import (
    ClassGaussians,
    class_gaussians,
    compactness_loss,
    reconstruction_loss,
    samples,
    squared_distances,
)

C, D = 3, 4


def made_up() -> tuple[np.ndarray, np.ndarray]:
    """Classes of 9, 6 and 1 features."""
    draw = np.random.default_rng(0)
    labels = np.array([0] * 9 + [1] * 6 + [2])
    features = draw.standard_normal((C, D))[labels] + 0.5 * draw.standard_normal((16, D)) * [1, 2, 0.5, 1]
    return features, labels


def slow_gaussians(features: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    means = np.stack([features[labels == c].mean(axis=0) for c in range(C)])
    covariances = []
    for c in range(C):
        own = features[labels == c]
        spread = np.cov(own.T) if len(own) > 1 else np.zeros((D, D))
        covariances.append(spread + 0.001 * np.eye(D))
    return means, np.stack(covariances)


def slow_compactness(features: np.ndarray, labels: np.ndarray, means: np.ndarray, covariances: np.ndarray) -> float:
    """By densities, as the formula has it."""
    normals = [MultivariateNormal(torch.tensor(m), torch.tensor(v)) for m, v in zip(means, covariances, strict=True)]
    terms = []
    for feature, label in zip(features, labels, strict=True):
        gaps = [float(n.log_prob(n.mean) - n.log_prob(torch.tensor(feature))) ** 2 for n in normals]
        terms.append(np.log(gaps[label] / sum(gaps)))
    return float(np.mean(terms))


def found_gaussians() -> ClassGaussians:
    features, labels = made_up()
    return class_gaussians(torch.tensor(features, dtype=torch.float32), torch.tensor(labels), C)


def test_means_and_covariances_of_classes() -> None:
    means, covariances = slow_gaussians(*made_up())
    found = found_gaussians()
    np.testing.assert_allclose(found.means, means, atol=1e-5)
    np.testing.assert_allclose(found.factors @ found.factors.mT, covariances, atol=1e-5)
    assert torch.equal(found.factors, found.factors.tril())


def test_distances_are_mahalanobis() -> None:
    features, _ = made_up()
    means, covariances = slow_gaussians(*made_up())
    slow = [[(f - m) @ np.linalg.solve(v, f - m) for m, v in zip(means, covariances, strict=True)] for f in features]
    found = squared_distances(torch.tensor(features, dtype=torch.float32), found_gaussians())
    np.testing.assert_allclose(found, slow, rtol=1e-4, atol=1e-5)


def test_compactness_is_the_share_of_the_own_class_and_so_is_its_gradient() -> None:
    gaussians = slow_gaussians(*made_up())
    draw = np.random.default_rng(1)
    features, labels = draw.standard_normal((5, D)), np.array([0, 1, 2, 2, 0])
    leaf = torch.tensor(features, dtype=torch.float32, requires_grad=True)
    loss = compactness_loss(leaf, torch.tensor(labels), found_gaussians())
    assert loss.item() == pytest.approx(slow_compactness(features, labels, *gaussians), rel=1e-5)
    loss.backward()
    numeric = np.zeros_like(features)
    for place in np.ndindex(features.shape):
        moved = np.zeros_like(features)
        moved[place] = 1e-5
        high, low = (slow_compactness(features + s * moved, labels, *gaussians) for s in (1, -1))
        numeric[place] = (high - low) / 2e-5
    assert leaf.grad is not None and np.abs(numeric).max() > 0.1
    np.testing.assert_allclose(leaf.grad, numeric, rtol=1e-4, atol=1e-5)


def test_a_feature_near_its_mean_has_the_loss_of_the_formula() -> None:
    """The released code has no small number in its logarithm."""
    means, covariances = slow_gaussians(*made_up())
    features, labels = means + 0.01 * np.linalg.cholesky(covariances).sum(axis=2), np.arange(C)
    loss = compactness_loss(torch.tensor(features, dtype=torch.float32), torch.tensor(labels), found_gaussians())
    assert loss.item() == pytest.approx(slow_compactness(features, labels, means, covariances), abs=1e-4)


def test_a_feature_on_its_mean_and_one_far_away_have_finite_losses() -> None:
    gaussians = found_gaussians()
    leaf = torch.cat([gaussians.means, 1e6 * torch.ones(C, D)]).requires_grad_()
    loss = compactness_loss(leaf, torch.arange(2 * C) % C, gaussians)
    loss.backward()
    assert loss.isfinite() and leaf.grad is not None and leaf.grad.isfinite().all()


@pytest.mark.parametrize("count", [1, 4])
def test_classes_of_one_image_and_constant_features_can_be_inverted(count: int) -> None:
    features = torch.ones(count * C, D)
    found = class_gaussians(features, torch.arange(count * C) % C, C + 1)  # and a class without images
    assert found.factors.isfinite().all() and (found.factors.diagonal(dim1=1, dim2=2) > 0).all()
    assert torch.equal(found.means, torch.tensor([[1.0] * D] * C + [[0.0] * D]))


def test_large_features_of_few_images_can_be_inverted() -> None:
    features = 1e6 * torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    found = class_gaussians(features, torch.tensor([0, 0, 1, 1]), 2)
    assert found.factors.isfinite().all() and squared_distances(features, found).isfinite().all()


def test_samples_have_the_mean_and_covariance_of_their_class() -> None:
    gaussians, noise = found_gaussians(), torch.randn(20_000, D, generator=torch.Generator().manual_seed(0))
    for c in range(C):
        drawn = samples(gaussians, torch.full((len(noise),), c), noise)
        torch.testing.assert_close(drawn.mean(dim=0), gaussians.means[c], rtol=0, atol=0.05)
        covariance = gaussians.factors[c] @ gaussians.factors[c].T
        torch.testing.assert_close(drawn.T.cov(), covariance, rtol=0.1, atol=0.05)
    mixed = samples(gaussians, torch.tensor([2, 0]), noise[:2])
    torch.testing.assert_close(mixed[0], gaussians.means[2] + gaussians.factors[2] @ noise[0])


def test_reconstruction_sums_over_numbers_and_averages_over_images() -> None:
    found, wanted = torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.tensor([[0.0, 0.0], [0.0, 3.0]])
    assert reconstruction_loss(found, wanted).item() == (1 + 4 + 9) / 2
