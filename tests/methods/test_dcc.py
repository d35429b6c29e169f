"""DCC, rule by rule: what a step sums up, which images it asks for, how a round clusters, and who is unknown."""

import copy
import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unida.config import config_from_options
from unida.errors import UserError
from unida.losses.cdd import contrastive_domain_discrepancy
from unida.losses.prototype_memory import memory_loss, update_memory
from unida.methods.base import SourceBatch, TargetBatch
from unida.methods.dcc import CLUSTERED, DCC, MATCHED, NO_CLUSTER, UNMATCHED, DCCOptions
from unida.methods.spa import SPA
from unida.methods.spa_options import SPAOptions, resolve
from unida.modelfile import build_method, load_model, save_model
from unida.models.backbone import create_backbone
from unida.runfolder import complete
from unida.training.checkpoint import load_checkpoint, save_checkpoint
from unida.training.optim import build_optimisers, inverse_decay

CLASSES = 4
NECK = 6


def made_up(backbone: nn.Module, classes: int = CLASSES, **options: Any) -> DCC:
    torch.manual_seed(2)
    small = {"bottleneck": NECK, "classes_per_batch": 2, "images_per_class": 3, "cluster_interval": 1, **options}
    method = DCC(backbone, classes, DCCOptions(**small))  # type: ignore[arg-type]
    method.begin(steps=300, seed=5)
    return method


@pytest.fixture
def method(toy_backbone: nn.Module) -> DCC:
    return made_up(toy_backbone)


class Seen:
    """A sweep over features that are given: each domain's rows, and the source's labels."""

    def __init__(self, source: Tensor, labels: Tensor, target: Tensor) -> None:
        self.domains, self.source_labels = {"source": source, "target": target}, labels

    def __call__(self, domain: str, compute: Any = None, limit: int | None = None) -> Tensor:
        return self.domains[domain]

    def pretext(self, domain: str, batches: int) -> Any:
        raise AssertionError("DCC has no pretext task")


def around(directions: Tensor, each: int, seed: int = 0) -> Tensor:
    """(D · each, d): features of any length close to each direction, one direction after the other."""
    draw = torch.Generator().manual_seed(seed)
    rows = directions.repeat_interleave(each, dim=0)
    noisy = rows + 0.05 * torch.randn(rows.shape, generator=draw)
    return noisy * (0.5 + torch.rand(len(rows), 1, generator=draw))


def scene(source: list[int], target: list[int], each: int = 8) -> Seen:
    """Source class i lies along axis source[i], the target has a bunch of images along each of its axes."""
    axes = torch.eye(NECK)
    labels = torch.arange(len(source)).repeat_interleave(each)
    return Seen(around(axes[source], each), labels, around(axes[target], each, seed=1))


