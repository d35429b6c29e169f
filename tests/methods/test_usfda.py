"""USFDA against what is known of the released code, rule by rule."""

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from few_steps import Batches, Looking, decided, phases_of, prepare, take_steps, with_wanted
from torch import Tensor, nn

from unida.errors import UserError
from unida.losses.class_gaussians import class_gaussians
from unida.methods import METHODS
from unida.methods.base import Problem, SourceBatch, TargetBatch
from unida.methods.build import build_method
from unida.methods.spa.options import SPAOptions, resolve
from unida.methods.usfda import DRAWN, SPLICED, USFDA, number_of_negative_classes
from unida.methods.usfda_options import USFDAOptions
from unida.models.backbone import create_backbone
from unida.recipes.base import Made
from unida.training.optim import build_optimiser
from unida.training.options import TrainingOptions

C, SIZE = 4, 6
TURNS = ["classification", "compactness", "reconstruction", "latent_reconstruction"]


def made_up(backbone: nn.Module, framed: bool = False, steps: int = 200, **options: Any) -> USFDA:
    torch.manual_seed(2)
    problem = Problem(C, num_source=12, num_target=10, steps=steps, framed=framed)
    return USFDA(backbone, problem, USFDAOptions(bottleneck=SIZE, **options))  # type: ignore[arg-type]


@pytest.fixture
def method(toy_backbone: nn.Module, batches: Batches) -> USFDA:
    """Before the first step: it has met the source."""
    found: USFDA = prepare(made_up(toy_backbone), batches, rounds=True)
    return found


def spliced(batches: Batches, of: list[tuple[int, int]]) -> SourceBatch:
    """The source's batch beside made images: any images will do, their names decide the class."""
    images = torch.randn(len(of), 3, 8, 8, generator=torch.Generator().manual_seed(5))
    made = Made(images, torch.zeros(len(of), dtype=torch.int64), torch.tensor(of))
    return batches[0]._replace(extra={SPLICED: made})


class NoSource(Looking):
    """A sweep over the target that has no source to give."""

    def __init__(self, method: USFDA, target: TargetBatch) -> None:
        self.method, self.of = method, {"target": target}


def deployed(method: USFDA, batches: Batches) -> USFDA:
    """At the first step of the deployment."""
    start = phases_of(method)[1].start
    assert start is not None
    with torch.no_grad():
        start(NoSource(method.eval(), batches[1]))
    return method.train()


