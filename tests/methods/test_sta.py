"""STA against what its paper and released code do, stage by stage. Heads are taken apart and computed one by one."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from few_steps import Batches, decided, phases_of, total
from slow_parts import numbers, softmax
from tiny_spa import build as build_with_words
from tiny_spa import make_batches
from torch import Tensor, nn

from unida.config import complete, config_from_options
from unida.methods.base import Problem, Scores
from unida.methods.sta import STA
from unida.methods.sta_options import STAOptions
from unida.models.discriminator import Discriminator
from unida.training.optim import inverse_decay

C, HIDDEN, STEPS = 4, 3, 56
PROBLEM = Problem(C, num_source=12, num_target=10, steps=STEPS, seed=1)
STARTS = (0, 10, 18, 48)  # of the stages: 500, 400, 1,500 and 400 of 2,800 steps


def made_up(backbone: nn.Module, problem: Problem = PROBLEM, **options: Any) -> STA:
    torch.manual_seed(2)
    method = STA(backbone, problem, STAOptions(bottleneck=HIDDEN, **options))  # type: ignore[arg-type]
    method.discriminator = Discriminator(HIDDEN, hidden=8, normalise=True, leak=0.2)  # the slow version is slow
    for layer in method.modules():  # BatchNorm that does something
        if isinstance(layer, nn.BatchNorm1d):
            nn.init.uniform_(layer.weight, 0.5, 2.0)
            nn.init.normal_(layer.bias)
    return method.train()


@pytest.fixture
def method(toy_backbone: nn.Module) -> STA:
    return made_up(toy_backbone)


# ---- slow versions, in NumPy and float64 -----------------------------------------------------------------------------


def leaky(values: np.ndarray) -> np.ndarray:
    return np.where(values > 0, values, 0.2 * values)


def linear(layer: Any, inputs: np.ndarray, rows: slice = slice(None)) -> np.ndarray:
    return inputs @ numbers(layer.weight)[rows].T + numbers(layer.bias)[rows]  # type: ignore[no-any-return]


def hidden(parts: Any, inputs: np.ndarray, units: slice = slice(None)) -> np.ndarray:
    """Linear, BatchNorm by the batch's statistics, LeakyReLU."""
    values, norm = linear(parts[0], inputs, units), parts[1]
    values = (values - values.mean(axis=0)) / np.sqrt(values.var(axis=0) + norm.eps)
    return leaky(values * numbers(norm.weight)[units] + numbers(norm.bias)[units])


def binary(method: STA, seen: np.ndarray) -> np.ndarray:
    """(B, C) probabilities: C classifiers one after the other."""
    last: Any = method.binary[4]
    logits = [
        hidden(method.binary, seen, slice(k * HIDDEN, (k + 1) * HIDDEN)) @ numbers(last.weight)[k, :, 0]
        + numbers(last.bias)[k]
        for k in range(C)
    ]
    return 1 / (1 + np.exp(-np.stack(logits, axis=1)))  # type: ignore[no-any-return]


def known_or_not(method: STA, seen: np.ndarray) -> np.ndarray:
    """(B, 2) probabilities of G_b."""
    first, _, last = method.separator
    return np.array([softmax(row) for row in linear(last, leaky(linear(first, seen)))])


def classes(method: STA, z: np.ndarray) -> np.ndarray:
    """(B, C + 1) probabilities of G_c."""
    return np.array([softmax(row) for row in linear(method.classifier, z)])


def is_source(method: STA, z: np.ndarray) -> np.ndarray:
    layers: Any = method.discriminator.layers
    values = linear(layers[6], hidden(layers[3:6], hidden(layers[:3], z)))[:, 0]
    return 1 / (1 + np.exp(-values))  # type: ignore[no-any-return]


def seen_by(method: STA, images: Tensor) -> np.ndarray:
    """f in training mode, without a trace in BatchNorm's averages."""
    state = {name: value.clone() for name, value in method.state_dict().items()}
    with torch.no_grad():
        found = numbers(method.backbone(images))
    method.load_state_dict(state)
    return found


