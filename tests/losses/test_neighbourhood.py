"""Neighbourhood clustering and entropy separation against DANCE's formulas, one image at a time in float64."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from unida.losses.neighbourhood import (
    entropy_separation,
    neighbourhood_clustering,
    similarities_to_others,
    softmax_entropy,
)

T = 0.05


def unit(rows: int, seed: int, d: int = 6) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(rows, d, generator=draw, dtype=torch.float64), dim=1)


def made_up() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Features of five images, which images they are, a memory of nine (two not seen yet), and logits of four."""
    memory = unit(9, seed=1)
    memory[[2, 7]] = 0
    return unit(5, seed=0), torch.tensor([8, 0, 3, 7, 4]), memory, 20 * unit(5, seed=2, d=4)


def slow_entropy(logits: list[Tensor]) -> Tensor:
    powers = [torch.exp(x) for x in logits]
    whole = torch.stack(powers).sum()
    return torch.stack([-(power / whole) * torch.log(power / whole + 1e-5) for power in powers]).sum()


def slow_clustering(features: Tensor, indices: Tensor, memory: Tensor, logits: Tensor) -> Tensor:
    """The released code's three parts: classes, memory without the batch, batch without the image itself."""
    entropies = []
    for i, feature in enumerate(features):
        to_memory = [
            torch.tensor(-1.0) if n in indices.tolist() else (feature * row).sum() for n, row in enumerate(memory)
        ]
        to_batch = [torch.tensor(-1.0) if j == i else (feature * other).sum() for j, other in enumerate(features)]
        entropies.append(slow_entropy([*logits[i], *(cosine.double() / T for cosine in (*to_memory, *to_batch))]))
    return torch.stack(entropies).mean()


def fast_clustering(features: Tensor, indices: Tensor, memory: Tensor, logits: Tensor) -> Tensor:
    return neighbourhood_clustering(logits, similarities_to_others(features, indices, features, indices, memory, T))


def test_clustering_and_its_gradients_are_the_slow_formula() -> None:
    features, indices, memory, logits = made_up()
    features.requires_grad_()
    logits.requires_grad_()
    fast, slow = (of(features, indices, memory, logits) for of in (fast_clustering, slow_clustering))
    torch.testing.assert_close(fast, slow, rtol=1e-9, atol=1e-12)
    for ours, theirs in zip(*(torch.autograd.grad(it, (features, logits)) for it in (fast, slow)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-10)
    single = fast_clustering(features.float(), indices, memory.float(), logits.float())
    assert single.dtype == torch.float32 and single.item() == pytest.approx(slow.item(), rel=1e-5)


def test_a_share_of_the_batch_is_compared_with_all_of_it() -> None:
    features, indices, memory, logits = made_up()
    shares = [
        neighbourhood_clustering(
            logits[part], similarities_to_others(features[part], indices[part], features, indices, memory, T)
        )
        for part in (slice(0, 2), slice(2, 5))
    ]
    whole = fast_clustering(features, indices, memory, logits)
    torch.testing.assert_close((2 * shares[0] + 3 * shares[1]) / 5, whole)


def test_what_shows_the_image_itself_is_hidden() -> None:
    """Slots of the whole batch, the image itself, and a second view of it."""
    features = unit(4, seed=0)
    features[2] = features[0]
    indices = torch.tensor([5, 1, 5, 0])
    found = T * similarities_to_others(features, indices, features, indices, unit(7, seed=1), T)
    hidden = [[0, 1, 5, 7, 9], [0, 1, 5, 8], [0, 1, 5, 7, 9], [0, 1, 5, 10]]
    for row, places in zip(found, hidden, strict=True):
        assert (row == -1).nonzero().flatten().tolist() == places


def test_no_gradient_flows_into_the_memory_and_it_does_into_the_batch() -> None:
    features, indices, memory, logits = made_up()
    memory.requires_grad_()
    batch = features.clone().requires_grad_()
    similarities = similarities_to_others(features, indices, batch, indices, memory, T)
    neighbourhood_clustering(logits, similarities).backward()
    assert memory.grad is None and batch.grad is not None and batch.grad.abs().max() > 0


@pytest.mark.parametrize("margin", [0.0, 0.3, 0.5])
def test_separation_and_its_gradient_are_the_slow_formula(margin: float) -> None:
    logits = (20 * unit(12, seed=3, d=5) * torch.linspace(0, 1, 12)[:, None]).requires_grad_()
    threshold = math.log(5) / 2
    fast = entropy_separation(logits, threshold, margin)
    distances = [(slow_entropy(list(row)) - threshold).abs() for row in logits]
    slow = -torch.stack([distance if distance > margin else 0 * distance + margin for distance in distances]).mean()
    torch.testing.assert_close(fast, slow, rtol=1e-9, atol=1e-12)
    ours, theirs = (torch.autograd.grad(it, logits)[0] for it in (fast, slow))
    torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-10)
    moves = ours.abs().amax(dim=1) > 1e-12
    assert moves.tolist() == [bool(d > margin and i) for i, d in enumerate(distances)]  # the first is at the maximum
    if margin:
        assert 2 < sum(moves.tolist()) < 11


def test_with_two_classes_nothing_is_far_enough_from_the_threshold() -> None:
    logits = torch.tensor([[0.0, 0.0], [9.0, 0.0], [0.5, 0.0]], requires_grad=True)
    loss = entropy_separation(logits, math.log(2) / 2, margin=0.5)
    assert loss.item() == -0.5
    loss.backward()
    assert not logits.grad.any()  # type: ignore[union-attr]


@pytest.mark.parametrize("value", [0.0, 1e4, -1e4])
def test_constant_and_saturated_inputs_give_finite_numbers(value: float) -> None:
    logits = torch.full((3, 4), value)
    logits[1, 2] = -value
    logits.requires_grad_()
    features = torch.zeros(3, 6, requires_grad=True)
    indices, memory = torch.tensor([0, 0, 0]), torch.zeros(1, 6)
    loss = fast_clustering(features, indices, memory, logits) + entropy_separation(logits, 0.7, 0.5)
    gradients = torch.autograd.grad(loss, (logits, features))
    assert loss.isfinite() and all(gradient.isfinite().all() for gradient in gradients)
    assert softmax_entropy(logits).min() >= -1.1e-5 and softmax_entropy(logits).max() <= math.log(4) + 1e-6


def test_half_precision_is_computed_in_float32() -> None:
    features, indices, memory, logits = (it.float() if it.is_floating_point() else it for it in made_up())
    expected = similarities_to_others(features, indices, features, indices, memory, T)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(similarities_to_others(features, indices, features, indices, memory, T), expected)
        assert fast_clustering(features, indices, memory, logits).dtype == torch.float32
        assert entropy_separation(logits.bfloat16(), 0.7, 0.5).dtype == torch.float32
