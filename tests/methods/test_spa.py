"""SPA on top of every method: what each turn updates, what its losses are, and that answers need no pretext task."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unida.clustering import kmeans
from unida.config import TrainingOptions, config_from_options
from unida.errors import UserError
from unida.methods import METHODS
from unida.methods.base import Method, SourceBatch, TargetBatch
from unida.methods.spa import SPA
from unida.methods.spa_backbone import map_at
from unida.methods.spa_options import PRESETS, SPAOptions, leaves_parameters_unused, resolve
from unida.modelfile import build_method
from unida.models.backbone import POOLED, Backbone, create_backbone
from unida.models.words import entropy, histogram
from unida.pretext.instance_count import InstanceCount, PretextBatch
from unida.training.optim import build_optimisers

CLASSES, WORDS, SIZE = 4, 12, 64
Batches = tuple[SourceBatch, TargetBatch]

every_method = pytest.mark.parametrize("name", METHODS)
every_preset = pytest.mark.parametrize("preset", PRESETS)


def make_backbone(train: str = "all") -> Backbone:
    torch.manual_seed(0)
    backbone = create_backbone("test_resnet.r160_in1k", "none")
    if train != "all":
        backbone.freeze(POOLED if train == "head" else backbone.default_tap, torch.float16)
    return backbone


def build(name: str = "ovanet", preset: str = "paper", train: str = "all", **choices: Any) -> SPA:
    """With a dozen words and the pretext task, whatever the preset says; `choices` without the prefix spa_."""
    given = {
        "spa_vocabulary": WORDS,
        "spa_pretext": "on",
        **{f"spa_{choice}": value for choice, value in choices.items()},
    }
    options = resolve(SPAOptions(spa=True, spa_preset=preset, **given))  # type: ignore[arg-type]
    return SPA(METHODS[name], make_backbone(train), CLASSES, METHODS[name].Options(), options, seed=3).train()


@pytest.fixture(scope="module")
def batches() -> Batches:
    """Eight images of each domain, the target's brighter, and mosaics of them."""
    draw = torch.Generator().manual_seed(1)
    labels = torch.arange(8) % CLASSES
    source = torch.randn(CLASSES, 3, SIZE, SIZE, generator=draw)[labels]
    source = source + 0.2 * torch.randn(8, 3, SIZE, SIZE, generator=draw)
    target = torch.randn(8, 3, SIZE, SIZE, generator=draw) + 1
    mosaics = [InstanceCount(2).make(images, np.random.default_rng(i)) for i, images in enumerate((source, target))]
    indices = torch.arange(8)
    return SourceBatch(source, labels, indices, mosaics[0]), TargetBatch(target, indices, mosaics[1])


def without_mosaics(batches: Batches) -> Batches:
    return batches[0]._replace(pretext=None), batches[1]._replace(pretext=None)


class Looking:
    """The loop's look at all images, on those of a batch."""

    def __init__(self, method: Method, batches: Batches) -> None:
        self.method, self.of = method, dict(zip(("source", "target"), batches, strict=True))

    def __call__(
        self, domain: str, compute: Callable[[Tensor], Tensor] | None = None, limit: int | None = None
    ) -> Tensor:
        return (compute or self.method.features)(self.of[domain].images[:limit])

    def pretext(self, domain: str, batches: int) -> Iterator[PretextBatch]:
        images, task = self.of[domain].images, self.method.pretext
        assert task is not None
        return (task.make(images, np.random.default_rng(number)) for number in range(batches))


def prepare(method: SPA, batches: Batches) -> SPA:
    """The round before the first step."""
    if method.round_every:
        with torch.no_grad():
            method.eval().on_round(0, Looking(method, batches))
    return method.train()  # type: ignore[return-value]


