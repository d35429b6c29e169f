"""InheriTune against what is known of the released code, rule by rule."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from few_steps import Batches, Looking, decided, phases_of, prepare, take_steps, with_wanted
from torch import Tensor, nn

from unida.methods import METHODS
from unida.methods.base import Problem, SourceBatch, TargetBatch
from unida.methods.build import build_method
from unida.methods.inheritune import PSEUDO, InheriTune, pairs, partners, pseudo_labels, splice_features
from unida.methods.inheritune_options import InheriTuneOptions
from unida.methods.spa.options import SPAOptions, resolve
from unida.models.backbone import create_backbone
from unida.training.optim import build_optimiser
from unida.training.options import TrainingOptions

C, SIZE, NEGATIVE = 4, 6, 5


def made_up(backbone: nn.Module, framed: bool = False, steps: int = 200, **options: Any) -> InheriTune:
    torch.manual_seed(2)
    problem = Problem(C, num_source=12, num_target=10, steps=steps, framed=framed)
    given = {"bottleneck": SIZE, "negative_classes": NEGATIVE, **options}
    return InheriTune(backbone, problem, InheriTuneOptions(**given))  # type: ignore[arg-type]


@pytest.fixture
def method(toy_backbone: nn.Module, batches: Batches) -> InheriTune:
    """Before the vendor's first step."""
    found: InheriTune = prepare(made_up(toy_backbone), batches)
    return found


class NoSource(Looking):
    """A sweep over the target that has no source to give."""

    def __init__(self, method: InheriTune, target: TargetBatch) -> None:
        self.method, self.of = method, {"target": target}


def with_client(method: InheriTune, batches: Batches) -> InheriTune:
    """At the client's first step."""
    start = phases_of(method)[1].start
    assert start is not None
    with torch.no_grad():
        start(NoSource(method.eval(), batches[1]))
    return method.train()


def nothing_of_the_source() -> SourceBatch:
    return SourceBatch(torch.empty(0), torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64))


