"""How a round of DCC clusters and matches, and what odd data make of it."""

import dataclasses
from typing import Any

import pytest
import torch
from tiny_dcc import CLASSES, NECK, Batches, Seen, around, made_up, scene, with_extras
from torch import Tensor, nn

from unida.errors import UserError
from unida.methods import dcc
from unida.methods.dcc import DCC, NO_CLUSTER, UNMATCHED


@pytest.fixture
def method(toy_backbone: nn.Module) -> DCC:
    return made_up(toy_backbone)


# a round


def test_a_round_finds_bunches_and_matches_those_that_are_classes(method: DCC) -> None:
    seen = scene([3, 1, 0, 2], [4, 1, 5, 0, 3])
    method.on_round(0, seen)
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
def test_a_matched_cluster_has_more_images_than_a_class_shows(method: DCC, size: int, kept: bool) -> None:
    seen = scene([0, 1, 2, 3], [0, 1])
    seen.domains["target"] = torch.cat([seen.domains["target"], around(torch.eye(NECK)[[2]], size, seed=3)])
    method.on_round(0, seen)
    k = int(method.assignment[-1])
    assert (method.assignment == k).sum() == size
    assert (method.matched_class[k] == 2) == kept
    assert (method.matched_class[k] == UNMATCHED) == (not kept)


def test_the_search_starts_at_the_classes_first_and_lower_later(method: DCC, monkeypatch: pytest.MonkeyPatch) -> None:
    starts, asked = [], dcc.search_number_of_clusters

    def spy(*arguments: Any, **options: Any) -> Any:
        starts.append((options["start"], options["interval"], options["maximum"], options["seed"]))
        return asked(*arguments, **options)

    monkeypatch.setattr(dcc, "search_number_of_clusters", spy)
    method.on_round(0, scene([0, 1, 2, 3], [0, 1, 2, 4, 5]))
    method.on_round(20, scene([0, 1, 2, 3], [0, 1, 2, 4]))  # another number of bunches: the search goes on
    assert not method.settled
    method.on_round(40, scene([0, 1, 2, 3], [0, 1, 2, 4]))
    assert starts == [(4, 1, 12, 5), (1, 1, 12, 5), (1, 1, 12, 5)]
    assert method.settled


