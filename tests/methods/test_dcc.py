"""DCC's network, what a step sums up, and which images it asks for."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from few_steps import Batches, losses_of, total
from tiny_dcc import USUAL, clustered, made_up, scene, wanted, with_extras
from torch import Tensor, nn

from unida.clustering.consensus import search_number_of_clusters
from unida.config import complete, config_from_options
from unida.errors import UserError
from unida.losses.cdd import contrastive_domain_discrepancy
from unida.losses.prototype_memory import memory_loss, update_memory
from unida.methods import METHODS, dcc
from unida.methods.base import Problem
from unida.methods.dcc import CLUSTERED, DCC, MATCHED
from unida.methods.dcc_options import DCCOptions
from unida.training.optim import inverse_decay

OF_SOURCE, OF_TARGET, OF_CLUSTERS = ("source", MATCHED), ("target", MATCHED), ("target", CLUSTERED)


@pytest.fixture
def method(toy_backbone: nn.Module) -> DCC:
    return made_up(toy_backbone)


# the network


def test_a_linear_bottleneck_with_batchnorm_and_a_classifier_with_bias(toy_backbone: nn.Module) -> None:
    method = DCC(toy_backbone, Problem(4), DCCOptions())  # type: ignore[arg-type]
    heads = {name: tuple(p.shape) for name, p in method.named_parameters() if not name.startswith("backbone.")}
    assert heads == {
        "bottleneck.0.weight": (256, 8),
        "bottleneck.0.bias": (256,),
        "bottleneck.1.weight": (256,),
        "bottleneck.1.bias": (256,),
        "classifier.weight": (4, 256),
        "classifier.bias": (4,),
    }


def test_features_are_the_neck_and_nothing_comes_between_it_and_the_classifier(method: DCC, batches: Batches) -> None:
    method.eval()
    images = batches[0].images
    with torch.no_grad():
        linear, norm = method.bottleneck[0], method.bottleneck[1]
        neck = F.linear(method.backbone(images), linear.weight, linear.bias)
        neck = (neck - norm.running_mean) / (norm.running_var + norm.eps).sqrt() * norm.weight + norm.bias
        torch.testing.assert_close(method.features(images), neck)
        assert (neck < 0).any()
        logits = neck @ method.classifier.weight.T + method.classifier.bias
        torch.testing.assert_close(method.score(neck).logits, logits)


def test_affine_parameters_of_batchnorm2d_are_fixed_but_its_statistics_move(method: DCC, batches: Batches) -> None:
    norm: Any = method.backbone.norm
    assert not norm.weight.requires_grad and not norm.bias.requires_grad
    assert method.bottleneck[1].weight.requires_grad and method.bottleneck[1].bias.requires_grad
    names = {id(p): name for name, p in method.named_parameters()}
    pretrained, _ = method.groups()
    assert pretrained.pretrained and [names[id(p)] for p in pretrained.parameters] == ["backbone.conv.weight"]
    before = norm.running_mean.clone()
    method.train()
    method.training_step(*batches, step=0)
    assert norm.training and not torch.equal(norm.running_mean, before)


def test_defaults_are_the_released_codes_for_office31(method: DCC) -> None:
    assert dataclasses.asdict(DCCOptions()) == {
        "clustering": "steady",  # not theirs
        "bottleneck": 256,
        "discrepancy_weight": 0.1,
        "temperature": 0.1,
        "classes_per_batch": 10,
        "images_per_class": 3,
        "cluster_interval": 2,
        "clusters_per_class": 3,
        "cluster_every": 0,
        "repeat_classes": False,
        "unused_logits": 0,
        "warm_up": 0,
    }
    config = complete(config_from_options({"method": "dcc", "regime": "published"}), has_gpu=False)
    assert (config.training.lr, config.training.backbone_lr) == pytest.approx((1e-3, 1e-4))
    assert complete(config_from_options({"method": "dcc", "lr": 0.5}), has_gpu=False).training.lr == 0.5
    on_gpu = {name: complete(config_from_options({"method": name}), has_gpu=True) for name in ("dcc", "ovanet")}
    assert {name: config.training.steps for name, config in on_gpu.items()} == {"dcc": 3000, "ovanet": 10_000}
    assert METHODS["dcc"].lr == 1e-3
    (phase,) = method.phases()
    assert phase.source == "shuffled" and not phase.target
    (turn,) = phase.turns
    # 3,000 steps on a way of 10,000
    for step in (0, 700, 3000):
        assert inverse_decay(step, 3000, turn.decay) == pytest.approx((1 + 10 * step / 10_000) ** -0.75)


def round_every(backbone: nn.Module, steps: int, **options: int) -> int:
    """Steps between two clusterings of a run; there is one more after the last step."""
    (phase,) = DCC(backbone, Problem(4, steps=steps), DCCOptions(**options)).phases()  # type: ignore[arg-type]
    assert phase.round is not None and phase.round.at_end
    assert set(phase.sweeps) == {"source", "target"}
    return phase.round.every


@pytest.mark.parametrize(("steps", "every"), [(3000, 200), (300, 20), (10_000, 667), (100, 10), (3, 10)])
def test_fifteen_clusterings_a_run_but_not_at_every_step(toy_backbone: nn.Module, steps: int, every: int) -> None:
    assert round_every(toy_backbone, steps) == every


def test_clusterings_as_often_as_asked_for(toy_backbone: nn.Module) -> None:
    assert round_every(toy_backbone, steps=300, cluster_every=7) == 7


@pytest.mark.parametrize(
    ("option", "value"),
    [("images_per_class", 1), ("classes_per_batch", 0), ("cluster_interval", 0), ("temperature", 0.0), ("warm_up", -1)],
)
def test_numbers_that_cannot_work_are_refused_by_name(option: str, value: float) -> None:
    with pytest.raises(UserError, match=f"--{option.replace('_', '-')} is {value}"):
        config_from_options({"method": "dcc", option: value})


# a step


def test_the_losses_of_a_step_are_their_pieces(toy_backbone: nn.Module, batches: Batches) -> None:
    """Again from the pieces, each with a plain loop over the images that were wanted."""
    method = clustered(toy_backbone)
    method.eval()  # statistics that do not depend on how often a pass is made
    step = 150
    source, target = with_extras(method, batches, step)
    memory, images = method.memory.clone(), wanted(method, step)
    losses = method.training_step(source, target, step)

    def cross_entropy(features: Tensor, labels: Tensor) -> Tensor:
        logits = features @ method.classifier.weight.T + method.classifier.bias
        return torch.stack([row.logsumexp(0) - row[label] for row, label in zip(logits, labels, strict=True)]).mean()

    with torch.no_grad():
        neck_s = method.features(source.extra[MATCHED].images)
        neck_t = method.features(target.extra[MATCHED].images)
        labels = method.source_labels[images[OF_SOURCE]]
        clusters = method.assignment[images[OF_CLUSTERS]]
        neck_c = method.features(target.extra[CLUSTERED].images)
        moved = update_memory(memory[:5], neck_c, clusters)
        expected = {
            "closed": cross_entropy(method.features(source.images), source.labels),
            "discrepancy": 0.1 * contrastive_domain_discrepancy(neck_s.view(2, 3, -1), neck_t.view(2, 3, -1), 3),
            "closed_matched": cross_entropy(neck_s, labels),
            "memory": math.exp(-3 * (5000 - 1500) / 5000) * memory_loss(moved, neck_c, clusters),
        }
    assert list(losses) == list(expected)
    for name, loss in losses.items():
        torch.testing.assert_close(loss.detach(), expected[name], msg=name)
        assert loss.abs() > 1e-4  # none of them is idle
    assert torch.equal(method.memory[:5], moved) and not torch.equal(moved, memory[:5])
    assert not method.memory[5:].any()


def test_one_backward_pass_reaches_every_trained_parameter(toy_backbone: nn.Module, batches: Batches) -> None:
    method = clustered(toy_backbone, scene([0, 1, 2, 3], [0, 1, 4])).train()
    total(losses_of(method, with_extras(method, batches, 0))).backward()
    for name, parameter in method.named_parameters():
        assert (parameter.grad is not None and bool(parameter.grad.any())) == parameter.requires_grad, name


def test_each_domain_and_purpose_is_a_pass_of_its_own(toy_backbone: Any, batches: Batches) -> None:
    method = clustered(toy_backbone, scene([0, 1, 2, 3], [0, 1, 4]))
    source, target = with_extras(method, batches, 0)
    toy_backbone.seen.clear()
    method.training_step(source, target, step=0)
    extras = (source.extra[MATCHED], target.extra[MATCHED], target.extra[CLUSTERED])
    passes = [source.images, *(made.images for made in extras)]
    assert len(toy_backbone.seen) == 4
    assert all(torch.equal(a, b) for a, b in zip(toy_backbone.seen, passes, strict=True))


def test_before_the_first_clustering_there_is_the_source_alone(method: DCC, batches: Batches) -> None:
    assert not wanted(method, 0)
    assert list(method.training_step(*batches, step=0)) == ["closed"]


# the images that it wants


def test_a_step_wants_different_matched_classes_and_the_clusters_they_are_matched_to(toy_backbone: nn.Module) -> None:
    method = clustered(toy_backbone)
    axis = torch.tensor([0, 1, 2, 4, 5]).repeat_interleave(8)  # what a target image shows
    classes_seen, clusters_seen = set(), set()
    for step in range(40):
        images = wanted(method, step)
        labels = USUAL.source_labels[images[OF_SOURCE]].view(2, 3)
        shown = axis[images[OF_TARGET]].view(2, 3)
        assert torch.equal(labels, labels[:, :1].expand(2, 3))  # n images of one class, then n of the next
        assert torch.equal(shown, labels)  # class i lies along axis i, and so does its cluster
        assert len(set(labels[:, 0].tolist())) == 2
        bunches = axis[images[OF_CLUSTERS]].view(2, 3)
        assert torch.equal(bunches, bunches[:, :1].expand(2, 3))
        assert len(set(bunches[:, 0].tolist())) == 2
        classes_seen.update(labels[:, 0].tolist())
        clusters_seen.update(bunches[:, 0].tolist())
    assert classes_seen == {0, 1, 2}  # class 3 has no cluster
    assert clusters_seen == {0, 1, 2, 4, 5}


def test_fewer_classes_are_shown_if_fewer_are_matched(toy_backbone: nn.Module) -> None:
    method = clustered(toy_backbone, classes_per_batch=10)
    images = wanted(method, 3)
    assert len(images[OF_SOURCE]) == len(images[OF_TARGET]) == 3 * 3
    assert len(images[OF_CLUSTERS]) == 5 * 3
    assert sorted(method.drawn(3).classes.tolist()) == [0, 1, 2]


def test_repeated_classes_fill_the_batch(toy_backbone: nn.Module, batches: Batches) -> None:
    """Ten draws from three classes and from five clusters, each as likely as the others."""
    method = made_up(toy_backbone, classes_per_batch=10, repeat_classes=True)
    assert not wanted(method, 0)  # nothing to draw from yet
    method.cluster(0, USUAL)
    classes, clusters = [], []
    for step in range(200):
        drawn, images = method.drawn(step), wanted(method, step)
        assert len(images[OF_SOURCE]) == len(images[OF_TARGET]) == len(images[OF_CLUSTERS]) == 30
        labels = USUAL.source_labels[images[OF_SOURCE]].view(10, 3)
        assert torch.equal(labels, torch.from_numpy(drawn.classes)[:, None].expand(10, 3))
        classes += drawn.classes.tolist()
        clusters += drawn.clusters.tolist()
    for drawn_all, groups in ((classes, 3), (clusters, 5)):
        counts = np.bincount(drawn_all)
        assert len(counts) == groups and (abs(counts - 2000 / groups) < 150).all()
    losses = method.training_step(*with_extras(method, batches, step=3), step=3)
    assert all(loss.isfinite() for loss in losses.values())


def test_unused_logits_are_learnt_from_and_counted_by_the_search_but_are_no_answer(
    toy_backbone: nn.Module, batches: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[tuple[int, int, int]] = []

    def noted(*arguments: Any, start: int, maximum: int, **options: Any) -> Any:
        searched.append((start, maximum, len(arguments[2])))  # source features, labels, centres
        return search_number_of_clusters(*arguments, start=start, maximum=maximum, **options)

    monkeypatch.setattr(dcc, "search_number_of_clusters", noted)
    method = clustered(toy_backbone, unused_logits=3)
    assert searched == [(7, 21, 7)] and len(method.memory) == 21
    assert set(method.found().classes) == {0, 1, 2}
    source, target = batches
    loss = method.training_step(*with_extras(method, batches, step=0), step=0)["closed"]
    logits = method.classifier(method.features(source.images))
    assert logits.shape[1] == 7
    torch.testing.assert_close(loss, F.cross_entropy(logits, source.labels))
    method.eval()
    assert method.score(method.features(target.images)).logits.shape == (len(target.images), 4)


def test_what_a_step_wants_is_a_function_of_seed_and_step(toy_backbone: nn.Module) -> None:
    def images(seed: int, steps: list[int]) -> dict[int, list[list[int]]]:
        method = made_up(toy_backbone, seed=seed)
        method.cluster(0, USUAL)
        return {step: [index.tolist() for index in wanted(method, step).values()] for step in steps}

    forward, backward = images(5, [0, 1, 2, 9]), images(5, [9, 2, 1, 0])
    assert forward == backward
    assert forward[0] != forward[1] != forward[2]
    assert images(6, [0])[0] != forward[0]
