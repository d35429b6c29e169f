"""Entropies against slow sums, and at their edges."""

import math

import numpy as np
import pytest
import torch

from unida.losses.entropy import entropy, entropy_of_logs, share_of_largest_entropy


@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0])
def test_both_are_the_slow_formula(scale: float) -> None:
    logits = scale * torch.randn(7, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    p = logits.softmax(dim=1)
    slow = [-sum(q * math.log(q) for q in row) for row in p.tolist()]
    np.testing.assert_allclose(entropy(p).numpy(), slow, rtol=1e-12)
    np.testing.assert_allclose(entropy_of_logs(logits.log_softmax(dim=1)).numpy(), slow, rtol=1e-12)
    turned = entropy_of_logs(logits.log_softmax(dim=1).T, dim=0)
    np.testing.assert_allclose(turned.numpy(), slow, rtol=1e-12)


def test_an_even_distribution_has_the_most_and_a_certain_one_none() -> None:
    even, certain = torch.full((4,), 0.25), torch.tensor([0.0, 1.0, 0.0, 0.0])
    assert entropy(even).item() == pytest.approx(math.log(4))
    assert entropy(certain).item() == 0
    assert entropy_of_logs(even.log()).item() == pytest.approx(math.log(4))


def test_none_at_all_is_zero_and_not_minus_zero() -> None:
    """Unknown scores are made of it, and tables show them."""
    log_p = torch.tensor([[0.0, -2000.0, -3000.0]]).log_softmax(dim=1)
    found = entropy_of_logs(log_p)
    assert found.tolist() == [0.0] and not found.signbit().any()


def test_small_probabilities_keep_their_gradient() -> None:
    logits = torch.tensor([[0.0, -60.0]], requires_grad=True)
    entropy_of_logs(logits.log_softmax(dim=1)).sum().backward()
    assert logits.grad is not None and logits.grad.isfinite().all() and logits.grad.abs().max() > 0


def test_a_share_of_the_largest_entropy_is_in_0_to_1() -> None:
    logits = torch.tensor([[0.0] * 7, [1e4] + [0.0] * 6, [1.0] + [0.0] * 6])
    found = share_of_largest_entropy(logits)
    assert found[0] == pytest.approx(1) and found[1] == 0 and found.max() <= 1
    assert found[2].item() == pytest.approx(entropy(logits[2].softmax(dim=0)).item() / math.log(7), rel=1e-6)