def state(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def log_softmax(logits: np.ndarray) -> np.ndarray:
    found: np.ndarray = logits - np.log(np.exp(logits).sum())
    return found


# ---- procurement -----------------------------------------------------------------------------------------------------


def test_four_updates_take_turns_and_those_on_gaussians_begin_after_a_tenth(method: USFDA) -> None:
    phase = phases_of(method)[0]
    assert [turn.name for turn in phase.turns] == TURNS
    due = [[t.name for t in phase.turns if t.due is not None and t.due(step)] for step in range(100)]
    assert all(len(names) <= 1 for names in due)
    for step, names in enumerate(due):
        gated = step < 10 and step % 4 in (1, 3)
        assert names == ([] if gated else [TURNS[step % 4]])
    assert {(turn.optimiser, turn.decay) for turn in phase.turns} == {("adam", 0.0)}
    assert phase.round is not None and phase.round.every == 10 and not phase.round.at_end


@pytest.mark.parametrize(("steps", "every"), [(1000, 50), (300, 15), (60, 3), (4, 1), (1, 1)])
def test_the_schedule_scales_with_the_run(toy_backbone: nn.Module, steps: int, every: int) -> None:
    method = made_up(toy_backbone, steps=steps)
    phase = method.phases()[0]
    assert phase.round is not None and phase.round.every == method.every == every
    assert len(method.procurement) == round(steps / 2)
    first = next(step for step in itertools.count() if phase.turns[1].due is not None and phase.turns[1].due(step))
    assert every <= first < every + 4


def test_each_update_moves_what_it_should(method: USFDA, batches: Batches) -> None:
    parts = {"F": "extractor.", "G": "decoder.", "C_s": "head.known.", "C_n": "head.negative."}
    names = {id(p): name for name, p in method.named_parameters()}
    expected = [{"F", "C_s", "C_n"}, {"F"}, {"F", "G"}, {"F", "G"}]
    for turn, wanted in zip(phases_of(method)[0].turns, expected, strict=True):
        updated = {names[id(p)] for group in turn.groups for p in group.parameters}
        of_parts = {part: {n for n in names.values() if n.startswith(prefix)} for part, prefix in parts.items()}
        of_backbone = {name for name in updated if name.startswith("backbone.")}  # the toy is not a `Backbone`
        assert updated - of_backbone == set().union(*(of_parts[part] for part in wanted))


def test_classification_is_over_classes_and_pairs_at_once(method: USFDA, batches: Batches) -> None:
    """Images 0…11 have the labels 0, 1, 2, 3, 0, …; spliced images of one class do not count."""
    of = [(0, 1), (6, 5), (3, 7), (11, 0), (2, 2)]  # classes (0, 1), (2, 1), (3, 3), (3, 0), (2, 2)
    source = spliced(batches, of)
    losses = method.classification(source, batches[1], 0)
    with torch.no_grad():
        seen = torch.cat([method.backbone(x) for x in (source.images, source.extra[SPLICED].images)])
        logits = method.head(method.extractor(seen)).joined.double().numpy()
    assert logits.shape == (12 + 5, C + 6)
    known = [-log_softmax(row)[label] for row, label in zip(logits, source.labels.tolist(), strict=False)]
    pairs = {0: C + 0, 1: C + 3, 3: C + 2}  # (0,1) (0,2) (0,3) (1,2) (1,3) (2,3)
    negative = [-log_softmax(logits[12 + place])[label] for place, label in pairs.items()]
    expected = {"classification": np.mean(known), "negative": 0.2 * np.mean(negative)}
    assert {name: loss.item() for name, loss in losses.items()} == pytest.approx(expected, rel=1e-4)


def test_a_batch_with_one_class_has_no_negatives(method: USFDA, batches: Batches) -> None:
    losses = method.classification(spliced(batches, [(0, 4), (1, 5)]), batches[1], 0)
    assert losses["negative"].item() == 0 and losses["classification"].item() > 0
    torch.stack(list(losses.values())).sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in method.parameters())


def test_with_fewer_negative_classes_pairs_share_them(toy_backbone: nn.Module, batches: Batches) -> None:
    method: USFDA = prepare(made_up(toy_backbone, negative_classes=4), batches)
    assert method.head.negative.out_features == 4
    first, second = (method.classification(spliced(batches, [of]), batches[1], 0) for of in ((0, 1), (1, 3)))
    assert first["negative"].item() == pytest.approx(second["negative"].item(), rel=1e-6)  # pairs 0 and 4


def test_gaussians_are_those_of_the_sources_features(method: USFDA, batches: Batches) -> None:
    source = batches[0]
    with torch.no_grad():
        features = method.eval().source_features(source.images)
    expected = class_gaussians(features, source.labels, C)
    torch.testing.assert_close(method.means, expected.means)
    torch.testing.assert_close(method.factors, expected.factors)
    assert torch.equal(method.source_labels, source.labels)


def test_features_are_drawn_by_the_step_alone_and_must_survive_the_decoder(method: USFDA, batches: Batches) -> None:
    drawn = method.drawn(7)
    assert drawn.shape == (DRAWN, SIZE) == (32, SIZE)
    assert torch.equal(drawn, method.drawn(7)) and not torch.equal(drawn, method.drawn(8))
    found = method.latent_reconstruction(*batches, 7)["latent"].item()
    with torch.no_grad():
        back = method.extractor(method.decoder(drawn)).double().numpy()
    slow = np.mean([sum((a - b) ** 2) for a, b in zip(back, drawn.double().numpy(), strict=True)])
    assert found == pytest.approx(slow, rel=1e-4)


