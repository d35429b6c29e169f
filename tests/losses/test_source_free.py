"""Weights, losses and the rule of the source-free methods, against slow versions: one image at a time, in float64."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from unida.losses.source_free import (
    exponential_weights,
    known_confidence,
    log_masses,
    mass_weights,
    negative_score,
    pair_classes,
    relative_weights,
    separation_loss,
    split_entropy,
)

B, C, N = 7, 5, 9


def made_up(scale: float = 2.0) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    return scale * draw.standard_normal((B, C)), scale * draw.standard_normal((B, N))


def softmax(logits: np.ndarray) -> np.ndarray:
    return np.exp(logits) / np.exp(logits).sum()


def slow_confidence(known: np.ndarray, negative: np.ndarray) -> list[float]:
    return [max(softmax(np.concatenate(row))[:C]) for row in zip(known, negative, strict=True)]


def slow_masses(known: np.ndarray, negative: np.ndarray) -> list[float]:
    return [sum(softmax(np.concatenate(row))[:C]) for row in zip(known, negative, strict=True)]


def slow_separation(known: np.ndarray, negative: np.ndarray, w: np.ndarray, v: np.ndarray) -> float:
    masses = slow_masses(known, negative)
    return float(np.mean([-w[i] * np.log(y) - v[i] * np.log(1 - y) for i, y in enumerate(masses)]))


def slow_entropy(known: np.ndarray, negative: np.ndarray, w: np.ndarray, v: np.ndarray) -> float:
    def of(row: np.ndarray) -> float:
        return float(-sum(p * np.log(p) for p in softmax(row)))

    return float(np.mean([w[i] * of(known[i]) + v[i] * of(negative[i]) for i in range(B)]))


def tensors(*arrays: np.ndarray) -> list[Tensor]:
    return [torch.tensor(array, dtype=torch.float32, requires_grad=True) for array in arrays]


def test_weights_are_those_of_the_formulas() -> None:
    known, negative = made_up()
    c = slow_confidence(known, negative)
    np.testing.assert_allclose(known_confidence(*tensors(known, negative)).detach(), c, rtol=1e-5)
    up, down = ([math.exp(x) for x in c], [math.exp(1 - x) for x in c])
    expected = [[(x - min(part)) / (max(part) - min(part)) for x in part] for part in (up, down)]
    np.testing.assert_allclose(exponential_weights(torch.tensor(c)), expected, atol=1e-5)
    masses = slow_masses(known, negative)
    found = [part.detach() for part in mass_weights(*tensors(known, negative))]
    np.testing.assert_allclose(found, [masses, [1 - m for m in masses]], atol=1e-5)


def test_a_share_of_the_batch_has_the_weights_of_the_whole() -> None:
    c = torch.rand(8, generator=torch.Generator().manual_seed(0))
    whole = exponential_weights(c)
    for part in (slice(0, 3), slice(3, 8)):
        for found, expected in zip(exponential_weights(c[part], among=c), whole, strict=True):
            assert torch.equal(found, expected[part])


def test_equal_confidences_have_no_weight() -> None:
    """The released code divides by zero there."""
    for weights in exponential_weights(torch.full((4,), 0.3)):
        assert torch.equal(weights, torch.zeros(4))


def test_relative_weights_are_shares_of_the_largest_confidence_of_the_whole_batch() -> None:
    confidence = torch.tensor([0.2, 0.5, 0.4])
    for among, largest in ((None, 0.5), (torch.tensor([0.1, 0.8]), 0.8)):
        w, v = relative_weights(confidence, among)
        expected = [c / largest for c in (0.2, 0.5, 0.4)]
        assert w.tolist() == pytest.approx(expected) and v.tolist() == pytest.approx([1 - e for e in expected])
    w, v = relative_weights(torch.zeros(2))  # a network that is certain that all is negative
    assert w.tolist() == [0, 0] and v.tolist() == [1, 1]


@pytest.mark.parametrize(("fast", "slow"), [(separation_loss, slow_separation), (split_entropy, slow_entropy)])
def test_losses_and_their_gradients_are_those_of_the_formulas(fast: object, slow: object) -> None:
    known, negative = made_up()
    draw = np.random.default_rng(1)
    w, v = draw.random(B), draw.random(B)
    leaves = tensors(known, negative, w, v)
    loss = fast(leaves[0], leaves[1], (leaves[2], leaves[3]))  # type: ignore[operator]
    assert loss.item() == pytest.approx(slow(known, negative, w, v), rel=1e-5)  # type: ignore[operator]
    loss.backward()
    for number, logits in enumerate((known, negative)):
        numeric = np.zeros_like(logits)
        for place in np.ndindex(logits.shape):
            moved = np.zeros_like(logits)
            moved[place] = 1e-5
            high, low = (
                slow(*[x + s * moved if n == number else x for n, x in enumerate((known, negative))], w, v)  # type: ignore[operator]
                for s in (1, -1)
            )
            numeric[place] = (high - low) / 2e-5
        gradient = leaves[number].grad
        assert gradient is not None and np.abs(numeric).max() > 0.005
        np.testing.assert_allclose(gradient, numeric, atol=1e-5)
    assert leaves[2].grad is None and leaves[3].grad is None  # weights are constants


@pytest.mark.parametrize("scale", [0.0, 1e4])
def test_saturated_logits_give_finite_losses_and_gradients(scale: float) -> None:
    known, negative = tensors(*made_up(scale))
    weights = mass_weights(known, negative)
    loss = separation_loss(known, negative, weights) + split_entropy(known, negative, weights)
    loss.backward()
    assert loss.isfinite()
    for tensor in (known, negative):
        assert tensor.grad is not None and tensor.grad.isfinite().all()
    assert all(part.isfinite().all() for part in log_masses(known, negative))


def test_low_precision_logits_are_computed_in_float32() -> None:
    known, negative = (torch.tensor(x).bfloat16() for x in made_up())
    with torch.autocast("cpu", torch.bfloat16):
        weights = exponential_weights(known_confidence(known, negative))
        found = [separation_loss(known, negative, weights), split_entropy(known, negative, weights)]
        score = negative_score(known, negative)
    assert {x.dtype for x in (*weights, *found, score)} == {torch.float32}


@pytest.mark.parametrize("scale", [1e-7, 1.0, 1e4])
def test_an_image_is_unknown_exactly_if_a_negative_class_has_the_largest_logit(scale: float) -> None:
    draw = torch.Generator().manual_seed(3)
    known, negative = (scale * torch.randn(400, count, generator=draw) for count in (6, 6))
    negative[:20] = known[:20]  # ties: the first of the largest is a known one
    largest = torch.cat([known, negative], dim=1).argmax(dim=1)
    score = negative_score(known, negative)
    assert torch.equal(score > 0.5, largest >= 6) and not (score[:20] > 0.5).any()
    assert score.min() >= 0 and score.max() <= 1 and 100 < (score > 0.5).sum() < 300


def test_the_score_grows_with_the_margin() -> None:
    margins = torch.linspace(-5, 5, 101)
    score = negative_score(torch.zeros(101, 2), margins[:, None])
    assert (score.diff() > 0).all() and score[75].item() == pytest.approx(1 / (1 + math.exp(-2.5)))


@pytest.mark.parametrize("classes", [2, 3, 20])
def test_every_unordered_pair_of_classes_has_a_number_of_its_own(classes: int) -> None:
    pairs = [(i, j) for i in range(classes) for j in range(i + 1, classes)]
    numbers = list(range(len(pairs)))
    assert pair_classes(torch.tensor(pairs), classes).tolist() == numbers
    assert pair_classes(torch.tensor([(j, i) for i, j in pairs]), classes).tolist() == numbers
    assert len(pairs) == classes * (classes - 1) // 2
    same = torch.arange(classes)[:, None].expand(-1, 2)
    assert pair_classes(same, classes).tolist() == [-1] * classes
