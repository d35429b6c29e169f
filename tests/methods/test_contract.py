"""What every method promises to the loop, the checkpoint and the answers. A new method is tested by being listed."""

import ast
import dataclasses
import inspect
import itertools
import textwrap
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest
import torch
from few_steps import Batches, Looking, decided, phases_of, prepare, take_round, take_steps, total, with_wanted
from torch import Tensor

from unida.answering.alone import Answering
from unida.data.options import DataOptions
from unida.methods import METHODS, Card
from unida.methods.base import Method, Problem, Scores, SourceBatch, TargetBatch, Want
from unida.methods.build import build_method
from unida.methods.spa.options import PRESETS, SPAOptions, resolve
from unida.models.backbone import create_backbone
from unida.models.options import ModelOptions
from unida.runs.options import OutputOptions
from unida.training.options import TrainingOptions

CLASSES, IMAGES = 5, 10
RESNET = "test_resnet.r160_in1k"
PROBLEM = Problem(CLASSES, num_source=IMAGES, num_target=IMAGES, steps=100, seed=3)


def variants() -> list[Any]:
    """Every method with each combination of the choices (Literal options) it offers."""
    found = []
    for name, card in METHODS.items():
        hints = get_type_hints(card.Options)
        choices = {option: get_args(hint) for option, hint in hints.items() if get_origin(hint) is Literal}
        for values in itertools.product(*choices.values()):
            options = card.Options(**dict(zip(choices, values, strict=True)))
            found.append(pytest.param(name, options, None, id="-".join([name, *map(str, values)])))
    return found


def variants_with_words() -> list[Any]:
    """And methods of each build on top of SPA, with all of SPA's losses. test_spa.py has the others."""
    of_each_build = {"ovanet": PRESETS, "dcc": ["best"], "cmu": ["best"], "ros": ["best"], "usfda": ["best"]}
    return [
        pytest.param(name, METHODS[name].Options(), spa_of(preset), id=f"{name}+spa-{preset}")
        for name, presets in of_each_build.items()
        for preset in presets
    ]


def spa_of(preset: str) -> SPAOptions:
    return resolve(SPAOptions(spa=True, spa_preset=preset, spa_pretext="on", spa_vocabulary=12))  # type: ignore[arg-type]


every_card = pytest.mark.parametrize("card", METHODS.values(), ids=METHODS)
every_variant = pytest.mark.parametrize(("name", "options", "spa"), variants())
with_words_too = pytest.mark.parametrize(("name", "options", "spa"), [*variants(), *variants_with_words()])


def build(
    name: str, options: Any, spa: SPAOptions | None = None, backbone: str = RESNET, problem: Problem = PROBLEM
) -> Method:
    torch.manual_seed(problem.seed)
    return build_method(name, create_backbone(backbone, "none"), problem, options, spa)


def made_batches() -> Batches:
    """Two images of each source class; two of each of three of them in the target, and of two that are new."""
    draw = torch.Generator().manual_seed(1)
    labels = torch.arange(IMAGES) % CLASSES
    patterns = torch.randn(CLASSES + 2, 3, 64, 64, generator=draw)
    source, target = (
        patterns[shown] + 0.2 * torch.randn(IMAGES, 3, 64, 64, generator=draw) for shown in (labels, labels + 2)
    )
    return SourceBatch(source, labels, torch.arange(IMAGES)), TargetBatch(target, torch.arange(IMAGES))


def started(*arguments: Any, **more: Any) -> tuple[Method, Batches]:
    """A method before its first step, and the images of both domains."""
    batches = made_batches()
    return prepare(build(*arguments, **more), batches, rounds=True), batches


@cache
def started_once(name: str, options: Any, spa: SPAOptions | None) -> tuple[Method, Batches]:
    """The same, to answer: for tests that leave the method as it is."""
    method, batches = started(name, options, spa)
    return method.eval(), batches


