"""SPA on top of every method: what each turn updates, and what its losses are."""

import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from few_steps import Batches, losses_of, phases_of, prepare, take_steps, total
from tiny_spa import (
    FROZEN,
    SIZE,
    WORDS,
    build,
    every_method,
    every_preset,
    make_backbone,
    make_batches,
    moved,
    state,
    without_mosaics,
)
from torch import Tensor

from unida.losses.entropy import entropy
from unida.methods import METHODS
from unida.methods.base import Losses
from unida.methods.spa.method import PRETEXT, SPA
from unida.methods.spa.options import PRESETS
from unida.models.words import histogram


@pytest.fixture(scope="module")
def batches() -> Batches:
    return make_batches()


def turns_of(method: SPA) -> list[str]:
    phase = phases_of(method)[0]
    return [turn.name for turn in phase.turns]


# ---- what is updated (Eq. 8) -----------------------------------------------------------------------------------------


@every_method
def test_in_the_papers_turns_the_goal_leaves_words_and_the_pretext_leaves_heads(name: str, batches: Batches) -> None:
    method = build(name)
    assert turns_of(method) == ["goal", "pretext"]
    before = state(method)
    take_steps(method, batches, turns=("goal",))
    assert moved(before, method) == {"h", "f_g"}
    before = state(method)
    take_steps(method, batches, turns=("pretext",))
    assert moved(before, method) == {"h", "V", "f_n"}


# Every choice with one method, and every method with one of them.
WAYS = [*itertools.product(["ovanet"], PRESETS, ["all", "tail", "head"])]
OTHERS = [
    ("source-only", "paper", "all"),
    ("uan", "best", "all"),
    ("cmu", "best", "tail"),
    ("iuan", "paper", "head"),
    ("ros", "paper", "tail"),
    ("dance", "best", "head"),
    ("zhu", "best", "all"),
    ("gda", "paper", "all"),
    ("osht-sc", "best", "tail"),
    ("dcc", "paper", "tail"),
    ("dann", "best", "tail"),
    ("osbp", "paper", "head"),
    ("rtn", "paper", "all"),
]


def test_no_method_is_forgotten() -> None:
    assert {"ovanet"} | FROZEN | {name for name, *_ in OTHERS} == set(METHODS)


@pytest.mark.parametrize(("name", "preset", "train"), [*WAYS, *OTHERS])
def test_all_parts_that_learn_are_updated_and_no_others(name: str, preset: str, train: str, batches: Batches) -> None:
    method = prepare(build(name, preset, train), batches)
    before = state(method)
    losses = take_steps(method, batches, steps=2)[-1]
    assert "count" in losses and all(map(math.isfinite, losses.values()))
    assert ("words" in losses) == (train != "head" or preset == "paper")  # not if it has nothing to change
    h = {"h"} if train != "head" else set()
    assert moved(before, method) == h | {"f_g", "f_n"} | ({"V"} if preset == "paper" else set())
    stem = "method.backbone.backbone.model.conv1.0.weight"
    assert torch.equal(before[stem], method.state_dict()[stem]) == (train != "all")


SWITCHES = [*itertools.product(["turns", "joint"], ["on", "off"], ["on", "off"])]


@pytest.mark.parametrize(
    ("name", "updates", "learn", "goal_words"),
    [
        *(("ovanet", *switches) for switches in SWITCHES),
        *((way[0], *switches) for way, switches in zip(OTHERS, itertools.cycle(SWITCHES), strict=False)),
    ],
)
def test_a_turns_groups_hold_what_it_updates_once(name: str, updates: str, learn: str, goal_words: str) -> None:
    method = build(name, updates=updates, learn=learn, goal_words=goal_words)
    names = {id(parameter): part for part, parameter in method.named_parameters()}
    found = {}
    for turn in phases_of(method)[0].turns:
        assert all(p.requires_grad for group in turn.groups for p in group.parameters)
        old, new = (
            [names[id(p)] for group in turn.groups for p in group.parameters if group.pretrained == pretrained]
            for pretrained in (True, False)
        )
        assert len(old) == len(set(old)) and len(new) == len(set(new))
        assert set(old) == {names[id(p)] for p in method.backbone.parameters() if p.requires_grad}
        found[turn.name] = set(new)
    V, f_n = "method.backbone.vocabulary.prototypes", {"task.head.weight", "task.head.bias"}
    of_method = (group for turn in method.method.phases()[0].turns for group in turn.groups if not group.pretrained)
    f_g = {names[id(p)] for group in of_method for p in group.parameters}
    assert f_g and not any(n.startswith("method.backbone.") for n in f_g)
    goal = f_g | ({V} if goal_words == "on" else set())
    pretext = f_n | ({V} if learn == "on" else set())
    assert found == ({"goal": goal, "pretext": pretext} if updates == "turns" else {"goal": goal | pretext})


