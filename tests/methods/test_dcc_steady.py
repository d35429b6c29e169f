"""DCC's clusters of five numbers: how strange each is, what training takes of them, and whom they call unknown."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from few_steps import Batches, decided, losses_of, total
from tiny_dcc import CLASSES, NECK, USUAL, Seen, around, made_up, scene, with_extras
from torch import Tensor, nn

from unida.clustering.consensus import Consensus, cluster_by_each
from unida.methods import dcc
from unida.methods.base import Problem
from unida.methods.dcc import DCC, DOUBTFUL, NO_STRANGENESS, numbers_of_clusters
from unida.methods.dcc_options import DCCOptions

COUNTS = [6, 8, 9, 11, 13]  # above 4 classes, up to 2 √40 images


def steady(backbone: nn.Module, seen: Seen = USUAL, **options: Any) -> DCC:
    """After its first round."""
    method = made_up(backbone, seen, clustering="steady", **options)
    method.cluster(0, seen)
    return method


# a round


@pytest.mark.parametrize(
    ("classes", "most", "expected"),
    [(20, 60, [28, 36, 44, 52, 60]), (4, 12, [6, 7, 9, 10, 12]), (1, 3, [1, 2, 3]), (5, 5, [5])],
)
def test_numbers_of_clusters_are_equal_steps(classes: int, most: int, expected: list[int]) -> None:
    assert numbers_of_clusters(classes, most) == expected


def test_the_step_of_the_published_search_changes_no_number(toy_backbone: nn.Module) -> None:
    assert made_up(toy_backbone, clustering="steady", cluster_interval=99).counts == COUNTS


def test_few_classes_do_not_limit_the_clusters_of_a_large_target(toy_backbone: nn.Module) -> None:
    def most(images: int, **options: Any) -> int:
        return DCC(toy_backbone, Problem(3, num_target=images), DCCOptions(**options)).max_clusters  # type: ignore[arg-type]

    assert [most(images) for images in (0, 20, 21, 100, 10_000)] == [9, 9, 9, 20, 200]  # 3 · 3, then 2 √N
    assert most(100, clusters_per_class=10) == 30
    assert most(10_000, clustering="published") == 9


def test_a_round_keeps_every_clustering(toy_backbone: nn.Module) -> None:
    method = steady(toy_backbone)
    target = nn.functional.normalize(USUAL.domains["target"], dim=1)
    for i, clusters in enumerate(cluster_by_each(target, COUNTS, method.problem.seed)):
        K = len(clusters.centres)
        torch.testing.assert_close(method.prototypes[i, :K], nn.functional.normalize(clusters.centres, dim=1))
        assert (method.strangeness[i, :K] >= 0).all() and (method.strangeness[i, K:] == NO_STRANGENESS).all()
        if K > 4:  # with fewer clusters than bunches, one holds two
            is_class = [bool(row[:4].max() > 0.9) for row in method.prototypes[i, :K]]  # along the axis of a class
            assert [bool(strange < 0.5) for strange in method.strangeness[i, :K]] == is_class


def beside_class_3(degrees: float) -> Seen:
    """The fifth bunch lies between class 3 and nothing: each is the other's nearest, at this angle."""
    seen, angle = scene([0, 1, 2, 3], [0, 1, 2]), math.radians(degrees)
    odd = math.cos(angle) * torch.eye(NECK)[3] + math.sin(angle) * torch.eye(NECK)[4]
    seen.domains["target"] = torch.cat([seen.domains["target"], around(odd[None], 8, seed=3)])
    return seen


def test_what_is_nearest_but_not_near_is_not_matched(toy_backbone: nn.Module) -> None:
    seen = beside_class_3(70)
    published = made_up(toy_backbone, seen)
    published.cluster(0, seen)
    assert published.found().classes == [0, 1, 2, 3]
    method = steady(toy_backbone, seen, clusters_per_class=1)
    assert method.found().classes == [0, 1, 2]


