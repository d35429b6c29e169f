"""What every method promises to the loop, the checkpoint and the evaluation. A new method is tested by being listed."""

import ast
import dataclasses
import inspect
import itertools
import textwrap
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import torch
from torch import Tensor

from unida.config import DataOptions, ModelOptions, OutputOptions, TrainingOptions
from unida.methods import METHODS, Method
from unida.methods.base import Scores, SourceBatch, TargetBatch
from unida.models.backbone import create_backbone
from unida.training.optim import build_optimiser

CLASSES = 5


def variants() -> list[Any]:
    """Every method with each combination of the choices (Literal options) it offers."""
    found = []
    for name, method in METHODS.items():
        hints = get_type_hints(method.Options)
        choices = {option: get_args(hint) for option, hint in hints.items() if get_origin(hint) is Literal}
        for values in itertools.product(*choices.values()):
            options = method.Options(**dict(zip(choices, values, strict=True)))
            found.append(pytest.param(name, options, id="-".join([name, *map(str, values)])))
    return found


def build(name: str, options: Any, backbone: str = "test_resnet.r160_in1k", seed: int = 0) -> Method:
    torch.manual_seed(seed)
    return METHODS[name](create_backbone(backbone, "none"), CLASSES, options)


def batches(size: int = 10) -> tuple[SourceBatch, TargetBatch]:
    draw = torch.Generator().manual_seed(1)
    labels = torch.arange(size) % CLASSES
    source = torch.randn(CLASSES, 3, 64, 64, generator=draw)[labels] + 0.2 * torch.randn(
        size, 3, 64, 64, generator=draw
    )
    target = torch.randn(size, 3, 64, 64, generator=draw)
    return SourceBatch(source, labels, torch.arange(size)), TargetBatch(target, torch.arange(size))


def total(losses: dict[str, Tensor]) -> Tensor:
    return torch.stack(list(losses.values())).sum()


every_variant = pytest.mark.parametrize(("name", "options"), variants())


def test_a_target_batch_has_no_labels() -> None:
    assert TargetBatch._fields == ("images", "indices", "pretext", "extra")


@pytest.mark.parametrize(("name", "method"), METHODS.items())
def test_it_introduces_itself(name: str, method: type[Method]) -> None:
    assert method.name == name
    for text in (method.title, method.paper, method.settings):
        assert text and "\n" not in text


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_options_are_frozen_and_each_says_what_it_is(method: type[Method]) -> None:
    fields = dataclasses.fields(method.Options)
    assert all(field.default is not dataclasses.MISSING for field in fields)
    for field in fields:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(method.Options(), field.name, field.default)
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(method.Options))).body
    assert isinstance(definition, ast.ClassDef)
    said = {
        line.target.id: following.value.value
        for line, following in itertools.pairwise(definition.body)
        if isinstance(line, ast.AnnAssign)
        and isinstance(line.target, ast.Name)
        and isinstance(following, ast.Expr)
        and isinstance(following.value, ast.Constant)
    }
    assert list(said) == [field.name for field in fields]
    assert all(isinstance(text, str) and len(text) > 10 for text in said.values())


def test_option_names_do_not_collide_with_those_of_a_run() -> None:
    groups = (DataOptions, ModelOptions, TrainingOptions, OutputOptions)
    taken = {field.name for group in groups for field in dataclasses.fields(group)}
    for method in METHODS.values():
        assert taken.isdisjoint(field.name for field in dataclasses.fields(method.Options))


@every_variant
def test_parameter_groups_hold_every_trainable_parameter_once(name: str, options: Any) -> None:
    method = build(name, options)
    frozen = next(method.backbone.parameters()).requires_grad_(False)
    groups = method.parameter_groups()
    ids = [id(p) for p in (*groups.backbone, *groups.new)]
    assert len(ids) == len(set(ids))
    assert set(ids) == {id(p) for p in method.parameters() if p.requires_grad}
    assert id(frozen) not in ids
    assert {id(p) for p in groups.backbone} == {id(p) for p in method.backbone.parameters() if p.requires_grad}
    assert groups.new