def take_steps(method: SPA, batches: Batches, steps: int = 1, turns: tuple[str, ...] | None = None) -> dict[str, float]:
    """As the loop does. Returns the last step's losses."""
    optimisers = build_optimisers(method, TrainingOptions(lr=0.02))
    losses: dict[str, Tensor] = {}
    for step in range(steps):
        for turn in turns or method.turns:
            of_turn = method(*batches, step, turn)
            torch.stack(list(of_turn.values())).sum().backward()
            optimisers[turn].step()
            method.zero_grad(set_to_none=True)
            losses |= of_turn
    return {name: loss.item() for name, loss in losses.items()}


def state(method: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in method.state_dict().items()}


def moved(before: dict[str, Tensor], method: nn.Module) -> set[str]:
    """Which parts have changed: h (the backbone), V, f_n, and f_g (all else). Statistics are no weights."""
    places = {"base.backbone.backbone.": "h", "base.backbone.words.": "V", "count.": "f_n", "base.": "f_g"}
    parameters = dict(method.named_parameters())
    changed = [name for name, tensor in before.items() if name in parameters and not parameters[name].equal(tensor)]
    return {next(part for prefix, part in places.items() if name.startswith(prefix)) for name in changed}


# ---- what is updated (Eq. 8) -----------------------------------------------------------------------------------------


@every_method
def test_in_the_papers_turns_the_goal_leaves_words_and_the_pretext_leaves_heads(name: str, batches: Batches) -> None:
    method = build(name)
    assert method.turns == ("goal", "pretext")
    before = state(method)
    take_steps(method, batches, turns=("goal",))
    assert moved(before, method) == {"h", "f_g"}
    before = state(method)
    take_steps(method, batches, turns=("pretext",))
    assert moved(before, method) == {"h", "V", "f_n"}


@every_method
@every_preset
@pytest.mark.parametrize("train", ["all", "tail", "head"])
def test_all_parts_that_learn_are_updated_and_no_others(name: str, preset: str, train: str, batches: Batches) -> None:
    method = prepare(build(name, preset, train), batches)
    before = state(method)
    losses = take_steps(method, batches, steps=2)
    assert {"words", "count"} < losses.keys() and all(map(math.isfinite, losses.values()))
    h = {"h"} if train != "head" else set()
    assert moved(before, method) == h | {"f_g", "f_n"} | ({"V"} if preset == "paper" else set())
    stem = "base.backbone.backbone.model.conv1.0.weight"
    assert torch.equal(before[stem], method.state_dict()[stem]) == (train != "all")


@every_method
@pytest.mark.parametrize("updates", ["turns", "joint"])
@pytest.mark.parametrize("learn", ["on", "off"])
@pytest.mark.parametrize("goal_words", ["on", "off"])
def test_a_turns_groups_hold_what_it_updates_once(name: str, updates: str, learn: str, goal_words: str) -> None:
    method = build(name, updates=updates, learn=learn, goal_words=goal_words)
    names = {id(parameter): part for part, parameter in method.named_parameters()}
    found = {}
    for turn in method.turns:
        groups = method.parameter_groups(turn)
        assert all(p.requires_grad for group in groups for p in group)
        assert {id(p) for p in groups.backbone} == {id(p) for p in method.backbone.parameters() if p.requires_grad}
        new = [names[id(p)] for p in groups.new]
        assert len(new) == len(set(new))
        found[turn] = set(new)
    V, f_n = "base.backbone.words.prototypes", {"count.weight", "count.bias"}
    f_g = {n for n in names.values() if n.startswith("base.") and not n.startswith("base.backbone.")}
    assert f_g
    goal = f_g | ({V} if goal_words == "on" else set())
    pretext = f_n | ({V} if learn == "on" else set())
    assert found == ({"goal": goal, "pretext": pretext} if updates == "turns" else {"goal": goal | pretext})


