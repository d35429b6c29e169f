"""How strange target clusters are: against a slow version of the formula, and where the edge comes to lie."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from unida.clustering.strangeness import strangeness


def normal(x: float, mean: float, width: float) -> float:
    return math.exp(-(((x - mean) / width) ** 2) / 2) / width


def slow(clusters: np.ndarray, sizes: list[int], classes: np.ndarray, temperature: float) -> list[float]:
    """Image by image, without a vector operation but the dot product."""
    C, K = len(classes), len(clusters)
    a = [max([0.0, *(float(classes[c] @ classes[o]) for o in range(C) if o != c)]) for c in range(C)]
    t = [[min(max((1 - float(k @ classes[c])) / (1 - a[c]), 0.0), 1.0) for c in range(C)] for k in clusters]
    own = [max(range(C), key=lambda c, k=k: float(clusters[k] @ classes[c])) for k in range(K)]
    images = [t[k][own[k]] for k in range(K) for _ in range(sizes[k])]
    n, start = 30 + len(images) / 20, (min(images), 1.0)
    width_before = (1 - min(images)) / 4
    means, widths, shares = list(start), [width_before] * 2, [0.5, 0.5]
    for _ in range(100):
        each = [[share * normal(x, *at) for share, *at in zip(shares, means, widths, strict=True)] for x in images]
        belongs = [[p / sum(both) for p in both] for both in each]
        for side in (0, 1):
            count = sum(both[side] for both in belongs)
            shares[side] = (count + 1) / (len(images) + 2)
            mean = sum(both[side] * x for both, x in zip(belongs, images, strict=True))
            means[side] = (mean + n * start[side]) / (count + n)
            around = sum(both[side] * (x - means[side]) ** 2 for both, x in zip(belongs, images, strict=True))
            widths[side] = math.sqrt((around + n * width_before**2) / (count + n))
    places = np.linspace(*means, 20_001)
    edge = next(x for x in places if normal(x, means[1], widths[1]) > normal(x, means[0], widths[0]))
    found = []
    for k in range(K):
        c = own[k]
        of_class = edge - max(0.0, means[0] - min(t[j][c] for j in range(K))) / 2
        h = 1 - of_class * (1 - a[c])
        found.append(1 / (1 + math.exp(-(h - float(clusters[k] @ classes[c])) / temperature)))
    return found


@pytest.mark.parametrize("classes", [1, 2, 7])
def test_strangeness_is_its_formula(classes: int) -> None:
    draw = np.random.default_rng(classes)
    rows = draw.normal(size=(classes + 12, 5))
    rows[classes : 2 * classes] = rows[:classes] + 0.3 * draw.normal(size=(classes, 5))  # some are near a class
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    sizes = draw.integers(1, 60, size=12).tolist()
    of_classes, of_clusters = torch.from_numpy(rows[:classes]), torch.from_numpy(rows[classes:])
    found = strangeness(of_clusters, torch.tensor(sizes), of_classes, 0.1)
    assert found.tolist() == pytest.approx(
        slow(rows[classes:], sizes, rows[:classes], 0.1), rel=0.01
    )  # e is found on a grid
    assert found.min() < 0.5 < found.max()


def at(*cosines: float) -> Tensor:
    """Clusters at these cosines to the first axis, and at a right angle to the second."""
    cosine = torch.tensor(cosines)
    return torch.stack([cosine, torch.zeros_like(cosine), (1 - cosine**2).sqrt()], dim=1)


CLASSES = torch.eye(3)[:2]  # at right angles


def test_with_few_images_the_edge_is_halfway_to_the_next_class() -> None:
    angle = math.radians(60)  # a cosine of ½, so halfway is ¾
    classes = torch.tensor([[1.0, 0, 0], [math.cos(angle), math.sin(angle), 0]])
    found = strangeness(at(1.0, 0.78, 0.72, 0.0), torch.tensor([1, 1, 1, 1]), classes, 0.1)
    assert found[:2].max() < 0.5 < found[2:].min()
    assert (found.diff() > 0).all()


def test_the_edge_follows_how_near_clusters_come() -> None:
    sizes = torch.tensor([50, 50, 50, 50])
    near = strangeness(at(0.9, 0.85, 0.4, 0.35), sizes, CLASSES, 0.1)
    far = strangeness(at(0.5, 0.45, 0.1, 0.05), sizes, CLASSES, 0.1)
    assert (near < 0.5).tolist() == (far < 0.5).tolist() == [True, True, False, False]


def test_a_near_cluster_asks_more_of_the_others_of_its_class() -> None:
    second = torch.tensor([[0.0, 0.5, 0.75**0.5]])  # as near to the second class as another is to the first
    found = strangeness(torch.cat([at(0.95, 0.5, 0.0), second]), torch.tensor([40, 40, 40, 40]), CLASSES, 0.1)
    assert found[1] > found[3] + 0.1


def test_few_images_hardly_move_the_edge() -> None:
    few = strangeness(at(0.8, 0.45, 0.3), torch.tensor([1, 1, 1]), CLASSES, 0.1)
    many = strangeness(at(0.8, 0.45, 0.3), torch.tensor([500, 500, 5000]), CLASSES, 0.1)
    assert few[1] < 0.5 < many[1]  # the edge is at a cosine near 0.4, and with many far images at 0.3 above 0.45


def test_a_class_without_images_is_no_neighbour() -> None:
    classes = torch.tensor([[1.0, 0, 0], [0, 0, 0]])
    found = strangeness(torch.tensor([[1.0, 0, 0], [-1, 0, 0]]), torch.tensor([5, 5]), classes, 0.1)
    assert found[0] < 0.01 < 0.99 < found[1]


def test_two_classes_in_one_place_divide_by_nothing() -> None:
    classes = torch.tensor([[1.0, 0, 0], [1, 0, 0], [0, 1, 0]])
    found = strangeness(at(1.0, 0.2), torch.tensor([5, 5]), classes, 0.1)
    assert found.isfinite().all() and found[0] < found[1]


def test_where_all_clusters_are_as_far_as_can_be_nothing_is_near_and_nothing_breaks() -> None:
    found = strangeness(at(0.0, 0.0), torch.tensor([5, 5]), CLASSES, 0.1)
    assert found.isfinite().all() and (found >= 0.5).all()


def test_classes_at_obtuse_angles_count_as_if_at_right_ones() -> None:
    obtuse = torch.tensor([[1.0, 0, 0], [-0.6, 0.8, 0]])
    sizes = torch.tensor([10, 10])
    torch.testing.assert_close(
        strangeness(at(0.7, 0.3), sizes, obtuse, 0.1), strangeness(at(0.7, 0.3), sizes, CLASSES, 0.1)
    )