def extras(method: DCC, step: int, size: int = 8) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Noise for the images that a step asks for."""
    draw = torch.Generator().manual_seed(step)
    asked = method.requests(step)
    source, target = (
        {name: torch.randn(len(index), 3, size, size, generator=draw) for name, index in asked[domain].items()}
        for domain in ("source", "target")  # type: ignore[union-attr]
    )
    return source, target


Batches = tuple[SourceBatch, TargetBatch]


def with_extras(method: DCC, batches: Batches, step: int) -> Batches:
    source, target = extras(method, step)
    return batches[0]._replace(extra=source), batches[1]._replace(extra=target)


# the network


def test_a_linear_bottleneck_with_batchnorm_and_a_classifier_with_bias(toy_backbone: nn.Module) -> None:
    method = DCC(toy_backbone, 4, DCCOptions())  # type: ignore[arg-type]
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
    groups = method.parameter_groups()
    assert [names[id(p)] for p in groups.backbone] == ["backbone.conv.weight"]
    before = norm.running_mean.clone()
    method.train()
    method.training_step(*batches, step=0)
    assert norm.training and not torch.equal(norm.running_mean, before)


def test_defaults_are_the_released_codes_for_office31() -> None:
    assert dataclasses.asdict(DCCOptions()) == {
        "bottleneck": 256,
        "discrepancy_weight": 0.1,
        "temperature": 0.1,
        "classes_per_batch": 10,
        "images_per_class": 3,
        "cluster_interval": 2,
        "clusters_per_class": 3,
        "cluster_every": 0,
        "warm_up": 0,
    }
    config = complete(config_from_options({"method": "dcc"}), has_gpu=False)
    assert (config.training.lr, config.training.backbone_lr) == pytest.approx((1e-3, 1e-4))
    assert complete(config_from_options({"method": "dcc", "lr": 0.5}), has_gpu=False).training.lr == 0.5
    assert not DCC.balanced_source
    # 3,000 steps on a way of 10,000
    for step in (0, 700, 3000):
        assert inverse_decay(step, 3000, DCC.lr_decay) == pytest.approx((1 + 10 * step / 10_000) ** -0.75)


@pytest.mark.parametrize(("steps", "every"), [(3000, 200), (300, 20), (10_000, 667), (100, 10), (3, 10)])
def test_fifteen_clusterings_a_run_but_not_at_every_step(method: DCC, steps: int, every: int) -> None:
    method.begin(steps, seed=0)
    assert method.round_every == every


def test_clusterings_as_often_as_told(toy_backbone: nn.Module) -> None:
    assert made_up(toy_backbone, cluster_every=7).round_every == 7


# a step


def test_the_losses_of_a_step_are_their_pieces(method: DCC, batches: Batches) -> None:
    """Again from the pieces, each with a plain loop over what was asked for."""
    method.eval()  # statistics that do not depend on how often a pass is made
    method.on_round(0, scene([0, 1, 2, 3], [0, 1, 2, 4, 5]))
    step = 150
    source, target = with_extras(method, batches, step)
    memory, asked = method.memory.clone(), method.requests(step)
    losses = method.training_step(source, target, step)

    def cross_entropy(features: Tensor, labels: Tensor) -> Tensor:
        logits = features @ method.classifier.weight.T + method.classifier.bias
        return torch.stack([row.logsumexp(0) - row[label] for row, label in zip(logits, labels, strict=True)]).mean()

    with torch.no_grad():
        neck_s = method.features(source.extra[MATCHED])
        neck_t = method.features(target.extra[MATCHED])
        labels = method.source_labels[asked["source"][MATCHED]]
        clusters = method.assignment[asked["target"][CLUSTERED]]
        neck_c = method.features(target.extra[CLUSTERED])
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


def test_one_backward_pass_reaches_every_trained_parameter(method: DCC, batches: Batches) -> None:
    method.on_round(0, scene([0, 1, 2, 3], [0, 1, 4]))
    method.train()
    losses = method(*with_extras(method, batches, 0), 0)
    torch.stack(list(losses.values())).sum().backward()
    for name, parameter in method.named_parameters():
        assert (parameter.grad is not None and bool(parameter.grad.any())) == parameter.requires_grad, name


def test_each_domain_and_purpose_is_a_pass_of_its_own(method: DCC, batches: Batches) -> None:
    method.on_round(0, scene([0, 1, 2, 3], [0, 1, 4]))
    source, target = with_extras(method, batches, 0)
    method.backbone.seen.clear()  # type: ignore[operator, union-attr]
    method.training_step(source, target, step=0)
    passes = [source.images, source.extra[MATCHED], target.extra[MATCHED], target.extra[CLUSTERED]]
    assert len(method.backbone.seen) == 4  # type: ignore[arg-type]
    assert all(torch.equal(a, b) for a, b in zip(method.backbone.seen, passes, strict=True))  # type: ignore[arg-type]


def test_before_the_first_clustering_there_is_the_source_alone(method: DCC, batches: Batches) -> None:
    assert method.requests(0) == {"source": {}, "target": {}}
    assert list(method.training_step(*batches, step=0)) == ["closed"]


def test_a_batch_of_one_image_is_refused_in_one_line(method: DCC, batches: Batches) -> None:
    source, target = batches
    one = source._replace(images=source.images[:1], labels=source.labels[:1])
    with pytest.raises(UserError, match="--batch-size"):
        method.training_step(one, target, step=0)


# the images that it asks for


def test_requests_show_different_matched_classes_and_the_clusters_they_are_matched_to(method: DCC) -> None:
    seen = scene([0, 1, 2, 3], [0, 1, 2, 4, 5])
    method.on_round(0, seen)
    axis = torch.tensor([0, 1, 2, 4, 5]).repeat_interleave(8)  # what a target image shows
    classes_seen, clusters_seen = set(), set()
    for step in range(40):
        asked = method.requests(step)
        labels = seen.source_labels[asked["source"][MATCHED]].view(2, 3)
        shown = axis[asked["target"][MATCHED]].view(2, 3)
        assert torch.equal(labels, labels[:, :1].expand(2, 3))  # n images of one class, then n of the next
        assert torch.equal(shown, labels)  # class i lies along axis i, and so does its cluster
        assert len(set(labels[:, 0].tolist())) == 2
        bunches = axis[asked["target"][CLUSTERED]].view(2, 3)
        assert torch.equal(bunches, bunches[:, :1].expand(2, 3))
        assert len(set(bunches[:, 0].tolist())) == 2
        classes_seen.update(labels[:, 0].tolist())
        clusters_seen.update(bunches[:, 0].tolist())
    assert classes_seen == {0, 1, 2}  # class 3 has no cluster
    assert clusters_seen == {0, 1, 2, 4, 5}


def test_fewer_classes_are_shown_if_fewer_are_matched(toy_backbone: nn.Module) -> None:
    method = made_up(toy_backbone, classes_per_batch=10)
    method.on_round(0, scene([0, 1, 2, 3], [0, 1, 2, 4, 5]))
    asked = method.requests(3)
    assert len(asked["source"][MATCHED]) == len(asked["target"][MATCHED]) == 3 * 3
    assert len(asked["target"][CLUSTERED]) == 5 * 3
    assert sorted(method.drawn(3).classes.tolist()) == [0, 1, 2]


def test_requests_are_a_function_of_seed_and_step(toy_backbone: nn.Module) -> None:
    def asked(seed: int, steps: list[int]) -> dict[int, list[list[int]]]:
        method = made_up(toy_backbone)
        method.on_round(0, scene([0, 1, 2, 3], [0, 1, 2, 4, 5]))
        method.seed = seed
        return {
            step: [index.tolist() for domain in method.requests(step).values() for index in domain.values()]
            for step in steps
        }

    forward, backward = asked(5, [0, 1, 2, 9]), asked(5, [9, 2, 1, 0])
    assert forward == backward
    assert forward[0] != forward[1] != forward[2]
    assert asked(6, [0])[0] != forward[0]


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
    from unida.methods import dcc

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
    from unida.methods import dcc

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


# who is unknown


def by_the_rule(method: DCC, features: Tensor) -> list[int]:
    """The nearest prototype's cluster is matched: the best class, whichever it is; or unknown."""
    answers = []
    for feature in features.double():
        cosines = [float(feature @ row.double()) for row in method.memory[: len(method.groups().clusters)]]
        nearest = int(np.argmax(cosines))
        logits = method.classifier.weight.double() @ feature + method.classifier.bias.double()
        answers.append(int(logits.argmax()) if method.matched_class[nearest] >= 0 else method.num_classes)
    return answers