def losses_at(method: STA, batches: Batches, step: int) -> dict[str, float]:
    turns = phases_of(method)[int(step >= STARTS[2])].turns
    due = [turn for turn in turns if turn.due is None or turn.due(step)]
    return {name: loss.item() for turn in due for name, loss in method(turn.losses, *batches, step).items()}


# ---- the stages ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranking", ["max", "sum"])
@pytest.mark.parametrize("step", [0, 9, 10, 17])
def test_in_step_one_binary_classifiers_learn_and_then_the_separator(
    toy_backbone: nn.Module, batches: Batches, step: int, ranking: str
) -> None:
    method = made_up(toy_backbone, ranking=ranking)
    f_s, f_t = (seen_by(method, batch.images) for batch in batches)
    p = binary(method, f_s)
    is_class = np.eye(C)[batches[0].labels.numpy()] == 1
    expected = {"binary": -np.log(np.where(is_class, p, 1 - p) + 1e-12).sum(axis=1).mean()}
    if step >= STARTS[1]:
        of_target = binary(method, f_t)
        order = np.argsort(of_target.max(axis=1) if ranking == "max" else of_target.sum(axis=1))
        answers = -np.log(known_or_not(method, f_t) + 1e-12)
        expected["separation"] = answers[order[-2:], 0].mean() + answers[order[:2], 1].mean()
    assert losses_at(method, batches, step) == pytest.approx(expected, rel=1e-4)


def test_the_rankings_differ_here(method: STA, batches: Batches) -> None:
    """Or the test above would show nothing of them."""
    p = binary(method, seen_by(method, batches[1].images))
    orders = [np.argsort(ranks) for ranks in (p.max(axis=1), p.sum(axis=1))]
    assert {*orders[0][:2]} != {*orders[1][:2]} or {*orders[0][-2:]} != {*orders[1][-2:]}


@pytest.mark.parametrize("as_released", [False, True])
@pytest.mark.parametrize("step", [18, 47, 48, 55])
def test_in_step_two_the_known_are_aligned_and_then_an_unknown_class_is_learnt(
    toy_backbone: nn.Module, batches: Batches, step: int, as_released: bool
) -> None:
    method, (source, _) = made_up(toy_backbone, as_released=as_released), batches
    f_s, f_t = (seen_by(method, batch.images) for batch in batches)
    z_s, z_t = hidden(method.neck, f_s), hidden(method.neck, f_t)
    p_s, p_t = classes(method, z_s), classes(method, z_t)
    w = known_or_not(method, f_t)[:, 0]
    y_s, y_t = linear(method.neck[0], f_s), linear(method.neck[0], f_t)  # D reads them before BatchNorm
    domain = -np.log(is_source(method, y_s)).mean() - (w * np.log(1 - is_source(method, y_t))).mean()
    expected = {
        "closed": -np.log(p_s[np.arange(len(p_s)), source.labels.numpy()] + 1e-12).mean(),
        "adversarial": 0.3 * domain,
        "entropy": 0.1 * (w * -(p_t * np.log(p_t + 1e-20)).sum(axis=1)).mean(),
    }
    if step >= STARTS[3]:  # two images by themselves have other statistics than in their batch
        two = np.argsort(w)[:2]
        p = classes(method, hidden(method.neck, f_t[two])) if as_released else p_t[two]
        expected["unknown"] = 0.3 * -np.log(p[:, C] + 1e-12).mean()
    assert losses_at(method, batches, step) == pytest.approx(expected, rel=1e-4)
    assert method.watched["known_weight"]().item() == pytest.approx(w.mean(), rel=1e-4)


