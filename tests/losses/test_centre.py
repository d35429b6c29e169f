"""The centre loss against plain loops."""

import numpy as np
import pytest
import torch

from unida.losses.centre import centre_loss


@pytest.mark.parametrize("weight", [1.0, 0.1, 0.001])
def test_it_is_the_mean_squared_distance_and_its_weight_does_not_slow_the_centres(weight: float) -> None:
    draw = np.random.default_rng(0)
    features, centres, labels = draw.normal(size=(7, 5)), draw.normal(size=(4, 5)), np.array([0, 1, 1, 3, 3, 3, 0])
    slow, of_features, of_centres = 0.0, np.zeros_like(features), np.zeros_like(centres)
    for i, label in enumerate(labels):
        apart = features[i] - centres[label]
        slow += weight * (apart**2).sum() / 7
        of_features[i] = weight * 2 * apart / 7
        of_centres[label] -= 2 * apart / 7  # not weighted
    given = [torch.tensor(x, dtype=torch.float32, requires_grad=True) for x in (features, centres)]
    loss = centre_loss(*given, torch.from_numpy(labels), weight)
    assert loss.item() == pytest.approx(slow, rel=1e-5)
    loss.backward()
    for tensor, expected in zip(given, (of_features, of_centres), strict=True):
        assert tensor.grad is not None
        np.testing.assert_allclose(tensor.grad, expected, atol=1e-5)


def test_features_on_their_centre_cost_nothing_and_far_ones_are_finite() -> None:
    centres = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([2, 2, 0])
    assert centre_loss(centres[labels], centres, labels).item() == 0
    assert centre_loss(1e6 * torch.ones(3, 4), centres, labels, 0.1).isfinite()
    assert centre_loss(torch.ones(3, 4).bfloat16(), centres, labels).dtype == torch.float32