@pytest.mark.parametrize(
    ("target", "matched"),
    [([0, 1, 2, 4, 5], "some"), ([0, 1, 2, 3], "all"), ([0, 1, 4, 5], "none")],
)
def test_decisions_are_the_papers_rule(method: DCC, target: list[int], matched: str) -> None:
    method.on_round(0, scene([0, 1, 2, 3], target))
    if matched == "none":
        method.matched_class[:4] = UNMATCHED
    features = torch.randn(300, NECK, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        scores = method.score(features)
        answers = method.decide(scores)
        assert answers.tolist() == by_the_rule(method, features)
    unknown = (answers == CLASSES).float().mean()
    assert {"some": 0.1 < unknown < 0.9, "all": unknown == 0, "none": unknown == 1}[matched]
    assert {"some": True, "all": scores.unknown.max() == 0, "none": scores.unknown.min() == 1}[matched]


def test_the_class_need_not_be_the_clusters(method: DCC) -> None:
    method.on_round(0, scene([0, 1, 2, 3], [0, 1, 4, 5]))
    with torch.no_grad():
        method.classifier.weight.zero_()
        method.classifier.bias.copy_(torch.tensor([0.0, 0, 0, 1]))  # says 3 to everything, which no cluster is
        answers = method.decide(method.score(torch.eye(NECK)))
    assert answers[[0, 1, 4, 5]].tolist() == [3, 3, 4, 4]


def test_the_unknown_score_is_a_softmax_of_the_two_nearest(method: DCC) -> None:
    method.memory[:4] = torch.eye(4, NECK)
    method.matched_class[:4] = torch.tensor([2, UNMATCHED, 0, UNMATCHED])
    feature = torch.tensor([[0.5, 0.4, 0.3, 0.1, 0, 0]])
    with torch.no_grad():
        score = method.score(7 * feature).unknown.item()
    length = feature.norm().item()
    matched, unmatched = math.exp(0.5 / length / 0.1), math.exp(0.4 / length / 0.1)
    assert score == pytest.approx(unmatched / (matched + unmatched), rel=1e-5)


def test_the_smallest_difference_decides(method: DCC) -> None:
    """Cosines that differ in the last bit give a sigmoid that rounds to ½."""
    cosines = torch.tensor([0.01, torch.nextafter(torch.tensor(0.01), torch.tensor(1.0))])
    rest = (1 - cosines**2).sqrt()
    for nearer, label in ((1, CLASSES), (0, 0)):
        method.memory.zero_()
        method.memory[0, 0], method.memory[1, 0] = cosines[1 - nearer], cosines[nearer]
        method.memory[0, 1], method.memory[1, 2] = rest[1 - nearer], rest[nearer]
        method.matched_class[:2] = torch.tensor([0, UNMATCHED])
        with torch.no_grad():
            method.classifier.bias.copy_(torch.tensor([9.0, 0, 0, 0]))
            assert method.decide(method.score(torch.eye(NECK)[:1])).tolist() == [label]


def test_before_any_clustering_nothing_is_unknown(method: DCC) -> None:
    with torch.no_grad():
        scores = method.score(torch.randn(20, NECK))
    assert scores.unknown.tolist() == [0] * 20


# what it keeps


def moved_on(method: DCC, batches: Batches) -> DCC:
    """After two rounds and a few steps with all losses."""
    optimiser = torch.optim.SGD([p for p in method.parameters() if p.requires_grad], lr=0.05)
    for step in range(2):
        method.on_round(step, scene([0, 1, 2, 3], [0, 1, 4]))
        method.train()
        torch.stack(list(method(*with_extras(method, batches, step), step).values())).sum().backward()
        optimiser.step()
        optimiser.zero_grad()
    return method


def test_a_checkpoint_restores_a_fresh_method_that_knows_no_sizes(
    tmp_path: Path, toy_backbone: nn.Module, batches: Batches
) -> None:
    trained, fresh = moved_on(made_up(toy_backbone), batches), made_up(copy.deepcopy(toy_backbone))
    trained.on_round(20, scene([0, 1, 2, 3], [0, 1, 4]))
    training = config_from_options({"method": "dcc"}).training
    save_checkpoint(tmp_path / "c.safetensors", trained, build_optimisers(trained, training), 2)
    assert fresh.requests(7) == {"source": {}, "target": {}}
    load_checkpoint(tmp_path / "c.safetensors", fresh, build_optimisers(fresh, training))
    for (name, ours), (other, theirs) in zip(fresh.state_dict().items(), trained.state_dict().items(), strict=True):
        assert name == other and torch.equal(ours, theirs), name
    assert fresh.settled and fresh.rounds == 3
    for domain, asked in trained.requests(7).items():
        assert asked
        for name, index in asked.items():
            assert np.array_equal(fresh.requests(7)[domain][name], index)
    trained.eval(), fresh.eval()
    found, expected = (m.training_step(*with_extras(m, batches, 7), 7) for m in (fresh, trained))
    assert {name: loss.item() for name, loss in found.items()} == {n: loss.item() for n, loss in expected.items()}


@pytest.mark.parametrize("spa", [None, "best", "paper"])
def test_a_model_file_answers_as_the_method_did(tmp_path: Path, spa: str | None) -> None:
    options: dict[str, Any] = {
        "backbone": "test_resnet",
        "weights": "none",
        "method": "dcc",
        "train": "all",
        "crop": 32,
    }
    options |= {"bottleneck": NECK} if spa is None else {"bottleneck": NECK, "spa": True, "spa_preset": spa}
    config = complete(config_from_options(options), has_gpu=False)
    method = build_method(config, CLASSES)
    dcc = method.base if isinstance(method, SPA) else method
    assert isinstance(dcc, DCC)
    dcc.on_round(0, scene([0, 1, 2, 3], [0, 1, 2, 4, 5]))
    images = torch.randn(16, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        method.train().features(images)  # statistics that are not those of a fresh one
        expected = method.eval().score(method.features(images))
        save_model(tmp_path / "m.safetensors", method, config, ("a", "b", "c", "d"))
        loaded, _ = load_model(tmp_path / "m.safetensors")
        found = loaded.score(loaded.features(images))
    assert torch.equal(found.logits, expected.logits) and torch.equal(found.unknown, expected.unknown)
    assert expected.unknown.unique().numel() == 16  # it would be 0 without the memory


def test_spa_passes_on_what_the_loop_asks() -> None:
    options = resolve(SPAOptions(spa=True))
    backbone = create_backbone("test_resnet.r160_in1k", "none")
    method = SPA(DCC, backbone, CLASSES, DCCOptions(bottleneck=NECK, cluster_interval=1), options)
    method.begin(steps=600, seed=3)
    assert isinstance(method.base, DCC)
    assert (method.round_every, method.base.steps, method.base.seed) == (40, 600, 3)
    assert (method.balanced_source, method.default_lr, method.lr_decay) == (False, 1e-3, 3.0)
    method.base.on_round(0, scene([0, 1, 2, 3], [0, 1, 2, 4, 5]))
    asked, expected = method.requests(1), method.base.requests(1)
    assert asked["source"].keys() == {MATCHED} and asked["target"].keys() == {MATCHED, CLUSTERED}
    for domain in ("source", "target"):
        for name in asked[domain]:  # type: ignore[index]
            assert np.array_equal(asked[domain][name], expected[domain][name])  # type: ignore[index]


# odd data


def train_on(method: DCC, seen: Seen, batches: Batches) -> dict[str, Tensor]:
    """Two rounds and a step of each; every loss is finite."""
    for step in (0, 20):
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
    assert "memory" in train_on(method, scene([0, 1, 2, 3], target), batches)


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


@pytest.mark.parametrize(
    ("option", "value"),
    [("images_per_class", 1), ("classes_per_batch", 0), ("cluster_interval", 0), ("temperature", 0.0), ("warm_up", -1)],
)
def test_numbers_that_cannot_work_are_refused_by_name(toy_backbone: nn.Module, option: str, value: float) -> None:
    with pytest.raises(UserError, match=f"--{option.replace('_', '-')} is {value}"):
        made_up(toy_backbone, **{option: value})
