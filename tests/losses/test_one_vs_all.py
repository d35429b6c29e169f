"""The one-vs-all losses against slow versions of the formulas, one sample and one class at a time in float64."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from unida.losses.one_vs_all import one_vs_all_entropy, one_vs_all_loss, probability_not_class, split_one_vs_all

SCALES = [0.1, 1.0, 5.0, 1e4]


def made_up(scale: float, batch: int = 7, classes: int = 5, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Logits (B, 2, C) that float32 holds exactly, and labels (B,)."""
    rng = np.random.default_rng(seed)
    logits = (scale * rng.standard_normal((batch, 2, classes))).astype(np.float32).astype(np.float64)
    return logits, rng.integers(classes, size=batch)


def minus_log_is(not_logit: float, is_logit: float) -> float:
    """−log p for p = exp(is) / (exp(is) + exp(not)), for any size of logits."""
    largest = max(not_logit, is_logit)
    return largest + math.log(math.exp(not_logit - largest) + math.exp(is_logit - largest)) - is_logit


def slow_loss(logits: np.ndarray, labels: np.ndarray) -> float:
    right, hardest_wrong = [], []
    for sample, label in zip(logits, labels, strict=True):
        right.append(minus_log_is(sample[0, label], sample[1, label]))
        wrong = [minus_log_is(sample[1, j], sample[0, j]) for j in range(sample.shape[1]) if j != label]
        hardest_wrong.append(max(wrong))
    return (sum(right) / len(right) + sum(hardest_wrong) / len(hardest_wrong)) / 2


def slow_entropy(logits: np.ndarray, labels: np.ndarray | None = None) -> float:
    entropies = []
    for sample in logits:
        for k in range(sample.shape[1]):
            surprises = minus_log_is(sample[0, k], sample[1, k]), minus_log_is(sample[1, k], sample[0, k])
            entropies.append(sum(math.exp(-s) * s for s in surprises))
    return sum(entropies) / len(entropies)


def released_loss(logits: np.ndarray, labels: np.ndarray) -> float:
    """As OVANet's authors write it: probabilities first, 1e-8 inside the logs."""
    probability = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    right, wrong = [], []
    for p, label in zip(probability, labels, strict=True):
        right.append(-np.log(p[1, label] + 1e-8))
        wrong.append(max(-np.log(p[0, j] + 1e-8) for j in range(p.shape[1]) if j != label))
    return float(0.5 * (np.mean(right) + np.mean(wrong)))


def released_entropy(logits: np.ndarray) -> float:
    probability = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return float(-(probability * np.log(probability + 1e-8)).sum(axis=1).mean())


def entropy_without_labels(logits: Tensor, labels: Tensor) -> Tensor:
    return one_vs_all_entropy(logits)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("classes", [2, 3, 31])