def gradient_of_words(method: SPA, losses: dict[str, Tensor]) -> Tensor:
    """(K, D) of their sum; zeros if none comes."""
    (gradient,) = torch.autograd.grad(
        torch.stack(list(losses.values())).sum(), [method.words.words.prototypes], allow_unused=True
    )
    return torch.zeros_like(method.words.words.prototypes) if gradient is None else gradient


def test_in_a_joint_update_the_goals_gradient_is_kept_from_the_words(batches: Batches) -> None:
    joint, in_turns = build(updates="joint", place="beside"), build(place="beside")
    together = joint(*batches, 0)
    apart = {**in_turns(*batches, 0, "goal"), **in_turns(*batches, 0, "pretext")}
    assert together.keys() == apart.keys()
    for name, loss in together.items():
        torch.testing.assert_close(loss, apart[name], rtol=1e-4, atol=1e-5)
    own = {name: apart[name] for name in ("words", "count")}
    gradient = gradient_of_words(joint, together)
    torch.testing.assert_close(gradient, gradient_of_words(in_turns, own), rtol=1e-3, atol=1e-5)
    assert gradient.abs().sum() > 0


@pytest.mark.parametrize("updates", ["turns", "joint"])
def test_words_may_learn_from_the_goal_alone(updates: str, batches: Batches) -> None:
    method = build(learn="off", goal_words="on", updates=updates)
    own = method.word_losses(*batches, [])
    (count_only,) = torch.autograd.grad(own["count"], [method.count.weight], retain_graph=True)
    assert count_only.abs().sum() > 0
    assert gradient_of_words(method, own).abs().sum() == 0
    before = state(method)
    take_steps(method, batches, turns=("goal",))
    assert "V" in moved(before, method)


@every_preset
@pytest.mark.parametrize("off", [("pretext",), ("entropy",), ("pretext", "entropy"), ("words",)])
def test_whatever_is_off_needs_no_gradient(preset: str, off: tuple[str, ...], batches: Batches) -> None:
    """Processes that share the work wait for the gradient of every parameter that asks for one, unless told."""
    method = prepare(build(preset=preset, **{"words": "on", **dict.fromkeys(off, "off")}), batches)
    given = without_mosaics(batches) if "pretext" in off else batches
    reached: set[int] = set()
    for turn in method.turns:
        torch.stack(list(method(*given, 0, turn).values())).sum().backward()
        groups = method.parameter_groups(turn)
        assert all(p.grad is not None for group in groups for p in group)
        reached |= {id(p) for p in method.parameters() if p.grad is not None}
    assert reached == {id(p) for p in method.parameters() if p.requires_grad}


def test_a_turn_that_could_update_nothing_is_not_taken(batches: Batches) -> None:
    method = build(train="head", learn="off", pretext="off")
    assert method.turns == ("goal",)
    take_steps(method, without_mosaics(batches))


# ---- the losses ------------------------------------------------------------------------------------------------------


def slow_histograms(method: SPA, images: Tensor) -> np.ndarray:
    """(B, U, K) φ, in float64."""
    with torch.no_grad():
        features = method.words.map(images).double().numpy()
    V = method.words.words.prototypes.detach().double().numpy()
    logits = np.einsum("bdhw,kd->bhwk", features, V).reshape(len(images), -1, len(V))
    return np.exp(logits) / np.exp(logits).sum(axis=2, keepdims=True)