def gradient_of_words(method: SPA, losses: Losses) -> Tensor:
    """(K, D) of their sum; zeros if none comes."""
    (gradient,) = torch.autograd.grad(total(losses), [method.prototypes], allow_unused=True)
    return torch.zeros_like(method.prototypes) if gradient is None else gradient


def test_in_a_joint_update_the_goals_gradient_is_kept_from_the_words(batches: Batches) -> None:
    joint, in_turns = build(updates="joint", place="beside"), build(place="beside")
    together = losses_of(joint, batches)
    apart = {**losses_of(in_turns, batches), **losses_of(in_turns, batches, "pretext")}
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
    (count_only,) = torch.autograd.grad(own["count"], [method.task.head.weight], retain_graph=True)
    assert count_only.abs().sum() > 0
    assert gradient_of_words(method, own).abs().sum() == 0
    before = state(method)
    take_steps(method, batches, turns=("goal",))
    assert "V" in moved(before, method)


@every_preset
@pytest.mark.parametrize("off", [("pretext",), ("entropy",), ("pretext", "entropy"), ("words",)])
def test_whatever_is_off_needs_no_gradient(preset: str, off: tuple[str, ...], batches: Batches) -> None:
    """Processes that share the work wait for the gradient of every parameter that can learn, unless they know."""
    method = prepare(build(preset=preset, **{"words": "on", **dict.fromkeys(off, "off")}), batches)
    given = without_mosaics(batches) if "pretext" in off else batches
    reached: set[int] = set()
    for turn in phases_of(method)[0].turns:
        total(method(turn.losses, *given, 0)).backward()
        assert all(p.grad is not None for group in turn.groups for p in group.parameters)
        reached |= {id(p) for p in method.parameters() if p.grad is not None}
    assert reached == {id(p) for p in method.parameters() if p.requires_grad}


def test_a_turn_that_could_update_nothing_is_not_taken(batches: Batches) -> None:
    method = build(train="head", learn="off", pretext="off")
    assert turns_of(method) == ["goal"]
    take_steps(method, without_mosaics(batches))


# ---- the losses ------------------------------------------------------------------------------------------------------


def slow_histograms(method: SPA, images: Tensor) -> np.ndarray:
    """(B, U, K) φ, in float64."""
    with torch.no_grad():
        features = method.words.map(images).double().numpy()
    V = method.prototypes.detach().double().numpy()
    logits = np.einsum("bdhw,kd->bhwk", features, V).reshape(len(images), -1, len(V))
    return np.exp(logits) / np.exp(logits).sum(axis=2, keepdims=True)


@pytest.mark.parametrize("grid", [2, 3])
def test_the_papers_losses_are_the_slow_formulas(grid: int) -> None:
    batches = make_batches(grid)
    method = build(grid=grid, entropy_weight=0.5, pretext_weight=2.0)
    assert method.task.head.out_features == grid**2
    losses = losses_of(method, batches, "pretext")
    entropies = [-(phi * np.log(phi)).mean() for phi in (slow_histograms(method, batch.images) for batch in batches)]
    assert losses["words"].item() == pytest.approx(0.5 * np.mean(entropies), rel=1e-4)
    weight, bias = (p.detach().double().numpy() for p in method.task.head.parameters())
    counts = []
    for batch in batches:
        mosaics = batch.extra[PRETEXT]
        logits = WORDS * slow_histograms(method, mosaics.images).mean(axis=1) @ weight.T + bias
        log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        counts.append(-log_p[np.arange(len(log_p)), mosaics.labels.numpy()].mean())
    assert losses["count"].item() == pytest.approx(2.0 * sum(counts), rel=1e-4)  # of both domains, not their mean
    assert losses.keys() == {"words", "count"}