def test_one_image_that_is_learnt_as_unknown_passes_with_its_batch(toy_backbone: nn.Module, batches: Batches) -> None:
    """Of three images, one is chosen: BatchNorm cannot normalise it by itself."""
    method = made_up(toy_backbone, as_released=True)
    source, target = batches[0], batches[1]._replace(images=batches[1].images[:3], indices=batches[1].indices[:3])
    f_t = seen_by(method, target.images)
    p, w = classes(method, hidden(method.neck, f_t)), known_or_not(method, f_t)[:, 0]
    found = method.adaptation_step(source, target, 50)["unknown"].item()
    assert found == pytest.approx(0.3 * -np.log(p[w.argmin(), C]), rel=1e-4)


@pytest.mark.parametrize("as_released", [False, True])
def test_batchnorm_keeps_the_statistics_of_the_two_images_only_as_released(
    toy_backbone: nn.Module, batches: Batches, as_released: bool
) -> None:
    """Of the source, of the target and of the two, in this order; in stage 3 without the two."""
    method = made_up(toy_backbone, as_released=as_released)
    f_s, f_t = (seen_by(method, batch.images) for batch in batches)
    parts = [f_s, f_t, f_t[np.argsort(known_or_not(method, f_t)[:, 0])[:2]]]
    for step, count in ((47, 2), (48, 2 + as_released)):
        method.neck[1].reset_running_stats()  # type: ignore[operator]
        method.adaptation_step(*batches, step)
        mean = np.zeros(HIDDEN)
        for part in parts[:count]:
            mean = 0.9 * mean + 0.1 * linear(method.neck[0], part).mean(axis=0)
        np.testing.assert_allclose(method.neck[1].running_mean, mean, atol=1e-5)  # type: ignore[arg-type]


@pytest.mark.parametrize("step", [18, 33, 47])
def test_features_learn_against_the_discriminator_by_a_ramp_over_step_two(
    method: STA, batches: Batches, step: int
) -> None:
    """At the published length, the source's call is 2t and the target's 2t + 1, on a scale of 10,000."""
    w = torch.tensor(known_or_not(method, seen_by(method, batches[1].images))[:, 0]).float()
    method.adaptation_step(*batches, step)["adversarial"].backward()
    parts = method.neck[0].weight, method.discriminator.layers[0].weight
    found = [part.grad.clone() for part in parts]  # type: ignore[union-attr, operator]
    expected = [torch.zeros_like(gradient) for gradient in found]
    for call, batch in enumerate(batches):
        p = method.discriminator(method.neck[0](method.backbone(batch.images))).sigmoid()
        loss = 0.3 * (-(p.log()).mean() if call == 0 else -(w * (1 - p).log()).mean())
        ramp = math.tanh(5 * (2 * (step - STARTS[2]) + call) * (1900 / (STEPS - STARTS[2])) / 10_000)
        for gradient, part, factor in zip(expected, torch.autograd.grad(loss, parts), (-ramp, 1), strict=True):  # type: ignore[arg-type]
            gradient += factor * part
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-6)


def test_each_step_updates_its_own_parts(method: STA, batches: Batches) -> None:
    names = {id(p): name.split(".")[0] for name, p in method.named_parameters()}
    parts = [
        [{names[id(p)] for group in turn.groups for p in group.parameters} for turn in phase.turns]
        for phase in phases_of(method)
    ]
    assert parts == [[{"binary"}, {"separator"}], [{"backbone", "neck", "classifier", "discriminator"}]]
    for turn, step in zip((*phases_of(method)[0].turns, *phases_of(method)[1].turns), (10, 10, 50), strict=True):
        method.zero_grad()
        total(method(turn.losses, *batches, step)).backward()
        reached = {names[id(p)] for p in method.parameters() if p.grad is not None}
        assert reached == {names[id(p)] for group in turn.groups for p in group.parameters}