def test_reconstruction_is_of_what_the_backbone_saw(method: USFDA, batches: Batches) -> None:
    found = method.reconstruction(*batches, 0)["reconstruction"]
    with torch.no_grad():
        seen = method.backbone(batches[0].images)
        back = method.decoder(method.extractor(seen))
    slow = np.mean([sum((a - b) ** 2) for a, b in zip(back.double().numpy(), seen.double().numpy(), strict=True)])
    assert found.item() == pytest.approx(slow, rel=1e-4)
    found.backward()
    assert method.backbone.conv.weight.grad is None  # its feature is what is wanted, and does not learn


def test_spliced_images_are_wanted_when_classes_are_learnt_and_never_later(method: USFDA) -> None:
    wants = {step: [(want.name, want.domain) for want in method.wants(step)] for step in range(200)}
    assert {step for step, wanted in wants.items() if wanted} == set(range(0, 100, 4))
    assert wants[0] == [(SPLICED, "source")]


def test_procurement_looks_at_the_source_alone(method: USFDA) -> None:
    procurement, deployment = phases_of(method)
    assert (procurement.source, procurement.target, procurement.sweeps) == ("shuffled", False, ("source",))
    assert (deployment.source, deployment.target, deployment.sweeps) == (None, True, ("target",))


# ---- deployment ------------------------------------------------------------------------------------------------------


def test_it_leaves_the_source_behind(method: USFDA, batches: Batches) -> None:
    """The sweep has no source: this fails if the start of the deployment asks for its images or labels."""
    take_steps(method, lambda step: with_wanted(method, batches, step), steps=4)
    deployed(method, batches)
    assert state(method.extractor).keys() == state(method.source_extractor).keys()
    for name, tensor in method.extractor.state_dict().items():
        assert torch.equal(tensor, method.source_extractor.state_dict()[name])
    assert (method.source_labels == -1).all()


def nothing_of_the_source() -> SourceBatch:
    return SourceBatch(torch.empty(0), torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64))


def test_only_the_targets_extractor_learns(method: USFDA, batches: Batches) -> None:
    deployed(method, batches)
    (turn,) = phases_of(method)[1].turns
    assert (turn.optimiser, turn.decay, turn.due) == ("adam", 0.0, None)
    optimiser, before = build_optimiser(turn, TrainingOptions(lr=0.01, backbone_lr=0.01)), state(method)
    for step in range(3):
        losses = method(turn.losses, nothing_of_the_source(), batches[1], 100 + step)
        torch.stack(list(losses.values())).sum().backward()
        optimiser.step()
        method.zero_grad(set_to_none=True)
    moved = {name for name, tensor in method.state_dict().items() if not torch.equal(tensor, before[name])}
    assert moved and all(name.startswith(("extractor.", "backbone.norm.")) for name in moved)
    assert {name for name in moved if name.startswith("backbone.")} <= {
        f"backbone.norm.{statistic}" for statistic in ("running_mean", "running_var", "num_batches_tracked")
    }  # of the toy: a real backbone keeps them
    assert not method.source_extractor.training and method.extractor.training


