"""Whom DCC calls unknown, and that what it keeps answers as it did."""

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from few_steps import COMPLETE, Batches, decided, losses_of, phases_of, take_steps, turn_of
from tiny_dcc import CLASSES, NECK, USUAL, clustered, made_up, scene, wanted, with_extras
from torch import Tensor, nn

from unida.answering.target import Rule
from unida.config import complete, config_from_options
from unida.methods.base import Problem
from unida.methods.build import build_method
from unida.methods.dcc import CLUSTERED, DCC, MATCHED, UNMATCHED
from unida.methods.dcc_options import DCCOptions
from unida.methods.spa.method import PRETEXT, SPA
from unida.methods.spa.options import SPAOptions, resolve
from unida.models.backbone import create_backbone
from unida.runs.modelfile import load_model, save_model
from unida.training.checkpoint import Checkpoint, Progress, save_checkpoint
from unida.training.optim import build_optimiser

FOR_USUAL = Problem(CLASSES, len(USUAL.source_labels), len(USUAL.domains["target"]), steps=600, seed=3)


@pytest.fixture
def method(toy_backbone: nn.Module) -> DCC:
    return made_up(toy_backbone)


# who is unknown


def by_the_rule(method: DCC, features: Tensor) -> list[int]:
    """The nearest prototype's cluster is matched: the best class, whichever it is; or unknown."""
    answers = []
    for feature in features.double():
        cosines = [float(feature @ row.double()) for row in method.memory[: len(method.found().clusters)]]
        nearest = int(np.argmax(cosines))
        logits = method.classifier.weight.double() @ feature + method.classifier.bias.double()
        answers.append(int(logits.argmax()) if method.matched_class[nearest] >= 0 else method.num_classes)
    return answers


@pytest.mark.parametrize(
    ("target", "matched"),
    [([0, 1, 2, 4, 5], "some"), ([0, 1, 2, 3], "all"), ([0, 1, 4, 5], "none")],
)
def test_decisions_are_the_papers_rule(toy_backbone: nn.Module, target: list[int], matched: str) -> None:
    method = clustered(toy_backbone, scene([0, 1, 2, 3], target))
    if matched == "none":
        method.matched_class[:4] = UNMATCHED
    features = torch.randn(300, NECK, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        scores = method.score(features)
        answers = decided(method, scores)
        assert answers.tolist() == by_the_rule(method, features)
    unknown = (answers == CLASSES).float().mean()
    assert {"some": 0.1 < unknown < 0.9, "all": unknown == 0, "none": unknown == 1}[matched]
    assert {"some": True, "all": scores.unknown.max() == 0, "none": scores.unknown.min() == 1}[matched]


def test_the_class_need_not_be_the_clusters(toy_backbone: nn.Module) -> None:
    method = clustered(toy_backbone, scene([0, 1, 2, 3], [0, 1, 4, 5]))
    with torch.no_grad():
        method.classifier.weight.zero_()
        method.classifier.bias.copy_(torch.tensor([0.0, 0, 0, 1]))  # says 3 to everything, which no cluster is
        answers = decided(method, method.score(torch.eye(NECK)))
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
            assert decided(method, method.score(torch.eye(NECK)[:1])).tolist() == [label]


def test_before_any_clustering_nothing_is_unknown(method: DCC) -> None:
    with torch.no_grad():
        scores = method.score(torch.randn(20, NECK))
    assert scores.unknown.tolist() == [0] * 20


# what it keeps


def test_a_checkpoint_restores_a_fresh_method(tmp_path: Path, toy_backbone: nn.Module, batches: Batches) -> None:
    seen = scene([0, 1, 2, 3], [0, 1, 4])
    trained, fresh = made_up(toy_backbone, seen), made_up(copy.deepcopy(toy_backbone), seen)
    for step in (0, 1, 20):  # after three rounds, and steps with all losses in between
        trained.cluster(step, seen)
        take_steps(trained.train(), with_extras(trained, batches, 0))
    path = tmp_path / "c.safetensors"
    save_checkpoint(path, trained, {"goal": build_optimiser(turn_of(trained), COMPLETE)}, Progress(step=20))
    assert not wanted(fresh, 7)
    Checkpoint(path).restore_method(fresh)
    for (name, ours), (other, theirs) in zip(fresh.state_dict().items(), trained.state_dict().items(), strict=True):
        assert name == other and torch.equal(ours, theirs), name
    assert fresh.settled and fresh.rounds == 3
    asked, expected = wanted(fresh, 7), wanted(trained, 7)
    assert len(asked) == 3 and asked.keys() == expected.keys()
    assert all(np.array_equal(asked[key], expected[key]) for key in asked)
    losses = [losses_of(m.eval(), with_extras(m, batches, 7), step=7) for m in (fresh, trained)]
    found, right = ({name: loss.item() for name, loss in of.items()} for of in losses)
    assert len(found) == 4 and found == right


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
    of_words = config.spa if config.spa.spa else None
    method = build_method("dcc", create_backbone("test_resnet", "none"), FOR_USUAL, config.method, of_words)
    dcc = method.method if isinstance(method, SPA) else method
    assert isinstance(dcc, DCC)
    dcc.cluster(0, USUAL)
    images = torch.randn(16, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        method.train().features(images)  # statistics that are not those of a fresh one
        expected = method.eval().score(method.features(images))
        save_model(tmp_path / "m.safetensors", method, config, ("a", "b", "c", "d"), Rule(0, 0.5, "method"))
        loaded, _ = load_model(tmp_path / "m.safetensors")
        found = loaded.score(loaded.features(images))
    assert torch.equal(found.logits, expected.logits) and torch.equal(found.unknown, expected.unknown)
    assert expected.unknown.unique().numel() == 16  # it would be 0 without the memory


def test_spa_passes_on_what_a_run_asks() -> None:
    options = resolve(SPAOptions(spa=True, spa_pretext="on"))
    backbone = create_backbone("test_resnet.r160_in1k", "none")
    method = build_method("dcc", backbone, FOR_USUAL, DCCOptions(bottleneck=NECK, cluster_interval=1), options)
    assert isinstance(method, SPA) and isinstance(method.method, DCC)
    (phase,), (of_dcc,) = phases_of(method), method.method.phases()
    assert phase.round is not None and phase.round.every == 40
    assert phase.round == of_dcc.round
    assert (phase.source, phase.sweeps) == ("shuffled", ("source", "target"))
    assert [turn.decay for turn in phase.turns] == [3.0]
    phase.round.work(0, USUAL)
    found = {(want.domain, want.name): want for want in method.wants(1)}
    own = {(want.domain, want.name): want for want in method.method.wants(1)}
    assert own.keys() == {("source", MATCHED), ("target", MATCHED), ("target", CLUSTERED)}
    assert found.keys() - own.keys() == {("source", PRETEXT), ("target", PRETEXT)}
    for key, want in own.items():
        assert want.indices is not None and np.array_equal(found[key].indices, want.indices)  # type: ignore[arg-type]