@pytest.mark.parametrize("grid", [2, 3])
def test_the_papers_losses_are_the_slow_formulas(grid: int, batches: Batches) -> None:
    source, target = batches
    if grid == 3:
        made = [InstanceCount(3).make(batch.images, np.random.default_rng(0)) for batch in batches]
        source, target = source._replace(pretext=made[0]), target._replace(pretext=made[1])
    method = build(grid=grid, entropy_weight=0.5, pretext_weight=2.0)
    assert method.count.out_features == grid**2
    losses = method(source, target, 0, "pretext")
    entropies = [
        -(phi * np.log(phi)).sum(axis=2).mean() for phi in (slow_histograms(method, b.images) for b in (source, target))
    ]
    assert losses["words"].item() == pytest.approx(0.5 * np.mean(entropies), rel=1e-4)
    weight, bias = (p.detach().double().numpy() for p in method.count.parameters())
    counts = []
    for batch in (source, target):
        assert batch.pretext is not None
        logits = WORDS * slow_histograms(method, batch.pretext.images).mean(axis=1) @ weight.T + bias
        log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        counts.append(-log_p[np.arange(len(log_p)), batch.pretext.labels.numpy()].mean())
    assert losses["count"].item() == pytest.approx(2.0 * sum(counts), rel=1e-4)  # of both domains, not their mean
    assert losses.keys() == {"words", "count"}


