"""ROS against what its authors' released code does, rule by rule. Heads are taken apart and computed one by one."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from few_steps import Batches, Looking, decided, phases_of, prepare, take_steps, total, with_wanted
from torch import Tensor, nn

from unida.methods import METHODS
from unida.methods.base import Problem
from unida.methods.ros import (
    KNOWN,
    LABELLED,
    NEITHER,
    OF_KNOWN,
    ROS,
    ROTATED,
    UNKNOWN,
    from_shuffles,
    known_and_unknown,
    next_tenth,
    rotation_evidence,
    separation_scores,
    unknown_class_weight,
)
from unida.methods.ros_options import ROSOptions

C, HIDDEN, STEPS = 4, 6, 20
PROBLEM = Problem(C, num_source=12, num_target=10, steps=STEPS, seed=1)
FIRST = 10  # step of the second stage


def made_up(backbone: nn.Module, problem: Problem = PROBLEM, **options: Any) -> ROS:
    torch.manual_seed(2)
    method = ROS(backbone, problem, ROSOptions(bottleneck=HIDDEN, labelled_batch=8, **options))  # type: ignore[arg-type]
    for layer in method.modules():  # BatchNorm that does something
        if isinstance(layer, nn.BatchNorm1d):
            nn.init.uniform_(layer.weight, 0.5, 2.0)
            nn.init.normal_(layer.bias)
    return method.train()


@pytest.fixture
def method(toy_backbone: nn.Module) -> ROS:
    return made_up(toy_backbone)


@pytest.fixture
def separated(method: ROS, batches: Batches) -> ROS:
    """With three known and three unknown images, set by hand."""
    group = torch.tensor([KNOWN, UNKNOWN, NEITHER, KNOWN, UNKNOWN, NEITHER, NEITHER, KNOWN, UNKNOWN, NEITHER])
    method.group.copy_(group)
    method.source_labels.copy_(batches[0].labels)
    return method


# ---- slow versions, in NumPy and float64 -----------------------------------------------------------------------------


def array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().double().numpy()


def normalised_layer(parts: Any, inputs: np.ndarray, units: slice = slice(None)) -> np.ndarray:
    """Linear, BatchNorm by the batch's statistics, LeakyReLU: some units of the head's hidden layer."""
    linear, norm = parts[0], parts[1]
    values = inputs @ array(linear.weight)[units].T + array(linear.bias)[units]
    values = (values - values.mean(axis=0)) / np.sqrt(values.var(axis=0) + norm.eps)
    values = values * array(norm.weight)[units] + array(norm.bias)[units]
    return np.where(values > 0, values, 0.2 * values)


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)  # type: ignore[no-any-return]


def plain_head(head: Any, inputs: np.ndarray) -> np.ndarray:
    """(B, outputs) probabilities."""
    return softmax(normalised_layer(head, inputs) @ array(head[3].weight).T + array(head[3].bias))


def class_heads(method: ROS, pair: np.ndarray) -> np.ndarray:
    """(B, 4C) probabilities: C heads one after the other, then one softmax over all."""
    outputs = []
    for k in range(C):
        hidden = normalised_layer(method.class_rotation, pair, slice(k * HIDDEN, (k + 1) * HIDDEN))
        last: Any = method.class_rotation[4]
        rows = slice(4 * k, 4 * k + 4)
        outputs.append(hidden @ array(last.weight)[rows, :, 0].T + array(last.bias)[rows])
    return softmax(np.concatenate(outputs, axis=1))


def features_of(method: ROS, images: Tensor) -> np.ndarray:
    """In training mode, without a trace in BatchNorm's averages."""
    state = {name: value.clone() for name, value in method.state_dict().items()}
    with torch.no_grad():
        found = array(method.backbone(images))
    method.load_state_dict(state)
    return found


def losses_at(method: ROS, batches: Batches, step: int) -> tuple[dict[str, float], Batches]:
    """A step's losses, and the batches with what it wanted."""
    given = with_wanted(method, batches, step)
    turn = phases_of(method)[int(step >= FIRST)].turns[0]
    return {name: loss.item() for name, loss in method(turn.losses, *given, step).items()}, given


