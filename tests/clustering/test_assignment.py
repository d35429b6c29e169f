"""Target images to classes or to none, against every assignment that there is."""

import itertools

import numpy as np
import pytest
import torch

from unida.clustering.assignment import REJECTED, assign, reject_cost


def all_costs(distances: np.ndarray, cost: float, every_class: bool) -> dict[tuple[int, ...], float]:
    """The price of each assignment that is allowed."""
    N, C = distances.shape
    found = {}
    for classes in itertools.product(range(-1, C), repeat=N):
        if not every_class or set(range(C)) <= set(classes):
            found[classes] = sum(cost if c < 0 else distances[t, c] for t, c in enumerate(classes))
    return found


@pytest.mark.parametrize("every_class", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_no_assignment_is_cheaper(seed: int, every_class: bool) -> None:
    draw = np.random.default_rng(seed)
    distances = draw.uniform(0.5, 2, size=(5, 3))
    distances[:, 2] += seed % 2  # one class is far from all
    cost = float(draw.uniform(0.6, 1.6))
    prices = all_costs(distances, cost, every_class)
    found = assign(torch.from_numpy(distances), torch.tensor(cost, dtype=torch.float64), every_class)
    assert found.dtype == torch.int64
    assert prices[tuple(found.tolist())] == pytest.approx(min(prices.values()))


def test_as_many_images_as_classes_have_one_each() -> None:
    distances = torch.tensor([[0.0, 9.0, 1.0], [0.1, 9.0, 2.0], [0.2, 8.0, 3.0]])
    assert assign(distances, torch.tensor(0.0), every_class=True).tolist() == [2, 0, 1]


def test_an_image_at_the_cost_is_kept_and_a_farther_one_is_not() -> None:
    distances = torch.tensor([[2.0, 3.0], [4.0, 2.5], [2.6, 7.0]])
    assert assign(distances, torch.tensor(2.5)).tolist() == [0, 1, REJECTED]


def test_the_cost_lies_between_the_smallest_and_the_largest_distance() -> None:
    distances = torch.tensor([[2.0, 3.0], [10.0, 4.0]])
    assert [reject_cost(distances, place).item() for place in (0, 0.5, 0.75, 1)] == [2, 6, 8, 10]
    assert reject_cost(torch.full((3, 2), 0.1), 0.3).item() == torch.tensor(0.1).item()  # nothing is rejected