def test_loss_is_the_slow_formula(scale: float, classes: int) -> None:
    logits, labels = made_up(scale, classes=classes)
    loss = one_vs_all_loss(torch.from_numpy(logits).float(), torch.from_numpy(labels))
    assert loss.dtype == torch.float32 and loss.shape == ()
    assert loss.item() == pytest.approx(slow_loss(logits, labels), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("classes", [1, 2, 31])
def test_entropy_is_the_slow_formula(scale: float, classes: int) -> None:
    logits, _ = made_up(scale, classes=classes)
    entropy = one_vs_all_entropy(torch.from_numpy(logits).float())
    assert entropy.dtype == torch.float32 and entropy.shape == ()
    assert entropy.item() == pytest.approx(slow_entropy(logits), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("scale", SCALES)
def test_probability_not_class_is_the_slow_formula(scale: float) -> None:
    logits, labels = made_up(scale)
    expected = [math.exp(-minus_log_is(s[1, y], s[0, y])) for s, y in zip(logits, labels, strict=True)]
    found = probability_not_class(torch.from_numpy(logits).float(), torch.from_numpy(labels))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("scale", [0.1, 0.5, 1.0])
def test_both_equal_the_released_code_where_its_epsilon_is_small(scale: float) -> None:
    logits, labels = made_up(scale, batch=36, classes=20)
    on_torch = torch.from_numpy(logits).float()
    assert one_vs_all_loss(on_torch, torch.from_numpy(labels)).item() == pytest.approx(
        released_loss(logits, labels), abs=1e-5
    )
    assert one_vs_all_entropy(on_torch).item() == pytest.approx(released_entropy(logits), abs=1e-5)


def test_the_half_and_both_means() -> None:
    logits = torch.zeros(4, 2, 3)  # every p is ½
    assert one_vs_all_loss(logits, torch.zeros(4, dtype=torch.long)).item() == pytest.approx(math.log(2))
    logits[:, 1, 0] = 100  # the right class is certain: only the wrong ones' half is left
    assert one_vs_all_loss(logits, torch.zeros(4, dtype=torch.long)).item() == pytest.approx(math.log(2) / 2)


def test_only_the_right_class_and_the_hardest_wrong_one_learn() -> None:
    # Class 2 is surest of itself, being right; of the wrong ones, class 0 is.
    margins = torch.tensor([[0.5, -1.0, 9.0, 0.2]])
    logits = torch.stack([torch.zeros_like(margins), margins], dim=1).requires_grad_()
    one_vs_all_loss(logits, torch.tensor([2])).backward()
    assert logits.grad is not None
    assert (logits.grad.abs() > 1e-6).any(dim=1).tolist() == [[True, False, True, False]]
    assert (logits.grad[0, 1, 0] > 0) and (logits.grad[0, 1, 2] < 0)  # descent makes it less, and more, sure


def test_entropy_is_log_two_when_undecided_and_nothing_when_sure() -> None:
    assert one_vs_all_entropy(torch.full((3, 2, 4), 7.0)).item() == pytest.approx(math.log(2))
    sure = torch.tensor([1e4, -1e4]).view(1, 2, 1).expand(3, 2, 4)
    assert one_vs_all_entropy(sure).item() == 0
    assert one_vs_all_entropy(sure.flip(1)).item() == 0


@pytest.mark.parametrize(
    ("fast", "slow"), [(one_vs_all_loss, slow_loss), (entropy_without_labels, slow_entropy)], ids=["loss", "entropy"]
)
def test_gradients_are_those_of_the_slow_formula(
    fast: Callable[[Tensor, Tensor], Tensor], slow: Callable[[np.ndarray, np.ndarray], float]
) -> None:
    # Not torch's gradcheck: that differentiates the function itself in float64, and these compute in float32.
    logits, labels = made_up(2.0, batch=3, classes=4)
    leaf = torch.from_numpy(logits).requires_grad_()
    fast(leaf, torch.from_numpy(labels)).backward()
    numeric = np.zeros_like(logits)
    for place in np.ndindex(logits.shape):
        step = np.zeros_like(logits)
        step[place] = 1e-6
        numeric[place] = (slow(logits + step, labels) - slow(logits - step, labels)) / 2e-6
    assert leaf.grad is not None and np.abs(numeric).max() > 0.01
    np.testing.assert_allclose(leaf.grad.numpy(), numeric, atol=1e-6)


@pytest.mark.parametrize("function", [one_vs_all_loss, entropy_without_labels, probability_not_class])
@pytest.mark.parametrize("classes", [1, 2, 6])
def test_extreme_logits_have_finite_values_and_gradients(
    function: Callable[[Tensor, Tensor], Tensor], classes: int
) -> None:
    extremes = torch.tensor([-1e4, 0.0, 1e4])
    logits = torch.cartesian_prod(extremes, extremes)[:, :, None].repeat(1, 1, classes).requires_grad_()
    for label in range(classes):
        value = function(logits, torch.full((9,), label))
        (gradient,) = torch.autograd.grad(value.sum(), logits)
        assert value.isfinite().all()
        assert gradient.isfinite().all()


@pytest.mark.parametrize("function", [one_vs_all_loss, entropy_without_labels, probability_not_class])
def test_low_precision_logits_are_computed_in_float32(function: Callable[[Tensor, Tensor], Tensor]) -> None:
    logits, labels = made_up(3.0, batch=16)
    low = torch.from_numpy(logits).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        found = function(low, torch.from_numpy(labels))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, function(low.float(), torch.from_numpy(labels)), rtol=1e-6, atol=1e-7)


def test_the_first_half_of_the_outputs_says_not_this_class() -> None:
    outputs = torch.tensor([[1.0, 2.0, 3.0, 10.0, 20.0, 30.0], [4.0, 5.0, 6.0, 40.0, 50.0, 60.0]])
    split = split_one_vs_all(outputs)
    assert split.tolist() == [[[1, 2, 3], [10, 20, 30]], [[4, 5, 6], [40, 50, 60]]]
    assert split_one_vs_all(outputs.bfloat16()).dtype == torch.float32
    # Class 0 of the first sample: "is" 10 against "not" 1.
    assert probability_not_class(split, torch.tensor([0, 0]))[0].item() == pytest.approx(1 / (1 + math.exp(9)))