# ---- stage I ---------------------------------------------------------------------------------------------------------


def test_the_separation_losses_are_the_released_codes(method: ROS, batches: Batches) -> None:
    found, (source, _) = losses_at(method, batches, step=0)
    rotated, y = source.extra[ROTATED], source.labels.numpy()
    assert len(set(rotated.labels.tolist())) > 1
    f, f_r = features_of(method, source.images), features_of(method, rotated.images)
    pair, place = np.concatenate([f, f_r], axis=1), 4 * y + rotated.labels.numpy()
    rows = np.arange(len(y))
    branches = [
        normalised_layer(method.branches, pair, slice(k * HIDDEN, (k + 1) * HIDDEN)) for k in range(C)
    ]  # C branches of their own, not the heads' hidden layers
    apart = np.concatenate(branches, axis=1) - array(method.centres)[place]
    expected = {
        "closed": -np.log(plain_head(method.classifier, f)[rows, y] + 1e-12).mean(),
        "rotation": 3 * -np.log(class_heads(method, pair)[rows, place] + 1e-12).mean(),
        "centre": 0.1 * (apart**2).sum() / len(y),
    }
    assert found == pytest.approx(expected, rel=1e-4)


def test_the_target_moves_batchnorms_averages_and_nothing_else(method: ROS, batches: Batches) -> None:
    source, target = with_wanted(method, batches, 0)
    before = [p.detach().clone() for p in method.parameters()]
    running = {"backbone": torch.zeros(8), "classifier": torch.zeros(HIDDEN)}
    conv, first = method.backbone.conv, method.classifier[0]
    with torch.no_grad():  # source, target, then the rotated source, which the classifier does not see
        for images in (source.images, target.images, source.extra[ROTATED].images):
            running["backbone"] = 0.9 * running["backbone"] + 0.1 * conv(images).mean(dim=(0, 2, 3))  # type: ignore[operator]
        for images in (source.images, target.images):
            features = torch.from_numpy(features_of(method, images)).float()
            running["classifier"] = 0.9 * running["classifier"] + 0.1 * first(features).mean(dim=0)
    losses = method.separation_step(source, target, 0)
    torch.testing.assert_close(method.backbone.norm.running_mean, running["backbone"])
    torch.testing.assert_close(method.classifier[1].running_mean, running["classifier"])
    other = made_up(method.backbone).separation_step(source, target._replace(images=5 - target.images), 0)
    assert {name: loss.item() for name, loss in other.items()} == {name: loss.item() for name, loss in losses.items()}
    assert all(torch.equal(p, q) for p, q in zip(method.parameters(), before, strict=True))


def test_the_first_stage_leaves_the_second_head_as_it_is(method: ROS, batches: Batches) -> None:
    before = {name: tensor.clone() for name, tensor in method.rotation.state_dict().items()}
    take_steps(method, batches, steps=3)
    assert all(torch.equal(tensor, before[name]) for name, tensor in method.rotation.state_dict().items())


# ---- known and unknown -----------------------------------------------------------------------------------------------


def slow_scores(p: np.ndarray) -> np.ndarray:
    """(N, 4, 4C) probabilities of every image in each rotation → (N,)."""
    normality, uncertainty = [], []
    for image in p:
        classes = [sum(image[r][4 * k + r] for r in range(4)) / 4 for k in range(C)]
        normality.append(max(classes))
        uncertainty.append(sum(-(image[r] * np.log(image[r] + 1e-20)).sum() for r in range(4)) / 4)
    low, high = min(uncertainty), max(uncertainty)
    certainty = [1 - (h - low) / (high - low) for h in uncertainty]
    return np.maximum(normality, certainty)