def test_stages_rates_and_schedules_are_the_released_codes(method: STA) -> None:
    assert [stage.start for stage in method.stages] == [*STARTS]
    first, second = phases_of(method)
    assert (first.share, second.share) == (900, 1900)
    heads, separator, adaptation = (*first.turns, *second.turns)
    assert (heads.decay, adaptation.decay) == (0.9, 1.9)
    assert [group.scale for turn in (heads, adaptation) for group in turn.groups] == [1, 0.5, 0.5]
    for t in (500, 700, 899):  # of the published 900: G_b's rate starts with stage 2
        factor = separator.groups[0].scale * inverse_decay(t, 900, separator.decay)
        assert factor == pytest.approx((1 + 10 * (t - 500) / 10_000) ** -0.75)
    config = complete(config_from_options({"method": "sta", "train": "all"}), has_gpu=True)
    assert (config.training.lr, config.training.steps) == (1e-3, 2_800)
    assert config.training.backbone_lr == pytest.approx(1e-4)  # half of it where it learns
    short = complete(config_from_options({"method": "sta"}), has_gpu=False).training
    assert (short.lr, short.steps) == (1e-2, 280)  # the published rate times the published steps
    assert dataclasses.asdict(STAOptions()) == {
        "ranking": "max",
        "ranked_images": 2,
        "as_released": False,
        "adversarial_weight": 0.3,
        "entropy_weight": 0.1,
        "unknown_weight": 0.3,
        "bottleneck": 256,
    }


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 7])
def test_in_the_shortest_runs_every_step_has_its_losses(toy_backbone: nn.Module, batches: Batches, steps: int) -> None:
    method = made_up(toy_backbone, dataclasses.replace(PROBLEM, steps=steps))
    assert [step for stage in method.stages for step in stage] == [*range(steps)]
    for step in method.stages[2]:
        assert all(loss.isfinite() for loss in method.adaptation_step(*batches, step).values())


@pytest.mark.parametrize("images", [2, 10])
def test_equal_images_have_finite_losses_and_gradients(method: STA, batches: Batches, images: int) -> None:
    source, target = (
        batch._replace(images=torch.ones_like(batch.images)[:images], indices=batch.indices[:images])
        for batch in batches
    )
    source = source._replace(labels=source.labels[:images])  # type: ignore[call-arg]
    for step in (12, 50):
        assert all(map(math.isfinite, losses_at(method, (source, target), step).values()))  # type: ignore[arg-type]
    total(method.adaptation_step(source, target, 50)).backward()  # type: ignore[arg-type]
    assert all(p.grad is None or p.grad.isfinite().all() for p in method.parameters())


# ---- answers and words -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("outputs", "answer"), [([3.0, 0, 0, 0, 2.9], 0), ([0, 0, 2.0, 0, 2.1], C), ([1.0] * 5, 0)])
def test_the_answer_is_the_argmax_of_all_outputs(method: STA, outputs: list[float], answer: int) -> None:
    with torch.no_grad():
        method.classifier.weight.zero_()
        method.classifier.bias.copy_(torch.tensor(outputs))
        scores: Scores = method.score(torch.zeros(1, HIDDEN))
    assert decided(method, scores).tolist() == [answer]


@pytest.mark.parametrize(
    ("preset", "first"), [("paper", ["goal", "separation", "pretext"]), ("best", ["goal", "separation"])]
)
def test_with_words_both_steps_have_the_losses_on_them(preset: str, first: list[str]) -> None:
    """In step 1 the goal leaves the backbone as it is; the paper's turn for words still moves it."""
    method, batches = build_with_words("sta", preset), make_batches()
    of_backbone = {id(p) for p in method.backbone.parameters()}
    separation, adaptation = phases_of(method)
    assert [turn.name for turn in separation.turns] == first
    for turn in separation.turns[:2]:
        assert not of_backbone & {id(p) for group in turn.groups for p in group.parameters}
    assert of_backbone <= {id(p) for group in adaptation.turns[0].groups for p in group.parameters}
    for phase, step in ((separation, 20), (adaptation, 99)):
        found = {name for turn in phase.turns for name in method(turn.losses, *batches, step)}
        assert {"words", "count"} < found
