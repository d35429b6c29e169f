"""CMU's scores against NumPy, one image and one head at a time in float64."""

import math

import numpy as np
import pytest
import torch

from unida.losses.uncertainty import (
    ensemble_disagreement,
    ensemble_entropy,
    ensemble_margin,
    known_score,
    moved_bound,
    shared_classes,
    weights_of_batch,
    within,
)

HEADS, IMAGES, CLASSES = 5, 6, 4
LOGITS = np.random.default_rng(0).normal(size=(HEADS, IMAGES, CLASSES)) * 2


def softmax(row: np.ndarray) -> np.ndarray:
    powers = np.exp(row - row.max())
    return powers / powers.sum()


def test_margin_and_entropy_are_means_over_heads() -> None:
    margins, entropies = [], []
    for image in range(IMAGES):
        p = [softmax(LOGITS[head, image]) for head in range(HEADS)]
        margins.append(np.mean([np.sort(one)[-1] - np.sort(one)[-2] for one in p]))
        entropies.append(np.mean([-sum(x * math.log(x + 1e-10) for x in one) / math.log(CLASSES) for one in p]))
    logits = torch.tensor(LOGITS)
    assert ensemble_margin(logits).tolist() == pytest.approx(margins, abs=1e-5)
    assert ensemble_entropy(logits).tolist() == pytest.approx(entropies, abs=1e-5)
    expected = [(m + 1 - e) / 2 for m, e in zip(margins, entropies, strict=True)]
    found = known_score(ensemble_margin(logits), ensemble_entropy(logits))
    assert found.tolist() == pytest.approx(expected, abs=1e-5)


def test_disagreement_is_the_unbiased_deviation_over_heads() -> None:
    expected = []
    for image in range(IMAGES):
        deviations = []
        for c in range(CLASSES):
            p = [softmax(LOGITS[head, image])[c] for head in range(HEADS)]
            deviations.append(math.sqrt(sum((x - np.mean(p)) ** 2 for x in p) / (HEADS - 1)))
        expected.append(np.mean(deviations))
    assert ensemble_disagreement(torch.tensor(LOGITS)).tolist() == pytest.approx(expected, abs=1e-5)
    assert ensemble_disagreement(torch.ones(HEADS, 3, CLASSES)).tolist() == pytest.approx([0] * 3, abs=1e-6)


def test_saturated_heads_give_finite_numbers() -> None:
    extreme = torch.tensor(LOGITS) * 1e6
    for numbers in (ensemble_margin(extreme), ensemble_entropy(extreme), ensemble_disagreement(extreme)):
        assert numbers.isfinite().all() and numbers.min() >= 0 and numbers.max() <= 1


def test_new_images_are_clamped_to_the_bounds() -> None:
    values = torch.tensor([0.1, 0.2, 0.35, 0.5, 0.9])
    found = within(values, torch.tensor(0.2), torch.tensor(0.5))
    assert found.tolist() == pytest.approx([0, 0, 0.5, 1, 1])
    same = within(values, torch.tensor(0.2), torch.tensor(0.2))  # one image, or all alike
    assert same.tolist() == [0, 0, 1, 1, 1]
    assert within(torch.zeros(2), torch.tensor(0.0), torch.tensor(0.0)).tolist() == [0, 0]


def test_bounds_keep_a_hundredth_of_the_old_ones() -> None:
    bound = torch.tensor([0.0, 0.0])
    for batch in ([0.2, 0.8], [0.1, 0.9]):
        bound = moved_bound(bound, torch.tensor(batch))
    assert bound.tolist() == pytest.approx([0.01 * 0.99 * 0.2 + 0.99 * 0.1, 0.01 * 0.99 * 0.8 + 0.99 * 0.9])


def test_weights_of_a_batch_are_not_cut_off_at_0_and_1() -> None:
    """The later code's bounds lag by a hundredth, so its weights are a little outside."""
    lower = upper = 0.0
    outside = set()
    for batch in ([0.6, 0.7, 0.9], [0.5, 0.8, 0.95], [0.65, 0.7, 0.85]):
        lower, upper = 0.01 * lower + 0.99 * min(batch), 0.01 * upper + 0.99 * max(batch)
        expected = [(score - lower) / (upper - lower) for score in batch]
        found = weights_of_batch(torch.tensor(batch), torch.tensor(lower), torch.tensor(upper))
        assert found.tolist() == pytest.approx(expected, abs=1e-5)
        outside |= {"below"} if expected[0] < 0 else set()
        outside |= {"above"} if expected[-1] > 1 else set()
    assert outside == {"below", "above"}


@pytest.mark.parametrize("spread", [0.0, 1e-7, 1e-4])
def test_weights_of_almost_equal_scores_have_limits(spread: float) -> None:
    scores = 0.7 + spread * torch.rand(9, generator=torch.Generator().manual_seed(0))
    for old in (0.0, 0.7, 1.0):
        lower, upper = (moved_bound(torch.tensor(old), end) for end in (scores.min(), scores.max()))
        found = weights_of_batch(scores, lower, upper)
        assert found.isfinite().all() and found.min() >= -1 and found.max() <= 2
    steady = weights_of_batch(torch.full((3,), 0.7), torch.tensor(0.7), torch.tensor(0.7))
    assert steady.tolist() == [0, 0, 0]


def test_shared_classes_are_those_that_sure_images_look_like() -> None:
    p = np.array([softmax(row) for row in LOGITS[0]])
    scores = np.array([0.9, 0.39, 0.4, 0.7, 0.1, 0.5])
    mean = np.mean([row for row, s in zip(p, scores, strict=True) if s >= 0.4], axis=0)
    scaled = (mean - mean.min()) / (mean.max() - mean.min())
    expected = [1.0 if x > 0.1 else 0.0 for x in scaled]
    found = shared_classes(torch.tensor(p), torch.tensor(scores), confident=0.4, cut=0.1)
    assert found.tolist() == expected and 0 < sum(expected) < CLASSES
    # Nobody is sure enough: the surest image says it.
    (surest,) = shared_classes(torch.tensor(p), torch.tensor(scores), confident=1.0, cut=0.99).nonzero()
    assert surest.item() == p[0].argmax()
    # Every class alike: all may be shared.
    assert shared_classes(torch.full((3, 2), 0.5), torch.ones(3), 0.4, 0.1).tolist() == [1, 1]