def test_at_the_start_no_word_stands_out() -> None:
    """With the paper's thousand words, L_em is near ln 1024 and the pretext loss near twice ln 4."""
    method = build(vocabulary=1024).eval()
    images = torch.randn(2, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    shares = histogram(method.words.log_words(method.words.map(images)))
    assert shares.shape == (2, 1024)
    assert entropy(shares).mean().item() == pytest.approx(math.log(1024), abs=0.2)


def test_the_anchored_loss_is_the_slow_formula_and_knows_the_pretrained_network(batches: Batches) -> None:
    method = prepare(build(preset="best", gap="on"), batches)
    with torch.no_grad():
        pretrained = make_backbone().eval()
        for parameter in method.backbone.parameters():  # training has moved on
            parameter.mul_(1.0 + 0.3 * torch.rand(parameter.shape, generator=torch.Generator().manual_seed(0)))
    method.eval()  # BatchNorm's batch statistics are not the question here
    V = F.normalize(method.words.words.prototypes.detach(), dim=1).double().numpy()
    means = []
    for batch in batches:
        with torch.no_grad():
            now = F.normalize(method.words.map(batch.images), dim=1).double().numpy()
            then = F.normalize(pretrained.spatial(pretrained.run(batch.images), "layer4"), dim=1).double().numpy()
        terms = []
        for image, before in zip(now, then, strict=True):
            for row in range(image.shape[1]):
                for column in range(image.shape[2]):
                    anchor = int(np.argmax(V @ before[:, row, column]))
                    logits = V @ image[:, row, column] / 0.05
                    terms.append(np.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits[anchor])
        means.append(np.mean(terms))
    found = method.word_losses(*batches, [])["words"].item()
    weight = PRESETS["best"]["spa_entropy_weight"] * method.gap.item() ** 2
    assert found == pytest.approx(weight * float(np.mean(means)), rel=1e-3)
    plain = build(preset="best", anchored="off").eval()
    plain.load_state_dict(method.state_dict())
    assert plain.word_losses(*batches, [])["words"].item() != pytest.approx(found, rel=0.05)


def test_the_pretrained_copy_is_no_part_of_the_model(batches: Batches) -> None:
    method, without = build(preset="best"), build(preset="best", anchored="off")
    assert method.state_dict().keys() == without.state_dict().keys()
    assert len(list(method.modules())) == len(list(without.modules()))
    (copy,) = method._pretrained
    known = {id(p) for p in method.parameters()}
    assert known.isdisjoint(id(p) for p in copy.parameters())
    assert not without._pretrained
    before = state(copy)
    prepare(method, batches)
    take_steps(method, batches, steps=2)
    assert all(torch.equal(tensor, before[name]) for name, tensor in copy.state_dict().items())


@pytest.mark.parametrize("train", ["tail", "head"])
def test_the_pretrained_copy_starts_where_the_backbone_starts(train: str, batches: Batches) -> None:
    method = prepare(build(preset="best", train=train), batches).eval()
    images = batches[0].images
    with torch.no_grad():
        from_images = method._pretrained_words(images)
        features = method.backbone.stem(images).half().float()
        method.backbone.starts_at_tap = True
        assert torch.equal(method._pretrained_words(features), from_images)
    assert from_images.shape == (8, 4 if train == "tail" else 1)


@every_preset
@pytest.mark.parametrize("updates", ["turns", "joint"])
@every_method
def test_training_lowers_every_loss_of_spa(name: str, preset: str, updates: str, batches: Batches) -> None:
    method = prepare(build(name, preset, updates=updates), batches)
    first = take_steps(method, batches)
    last = take_steps(method, batches, steps=8)
    assert last["count"] < first["count"]
    assert last["words"] < first["words"] or preset == "best"  # anchored: at its lowest before training moves h
    assert last["closed"] < first["closed"]


@every_preset
def test_maps_of_the_goal_are_not_made_again_in_a_joint_update(
    preset: str, batches: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = build(preset=preset, updates="joint")
    seen: list[Tensor] = []
    make = method.backbone.state
    monkeypatch.setattr(method.backbone, "state", lambda x, upto=None: seen.append(x) or make(x, upto=upto))
    method(*batches, 0)
    source, target = batches
    assert source.pretext is not None and target.pretext is not None
    expected = [source.images, target.images, source.pretext.images, target.pretext.images]
    assert len(seen) == 4 and all(x is image for x, image in zip(seen, expected, strict=True))
    assert method.words.seen is None  # nothing is kept alive beyond the step


@pytest.mark.parametrize("preset", ["best", "paper"])
def test_losses_are_float32_under_autocast(preset: str, batches: Batches) -> None:
    method = prepare(build(preset=preset), batches)
    with torch.autocast("cpu", torch.bfloat16):
        losses = {name: loss for turn in method.turns for name, loss in method(*batches, 0, turn).items()}
        scores = method.score(method.features(batches[1].images))
    assert {loss.dtype for loss in losses.values()} == {torch.float32}
    assert all(bool(loss.isfinite()) for loss in losses.values())
    assert scores.logits.dtype == scores.unknown.dtype == torch.float32


# ---- words, classes and statistics -----------------------------------------------------------------------------------


def test_the_entropy_counts_the_less_the_more_alike_the_domains_are(batches: Batches) -> None:
    source, target = batches
    gaps = []
    for images in (source.images, (source.images + target.images) / 2, target.images):
        method = prepare(build(preset="best", gap="on"), (source, target._replace(images=images)))
        gaps.append(method.gap.item())
    assert gaps[0] == pytest.approx(0, abs=1e-4) and gaps[0] < gaps[1] < gaps[2] < 1
    assert prepare(build(preset="best", gap="off"), batches).gap.item() == 1


def test_words_are_found_in_both_domains(batches: Batches) -> None:
    """Two domains that look at different things: each has words of its own, as k-means of both together finds them."""
    method = build(preset="best", vocabulary=6)
    prepare(method, batches)
    method.eval()
    with torch.no_grad():
        maps = [method.words.map(batch.images).flatten(2).transpose(1, 2).flatten(0, 1) for batch in batches]
        nearest = [(F.normalize(at, dim=1) @ F.normalize(method.words.words.prototypes, dim=1).T) for at in maps]
    used = [set(cosines.argmax(dim=1).tolist()) for cosines in nearest]
    assert used[0] and used[1] and used[0] != used[1] and used[0] | used[1] == set(range(6))
    expected = kmeans(F.normalize(torch.cat(maps), dim=1), 6, seed=0)
    spread = float((F.normalize(torch.cat(maps), dim=1) - expected.centres[expected.assignment]).square().sum())
    distances = torch.cdist(F.normalize(torch.cat(maps), dim=1), method.words.words.prototypes)
    assert float(distances.amin(dim=1).square().sum()) == pytest.approx(spread, rel=0.1)
    of_source = kmeans(F.normalize(maps[0], dim=1), 6, seed=0).centres
    alone = torch.cdist(F.normalize(torch.cat(maps), dim=1), of_source).amin(dim=1).square().sum()
    assert float(alone) > 1.5 * spread  # words of the source alone would not do


def test_with_fewer_places_than_words_the_others_stay_as_they_started() -> None:
    method = build(preset="best", vocabulary=40)
    one = torch.zeros(1, 3, SIZE, SIZE)
    batch = (SourceBatch(one, torch.zeros(1), torch.zeros(1)), TargetBatch(one, torch.zeros(1)))
    started = method.words.words.prototypes.clone()
    prepare(method, batch)  # type: ignore[arg-type]
    changed = (method.words.words.prototypes != started).any(dim=1)
    assert 1 <= int(changed.sum()) <= 4  # of an even picture, at most all four places differ
    assert method.words.words.prototypes.isfinite().all()


def test_rounds_after_the_first_leave_the_words(batches: Batches) -> None:
    method = prepare(build(preset="best"), batches)
    before = state(method)
    method.on_round(7, Looking(method, batches))
    assert all(torch.equal(tensor, before[name]) for name, tensor in method.state_dict().items())


def test_merged_numbers_of_images_are_one_class(batches: Batches) -> None:
    source, target = batches
    assert source.pretext is not None and target.pretext is not None
    merged, plain = build(bins="1,2-3,4"), build()
    assert merged.bins.tolist() == [0, 1, 1, 2]
    renamed = torch.tensor([0, 1, 1, 2])
    expected = plain(
        source._replace(pretext=source.pretext._replace(labels=renamed[source.pretext.labels])),
        target._replace(pretext=target.pretext._replace(labels=renamed[target.pretext.labels])),
        0,
        "pretext",
    )
    torch.testing.assert_close(merged(source, target, 0, "pretext")["count"], expected["count"])


def test_automatic_classes_are_found_before_the_first_step_and_kept(batches: Batches) -> None:
    method = build(bins="auto")  # random words cannot tell any numbers apart
    assert method.round_every
    assert method.bins.tolist() == [0, 1, 2, 3]
    prepare(method, batches)
    assert len(set(method.bins.tolist())) < 4
    assert "bins" in method.state_dict()
    assert build().round_every == 0  # the paper's needs none


def statistics(method: SPA) -> dict[str, Tensor]:
    """Of the backbone: mosaics go through no other BatchNorm."""
    of_backbone = state(method.backbone)
    return {name: tensor for name, tensor in of_backbone.items() if name.endswith(("running_mean", "running_var"))}


@every_method
@pytest.mark.parametrize("kept", ["images", "mixed"])
def test_mosaics_leave_the_kept_statistics_alone_if_told_so(name: str, kept: str, batches: Batches) -> None:
    found = []
    for given in (batches, without_mosaics(batches)):
        method = prepare(build(name, "best", statistics=kept), batches)
        before = statistics(method)
        method(*given, 0)
        found.append(statistics(method))
        assert not all(torch.equal(found[-1][layer], before[layer]) for layer in before)
    same = [torch.equal(found[0][layer], found[1][layer]) for layer in found[0]]
    assert len(same) > 10
    assert all(same) if kept == "images" else not any(same)
    momenta = {layer.momentum for layer in method.modules() if isinstance(layer, nn.BatchNorm2d)}
    assert momenta == {0.1}  # as they were


@pytest.mark.parametrize(("place", "unused"), [("instead", True), ("beside", False)])
def test_layers_behind_the_pooling_get_no_gradient_without_it(place: str, unused: bool, batches: Batches) -> None:
    """Processes that share the work wait for every gradient, unless they know."""
    options = resolve(SPAOptions(spa=True, spa_vocabulary=WORDS, spa_place=place))  # type: ignore[arg-type]
    assert leaves_parameters_unused(options) == unused
    backbone = create_backbone("test_convnext.r160_in1k", "none")
    method = SPA(METHODS["ovanet"], backbone, CLASSES, METHODS["ovanet"].Options(), options).train()
    prepare(method, batches)
    torch.stack(list(method(*without_mosaics(batches), 0).values())).sum().backward()
    learning = [parameter for group in method.parameter_groups() for parameter in group]
    assert any(parameter.grad is None for parameter in learning) == unused


# ---- features and answers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", ["raw", "count", "unit", "batchnorm"])
def test_scales_of_the_histogram(scale: str, batches: Batches) -> None:
    method = build(scale=scale)
    shares = histogram(method.words.log_words(method.words.map(batches[0].images))).detach()
    feature = method.words.scaled(shares)
    if scale in ("raw", "count"):
        expected = {"raw": 1.0, "count": WORDS}[scale]
        torch.testing.assert_close(feature.sum(dim=1), torch.full((8,), float(expected)))
    elif scale == "unit":
        torch.testing.assert_close(feature.norm(dim=1), torch.full((8,), 20.0))
        torch.testing.assert_close(F.normalize(feature, dim=1), F.normalize(shares, dim=1))
    else:
        assert feature.min() == 0 and 0.2 < feature.mean() < 0.6  # of a standard normal's positive part: 0.4


@pytest.mark.parametrize(
    ("words", "place", "size"), [("on", "instead", WORDS), ("on", "beside", WORDS + 96), ("off", "beside", 96)]
)
@pytest.mark.parametrize("tap", [None, "layer2"])
def test_the_feature_is_or_ends_with_the_histogram(
    words: str, place: str, size: int, tap: str | None, batches: Batches
) -> None:
    method = build(words=words, place=place, tap=tap, scale="raw").eval()
    backbone, images = method.backbone, batches[0].images
    assert backbone.num_features == 96
    with torch.no_grad():
        features = method.features(images)
        assert features.shape == (8, size) == (8, method.words.num_features)
        pooled = backbone(images)
        at = tap or "layer4"
        shares = histogram(method.words.words(backbone.spatial(backbone.run(images, upto=at), at)))
    if place == "beside":
        torch.testing.assert_close(features[:, :96], pooled)
    if words == "on":
        torch.testing.assert_close(features[:, -WORDS:], shares)


@every_method
@every_preset
def test_answers_do_not_depend_on_the_pretext_task(name: str, preset: str, batches: Batches) -> None:
    method = prepare(build(name, preset), batches).eval()
    images = batches[1].images
    with torch.no_grad():
        before = method.score(method.features(images))
        for parameter in method.count.parameters():
            parameter.add_(torch.randn(parameter.shape) + 7)
        method.bins.zero_()
        after = method.score(method.features(images))
    assert torch.equal(before.logits, after.logits) and torch.equal(before.unknown, after.unknown)
    assert torch.equal(method.decide(before), method.base.decide(before))
    assert method.unknown_threshold == method.base.unknown_threshold


@every_method
def test_heads_start_as_they_would_without_spa(name: str) -> None:
    """Where the feature has the same size: runs with and without SPA differ by SPA alone."""
    given = {"method": name, "backbone": "test_resnet.r160_in1k", "weights": "none", "train": "all", "seed": 5}
    bare = build_method(config_from_options(given), CLASSES)
    config = config_from_options({**given, "spa": True, "spa_vocabulary": WORDS, "spa_words": "off"})
    with_spa = build_method(replace(config, spa=resolve(config.spa)), CLASSES)
    assert isinstance(with_spa, SPA)
    theirs = with_spa.base.state_dict()
    for key, tensor in bare.state_dict().items():
        assert torch.equal(theirs[key.replace("backbone.", "backbone.backbone.", 1)], tensor)


# ---- what is watched -------------------------------------------------------------------------------------------------


@every_preset
def test_watched_numbers_are_what_they_say(preset: str, batches: Batches) -> None:
    method = prepare(build(preset=preset), batches).eval()
    with torch.no_grad():
        for turn in method.turns:
            method(*batches, 0, turn)
        images = torch.cat([batch.images for batch in batches])
        at = method.words.map(images)
        log_words = method.words.log_words(at)
        V = F.normalize(method.words.words.prototypes, dim=1).double().numpy()
    locations = at.flatten(2).transpose(1, 2).flatten(0, 1).double().numpy()
    cosines = [max(V @ h) / np.linalg.norm(h) if h.any() else 0.0 for h in locations]
    usage = log_words.exp().mean(dim=(0, 1))
    watched = {name: number().item() for name, number in method.watched.items()}
    assert watched["pas"] == pytest.approx(float(np.mean(cosines)), rel=1e-4)
    assert watched["word_entropy"] == pytest.approx(-(log_words.exp() * log_words).sum(dim=2).mean().item(), rel=1e-4)
    assert watched["usage_entropy"] == pytest.approx(-(usage * usage.log()).sum().item(), rel=1e-4)
    assert watched["words_in_use"] == pytest.approx(math.exp(watched["usage_entropy"]), rel=1e-4)
    for domain, batch in zip(("source", "target"), batches, strict=True):
        assert batch.pretext is not None
        with torch.no_grad():
            shares = histogram(method.words.log_words(method.words.map(batch.pretext.images)))
            said = method.count(WORDS * shares).argmax(dim=1)
        right = (said == batch.pretext.labels).float().mean().item()
        assert watched[f"count_accuracy_{domain}"] == pytest.approx(right)
    assert watched["words_in_use"] <= WORDS + 1e-3
    assert not any(number().requires_grad for number in method.watched.values())


# ---- options that cannot work ----------------------------------------------------------------------------------------


def test_taps_that_cannot_hold_words_are_refused() -> None:
    with pytest.raises(UserError, match=r"backbone 'test_resnet\.r160_in1k' has no tap 'layer5'"):
        build(tap="layer5")
    with pytest.raises(UserError, match=r"--spa\.tap layer2 is not behind --tap layer3"):
        build(train="tail", tap="layer2")
    with pytest.raises(UserError, match=r"--spa\.tap layer4 is lost with --train head"):
        build(train="head", tap="layer4")
    assert build(train="tail", tap="layer4").words.tap == "layer4"


@pytest.mark.parametrize("name", ["test_vit.r160_in1k", "test_convnext.r160_in1k", "regnetx_002"])
def test_words_on_other_backbones(name: str, batches: Batches) -> None:
    torch.manual_seed(0)
    options = resolve(SPAOptions(spa=True, spa_vocabulary=WORDS))
    kind = METHODS["ovanet"]
    method = SPA(kind, create_backbone(name, "none"), CLASSES, kind.Options(), options).train()
    prepare(method, batches)
    losses = take_steps(method, batches)
    assert all(map(math.isfinite, losses.values()))
    tap = method.words.tap
    with torch.no_grad():
        at = map_at(method.backbone, method.backbone.state(batches[0].images, upto=tap), tap)
    assert at.shape[1] == method.words.words.prototypes.shape[1]


def test_the_root_of_the_histogram_is_a_quarter_as_long_as_the_pooled_feature(batches: Batches) -> None:
    """Beside the pooled vector, so that heads without bias and normalisation hear both."""
    method = prepare(build(preset="best"), batches).eval()
    with torch.no_grad():
        pooled = [method.backbone(batch.images).norm(dim=1) for batch in batches]
        feature = method.features(batches[0].images)
    length = torch.cat(pooled).mean().item()
    root = feature[:, -WORDS:]
    assert root.norm(dim=1).numpy() == pytest.approx(0.25 * length, rel=1e-3)
    shares = histogram(method.words.words(method.words.map(batches[0].images)))
    assert (root / root.norm(dim=1, keepdim=True)).square().numpy() == pytest.approx(shares.detach().numpy(), abs=1e-5)
