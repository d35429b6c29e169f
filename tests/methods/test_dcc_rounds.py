"""How a round of DCC clusters and matches, and what odd data make of it."""

import dataclasses
from typing import Any

import pytest
import torch
from few_steps import Batches, decided, losses_of, total
from tiny_dcc import CLASSES, NECK, USUAL, Seen, around, clustered, made_up, scene, with_extras
from torch import Tensor, nn

from unida.errors import UserError
from unida.methods import dcc
from unida.methods.base import Problem
from unida.methods.dcc import DCC, NO_CLUSTER, UNMATCHED

# a round


def test_a_round_finds_bunches_and_matches_those_that_are_classes(toy_backbone: nn.Module) -> None:
    method = clustered(toy_backbone, scene([3, 1, 0, 2], [4, 1, 5, 0, 3]))
    axes = torch.tensor([4, 1, 5, 0, 3])
    memory = method.memory[:5]
    bunch_of = {k: int(memory[k].argmax()) for k in range(5)}  # the axis that each prototype lies along
    assert sorted(bunch_of.values()) == [0, 1, 3, 4, 5]
    torch.testing.assert_close(memory.norm(dim=1), torch.ones(5))
    class_along = {3: 0, 1: 1, 0: 2}
    for k, axis in bunch_of.items():
        assert method.matched_class[k] == class_along.get(axis, UNMATCHED)
    assert (method.matched_class[5:] == NO_CLUSTER).all() and len(method.matched_class) == 3 * CLASSES
    assert [bunch_of[k] for k in method.assignment.tolist()] == axes.repeat_interleave(8).tolist()


@pytest.mark.parametrize(("size", "kept"), [(3, False), (4, True)])
def test_a_matched_cluster_has_more_images_than_a_class_shows(toy_backbone: nn.Module, size: int, kept: bool) -> None:
    seen = scene([0, 1, 2, 3], [0, 1])
    seen.domains["target"] = torch.cat([seen.domains["target"], around(torch.eye(NECK)[[2]], size, seed=3)])
    method = clustered(toy_backbone, seen)
    k = int(method.assignment[-1])
    assert (method.assignment == k).sum() == size
    assert (method.matched_class[k] == 2) == kept
    assert (method.matched_class[k] == UNMATCHED) == (not kept)