def state(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def softmax(logits: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.exp(logits) / np.exp(logits).sum()
    return found


# ---- rules -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("d", "top", "bottom"), [(40, 0.15, 0.10), (7, 0.15, 0.10), (2, 0.15, 0.10), (9, 0.5, 0.5)])
def test_spliced_features_have_the_others_numbers_where_they_were_extreme(d: int, top: float, bottom: float) -> None:
    draw = np.random.default_rng(d)
    first, second = draw.standard_normal((2, 5, d)).astype(np.float32)
    expected = first.copy()
    for row in range(5):
        by_value = sorted(range(d), key=lambda place: first[row, place])
        for place in [*by_value[: max(1, int(bottom * d))], *by_value[d - max(1, int(top * d)) :]]:
            expected[row, place] = second[row, place]
    found = splice_features(torch.from_numpy(first), torch.from_numpy(second), top, bottom)
    assert np.array_equal(found.numpy(), expected)
    same = torch.ones(3, d)
    assert torch.equal(splice_features(same, same, top, bottom), same)


def test_few_images_give_all_pairs_of_two_classes() -> None:
    labels = np.array([2, 0, 0, 3, 2, 0])
    found = list(zip(*pairs(labels, 1000, np.random.default_rng(0)), strict=True))
    expected = {(i, j) for i in range(6) for j in range(6) if labels[i] != labels[j]}
    assert set(found) == expected and len(found) == len(expected)
    assert [len(it) for it in pairs(np.zeros(4, dtype=np.int64), 10, np.random.default_rng(0))] == [0, 0]


def test_many_images_give_so_many_pairs_each_as_likely() -> None:
    labels = np.array([0] * 7 + [1] * 2 + [2])
    first, second = pairs(labels, 40, np.random.default_rng(0))
    assert len(first) == len(second) == 40 and (labels[first] != labels[second]).all()
    counts = np.zeros((10, 10))
    for seed in range(500):
        np.add.at(counts, pairs(labels, 40, np.random.default_rng(seed)), 1)
    differ = labels[:, None] != labels
    assert (counts[~differ] == 0).all()
    assert counts[differ] == pytest.approx(500 * 40 / differ.sum(), rel=0.25)


def test_partners_are_of_another_class() -> None:
    labels = np.array([0, 0, 1, 2, 0])
    first, second = partners(labels, np.random.default_rng(3))
    assert first.tolist() == [0, 1, 2, 3, 4] and (labels[first] != labels[second]).all()
    assert len({tuple(partners(labels, np.random.default_rng(seed))[1]) for seed in range(9)}) > 1
    assert len(partners(np.zeros(3, dtype=np.int64), np.random.default_rng(0))[0]) == 0


def test_pseudo_labels_are_of_the_images_that_look_most_known() -> None:
    logits = torch.randn(20, C + NEGATIVE, generator=torch.Generator().manual_seed(0)) * 2
    images, labels = pseudo_labels(logits, C, count=6)
    p = [softmax(row) for row in logits.double().numpy()]
    order = sorted(range(20), key=lambda i: -max(p[i][:C]))[:6]
    assert images.tolist() == order
    assert labels.tolist() == [min(int(p[i].argmax()), C) for i in order]
    everyone = pseudo_labels(logits, C, count=20)[1]
    assert (everyone == C).any() and everyone.max() == C  # all negative classes are the first one


# ---- vendor ----------------------------------------------------------------------------------------------------------


def test_negative_classes_are_clusters_of_all_pairs(method: InheriTune, batches: Batches) -> None:
    assert method.is_cluster.all() and method.centres.shape == (NEGATIVE, 8)
    with torch.no_grad():
        features = method.eval().backbone(batches[0].images)
    labels = batches[0].labels.tolist()
    spliced = torch.stack(
        [
            splice_features(features[i : i + 1], features[j : j + 1], 0.15, 0.10)[0]
            for i in range(12)
            for j in range(12)
            if labels[i] != labels[j]
        ]
    )
    nearest = torch.cdist(spliced, method.centres).argmin(dim=1)
    for cluster in range(NEGATIVE):  # each centre is the mean of what is nearest to it
        torch.testing.assert_close(method.centres[cluster], spliced[nearest == cluster].mean(dim=0))


def test_classification_is_over_classes_and_clusters_at_once(method: InheriTune, batches: Batches) -> None:
    source = batches[0]
    losses = method.classification(source, batches[1], 7)
    with torch.no_grad():
        features = method.backbone(source.images)
        spliced, clusters = method._spliced_batch(features, source.labels, 7)
        assert torch.equal(clusters, torch.cdist(spliced, method.centres).argmin(dim=1))
        assert len(spliced) == 12 and (spliced != features).any(dim=1).all()
        logits = method.head(method.extractor(torch.cat([features, spliced]))).joined.double().numpy()
    labels = [*source.labels.tolist(), *(C + clusters).tolist()]
    costs = [-np.log(softmax(row)[label]) for row, label in zip(logits, labels, strict=True)]
    expected = {"classification": np.mean(costs[:12]), "negative": 0.2 * np.mean(costs[12:])}
    assert {name: loss.item() for name, loss in losses.items()} == pytest.approx(expected, rel=1e-4)
    other, _ = method._spliced_batch(features, source.labels, 8)
    again, _ = method._spliced_batch(features, source.labels, 7)
    assert torch.equal(again, spliced) and not torch.equal(other, spliced)


def test_a_batch_of_one_class_has_nothing_to_splice(method: InheriTune, batches: Batches) -> None:
    alike = batches[0]._replace(labels=torch.ones(12, dtype=torch.int64))
    losses = method.classification(alike, batches[1], 0)
    assert losses["negative"].item() == 0 and losses["classification"].isfinite()
    torch.stack(list(losses.values())).sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in method.parameters())


def test_fewer_different_features_have_fewer_negative_classes(toy_backbone: nn.Module, batches: Batches) -> None:
    """Two images have two ordered pairs."""
    source = SourceBatch(batches[0].images[:2], torch.tensor([0, 1]), torch.arange(2))
    method: InheriTune = prepare(made_up(toy_backbone), (source, batches[1]))
    assert method.is_cluster.tolist() == [True, True, False, False, False]
    _, clusters = method._spliced_batch(method.backbone(source.images), source.labels, 0)
    assert set(clusters.tolist()) <= {0, 1}


# ---- schedule --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "vendor", "first_pseudo", "scale"),
    [(15_090, 90, 50, 0.1), (30_090, 90, 100, 0.1), (7_590, 90, 26, 0.2), (300, 90, 2, 1.0), (60, 30, 0, 1.0)],
)
def test_the_schedule_scales_with_the_run(
    toy_backbone: nn.Module, steps: int, vendor: int, first_pseudo: int, scale: float
) -> None:
    method = made_up(toy_backbone, steps=steps)
    phases = phases_of(method)
    assert [phase.share for phase in phases] == [vendor, steps - vendor]
    pseudo, adaptation = phases[1].turns
    dues = [
        (bool(pseudo.due and pseudo.due(s)), bool(adaptation.due and adaptation.due(s))) for s in range(vendor, steps)
    ]
    assert [both[1] for both in dues] == [number % 2 == 1 for number in range(steps - vendor)]
    assert [both[0] for both in dues] == [
        number % 2 == 0 and number >= first_pseudo for number in range(steps - vendor)
    ]
    for turn in (pseudo, adaptation):
        (group,) = build_optimiser(turn, TrainingOptions(lr=1e-4, backbone_lr=1e-5)).param_groups
        assert group["lr"] == pytest.approx(1e-4 * scale) and group["betas"] == (0.9, 0.999)
    assert not any(method.wants(step) for step in range(vendor))