@every_variant
@pytest.mark.parametrize("backbone", ["test_resnet.r160_in1k", "test_vit.r160_in1k"])
def test_a_step_gives_finite_scalars_that_reach_every_parameter(name: str, options: Any, backbone: str) -> None:
    method = build(name, options, backbone).train()
    losses = method(*batches(), 0)  # the name that distributed wrappers call
    assert losses
    for loss in losses.values():
        assert loss.shape == () and loss.dtype == torch.float32 and loss.isfinite()
    total(losses).backward()
    groups = method.parameter_groups()
    for parameter in (*groups.backbone, *groups.new):
        assert parameter.grad is not None and parameter.grad.isfinite().all()


@every_variant
def test_losses_and_scores_are_float32_under_autocast(name: str, options: Any) -> None:
    method, (source, target) = build(name, options), batches()
    with torch.autocast("cpu", torch.bfloat16):
        losses = method(source, target, 0)
        scores = method.score(method.features(target.images))
    assert {loss.dtype for loss in losses.values()} == {torch.float32}
    assert scores.logits.dtype == scores.unknown.dtype == torch.float32


@every_variant
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e3])
def test_scores_and_decisions_are_in_their_ranges(name: str, options: Any, scale: float) -> None:
    method = build(name, options).eval()
    with torch.no_grad():
        size = method.features(batches(2)[0].images).shape[1]
    features = scale * torch.randn(64, size, generator=torch.Generator().manual_seed(0))
    scores = method.score(features)
    assert scores.logits.shape == (64, CLASSES) and scores.unknown.shape == (64,)
    assert scores.unknown.min() >= 0 and scores.unknown.max() <= 1
    decisions = method.decide(scores)
    assert decisions.shape == (64,) and decisions.dtype == torch.int64
    assert decisions.min() >= 0 and decisions.max() <= CLASSES


@every_variant
def test_decisions_follow_the_unknown_score(name: str, options: Any) -> None:
    method = build(name, options)
    logits = torch.eye(CLASSES)
    below, above = method.unknown_threshold - 0.01, method.unknown_threshold + 0.01
    known = method.decide(Scores(logits, torch.full((CLASSES,), below)))
    unknown = method.decide(Scores(logits, torch.full((CLASSES,), above)))
    assert known.tolist() == list(range(CLASSES))
    assert unknown.tolist() == [CLASSES] * CLASSES


@every_variant
def test_features_are_vectors_and_do_not_depend_on_the_batch(name: str, options: Any) -> None:
    method, (source, _) = build(name, options).eval(), batches()
    with torch.no_grad():
        together = method.features(source.images)
        alone = torch.cat([method.features(image[None]) for image in source.images])
    assert together.ndim == 2 and len(together) == 10
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


@every_variant
def test_descent_lowers_the_loss(name: str, options: Any) -> None:
    method, (source, target) = build(name, options).train(), batches()
    optimiser = build_optimiser(method, TrainingOptions(lr=0.02))
    totals = []
    for step in range(15):
        loss = total(method(source, target, step))
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        totals.append(loss.item())
    assert totals[-1] < 0.8 * totals[0]


@every_variant
def test_its_state_is_all_there_is(name: str, options: Any) -> None:
    source, target = batches()
    trained, fresh = build(name, options), build(name, options, seed=9)
    optimiser = build_optimiser(trained, TrainingOptions())
    total(trained(source, target, 0)).backward()
    optimiser.step()  # batch statistics and all weights have moved
    with torch.no_grad():
        trained.eval()
        fresh.eval()
        expected = trained.score(trained.features(target.images))
        before = fresh.score(fresh.features(target.images))
        assert not torch.equal(before.logits, expected.logits)
        fresh.load_state_dict({key: value.clone() for key, value in trained.state_dict().items()})
        found = fresh.score(fresh.features(target.images))
    assert torch.equal(found.logits, expected.logits) and torch.equal(found.unknown, expected.unknown)
