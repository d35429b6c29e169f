"""The nearest images are those that a slow search finds; above the limit, nearly all of them."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from unida.answering import neighbours
from unida.answering.neighbours import Nearest, nearest


def unit(points: NDArray[np.floating]) -> Tensor:
    return torch.from_numpy(points / np.linalg.norm(points, axis=1, keepdims=True)).half()


def clustered(count: int, groups: int, dimensions: int = 24, noise: float = 0.4, seed: int = 0) -> Tensor:
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(groups, dimensions))
    return unit(centres[rng.integers(groups, size=count)] + noise * rng.normal(size=(count, dimensions)))


def slow_cosines(directions: Tensor) -> NDArray[np.float64]:
    """(N, N), −∞ for an image and itself."""
    points = directions.double().numpy()
    cosine = np.array([[float(np.dot(a, b)) for b in points] for a in points])
    np.fill_diagonal(cosine, -np.inf)
    return cosine


def assert_sound(found: Nearest, count: int, k: int) -> None:
    """No image is its own neighbour, none comes twice, the nearest is first."""
    assert found.others.shape == found.cosine.shape == (count, k)
    assert (found.others.dtype, found.cosine.dtype) == (torch.int32, torch.float32)
    assert found.others.min() >= 0 and found.others.max() < count
    assert all(row not in others for row, others in enumerate(found.others.tolist()))
    assert all(len(set(others)) == k for others in found.others.tolist())
    assert found.cosine.isfinite().all()
    assert (found.cosine.diff(dim=1) <= 0).all()


@pytest.mark.parametrize("block", [1, 130, 2**24])  # some rows at a time: one, two or all
@pytest.mark.parametrize("k", [1, 7, 59])
def test_every_pair_is_compared_in_a_small_target(k: int, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "BLOCK", block)
    directions = clustered(60, groups=5)
    cosine = slow_cosines(directions)
    found = nearest(directions, k)
    assert_sound(found, 60, k)
    expected = np.argsort(-cosine, axis=1, kind="stable")[:, :k]
    assert np.diff(np.sort(cosine, axis=1)[:, 1:]).min() > 1e-7  # no ties: there is one right order
    assert found.others.numpy().tolist() == expected.tolist()
    np.testing.assert_allclose(found.cosine.numpy(), np.take_along_axis(cosine, expected, axis=1), atol=1e-6)


def test_images_that_are_equally_near_may_come_in_any_order() -> None:
    directions = torch.eye(3).half().repeat_interleave(4, dim=0)  # four copies each of three images
    found = nearest(directions, 3)
    assert_sound(found, 12, 3)
    assert (found.others // 4 == torch.arange(12)[:, None] // 4).all()  # the three copies, and no other
    assert (found.cosine == 1).all()


@pytest.fixture
def in_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    """As above the limit: some dimensions, cells of 40 images, of which ten are searched."""
    for name, number in {"EXACT": 100, "CELL": 40, "DIMENSIONS": 12, "SAMPLE": 500, "BLOCK": 5000}.items():
        monkeypatch.setattr(neighbours, name, number)


def test_cells_find_nine_of_ten_true_neighbours(in_cells: None) -> None:
    """With 37 cells of which ten are searched, and 12 dimensions of 24: the images fill ten, and noise the rest."""
    rng = np.random.default_rng(0)
    points = rng.normal(size=(12, 10))[rng.integers(12, size=1500)] + 0.8 * rng.normal(size=(1500, 10))
    directions = unit(points @ rng.normal(size=(10, 24)) + 0.02 * rng.normal(size=(1500, 24)))
    cosine = directions.double() @ directions.double().T
    true = cosine.fill_diagonal_(-1).topk(10, dim=1).indices
    found = nearest(directions, 10)
    assert_sound(found, 1500, 10)
    hits = sum(len({*ours} & {*theirs}) for ours, theirs in zip(found.others.tolist(), true.tolist(), strict=True))
    assert 0.9 < hits / 15_000 < 1  # not all: the cells were really used
    again = nearest(directions, 10)
    assert torch.equal(found.others, again.others) and torch.equal(found.cosine, again.cosine)


def alike(noise: float) -> Tensor:
    rng = np.random.default_rng(0)
    return unit(np.ones((900, 8)) + noise * rng.normal(size=(900, 8)))


def uneven() -> Tensor:
    """Most images are in one place, some are alone far away, and one of them is copied more often than a cell holds."""
    rng = np.random.default_rng(0)
    crowd = np.ones((700, 8)) + 0.05 * rng.normal(size=(700, 8))
    copies = np.repeat(rng.normal(size=(1, 8)), 150, axis=0)
    return unit(np.concatenate([crowd, rng.normal(size=(50, 8)), copies]))


MADE = {
    "all alike": alike(0),
    "hardly different": alike(2e-4),
    "no direction": torch.zeros(900, 8).half(),
    "uneven cells": uneven(),
}


@pytest.mark.parametrize("case", MADE)
@pytest.mark.parametrize(("k", "probes"), [(1, 1), (1, 10), (30, 3), (899, 10)])
def test_cells_work_on_odd_targets(
    in_cells: None, case: str, k: int, probes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cell's own images are always searched, even if rounding makes another centre nearer than its own."""
    monkeypatch.setattr(neighbours, "DIMENSIONS", 8)
    monkeypatch.setattr(neighbours, "PROBES", probes)
    found = nearest(MADE[case], k)
    assert_sound(found, 900, k)


def test_an_image_far_from_all_centres_is_compared_with_more_cells_if_its_own_are_small(
    in_cells: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one cell to search and cells of two images, five neighbours need the cells beyond."""
    monkeypatch.setattr(neighbours, "CELL", 2)
    monkeypatch.setattr(neighbours, "PROBES", 1)
    assert_sound(nearest(clustered(200, groups=4), 5), 200, 5)