def test_one_step_is_the_vendors(toy_backbone: nn.Module) -> None:
    assert [phase.share for phase in phases_of(made_up(toy_backbone, steps=1))] == [1, 0]


def test_each_phase_looks_at_one_domain(method: InheriTune) -> None:
    vendor, client = phases_of(method)
    assert (vendor.source, vendor.target, vendor.sweeps) == ("shuffled", False, ("source",))
    assert (client.source, client.target, client.sweeps) == (None, True, ("target",))


# ---- client ----------------------------------------------------------------------------------------------------------


def test_it_leaves_the_source_behind(method: InheriTune, batches: Batches) -> None:
    """The sweep has no source: this fails if the client's start asks for its images or labels."""
    take_steps(method, batches, steps=3)
    with_client(method, batches)
    for name, tensor in method.extractor.state_dict().items():
        assert torch.equal(tensor, method.source_extractor.state_dict()[name])
    with torch.no_grad():
        logits = method.eval().head(method.features(batches[1].images)).joined
    images, labels = pseudo_labels(logits, C, count=1)  # int(0.15 · 10)
    assert torch.equal(method.pseudo_images, images) and torch.equal(method.pseudo_labels, labels)


def test_only_the_targets_extractor_learns(method: InheriTune, batches: Batches) -> None:
    with_client(method, batches)
    before, given = state(method), nothing_of_the_source()
    for step, turn in ((100, phases_of(method)[1].turns[0]), (101, phases_of(method)[1].turns[1])):
        optimiser = build_optimiser(turn, TrainingOptions(lr=0.01, backbone_lr=0.01))
        _, target = with_wanted(method, (given, batches[1]), step)
        losses = method(turn.losses, given, target, step)
        torch.stack(list(losses.values())).sum().backward()
        optimiser.step()
        method.zero_grad(set_to_none=True)
        moved = {name for name, tensor in method.state_dict().items() if not torch.equal(tensor, before[name])}
        before = state(method)
        assert moved and all(
            name.startswith(("extractor.", "backbone.norm.")) for name in moved
        )  # the toy's statistics
    assert not method.source_extractor.training and method.extractor.training


def test_pseudo_images_are_drawn_by_the_step_and_have_their_labels(toy_backbone: nn.Module, batches: Batches) -> None:
    method = with_client(prepare(made_up(toy_backbone, pseudo_share=0.5), batches), batches)
    (want,) = method.wants(102)
    assert want.indices is not None and want.domain == "target" and len(want.indices) == 64
    assert set(want.indices.tolist()) <= set(method.pseudo_images.tolist()) and len(method.pseudo_images) == 5
    assert method.wants(101) == [] and not np.array_equal(method.wants(104)[0].indices, want.indices)
    _, target = with_wanted(method, (nothing_of_the_source(), batches[1]), 102)
    found = method.pseudo(nothing_of_the_source(), target, 102)["pseudo"]
    by_image = dict(zip(method.pseudo_images.tolist(), method.pseudo_labels.tolist(), strict=True))
    labels = torch.tensor([by_image[image] for image in want.indices.tolist()])
    with torch.no_grad():
        logits = method.head(method.features(target.extra[PSEUDO].images)).joined
    assert found.item() == pytest.approx(F.cross_entropy(logits, labels).item(), rel=1e-5)