def test_a_doubtful_cluster_is_matched_in_training_though_its_images_are_unknown(toy_backbone: nn.Module) -> None:
    method = steady(toy_backbone, beside_class_3(60), clusters_per_class=1)
    assert method.found().classes == [0, 1, 2, 3]
    of_class_3 = method.prototypes[..., 4] > 0.7
    assert of_class_3.any()
    assert method.strangeness[of_class_3].min() > 0.5 and method.strangeness[of_class_3].max() < DOUBTFUL


def test_training_takes_the_number_that_agreed_best_over_all_rounds(
    toy_backbone: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = iter([0.1, 0.9, 0.2, 0.3, 0.4, 0.9, 0.2, 0.2, 0.8, 0.1, 0.5, 0.1, 0.1, 0.9, 0.1])
    asked = dcc.consensus

    def scored(*arguments: Any) -> Consensus:
        return asked(*arguments)._replace(score=next(scores))

    monkeypatch.setattr(dcc, "consensus", scored)
    method = made_up(toy_backbone, clustering="steady")
    for step, K in ((0, 8), (20, 8), (40, 11)):  # sums: 0.9; 1.1; then 2.0 of the fourth
        method.cluster(step, USUAL)
        assert len(method.found().clusters) == K
    assert method.agreement.tolist() == pytest.approx([1.5, 1.2, 0.5, 2.0, 0.6])


# who is unknown


def slow_score(method: DCC, feature: np.ndarray) -> float:
    feature, means = feature / np.linalg.norm(feature), []
    for prototypes, strange in zip(method.prototypes.numpy(), method.strangeness.numpy(), strict=True):
        there = strange >= 0
        weight = np.exp(prototypes[there] @ feature / method.options.temperature)
        means.append(float((weight * strange[there]).sum() / weight.sum()))
    return sum(means) / len(means)


def test_the_unknown_score_is_its_formula(toy_backbone: nn.Module) -> None:
    method = steady(toy_backbone)
    features = 3 * torch.randn(50, NECK, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found = method.score(features).unknown
    assert found.tolist() == pytest.approx([slow_score(method, row) for row in features.numpy()], rel=1e-5)
    assert found.min() < 0.5 < found.max()


@pytest.mark.parametrize("target", [[0, 1, 2, 4, 5], [0, 1, 2, 3], [4, 5]])
def test_bunches_along_classes_are_known_and_others_are_not(
    toy_backbone: nn.Module, batches: Batches, target: list[int]
) -> None:
    seen = scene([0, 1, 2, 3], target)
    method = made_up(toy_backbone, seen, clustering="steady")
    for step in (0, 20):
        method.cluster(step, seen)
        losses = losses_of(method.train(), with_extras(method, batches, step), step=step)
        total(losses).backward()
        assert all(loss.isfinite() for loss in losses.values())
        assert ("discrepancy" in losses) == (target != [4, 5])  # nothing is matched if nothing is near
    with torch.no_grad():
        answers = decided(method.eval(), method.score(seen.domains["target"]))
    assert ((answers == CLASSES).view(len(target), -1).float().mean(dim=1) > 0.5).tolist() == [a > 3 for a in target]


@pytest.mark.parametrize("images", [torch.eye(NECK)[:1], torch.eye(NECK)[[0]].repeat(9, 1), torch.eye(NECK)[[4, 4, 0]]])
def test_fewer_different_images_than_clusters(toy_backbone: nn.Module, images: Tensor) -> None:
    seen = scene([0, 1, 2, 3], [0])
    seen.domains["target"] = images
    method = steady(toy_backbone, seen)
    with torch.no_grad():
        unknown = method.score(images).unknown
    assert ((unknown > 0.5) == (images[:, 4] > 0)).all()


def test_before_any_clustering_nothing_is_unknown(toy_backbone: nn.Module) -> None:
    method = made_up(toy_backbone, clustering="steady")
    with torch.no_grad():
        assert method.score(torch.randn(20, NECK)).unknown.tolist() == [0] * 20