@cache
def trained_once(name: str, options: Any, spa: SPAOptions | None) -> tuple[Method, Batches]:
    """After two steps, a round and a step: weights, statistics and whatever rounds find have all moved."""
    method, batches = started(name, options, spa)
    take_steps(method, lambda step: with_wanted(method, batches, step), steps=2)
    take_round(method, batches, step=2)
    take_steps(method, lambda step: with_wanted(method, batches, step))
    return method.eval(), batches


def answers(method: Method, images: Tensor) -> tuple[Tensor, ...]:
    with torch.no_grad():
        found = Answering(method.eval())(images)
    return found.prediction, found.closed, found.probability, found.unknown_score


def all_equal(some: tuple[Tensor, ...], others: tuple[Tensor, ...]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(some, others, strict=True))


# ---- what it says of itself ------------------------------------------------------------------------------------------


def test_a_target_batch_has_no_labels() -> None:
    assert TargetBatch._fields == ("images", "indices", "extra")


@every_card
def test_its_card_introduces_it(card: Card) -> None:
    assert METHODS[card.name] is card
    for text in (card.name, card.title, card.paper, card.settings):
        assert text and "\n" not in text and text == text.strip()
    assert {setting.strip() for setting in card.settings.split(",")} <= {"CDA", "PDA", "OSDA", "UniDA"}
    assert card.lr > 0 and card.steps >= 1


@every_card
def test_its_card_finds_its_class(card: Card) -> None:
    kind = card.load()
    assert issubclass(kind, Method) and kind.card is card
    assert kind.__module__ == card.code.partition(":")[0]


@every_card
def test_options_are_frozen_and_each_says_what_it_is(card: Card) -> None:
    fields = dataclasses.fields(card.Options)
    assert all(field.default is not dataclasses.MISSING for field in fields)
    for field in fields:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(card.Options(), field.name, field.default)
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(card.Options))).body
    assert isinstance(definition, ast.ClassDef)
    texts = {
        line.target.id: following.value.value
        for line, following in itertools.pairwise(definition.body)
        if isinstance(line, ast.AnnAssign)
        and isinstance(line.target, ast.Name)
        and isinstance(following, ast.Expr)
        and isinstance(following.value, ast.Constant)
    }
    assert list(texts) == [field.name for field in fields]
    assert all(isinstance(text, str) and len(text) > 10 for text in texts.values())


def test_option_names_do_not_collide_with_those_of_a_run() -> None:
    groups = (DataOptions, ModelOptions, TrainingOptions, OutputOptions, SPAOptions)
    taken = {field.name for group in groups for field in dataclasses.fields(group)}
    for card in METHODS.values():
        assert taken.isdisjoint(field.name for field in dataclasses.fields(card.Options))


@with_words_too
def test_it_can_be_built_to_answer_from_the_number_of_classes_alone(
    name: str, options: Any, spa: SPAOptions | None
) -> None:
    method, (_, target) = build(name, options, spa, problem=Problem(CLASSES)), made_batches()
    assert method.num_classes == CLASSES
    assert all(len(column) == IMAGES for column in answers(method, target.images))


# ---- phases ----------------------------------------------------------------------------------------------------------


@with_words_too
def test_its_phases_can_be_walked(name: str, options: Any, spa: SPAOptions | None) -> None:
    phases = build(name, options, spa).phases()
    assert phases and sum(phase.share for phase in phases) > 0
    for phase in phases:
        assert phase.share >= 0 and set(phase.sweeps) <= {"source", "target"}
        assert phase.round is None or phase.round.every >= 1
        names = [turn.name for turn in phase.turns]
        assert len(names) == len(set(names))  # a turn's optimiser goes by its name
        assert names or not phase.share


@with_words_too
def test_groups_hold_parameters_once_and_together_all_that_can_learn(
    name: str, options: Any, spa: SPAOptions | None
) -> None:
    method = build(name, options, spa)
    frozen = next(method.backbone.parameters()).requires_grad_(False)
    of_backbone = {id(p) for p in method.backbone.parameters()}
    updated: set[int] = set()
    for turn in (turn for phase in phases_of(method) for turn in phase.turns):
        ids = [id(p) for group in turn.groups for p in group.parameters]
        assert len(ids) == len(set(ids)) > 0
        for group in turn.groups:
            assert all(p.requires_grad and (id(p) in of_backbone) == group.pretrained for p in group.parameters)
            assert group.scale > 0
        updated |= set(ids)
    assert updated == {id(p) for p in method.parameters() if p.requires_grad}
    assert id(frozen) not in updated and not updated <= of_backbone