def test_adaptation_is_the_weighted_sum(toy_backbone: nn.Module, batches: Batches) -> None:
    method = with_client(prepare(made_up(toy_backbone, entropy_weight=0.3), batches), batches)
    with torch.no_grad():
        for parameter in method.extractor.parameters():  # E_t is not E_s any more
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    losses = method.adaptation(nothing_of_the_source(), batches[1], 101)
    with torch.no_grad():
        seen = method.backbone(batches[1].images)
        ours, vendors = (
            [part.double().numpy() for part in method.head(extractor(seen))]
            for extractor in (method.extractor, method.source_extractor)
        )
    c = np.array([softmax(np.concatenate(row))[:C].max() for row in zip(*vendors, strict=True)])
    w = c / c.max()
    separation, entropy = [], []
    for i, (known, negative) in enumerate(zip(*ours, strict=True)):
        mass = softmax(np.concatenate([known, negative]))[:C].sum()
        separation.append(-w[i] * np.log(mass) - (1 - w[i]) * np.log(1 - mass))
        H = [-(softmax(part) * np.log(softmax(part))).sum() for part in (known, negative)]
        entropy.append(w[i] * H[0] + (1 - w[i]) * H[1])
    expected = {"separation": np.mean(separation), "entropy": 0.3 * np.mean(entropy)}
    assert {name: loss.item() for name, loss in losses.items()} == pytest.approx(expected, rel=1e-4)
    assert method.watched["known_weight"]().item() == pytest.approx(w.mean(), rel=1e-4)


# ---- answers, the frame, the backbone and SPA ------------------------------------------------------------------------


def test_a_negative_class_is_unknown(method: InheriTune) -> None:
    with torch.no_grad():
        for layer in (method.head.known, method.head.negative):
            layer.weight.zero_()
        method.head.known.bias.copy_(torch.tensor([0.0, 3.0, 1.0, 2.0]))
        for largest, answer in ((3.0, 1), (3.0000002, C)):
            method.head.negative.bias.copy_(torch.tensor([0.0, 0.0, largest, 0.0, 0.0]))
            assert decided(method, method.score(torch.randn(2, SIZE))).tolist() == [answer, answer]


def test_the_frame_is_measured_one_domain_after_the_other(toy_backbone: nn.Module, batches: Batches) -> None:
    method: InheriTune = prepare(made_up(toy_backbone, framed=True), batches)
    assert torch.equal(method.frame.target_mean, method.frame.source_mean)  # the target was not looked at
    assert method.centres.shape == (NEGATIVE, 9) and (method.centres[:, -1] - 5).abs().max() < 1e-5  # in the frame
    source_mean = method.frame.source_mean.clone()
    with_client(method, batches)
    assert torch.equal(method.frame.source_mean, source_mean)
    assert not torch.allclose(method.frame.target_mean, source_mean)


@pytest.mark.parametrize("train", ["all", "head"])
def test_the_backbone_stays_as_it_is(train: str, caplog: pytest.LogCaptureFixture) -> None:
    backbone = create_backbone("test_resnet", "none")
    if train == "head":
        backbone.freeze(backbone.default_tap, torch.float16, whole=True)
    with caplog.at_level("INFO", logger="unida"):
        made_up(backbone).phases()
    assert ("inheritune does not train the backbone" in caplog.text) == (train == "all")
    assert backbone.keeps_statistics and not any(p.requires_grad for p in backbone.parameters())


@pytest.mark.parametrize("preset", ["best", "paper"])
def test_with_spa_words_stand_in_the_feature_and_the_client_wants_no_source(preset: str) -> None:
    spa = resolve(SPAOptions(spa=True, spa_preset=preset, spa_vocabulary=12))  # type: ignore[arg-type]
    problem = Problem(C, num_source=12, num_target=10, steps=40)
    backbone, options = create_backbone("test_resnet", "none"), InheriTuneOptions(bottleneck=SIZE)
    method = build_method("inheritune", backbone, problem, options, spa)
    vendor, client = method.phases()
    extra = ["pretext"] if preset == "paper" else []
    assert [turn.name for turn in vendor.turns] == ["goal", *extra]
    assert [turn.name for turn in client.turns] == ["pseudo", "adaptation", *extra]
    assert client.source is None and client.sweeps == ("target",)
    assert {want.domain for step in range(20, 40) for want in method.wants(step)} <= {"target"}


def test_defaults_are_the_released_codes() -> None:
    card = METHODS["inheritune"]
    assert (card.lr, card.steps) == (1e-4, 15_090)
    assert dataclasses.asdict(InheriTuneOptions()) == {
        "bottleneck": 256,
        "negative_classes": 45,
        "spliced_features": 20_000,
        "spliced_top": 0.15,
        "spliced_bottom": 0.10,
        "negative_weight": 0.2,
        "vendor_steps": 90,
        "client_rate": 0.1,
        "entropy_weight": 0.1,
        "pseudo_share": 0.15,
    }