@pytest.mark.parametrize("kind", ["exponential", "mass"])
def test_adaptation_is_the_weighted_sum(toy_backbone: nn.Module, batches: Batches, kind: str) -> None:
    method: USFDA = prepare(made_up(toy_backbone, instance_weights=kind, entropy_weight=0.3), batches)
    deployed(method, batches)
    with torch.no_grad():
        for parameter in method.extractor.parameters():  # F_t is not F_s any more
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    losses = method.adaptation(nothing_of_the_source(), batches[1], 100)
    with torch.no_grad():
        seen = method.backbone(batches[1].images)
        ours, source = (
            [part.double().numpy() for part in method.head(extractor(seen))]
            for extractor in (method.extractor, method.source_extractor)
        )
    p = [np.exp(log_softmax(np.concatenate(rows))) for rows in zip(*source, strict=True)]
    if kind == "mass":
        w = np.array([row[:C].sum() for row in p])
        v = 1 - w
    else:
        c = np.array([row[:C].max() for row in p])
        w, v = ((x - x.min()) / (x.max() - x.min()) for x in (np.exp(c), np.exp(1 - c)))
    separation, entropy = [], []
    for i, (known, negative) in enumerate(zip(*ours, strict=True)):
        mass = np.exp(log_softmax(np.concatenate([known, negative])))[:C].sum()
        separation.append(-w[i] * np.log(mass) - v[i] * np.log(1 - mass))
        of_parts = [-(np.exp(log_softmax(part)) * log_softmax(part)).sum() for part in (known, negative)]
        entropy.append(w[i] * of_parts[0] + v[i] * of_parts[1])
    expected = {"separation": np.mean(separation), "entropy": 0.3 * np.mean(entropy)}
    assert {name: loss.item() for name, loss in losses.items()} == pytest.approx(expected, rel=1e-4)
    assert method.watched["known_weight"]().item() == pytest.approx(w.mean(), rel=1e-4)


def test_a_constant_batch_of_the_target_gives_finite_losses(method: USFDA, batches: Batches) -> None:
    deployed(method, batches)
    alike = batches[1]._replace(images=torch.ones(6, 3, 8, 8))
    losses = method.adaptation(nothing_of_the_source(), alike, 100)
    torch.stack(list(losses.values())).sum().backward()
    assert all(loss.isfinite() for loss in losses.values())
    assert all(p.grad is None or p.grad.isfinite().all() for p in method.parameters())


def test_the_rate_of_the_deployment_is_a_multiple(toy_backbone: nn.Module) -> None:
    (turn,) = made_up(toy_backbone, deployment_rate=0.1).phases()[1].turns
    (group,) = build_optimiser(turn, TrainingOptions(lr=1e-4, backbone_lr=1e-5)).param_groups
    assert group["lr"] == pytest.approx(1e-5) and group["betas"] == (0.9, 0.999) and group["weight_decay"] == 0


# ---- the frame -------------------------------------------------------------------------------------------------------


def test_the_frame_is_measured_one_domain_after_the_other(toy_backbone: nn.Module, batches: Batches) -> None:
    method: USFDA = prepare(made_up(toy_backbone, framed=True), batches)
    assert method.frame.source_mean.abs().sum() > 0
    assert torch.equal(method.frame.target_mean, method.frame.source_mean)  # the target was not looked at
    source_mean = method.frame.source_mean.clone()
    deployed(method, batches)
    expected = made_up(toy_backbone, framed=True).frame
    with torch.no_grad():
        expected.measure(*(toy_backbone.eval()(batch.images) for batch in batches))
    assert torch.equal(method.frame.source_mean, source_mean)
    torch.testing.assert_close(method.frame.target_mean, expected.target_mean)
    assert not torch.allclose(method.frame.target_mean, source_mean)


# ---- answers ---------------------------------------------------------------------------------------------------------


def test_a_negative_class_is_unknown(method: USFDA) -> None:
    with torch.no_grad():
        for layer in (method.head.known, method.head.negative):
            layer.weight.zero_()
        method.head.known.bias.copy_(torch.tensor([0.0, 3.0, 1.0, 2.0]))
        for largest, answer in ((2.9, 1), (3.0, 1), (3.0000002, C), (9.0, C)):
            method.head.negative.bias.copy_(torch.tensor([0.0, 0.0, largest, 0.0, 0.0, 0.0]))
            scores = method.score(torch.randn(2, SIZE))
            assert decided(method, scores).tolist() == [answer, answer]
            assert scores.logits[0].tolist() == [0, 3, 1, 2]


