"""Areas, neighbourhoods, consistency and moving centres against loops."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from unida.losses.memory_areas import (
    COMMON,
    UNCERTAIN,
    UNKNOWN,
    areas,
    clustering_in_neighbourhoods,
    consistency,
    moved_centres,
    neighbourhoods,
)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_areas_are_cut_at_the_threshold_less_and_plus_the_margin() -> None:
    entropies = torch.tensor([0.0, 0.99, 1.0, 1.5, 2.0, 2.01, 9.0])
    expected = [COMMON, COMMON, UNCERTAIN, UNCERTAIN, UNCERTAIN, UNKNOWN, UNKNOWN]
    assert areas(entropies, threshold=1.5, margin=0.5).tolist() == expected
    assert set(areas(torch.linspace(0, math.log(2), 9), math.log(2) / 2, 0.5).tolist()) == {UNCERTAIN}  # two classes


def test_each_area_has_its_neighbourhood() -> None:
    own = torch.tensor([COMMON, UNCERTAIN, UNKNOWN])
    memory = torch.tensor([UNKNOWN, COMMON, UNCERTAIN, COMMON])
    expected = [[1, 1, 0, 1, 0, 1], [1, 1, 1, 1, 1, 1], [0, 0, 1, 0, 0, 0]]  # two centres first
    assert neighbourhoods(own, memory, num_centres=2).int().tolist() == expected


def slow_clustering(similarities: Tensor, allowed: Tensor) -> Tensor:
    entropies = []
    for row, of_row in zip(similarities, allowed, strict=True):
        powers = torch.exp(row[of_row])
        p = powers / powers.sum()
        entropies.append(-(p * torch.log(p + 1e-5)).sum())  # of an empty row: 0
    return torch.stack(entropies).mean()


def test_clustering_and_its_gradient_are_the_slow_formula() -> None:
    similarities = (8 * drawn(6, 9)).requires_grad_()
    allowed = drawn(6, 9, seed=1) > 0
    allowed[2] = False  # nobody near
    allowed[3] = torch.arange(9) == 4  # one
    fast, slow = clustering_in_neighbourhoods(similarities, allowed), slow_clustering(similarities, allowed)
    torch.testing.assert_close(fast, slow, rtol=1e-9, atol=1e-12)
    ours, theirs = (torch.autograd.grad(it, similarities)[0] for it in (fast, slow))
    torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-10)
    assert not ours[~allowed].any()


def test_without_any_neighbour_the_loss_is_nothing() -> None:
    similarities = torch.full((3, 4), 20.0, requires_grad=True)
    loss = clustering_in_neighbourhoods(similarities, torch.zeros(3, 4, dtype=torch.bool))
    loss.backward()
    assert loss.item() == 0 and not similarities.grad.any()  # type: ignore[union-attr]


def test_consistency_is_the_slow_divergence() -> None:
    weak, strong = (5 * drawn(7, 4, seed=seed) for seed in (2, 3))
    strong.requires_grad_()
    weak.requires_grad_()
    loss = consistency(weak, strong)
    p, q = (F.softmax(logits, dim=1).detach().numpy() for logits in (weak, strong))
    slow = sum(a * (math.log(a) - math.log(b)) for a, b in zip(p.flatten(), q.flatten(), strict=True)) / 7
    assert loss.item() == pytest.approx(slow, rel=1e-6)
    loss.backward()
    assert weak.grad is None  # the strong view follows the weak one
    np.testing.assert_allclose(strong.grad.numpy(), (q - p) / 7, atol=1e-9)  # type: ignore[union-attr]


@pytest.mark.parametrize("value", [0.0, 1e4])
def test_saturated_predictions_give_finite_numbers(value: float) -> None:
    strong = torch.tensor([[value, 0.0], [0.0, value]], requires_grad=True)
    loss = consistency(-strong.detach(), strong)
    loss.backward()
    assert loss.isfinite() and strong.grad is not None and strong.grad.isfinite().all()


def test_centres_are_moving_means_of_their_classes() -> None:
    centres = F.normalize(drawn(5, 6), dim=1)
    centres[4] = 0  # never seen
    features, labels = F.normalize(drawn(7, 6, seed=1), dim=1), torch.tensor([0, 2, 2, 4, 0, 0, 2])
    expected = centres.clone().numpy()
    for k in range(5):
        members = features[labels == k].numpy()
        if len(members):
            mean = members.mean(axis=0)
            moved = 0.9 * expected[k] + 0.1 * mean / np.linalg.norm(mean)
            expected[k] = moved / np.linalg.norm(moved)
    before = centres.clone()
    np.testing.assert_allclose(moved_centres(centres, features, labels, 0.9).numpy(), expected, atol=1e-12)
    assert torch.equal(centres, before)


def test_features_that_cancel_out_leave_a_centre_alone() -> None:
    centres = torch.tensor([[0.6, 0.8], [0.0, 0.0]])
    features = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.0]])
    assert torch.equal(moved_centres(centres, features, torch.tensor([0, 0, 1]), 0.9), centres)