@with_words_too
def test_wants_depend_on_the_step_alone_and_name_its_recipes(name: str, options: Any, spa: SPAOptions | None) -> None:
    method, batches = started(name, options, spa)

    def plain(want: Want) -> tuple[Any, ...]:
        return want.name, want.domain, want.recipe, None if want.indices is None else want.indices.tolist()

    steps = (0, 9, PROBLEM.steps - 1)  # the last: some recipes are for the last phase
    forward, backward = (
        {step: list(map(plain, method.wants(step))) for step in order} for order in (steps, steps[::-1])
    )
    assert forward == backward
    wants = [want for step in steps for want in method.wants(step)]
    for want in wants:
        assert want.recipe is None or want.recipe in method.recipes
        assert want.indices is not None or want.recipe is not None
        assert want.indices is None or (np.isin(want.indices, np.arange(IMAGES)).all() and want.indices.ndim == 1)
    assert {want.recipe for want in wants} | swept_recipes(method, batches) >= set(method.recipes)  # none is idle
    for of_step in forward.values():
        places = [(want_name, domain) for want_name, domain, *_ in of_step]
        assert len(places) == len(set(places))


def swept_recipes(method: Method, batches: Batches) -> set[str]:
    """Those that the starts of its phases sweep with."""
    sweep = Looking(method.eval(), batches)
    with torch.no_grad():
        for phase in phases_of(method):
            if phase.start is not None:
                phase.start(sweep)
    return sweep.recipes


# ---- a step ----------------------------------------------------------------------------------------------------------


@every_variant
@pytest.mark.parametrize("backbone", [RESNET, "test_vit.r160_in1k"])
def test_a_turns_losses_are_finite_scalars_that_reach_what_it_updates(
    name: str, options: Any, spa: SPAOptions | None, backbone: str
) -> None:
    method, batches = started(name, options, spa, backbone=backbone)
    seen: list[str] = []
    for turn in phases_of(method)[0].turns:
        losses = method(turn.losses, *with_wanted(method, batches, 0), 0)  # the name that distributed wrappers call
        assert losses
        for loss in losses.values():
            assert loss.shape == () and loss.dtype == torch.float32 and loss.isfinite()
        method.zero_grad()
        total(losses).backward()
        for parameter in (p for group in turn.groups for p in group.parameters):
            assert parameter.grad is not None and parameter.grad.isfinite().all()
        seen += losses
    assert len(seen) == len(set(seen))  # the log has one column for each


@with_words_too
def test_losses_and_scores_are_float32_under_autocast(name: str, options: Any, spa: SPAOptions | None) -> None:
    method, batches = build(name, options, spa), made_batches()
    with torch.autocast("cpu", torch.bfloat16):
        prepare(method, batches, rounds=True)
        given = with_wanted(method, batches, 0)
        losses = [loss for turn in phases_of(method)[0].turns for loss in method(turn.losses, *given, 0).values()]
        scores = method.score(method.features(batches[1].images))
    assert {loss.dtype for loss in losses} == {torch.float32} and all(loss.isfinite() for loss in losses)
    assert scores.logits.dtype == scores.unknown.dtype == torch.float32


@every_variant
def test_descent_lowers_the_loss(name: str, options: Any, spa: SPAOptions | None) -> None:
    method, batches = started(name, options, spa)
    given = with_wanted(method, batches, 0)
    before = sum(take_steps(method, given)[0].values())
    take_steps(method, lambda step: with_wanted(method, batches, step), steps=10)
    after = sum(take_steps(method, given)[0].values())
    assert after < 0.9 * before


