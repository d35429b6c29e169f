"""Whom DCC calls unknown, and that what it keeps answers as it did."""

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_dcc import CLASSES, NECK, Batches, made_up, scene, with_extras
from torch import Tensor, nn

from unida.config import config_from_options
from unida.methods.dcc import CLUSTERED, DCC, MATCHED, UNMATCHED, DCCOptions
from unida.methods.spa.method import SPA
from unida.methods.spa.options import SPAOptions, resolve
from unida.models.backbone import create_backbone
from unida.runs.folder import complete
from unida.runs.modelfile import build_method, load_model, save_model
from unida.training.checkpoint import load_checkpoint, save_checkpoint
from unida.training.optim import build_optimisers


@pytest.fixture
def method(toy_backbone: nn.Module) -> DCC:
    return made_up(toy_backbone)


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