def test_scores_are_the_larger_of_normality_and_certainty() -> None:
    logits = 3 * torch.randn(4, 9, 4 * C, generator=torch.Generator().manual_seed(0))
    evidence = [rotation_evidence(logits[r], r) for r in range(4)]
    found = separation_scores(sum(e[0] for e in evidence) / 4, sum(e[1] for e in evidence) / 4)  # type: ignore[arg-type]
    expected = slow_scores(np.stack([softmax(array(logits[r])) for r in range(4)], axis=1))
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_sure_images_and_a_target_without_differences_have_finite_scores() -> None:
    log_p, entropies = rotation_evidence(torch.tensor([[1e4, *[0.0] * 15]]), 0)
    assert log_p.tolist() == [[1, 0, 0, 0]] and entropies.tolist() == [0]
    assert separation_scores(torch.full((5, C), 0.2), torch.ones(5)).isfinite().all()


@pytest.mark.parametrize(
    ("mean", "threshold"),
    [(0.0, 0.1), (0.34, 0.4), (0.3, 0.4), (0.39999, 0.4), (float(np.float32(0.7)), 0.8), (0.9, 1.0), (0.97, 1.0)],
)
def test_the_threshold_is_the_next_tenth(mean: float, threshold: float) -> None:
    assert next_tenth(mean) == pytest.approx(threshold)


def test_as_many_are_unknown_as_are_known_and_no_image_is_both() -> None:
    scores = torch.tensor([0.1, 0.9, 0.3, 0.95, 0.2, 0.41, 0.4])
    known, unknown = known_and_unknown(scores, 0.4)
    assert sorted(known.tolist()) == [1, 3, 5] and sorted(unknown.tolist()) == [0, 2, 4]
    known, unknown = known_and_unknown(scores, 0.15)  # six of seven are above: they would overlap
    assert sorted(known.tolist()) == [1, 3, 5] and sorted(unknown.tolist()) == [0, 2, 4]
    for nothing in known_and_unknown(scores, 1.0):  # the released code would take all images
        assert not len(nothing)
    assert [len(some) for some in known_and_unknown(torch.tensor([0.5]), 0.1)] == [0, 0]


def test_unknown_images_together_count_as_two_classes() -> None:
    weight = unknown_class_weight(2.0, num_source=120, num_classes=10, unknown=8)
    assert weight * 8 == pytest.approx(2 * 12)
    assert unknown_class_weight(2.0, 120, 10, 0) == 1


