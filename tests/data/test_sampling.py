"""Which images a step sees: the law of the draws, and that they are a function of seed and step alone."""

import numpy as np
import pytest

from unida.data.sampling import BalancedSampler, ShuffledSampler, shard
from unida.support.random import generator, torch_seed

LABELS = np.array([0] * 2 + [1] * 10 + [2] * 30 + [3])


def drawn(sampler: BalancedSampler | ShuffledSampler, steps: int) -> np.ndarray:
    return np.concatenate([sampler.batch(step) for step in range(steps)])


def chi_square_per_degree(counts: np.ndarray, expected: np.ndarray) -> float:
    return float(((counts - expected) ** 2 / expected).sum() / (len(counts) - 1))


def test_every_class_is_drawn_equally_often_whatever_its_size() -> None:
    classes = LABELS[drawn(BalancedSampler(LABELS, 36, seed=1), 500)]
    counts = np.bincount(classes)
    assert chi_square_per_degree(counts, np.full(4, len(classes) / 4)) < 5


def test_every_image_of_a_class_is_drawn_equally_often_and_with_replacement() -> None:
    index = drawn(BalancedSampler(LABELS, 36, seed=1), 500)
    for label in (0, 1, 2):
        members = np.flatnonzero(label == LABELS)
        counts = np.array([(index == i).sum() for i in members])
        assert chi_square_per_degree(counts, np.full(len(members), counts.mean())) < 5
    # 36 draws, a quarter of them from a class of two: without replacement this could not be
    assert all((BalancedSampler(LABELS, 36, seed=1).batch(step) == 42).sum() > 1 for step in range(20))


def test_draws_of_different_positions_in_a_batch_are_independent() -> None:
    """With replacement, a neighbour is of the same class as often as chance has it."""
    classes = LABELS[drawn(BalancedSampler(LABELS, 36, seed=2), 500)]
    assert abs((classes[1:] == classes[:-1]).mean() - 0.25) < 0.02


def test_a_class_without_images_is_never_drawn_and_the_others_equally_often() -> None:
    labels = np.array([0, 2, 2, 4, 4, 4])
    index = drawn(BalancedSampler(labels, 30, seed=0), 400)
    assert set(index.tolist()) == set(range(6))
    shares = np.bincount(labels[index], minlength=5) / len(index)
    np.testing.assert_allclose(shares, [1 / 3, 0, 1 / 3, 0, 1 / 3], atol=0.02)


@pytest.mark.parametrize(("count", "size"), [(12, 4), (10, 4), (3, 8), (1, 5), (7, 7)])
def test_each_epoch_sees_each_image_once(count: int, size: int) -> None:
    epochs = 6
    index = drawn(ShuffledSampler(count, size, seed=3), -(-epochs * count // size))
    for epoch in range(epochs):
        assert sorted(index[epoch * count : (epoch + 1) * count]) == list(range(count))


def test_epochs_are_shuffled_differently() -> None:
    epochs = drawn(ShuffledSampler(20, 20, seed=0), 4).reshape(4, 20)
    assert len({tuple(epoch) for epoch in epochs}) == 4


@pytest.mark.parametrize("make", [lambda s: BalancedSampler(LABELS, 8, s), lambda s: ShuffledSampler(13, 8, s)])
def test_a_batch_depends_on_seed_and_step_and_not_on_what_was_asked_before(make) -> None:  # type: ignore[no-untyped-def]
    in_order = [make(5).batch(step) for step in range(12)]
    one = make(5)
    for step in (11, 0, 7, 7, 3, 10, 1):
        np.testing.assert_array_equal(one.batch(step), in_order[step])
    assert any((make(6).batch(step) != in_order[step]).any() for step in range(3))
    assert len({tuple(batch) for batch in in_order}) == 12


@pytest.mark.parametrize("processes", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("size", [1, 6, 36])
def test_shards_cover_the_batch_in_order_and_evenly(size: int, processes: int) -> None:
    batch = np.arange(size) * 3
    parts = [batch[shard(batch, rank, processes)] for rank in range(processes)]
    np.testing.assert_array_equal(np.concatenate(parts), batch)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_streams_differ_by_seed_purpose_and_position() -> None:
    keys = [(0, "a"), (1, "a"), (0, "b"), (0, "a", 0), (0, "a", 1), (0, "a", 1, 0), (0, "a", 11)]
    assert len({int(generator(*key).integers(2**62)) for key in keys}) == len(keys)  # type: ignore[arg-type]
    assert len({torch_seed(*key) for key in keys}) == len(keys)  # type: ignore[arg-type]
    assert torch_seed(0, "a", 1) == torch_seed(0, "a", 1)