def test_once_the_number_stays_k_means_goes_on_from_the_memory(method: DCC, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = scene([0, 1, 2, 3], [0, 1, 2, 4, 5])
    method.on_round(0, seen)
    method.on_round(20, seen)
    assert method.settled
    monkeypatch.setattr(dcc, "search_number_of_clusters", None)  # is not called any more
    order = [4, 2, 0, 1, 3]
    method.memory[:5] = method.memory[order]
    before = method.memory[:5].argmax(dim=1)
    method.on_round(40, scene([0, 1, 2, 3], [5, 4, 2, 1, 0]))
    assert torch.equal(method.memory[:5].argmax(dim=1), before)  # prototype k stays prototype k
    assert sorted(method.groups().classes) == [0, 1, 2]


def test_a_warm_up_is_on_the_source_alone_and_ends_with_a_clustering(toy_backbone: nn.Module) -> None:
    method = made_up(toy_backbone, warm_up=15)
    assert method.round_every == 20
    method.on_round(0, scene([0, 1], [0, 1]))
    assert not method.rounds and not method.groups().clusters
    method.on_round(20, scene([0, 1], [0, 1]))
    assert method.rounds == 1 and method.groups().clusters


@pytest.mark.parametrize(
    ("steps", "warm_up", "every", "last"),
    [(300, 300, 0, 280), (300, 281, 0, 280), (300, 280, 0, None), (16, 15, 3, None), (15, 13, 3, 12), (5, 0, 10, None)],
)
def test_a_warm_up_without_a_clustering_behind_it_is_refused(
    toy_backbone: nn.Module, steps: int, warm_up: int, every: int, last: int | None
) -> None:
    method = made_up(toy_backbone)
    method.options = dataclasses.replace(method.options, warm_up=warm_up, cluster_every=every)
    if last is None:
        method.begin(steps, seed=0)
        return
    with pytest.raises(
        UserError, match=f"--warm-up {warm_up}: .* {steps} steps .* is after {last}, .* to {last} or less"
    ):
        method.begin(steps, seed=0)


# odd data


def train_on(method: DCC, seen: Seen, batches: Batches) -> dict[str, Tensor]:
    """Three rounds, of which the last may go on from the memory, and a step of each; every loss is finite."""
    for step in (0, 20, 40):
        method.on_round(step, seen)
        method.train()
        losses = method(*with_extras(method, batches, step), step)
        torch.stack(list(losses.values())).sum().backward()
        assert all(loss.isfinite() for loss in losses.values())
    return losses


def test_without_a_matched_pair_it_trains_on_and_everything_is_unknown(method: DCC, batches: Batches) -> None:
    """Only clusters of a few images: none is large enough to be a class."""
    seen = scene([0, 1, 2, 3], [0, 1, 4, 5])
    seen.domains["target"] = around(torch.eye(NECK)[[0, 1, 4, 5]], 3)
    losses = train_on(method, seen, batches)
    assert list(losses) == ["closed", "memory"]
    with torch.no_grad():
        assert (method.decide(method.score(torch.randn(20, NECK))) == CLASSES).all()


def test_one_matched_class_has_nothing_to_be_pushed_from(method: DCC, batches: Batches) -> None:
    seen = scene([0, 1, 2, 3], [0])
    seen.domains["target"] = torch.cat([seen.domains["target"], around(torch.eye(NECK)[[4, 5]], 2)])
    losses = train_on(method, seen, batches)
    assert method.groups().classes == [0]
    assert losses["discrepancy"] > 0


@pytest.mark.parametrize("count", [1, 2, 3])
def test_fewer_target_images_than_clusters(method: DCC, batches: Batches, count: int) -> None:
    seen = scene([0, 1, 2, 3], [0, 1, 4])
    seen.domains["target"] = seen.domains["target"][::8][:count]
    assert "memory" in train_on(method, seen, batches)
    assert len(method.groups().clusters) <= count
    assert all(len(images) for images in method.groups().clusters)


def test_target_images_that_are_all_the_same(method: DCC, batches: Batches) -> None:
    seen = scene([0, 1, 2, 3], [0])
    seen.domains["target"] = seen.domains["target"][:1].repeat(9, 1)
    train_on(method, seen, batches)
    assert len(method.groups().clusters) == 1 and method.groups().classes == [0]


@pytest.mark.parametrize("target", [[4, 5], [0, 1, 2, 3]])
def test_a_target_of_unknowns_only_or_of_none(method: DCC, batches: Batches, target: list[int]) -> None:
    seen = scene([0, 1, 2, 3], target)
    assert "memory" in train_on(method, seen, batches)
    method.on_round(60, seen)
    with torch.no_grad():
        refused = method.decide(method.score(seen.domains["target"])) == CLASSES
    assert refused.tolist() == [bool(method.matched_class[k] < 0) for k in method.assignment]
    if target == [4, 5]:  # no class is near: they fall into clusters too small to be matched
        assert refused.all()
    else:
        assert method.groups().classes == [0, 1, 2, 3] and not refused.any()


def test_a_source_class_with_one_image(method: DCC, batches: Batches) -> None:
    seen = scene([0, 1, 2, 3], [0, 1, 2, 4])
    keep = torch.arange(7, 32)  # one image of class 0
    seen.domains["source"], seen.source_labels = seen.domains["source"][keep], seen.source_labels[keep]
    assert (seen.source_labels == 0).sum() == 1
    assert "discrepancy" in train_on(method, seen, batches)
    assert 0 in method.groups().classes


def test_more_clusters_at_once_than_classes_allow(toy_backbone: nn.Module, batches: Batches) -> None:
    """A wide interval, one class: the later searches start above what the first may reach."""
    method = made_up(toy_backbone, classes=2, cluster_interval=9, clusters_per_class=1)
    source, target = batches
    train_on(method, scene([0, 1], [0, 1, 2, 3, 4, 5]), (source._replace(labels=source.labels % 2), target))
    assert len(method.groups().clusters) == 9


def test_in_16_bits_losses_memory_and_scores_are_float32(method: DCC, batches: Batches) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        method.on_round(0, scene([0, 1, 2, 3], [0, 1, 2, 4, 5]))
        losses = method(*with_extras(method, batches, 1), 1)
        scores = method.eval().score(torch.randn(3, NECK))
    assert set(losses) == {"closed", "discrepancy", "closed_matched", "memory"}
    assert all(loss.dtype == torch.float32 and loss.isfinite() for loss in losses.values())
    assert {tensor.dtype for tensor in (method.memory, scores.logits, scores.unknown)} == {torch.float32}
    torch.stack(list(losses.values())).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in method.bottleneck.parameters())