def test_the_second_stage_starts_from_the_scores_of_all_target_images(method: ROS, batches: Batches) -> None:
    take_steps(prepare(method, batches), batches, steps=4)
    method.eval()
    images, N = batches[1].images, len(batches[1].images)
    with torch.no_grad():
        f = [method.features(images.rot90(r, dims=(2, 3))) for r in range(4)]
        p = [method.class_rotation(torch.cat([f[0], f_r], dim=1)).softmax(dim=1) for f_r in f]
        scores = slow_scores(np.stack([array(p_r) for p_r in p], axis=1))
        start = phases_of(method)[1].start
        assert start is not None
        start(Looking(method, batches))
    threshold = (int(10 * scores.mean()) + 1) / 10
    n = min(sum(scores > threshold), N // 2)
    assert n > 0  # or the test would hold of anything
    order = np.argsort(scores)
    assert np.flatnonzero(method.group.numpy() == KNOWN).tolist() == sorted(order[N - n :])
    assert np.flatnonzero(method.group.numpy() == UNKNOWN).tolist() == sorted(order[:n])
    assert torch.equal(method.source_labels, batches[0].labels)


def test_without_known_images_the_source_alone_is_learnt(
    method: ROS, batches: Batches, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unida.methods.ros.next_tenth", lambda mean: 1.0)
    with torch.no_grad():
        method.eval().separate(Looking(method, batches))
    assert "no target image stands out" in caplog.text
    assert not method.group.any()
    found, (source, target) = losses_at(method.train(), batches, FIRST)
    assert found.keys() == {"labelled"} and np.isfinite(found["labelled"])
    assert len(source.extra[LABELLED].images) == 8 and not target.extra


# ---- stage II --------------------------------------------------------------------------------------------------------


def test_the_adaptation_losses_are_the_released_codes(separated: ROS, batches: Batches) -> None:
    method = separated
    step = next(s for s in range(FIRST, STEPS) if len([w for w in method.wants(s) if w.name == LABELLED]) == 2)
    found, (source, target) = losses_at(method, batches, step)
    of_source, unknown = source.extra[LABELLED], target.extra[LABELLED]
    known, rotated = target.extra[OF_KNOWN], target.extra[ROTATED]
    assert torch.equal(known.of, rotated.of)
    f = features_of(method, torch.cat([of_source.images, unknown.images]))  # one pass: BatchNorm sees them together
    y = [*(batches[0].labels[of_source.of[:, 0]]).tolist(), *[C] * len(unknown.images)]
    p = plain_head(method.classifier, f)
    w = 2 * 12 / (C * 3)
    weighted = [(w if label == C else 1) * -np.log(p[i, label] + 1e-12) for i, label in enumerate(y)]
    f_k, f_r = features_of(method, known.images), features_of(method, rotated.images)
    p_r = plain_head(method.rotation, np.concatenate([f_k, f_r], axis=1))
    p_k = plain_head(method.classifier, f_k)
    expected = {
        "labelled": sum(weighted) / 8,  # of images, not of weights
        "rotation": 3 * -np.log(p_r[np.arange(8), rotated.labels.numpy()] + 1e-12).mean(),
        "entropy": 0.1 * -(p_k * np.log(p_k + 1e-20)).sum(axis=1).mean(),
    }
    assert found == pytest.approx(expected, rel=1e-4)


def test_labelled_images_are_the_source_and_the_unknown_ones_each_equally_often(separated: ROS) -> None:
    problem = dataclasses.replace(PROBLEM, steps=200)
    method = made_up(separated.backbone, problem, separation_share=0.1)
    method.load_state_dict(separated.state_dict())
    of_source, of_target, of_known = [], [], []
    for step in range(30, 45):  # 15 steps of 8: eight epochs of 12 + 3 images
        for want in method.wants(step):
            some = {(LABELLED, "source"): of_source, (LABELLED, "target"): of_target, (OF_KNOWN, "target"): of_known}
            some.get((want.name, want.domain), []).extend(want.indices.tolist())  # type: ignore[union-attr]
    assert np.bincount(of_source).tolist() == [8] * 12
    assert {i: of_target.count(i) for i in of_target} == {1: 8, 4: 8, 8: 8}
    assert {i: of_known.count(i) for i in of_known} == {0: 40, 3: 40, 7: 40}


def test_wants_follow_from_the_buffers(separated: ROS) -> None:
    """A resumed run has nothing but the checkpoint."""
    other = made_up(separated.backbone)
    other.wants(FIRST)  # of its own, empty, groups
    other.load_state_dict(separated.state_dict())
    for step in (0, FIRST - 1, FIRST, STEPS - 1):
        ours, theirs = separated.wants(step), other.wants(step)
        assert [(w.name, w.domain, w.recipe) for w in ours] == [(w.name, w.domain, w.recipe) for w in theirs]
        assert all(np.array_equal(a.indices, b.indices) for a, b in zip(ours, theirs, strict=True) if step >= FIRST)
    names = [[want.name for want in separated.wants(step)] for step in (FIRST - 1, FIRST)]
    assert names[0] == [ROTATED] and LABELLED in names[1] and OF_KNOWN in names[1]


def test_a_stream_of_shuffles_has_every_image_once_in_an_epoch() -> None:
    drawn = np.concatenate([from_shuffles(7, 5, 0, "x", step) for step in range(14)])
    epochs = drawn.reshape(10, 7)
    assert all(sorted(epoch) == list(range(7)) for epoch in epochs.tolist())
    assert len({tuple(epoch) for epoch in epochs.tolist()}) > 5
    assert from_shuffles(1, 4, 0, "x", 3).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("bits", [32, 16])
def test_the_second_stage_reaches_all_that_it_updates(separated: ROS, batches: Batches, bits: int) -> None:
    (turn,) = phases_of(separated)[1].turns
    with torch.autocast("cpu", torch.bfloat16, enabled=bits == 16):
        losses = separated(turn.losses, *with_wanted(separated, batches, FIRST), FIRST)
    assert all(loss.dtype == torch.float32 and loss.isfinite() for loss in losses.values())
    total(losses).backward()
    for parameter in (p for group in turn.groups for p in group.parameters):
        assert parameter.grad is not None and parameter.grad.isfinite().all() and parameter.grad.any()


# ---- the whole -------------------------------------------------------------------------------------------------------


def test_its_stages_share_the_steps_and_have_heads_of_their_own(method: ROS) -> None:
    separation, adaptation = phases_of(method)
    assert [(p.name, p.share, p.source, p.target) for p in (separation, adaptation)] == [
        ("separation", 0.5, "shuffled", True),
        ("adaptation", 0.5, "shuffled", True),
    ]
    names = {id(p): name.split(".")[0] for name, p in method.named_parameters()}
    updated = [
        {names[id(p)] for t in phase.turns for g in t.groups for p in g.parameters} for phase in phases_of(method)
    ]
    assert updated[0] == {"backbone", "classifier", "class_rotation", "branches", "centres"}
    assert updated[1] == {"backbone", "classifier", "rotation"}
    assert {turn.decay for phase in phases_of(method) for turn in phase.turns} == {10.0}
    assert method._first_step_of_adaptation() == FIRST


@pytest.mark.parametrize(
    ("outputs", "answer"),
    [
        ([0, 5, 1, 2, 4.9], 1),
        ([0, 5, 1, 2, 5.1], C),
        ([0, 5, 1, 2, 5], 1),  # of equals the first, as argmax
        ([-1, 0.1, -1, -1, float(np.nextafter(np.float32(0.1), np.float32(1)))], C),  # σ rounds to ½
        ([-900, -800, -900, -900, -700], C),
        ([900, 0, 0, 0, -900], 0),
    ],
)
def test_the_answer_is_the_argmax_of_all_outputs(method: ROS, outputs: list[float], answer: int) -> None:
    method.eval()
    last: Any = method.classifier[3]
    with torch.no_grad():
        last.weight.zero_()
        last.bias.copy_(torch.tensor(outputs))
        scores = method.score(torch.zeros(1, 8))
    assert scores.logits.tolist() == [pytest.approx(outputs[:C])]
    assert decided(method, scores).tolist() == [answer]
    p = np.exp(np.array(outputs) - max(outputs))
    assert scores.unknown.item() == pytest.approx(p[C] / (p[C] + p[:C].max()), abs=1e-6)


def test_defaults_are_the_released_codes() -> None:
    assert dataclasses.asdict(ROSOptions()) == {
        "separation_share": 0.5,
        "rotation_weight": 3.0,
        "centre_weight": 0.1,
        "entropy_weight": 0.1,
        "unknown_weight": 2.0,
        "bottleneck": 256,
        "labelled_batch": 32,
    }
    assert (METHODS["ros"].lr, METHODS["ros"].steps) == (0.003, 4800)


def test_in_a_frame_each_domain_has_its_own_mean(toy_backbone: nn.Module, batches: Batches) -> None:
    method = made_up(toy_backbone, dataclasses.replace(PROBLEM, framed=True))
    prepare(method, batches)
    assert method.classifier[0].in_features == 9 and not torch.equal(method.frame.source_mean, method.frame.target_mean)
    seen: list[str] = []
    plain = method.frame.forward
    method.frame.forward = lambda f, domain: seen.append(domain) or plain(f, domain)  # type: ignore[assignment, func-returns-value]
    method.group[0], method.group[1] = KNOWN, UNKNOWN
    losses_at(method, batches, 0)
    assert seen == ["source", "target", "source"]  # images, the target's, rotated images
    seen.clear()
    losses_at(method, batches, FIRST)
    assert seen == ["target", "target", "source", "target", "target"]  # rotated, known, labelled, random