def test_the_search_starts_at_the_classes_first_and_lower_later(
    toy_backbone: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts, asked = [], dcc.search_number_of_clusters

    def spy(*arguments: Any, **options: Any) -> Any:
        starts.append((options["start"], options["interval"], options["maximum"], options["seed"]))
        return asked(*arguments, **options)

    monkeypatch.setattr(dcc, "search_number_of_clusters", spy)
    method = clustered(toy_backbone)
    fewer = scene([0, 1, 2, 3], [0, 1, 2, 4], each_target=10)  # as many images in another number of bunches
    method.cluster(20, fewer)
    assert not method.settled  # the search continues
    method.cluster(40, fewer)
    assert starts == [(4, 1, 12, 5), (1, 1, 12, 5), (1, 1, 12, 5)]
    assert method.settled


def test_once_the_number_stays_k_means_continues_from_the_memory(
    toy_backbone: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = clustered(toy_backbone)
    method.cluster(20, USUAL)
    assert method.settled
    monkeypatch.setattr(dcc, "search_number_of_clusters", None)  # is not called any more
    order = [4, 2, 0, 1, 3]
    method.memory[:5] = method.memory[order]
    before = method.memory[:5].argmax(dim=1)
    method.cluster(40, scene([0, 1, 2, 3], [5, 4, 2, 1, 0]))
    assert torch.equal(method.memory[:5].argmax(dim=1), before)  # prototype k stays prototype k
    assert sorted(method.found().classes) == [0, 1, 2]


def test_a_warm_up_is_on_the_source_alone_and_ends_with_a_clustering(toy_backbone: nn.Module) -> None:
    seen = scene([0, 1], [0, 1])
    method = made_up(toy_backbone, seen, warm_up=15)
    (phase,) = method.phases()
    assert phase.round is not None and phase.round.every == 20
    phase.round.work(0, seen)
    assert not method.rounds and not method.found().clusters and not method.wants(0)
    phase.round.work(20, seen)
    assert method.rounds == 1 and method.found().clusters and method.wants(20)


@pytest.mark.parametrize(
    ("steps", "warm_up", "every", "last"),
    [(300, 300, 0, 280), (300, 281, 0, 280), (300, 280, 0, None), (16, 15, 3, None), (15, 13, 3, 12), (5, 0, 10, None)],
)
def test_a_warm_up_without_a_clustering_behind_it_is_refused(
    toy_backbone: nn.Module, steps: int, warm_up: int, every: int, last: int | None
) -> None:
    options = dataclasses.replace(made_up(toy_backbone).options, warm_up=warm_up, cluster_every=every)
    method = DCC(toy_backbone, Problem(CLASSES, steps=steps), options)  # type: ignore[arg-type]
    if last is None:
        method.phases()
        return
    refused = f"--warm-up {warm_up} ends after .* at step {last} of {steps}: lower it to {last} or less"
    with pytest.raises(UserError, match=refused):
        method.phases()


# odd data


def train_on(backbone: nn.Module, seen: Seen, batches: Batches, **options: Any) -> tuple[DCC, dict[str, Tensor]]:
    """Three rounds, of which the last may continue from the memory, and a step of each; every loss is finite."""
    method = made_up(backbone, seen, **options)
    for step in (0, 20, 40):
        method.cluster(step, seen)
        method.train()
        losses = losses_of(method, with_extras(method, batches, step), step=step)
        total(losses).backward()
        assert all(loss.isfinite() for loss in losses.values())
    return method, losses


def test_without_a_matched_pair_it_trains_on_and_everything_is_unknown(
    toy_backbone: nn.Module, batches: Batches
) -> None:
    """Only clusters of a few images: none is large enough to be a class."""
    seen = scene([0, 1, 2, 3], [0, 1, 4, 5])
    seen.domains["target"] = around(torch.eye(NECK)[[0, 1, 4, 5]], 3)
    method, losses = train_on(toy_backbone, seen, batches)
    assert list(losses) == ["closed", "memory"]
    with torch.no_grad():
        assert (decided(method, method.score(torch.randn(20, NECK))) == CLASSES).all()


def test_one_matched_class_has_nothing_to_be_pushed_from(toy_backbone: nn.Module, batches: Batches) -> None:
    seen = scene([0, 1, 2, 3], [0])
    seen.domains["target"] = torch.cat([seen.domains["target"], around(torch.eye(NECK)[[4, 5]], 2)])
    method, losses = train_on(toy_backbone, seen, batches)
    assert method.found().classes == [0]
    assert losses["discrepancy"] > 0


@pytest.mark.parametrize("count", [1, 2, 3])
def test_fewer_target_images_than_clusters(toy_backbone: nn.Module, batches: Batches, count: int) -> None:
    seen = scene([0, 1, 2, 3], [0, 1, 4])
    seen.domains["target"] = seen.domains["target"][::8][:count]
    method, losses = train_on(toy_backbone, seen, batches)
    assert "memory" in losses
    assert len(method.found().clusters) <= count
    assert all(len(images) for images in method.found().clusters)


def test_target_images_that_are_all_the_same(toy_backbone: nn.Module, batches: Batches) -> None:
    seen = scene([0, 1, 2, 3], [0])
    seen.domains["target"] = seen.domains["target"][:1].repeat(9, 1)
    method, _ = train_on(toy_backbone, seen, batches)
    assert len(method.found().clusters) == 1 and method.found().classes == [0]


@pytest.mark.parametrize("target", [[4, 5], [0, 1, 2, 3]])
def test_a_target_of_unknowns_only_or_of_none(toy_backbone: nn.Module, batches: Batches, target: list[int]) -> None:
    seen = scene([0, 1, 2, 3], target)
    method, losses = train_on(toy_backbone, seen, batches)
    assert "memory" in losses
    method.cluster(60, seen)
    with torch.no_grad():
        refused = decided(method, method.score(seen.domains["target"])) == CLASSES
    assert refused.tolist() == [bool(method.matched_class[k] < 0) for k in method.assignment]
    if target == [4, 5]:  # no class is near: they fall into clusters too small to be matched
        assert refused.all()
    else:
        assert method.found().classes == [0, 1, 2, 3] and not refused.any()


def test_a_source_class_with_one_image(toy_backbone: nn.Module, batches: Batches) -> None:
    seen = scene([0, 1, 2, 3], [0, 1, 2, 4])
    keep = torch.arange(7, 32)  # one image of class 0
    seen.domains["source"], seen.source_labels = seen.domains["source"][keep], seen.source_labels[keep]
    assert (seen.source_labels == 0).sum() == 1
    method, losses = train_on(toy_backbone, seen, batches)
    assert "discrepancy" in losses
    assert 0 in method.found().classes


def test_more_clusters_at_once_than_classes_allow(toy_backbone: nn.Module, batches: Batches) -> None:
    """A wide interval, one class: the later searches start above what the first may reach."""
    source, target = batches
    two = (source._replace(labels=source.labels % 2), target)
    options = {"classes": 2, "cluster_interval": 9, "clusters_per_class": 1}
    method, _ = train_on(toy_backbone, scene([0, 1], [0, 1, 2, 3, 4, 5]), two, **options)
    assert len(method.found().clusters) == 9


def test_in_16_bits_losses_memory_and_scores_are_float32(toy_backbone: nn.Module, batches: Batches) -> None:
    method = made_up(toy_backbone)
    with torch.autocast("cpu", torch.bfloat16):
        method.cluster(0, USUAL)
        losses = losses_of(method, with_extras(method, batches, 1), step=1)
        scores = method.eval().score(torch.randn(3, NECK))
    assert set(losses) == {"closed", "discrepancy", "closed_matched", "memory"}
    assert all(loss.dtype == torch.float32 and loss.isfinite() for loss in losses.values())
    assert {tensor.dtype for tensor in (method.memory, scores.logits, scores.unknown)} == {torch.float32}
    total(losses).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in method.bottleneck.parameters())