def test_at_the_start_no_word_stands_out() -> None:
    """With the paper's thousand words, their entropy is near ln 1024."""
    method = build(vocabulary=1024).eval()
    images = torch.randn(2, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    shares = histogram(method.words.log_words(method.words.map(images)))
    assert shares.shape == (2, 1024)
    assert entropy(shares).mean().item() == pytest.approx(math.log(1024), abs=0.2)


@pytest.mark.parametrize("whose", ["both", "target"])
def test_the_anchored_loss_is_the_slow_formula_and_knows_the_pretrained_network(whose: str, batches: Batches) -> None:
    method = prepare(build(preset="best", gap="on", entropy_of=whose), batches)
    with torch.no_grad():
        pretrained = make_backbone().eval()
        for parameter in method.backbone.parameters():  # training has moved on
            parameter.mul_(1.0 + 0.3 * torch.rand(parameter.shape, generator=torch.Generator().manual_seed(0)))
    method.eval()  # BatchNorm's batch statistics are not the question here
    V = F.normalize(method.prototypes.detach(), dim=1).double().numpy()
    means = []
    for batch in batches if whose == "both" else batches[1:]:
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
    plain = build(preset="best", anchored="off", entropy_of=whose).eval()
    plain.load_state_dict(method.state_dict())
    assert plain.word_losses(*batches, [])["words"].item() != pytest.approx(found, rel=0.05)


def anchored_loss(method: SPA, batches: Batches) -> float:
    """In evaluation mode, so that it depends on weights and kept statistics alone."""
    method.eval()
    with torch.no_grad():
        return method.word_losses(*batches, [])["words"].item()


def test_the_pretrained_copy_is_no_part_of_the_model_and_training_does_not_touch_it(batches: Batches) -> None:
    method, without = build(preset="best"), build(preset="best", anchored="off")
    for spa in (method, without):
        prepare(spa, batches)
    assert method.state_dict().keys() == without.state_dict().keys()
    assert len(list(method.modules())) == len(list(without.modules()))
    assert len(list(method.parameters())) == len(list(without.parameters()))
    start, before = state(method), anchored_loss(method, batches)
    take_steps(method.train(), batches, steps=2)
    assert anchored_loss(method, batches) != pytest.approx(before, rel=1e-3)
    method.load_state_dict(start)
    assert anchored_loss(method, batches) == before  # the words to be sure of are still the same


@pytest.mark.parametrize(("train", "learn"), [("tail", "off"), ("head", "on")])
def test_the_pretrained_copy_starts_where_the_backbone_starts(train: str, learn: str, batches: Batches) -> None:
    method = prepare(build(preset="best", train=train, learn=learn, pretext="off"), batches).eval()
    from_images = anchored_loss(method, batches)
    with torch.no_grad():
        assert method.words.map(batches[0].images).shape[2:] == (2, 2)
        kept = [batch._replace(images=method.backbone.stem(batch.images).half().float()) for batch in batches]
    method.backbone.starts_at_tap = True
    assert anchored_loss(method, (kept[0], kept[1])) == from_images


@pytest.mark.parametrize(
    ("name", "preset", "updates"),
    [
        ("ovanet", "paper", "turns"),
        ("ovanet", "best", "joint"),
        ("dance", "paper", "joint"),
        ("dcc", "best", "turns"),
    ],
)
def test_training_lowers_every_loss_of_spa(name: str, preset: str, updates: str, batches: Batches) -> None:
    method = prepare(build(name, preset, updates=updates), batches)
    first = take_steps(method, batches)[0]
    last = take_steps(method, batches, steps=6)[-1]
    assert last["count"] < first["count"]
    assert last["words"] < first["words"] or preset == "best"  # anchored: at its lowest before training moves h
    assert last["closed"] < first["closed"]


@every_preset
def test_maps_of_the_goal_are_not_made_again_in_a_joint_update(
    preset: str, batches: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = build(preset=preset, updates="joint")
    phases_of(method)  # the pretrained copy is made here: it is not counted
    seen: list[Tensor] = []
    make = method.backbone.state
    monkeypatch.setattr(method.backbone, "state", lambda x, upto=None: seen.append(x) or make(x, upto=upto))
    losses_of(method, batches)
    source, target = batches
    expected = [source.images, target.images, source.extra[PRETEXT].images, target.extra[PRETEXT].images]
    assert len(seen) == 4 and all(x is image for x, image in zip(seen, expected, strict=True))
    assert method.words.seen is None  # nothing is kept alive beyond the step