# ---- sizes and the backbone ------------------------------------------------------------------------------------------


def test_there_is_a_negative_class_for_each_pair() -> None:
    assert [number_of_negative_classes(classes, 0) for classes in (2, 3, 20, 200)] == [1, 3, 190, 19_900]
    assert [number_of_negative_classes(classes, 150) for classes in (3, 20, 200)] == [3, 150, 150]


def test_sizes_that_fit_no_memory_are_refused_before_they_are_made(toy_backbone: nn.Module) -> None:
    for problem, options, told in (
        (Problem(2000), USFDAOptions(), r"each pair of 2,000 classes: 1,999,000 .* --negative-classes, for example"),
        (Problem(100), USFDAOptions(bottleneck=4096), r"--bottleneck 4096 with 100 classes needs 6\.2 GiB .* lower it"),
    ):
        with pytest.raises(UserError, match=told):
            USFDA(toy_backbone, problem, options)  # type: ignore[arg-type]
    USFDA(toy_backbone, Problem(200), USFDAOptions(bottleneck=16))  # type: ignore[arg-type]


@pytest.mark.parametrize("train", ["all", "tail", "head"])
def test_the_backbone_stays_as_it_is(train: str, caplog: pytest.LogCaptureFixture) -> None:
    backbone = create_backbone("test_resnet", "none")
    if train != "all":
        backbone.freeze(backbone.default_tap, torch.float16, whole=train == "head")
    method = made_up(backbone)
    with caplog.at_level("INFO", logger="unida"):
        phases = method.phases()
    assert ("usfda does not train the backbone" in caplog.text) == (train != "head")
    of_backbone = {id(p) for p in backbone.parameters()}
    assert not any(p.requires_grad for p in backbone.parameters())
    for group in (group for phase in phases for turn in phase.turns for group in turn.groups):
        assert not of_backbone & {id(p) for p in group.parameters}
    before = state(backbone)
    method.train()
    method.features(torch.randn(4, 3, 64, 64))
    assert all(torch.equal(tensor, before[name]) for name, tensor in backbone.state_dict().items())


@pytest.mark.parametrize("preset", ["best", "paper"])
def test_with_spa_words_stand_in_the_feature_and_the_backbone_stays(preset: str) -> None:
    """Of SPA's losses, only those that learn words have something to change."""
    spa = resolve(SPAOptions(spa=True, spa_preset=preset, spa_vocabulary=12))  # type: ignore[arg-type]
    problem = Problem(C, num_source=12, num_target=10, steps=40)
    method = build_method("usfda", create_backbone("test_resnet", "none"), problem, USFDAOptions(bottleneck=SIZE), spa)
    procurement, deployment = method.phases()
    extra = ["pretext"] if preset == "paper" else []
    assert [turn.name for turn in procurement.turns] == [*TURNS, *extra]
    assert [turn.name for turn in deployment.turns] == ["adaptation", *extra]
    assert deployment.source is None and deployment.sweeps == ("target",)
    assert not any(p.requires_grad for p in method.backbone.parameters())
    assert {want.domain for step in range(20, 40) for want in method.wants(step)} <= {"target"}
    learning = {name for name, p in method.named_parameters() if p.requires_grad and "vocabulary" in name}
    assert bool(learning) == (preset == "paper")


def test_defaults_are_the_released_codes() -> None:
    card = METHODS["usfda"]
    assert (card.lr, card.steps) == (1e-4, 1000)  # 500 of them on the source
    assert dataclasses.asdict(USFDAOptions()) == {
        "bottleneck": 256,
        "negative_weight": 0.2,
        "negative_classes": 0,
        "spliced_images": 2048,
        "instance_weights": "exponential",
        "entropy_weight": 0.1,
        "procurement_share": 0.5,
        "deployment_rate": 1.0,
    }