@with_words_too
def test_numbers_to_watch_are_scalars_without_a_gradient(name: str, options: Any, spa: SPAOptions | None) -> None:
    method, _ = trained_once(name, options, spa)
    numbers = [number() for number in method.watched.values()]
    assert all(number.shape == () and not number.requires_grad and number.isfinite() for number in numbers)


@with_words_too
def test_measures_give_a_value_for_each_image(name: str, options: Any, spa: SPAOptions | None) -> None:
    method, (_, target) = started_once(name, options, spa)
    with torch.no_grad():
        for measure in method.measures().values():
            values = measure(target.images)
            assert len(values) == IMAGES and values.isfinite().all()


# ---- answers ---------------------------------------------------------------------------------------------------------


@with_words_too
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e3])
def test_scores_and_answers_are_in_their_ranges(name: str, options: Any, spa: SPAOptions | None, scale: float) -> None:
    method, (_, target) = started_once(name, options, spa)
    with torch.no_grad():
        size = method.features(target.images[:1]).shape[1]
        features = scale * torch.randn(64, size, generator=torch.Generator().manual_seed(0))
        scores, found = method.score(features), Answering(method).of_features(features)
    assert scores.logits.shape == (64, CLASSES) and scores.unknown.shape == (64,)
    assert scores.unknown.min() >= 0 and scores.unknown.max() <= 1
    for column, largest in ((found.prediction, CLASSES), (found.closed, CLASSES - 1)):
        assert column.shape == (64,) and column.dtype == torch.int64
        assert column.min() >= 0 and column.max() <= largest
    # No method has a rule of its own: the score and the threshold are all there is.
    assert torch.equal(found.closed, scores.logits.argmax(dim=1))
    is_unknown = scores.unknown > method.unknown_threshold
    assert torch.equal(found.prediction, torch.where(is_unknown, CLASSES, found.closed))


@with_words_too
def test_an_image_is_unknown_above_the_threshold(name: str, options: Any, spa: SPAOptions | None) -> None:
    method = build(name, options, spa)
    threshold = method.unknown_threshold
    assert 0 <= threshold <= 1
    for score, answer in ((threshold - 0.01, "known"), (threshold, "known"), (threshold + 0.01, "unknown")):
        found = decided(method, Scores(torch.eye(CLASSES), torch.full((CLASSES,), score, dtype=torch.float64)))
        assert found.tolist() == (list(range(CLASSES)) if answer == "known" else [CLASSES] * CLASSES)


@with_words_too
def test_features_are_vectors_and_do_not_depend_on_the_batch(name: str, options: Any, spa: SPAOptions | None) -> None:
    method, (source, _) = started_once(name, options, spa)
    with torch.no_grad():
        together = method.features(source.images)
        alone = torch.cat([method.features(image[None]) for image in source.images])
    assert together.ndim == 2 and len(together) == IMAGES
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


# ---- what is kept ----------------------------------------------------------------------------------------------------


@with_words_too
def test_its_state_is_all_there_is(name: str, options: Any, spa: SPAOptions | None) -> None:
    method, (_, target) = trained_once(name, options, spa)
    fresh = build(name, options, spa, problem=dataclasses.replace(PROBLEM, seed=9))
    expected = answers(method, target.images)
    assert not all_equal(answers(fresh, target.images), expected)
    fresh.load_state_dict({key: value.clone() for key, value in method.state_dict().items()})
    assert all_equal(answers(fresh, target.images), expected)


@with_words_too
def test_a_model_without_what_only_a_run_needs_answers_the_same(
    name: str, options: Any, spa: SPAOptions | None
) -> None:
    method, (_, target) = trained_once(name, options, spa)
    state = {key: value.clone() for key, value in method.state_dict().items()}
    for prefix in method.run_only:
        assert any(key.startswith(prefix) for key in state), prefix
    kept = {key: value for key, value in state.items() if not key.startswith(method.run_only)}
    fresh = build(name, options, spa, problem=Problem(CLASSES, seed=9))
    missing, unexpected = fresh.load_state_dict(kept, strict=False)
    assert not unexpected and all(key.startswith(method.run_only) for key in missing)
    assert all_equal(answers(fresh, target.images), answers(method, target.images))
