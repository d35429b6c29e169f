"""CMU, the later code of its authors, against a slow version of its rules and in its order; then its first release."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import test_contract as contract
import torch
from few_steps import Batches, Looking, decided, turn_of, with_wanted
from slow_parts import cross_entropy, domain_loss, entropy, is_source, linear, margin, numbers, slow_gradient, softmax
from torch import Tensor, nn

from unida.config import complete, config_from_options
from unida.errors import UserError
from unida.methods.base import Problem, spans
from unida.methods.cmu import CMU
from unida.methods.cmu_options import CMUOptions
from unida.methods.cmu_released import ReleasedCMU
from unida.models.discriminator import Discriminator
from unida.training.optim import inverse_decay

STEPS, NECK, CLASSES = 70, 5, 4  # 10 steps of stage 1, 60 of stage 2, in epochs of 2


def made_up(backbone: Any, **options: Any) -> Any:
    torch.manual_seed(2)
    backbone.mean, backbone.std = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)
    return CMU(backbone, Problem(CLASSES, steps=STEPS), CMUOptions(**{"bottleneck": NECK, **options}))


@pytest.fixture
def method(toy_backbone: nn.Module, batches: Batches) -> CMU:
    """With fixed statistics, those of the target: what a step computes can be followed, and images differ."""
    made: CMU = made_up(toy_backbone)
    with torch.no_grad():
        made.bottleneck[1].momentum = 1.0  # type: ignore[assignment]
        made.features(batches[1].images)
        made.eval()
        for head in (made.classifier, *made.heads):
            head.weight.mul_(4)  # type: ignore[operator, union-attr]
    return made


def given(method: CMU, batches: Batches, step: int) -> Batches:
    return with_wanted(method, batches, step)


def in_numpy(method: CMU, images: Tensor) -> np.ndarray:
    with torch.no_grad():
        return numbers(method.features(images))


def heads_of(method: Any, z: np.ndarray) -> list[np.ndarray]:
    return [softmax(linear(head, z)) for head in method.heads]


def sureness(method: Any, z: np.ndarray) -> tuple[float, float]:
    """Margin and entropy."""
    p = heads_of(method, z)
    return float(np.mean([margin(one) for one in p])), float(np.mean([entropy(one) for one in p]))


def slow_scores(method: CMU, rows: np.ndarray) -> np.ndarray:
    """s of images, min-max over all of them."""
    margins, entropies = np.array([sureness(method, z) for z in rows]).T
    scaled = [(values - values.min()) / (values.max() - values.min()) for values in (margins, entropies)]
    found: np.ndarray = (scaled[0] + 1 - scaled[1]) / 2
    return found


def slow_heads_loss(method: Any, source: Any) -> float:
    """Σ over heads, each on its own view."""
    rows = [in_numpy(method, source.extra[f"view {k}"].images) for k in range(1, 6)]
    labels = source.labels.tolist()
    pairs = zip(method.heads, rows, strict=True)
    return sum(cross_entropy([linear(head, z) for z in of_view], labels) for head, of_view in pairs)


def look(method: Any, batches: Batches, step: int) -> None:
    with torch.no_grad():
        method.look(step, Looking(method, batches))


# ---- the order -------------------------------------------------------------------------------------------------------


def test_a_seventh_of_the_steps_is_for_the_source_and_the_heads(method: CMU) -> None:
    first, second = method.phases()
    assert [list(span)[:: len(span) - 1] for span in spans((first, second), STEPS)] == [[0, 9], [10, 69]]
    assert (first.source, first.target, second.source, second.target) == ("shuffled", False, "shuffled", True)
    names = {id(p): name.split(".")[0] for name, p in method.named_parameters()}

    def learns(turn: Any) -> set[str]:
        return {names[id(p)] for group in turn.groups for p in group.parameters}

    (goal,), (align, heads) = first.turns, second.turns
    assert learns(goal) == {"backbone", "bottleneck", "classifier", "heads"}
    assert learns(align) == {"backbone", "bottleneck", "classifier", "discriminator"}
    assert learns(heads) == {"heads"} and heads.due is not None
    assert [step for step in range(10, 20) if heads.due(step)] == [10, 12, 14, 16, 18]
    assert [len(method.wants(step)) for step in (0, 9, 10, 11, 12)] == [5, 5, 5, 0, 5]
    assert {want.domain for want in method.wants(0)} == {"source"}


@pytest.mark.parametrize(("phase", "turn", "published"), [(0, "goal", 1000), (1, "goal", 6000), (1, "heads", 15_000)])
def test_learning_rates_are_those_of_the_published_steps(method: CMU, phase: int, turn: str, published: int) -> None:
    for share in (0.0, 0.3, 0.9):
        expected = (1 + 0.001 * share * published) ** -0.75
        assert inverse_decay(round(1000 * share), 1000, turn_of(method, turn, phase).decay) == pytest.approx(expected)


def test_bounds_are_measured_on_the_way_and_after_the_last_step(method: CMU) -> None:
    work = method.phases()[1].round
    assert work is not None and work.at_end and work.every == 10 and work.work == method.look


@pytest.mark.parametrize("steps", [1, 3, 8])
def test_runs_of_a_few_steps_have_phases_too(toy_backbone: Any, steps: int) -> None:
    toy_backbone.mean = toy_backbone.std = (0.5, 0.5, 0.5)
    method = CMU(toy_backbone, Problem(CLASSES, steps=steps), CMUOptions())
    assert sum(map(len, spans(method.phases(), steps))) == steps
    assert method.epoch == 1 and [len(method.wants(step)) for step in range(steps)].count(5) >= 1


# ---- stage 1 ---------------------------------------------------------------------------------------------------------


def test_stage_1_adds_up_the_heads_losses(method: CMU, batches: Batches) -> None:
    source, target = given(method, batches, 0)
    logits = [linear(method.classifier, z) for z in in_numpy(method, source.images)]
    expected = {"closed": cross_entropy(logits, source.labels.tolist()), "heads": slow_heads_loss(method, source)}
    found = {name: loss.item() for name, loss in method.first_step(source, target, 0).items()}
    assert found == pytest.approx(expected, rel=1e-5)


# ---- between ---------------------------------------------------------------------------------------------------------


def test_shared_classes_are_found_once_from_the_whole_target(method: CMU, batches: Batches) -> None:
    rows = in_numpy(method, batches[1].images)
    p = [softmax(linear(method.classifier, z)) for z in rows]
    scores = slow_scores(method, rows)
    mean = np.mean([one for one, s in zip(p, scores, strict=True) if s >= 0.4], axis=0)
    expected = [float(x > 0.1) for x in (mean - mean.min()) / (mean.max() - mean.min())]
    look(method, batches, 10)
    assert method.class_weights.tolist() == expected and 0 < sum(expected) < CLASSES
    method.class_weights.fill_(0.5)
    look(method, batches, 20)  # a later round measures bounds alone
    assert method.class_weights.tolist() == [0.5] * CLASSES


# ---- stage 2 ---------------------------------------------------------------------------------------------------------


def test_losses_of_stage_2(method: CMU, batches: Batches) -> None:
    source, target = given(method, batches, 10)
    method.discriminator = Discriminator(NECK, hidden=16)  # without BatchNorm, as the slow version has none
    method.eval()
    method.class_weights.copy_(torch.tensor([1.0, 0.0, 1.0, 0.0]))
    z_s, z_t = (in_numpy(method, batch.images) for batch in (source, target))
    s = np.array([(m + 1 - e) / 2 for m, e in (sureness(method, z) for z in z_t)])
    lower = upper = 0.0
    domains = [[is_source(method.discriminator, z) for z in rows] for rows in (z_s, z_t)]
    w_s = [float(label in (0, 2)) for label in source.labels.tolist()]
    for step in range(10, 14):
        if (step - 10) % 2 == 0:  # an epoch
            lower = upper = 0.0
        lower, upper = 0.01 * lower + 0.99 * s.min(), 0.01 * upper + 0.99 * s.max()
        w_t = ((s - lower) / (upper - lower)).tolist()
        assert step % 2 == 1 or max(w_t) > 1.01  # an epoch's first bounds are a hundredth too small
        found = method.training_step(source, target, step)
        assert found["adversarial"].item() == pytest.approx(0.5 * domain_loss(*domains, w_s, w_t), rel=1e-5)
        assert method.batch_bounds.tolist() == pytest.approx([lower, upper], rel=1e-5)
    logits = [linear(method.classifier, z) for z in z_s]
    assert found["closed"].item() == pytest.approx(cross_entropy(logits, source.labels.tolist()), rel=1e-5)


def test_gradients_are_reversed_by_tllibs_ramp(method: CMU, batches: Batches) -> None:
    """1 for every 1,000 published steps, of which stage 2 has 6,000: step 40 is in its middle."""

    def gradients(step: int) -> tuple[Tensor, Tensor]:
        method.zero_grad()
        method.training_step(*batches, step)["adversarial"].backward()
        return method.bottleneck[0].weight.grad.clone(), method.discriminator.layers[0].weight.grad.clone()  # type: ignore[union-attr, operator]

    (start, _), (middle, d), (end, same_d) = (gradients(step) for step in (10, 40, 70))
    assert not start.any() and d.any()
    torch.testing.assert_close(middle / math.tanh(1.5), end / math.tanh(3.0))  # 2σ(x) − 1 = tanh(x / 2)
    torch.testing.assert_close(d, same_d)
    plain = [p for p in method.parameters() if p.requires_grad]
    assert all(p.grad is None for p in method.heads.parameters()) and plain  # weights are constants


def test_heads_learn_alone_from_features_as_they_answer(method: CMU, batches: Batches) -> None:
    source, target = given(method, batches, 10)
    expected = slow_heads_loss(method, source)
    method.train()
    before = {name: value.clone() for name, value in method.state_dict().items()}
    loss = method.heads_step(source, target, 10)["heads"]
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    loss.backward()
    assert method.training and method.backbone.training
    assert all(torch.equal(value, before[name]) for name, value in method.state_dict().items())  # statistics too
    learning = {name.split(".")[0] for name, p in method.named_parameters() if p.grad is not None}
    assert learning == {"heads"}


def test_the_domains_meet_in_the_discriminator_alone(method: CMU, batches: Batches) -> None:
    """Its BatchNorm sees both at once, as TLlib's does; that of the features sees each alone."""
    method.train()
    seen: list[int] = []
    method.discriminator.layers[1].register_forward_hook(lambda layer, inputs, output: seen.append(len(inputs[0])))
    method.bottleneck[1].register_forward_hook(lambda layer, inputs, output: seen.append(len(inputs[0])))
    method.training_step(*batches, step=10)
    assert sorted(seen) == [10, 12, 22]


def test_equal_scores_in_a_batch_give_finite_losses(method: CMU, batches: Batches) -> None:
    source, target = batches
    same = target._replace(images=torch.ones_like(target.images))
    losses = method.training_step(source, same, step=10)
    torch.stack(list(losses.values())).sum().backward()
    assert all(loss.isfinite() for loss in losses.values())
    assert all(p.grad is None or p.grad.isfinite().all() for p in method.parameters())


# ---- answers ---------------------------------------------------------------------------------------------------------


def test_over_the_target_the_rule_is_the_published_one(method: CMU, batches: Batches) -> None:
    rows = in_numpy(method, batches[1].images)
    look(method, batches, 70)
    with torch.no_grad():
        scores = method.score(method.features(batches[1].images))
    expected = slow_scores(method, rows)
    np.testing.assert_allclose(scores.unknown, 1 - expected, atol=1e-5)
    is_unknown = (decided(method, scores) == CLASSES).numpy()
    assert (is_unknown == (expected < 0.7)).all() and 0 < is_unknown.sum() < len(rows)
    assert scores.logits.argmax(dim=1).tolist() == [int(linear(method.classifier, z).argmax()) for z in rows]


def test_afterwards_an_image_is_judged_alone(method: CMU, batches: Batches) -> None:
    """Others in its batch do not matter, and one that is outside the bounds counts as on them."""
    look(method, batches, 70)
    features = method.features(batches[1].images)
    together = method.score(features).unknown
    alone = torch.cat([method.score(feature[None]).unknown for feature in features])
    torch.testing.assert_close(together, alone)
    method.highest.copy_(method.lowest + 1e-3)
    unknown = method.score(10 * features).unknown
    assert unknown.min() >= 0 and unknown.max() <= 1
    method.highest.copy_(method.lowest)  # a target of one image
    assert method.score(features).unknown.isfinite().all()


def test_a_model_that_only_answers_has_the_bounds(method: CMU, batches: Batches) -> None:
    look(method, batches, 70)
    kept = {name: value for name, value in method.state_dict().items() if not name.startswith(method.run_only)}
    fresh: CMU = made_up(method.backbone).eval()
    fresh.load_state_dict(kept, strict=False)
    features = method.features(batches[1].images)
    assert torch.equal(fresh.score(features).unknown, method.score(features).unknown)


def test_defaults_are_those_of_the_later_code_for_office31(method: CMU) -> None:
    assert dataclasses.asdict(CMUOptions()) == {
        "bottleneck": 256,
        "confident_score": 0.4,
        "class_cut": 0.1,
        "known_score": 0.7,
        "as_released": False,
        "uncertainty_limit": 0.55,
    }
    config = complete(config_from_options({"method": "cmu", "train": "all"}), has_gpu=True)
    assert (config.training.lr, config.training.steps) == (1e-3, 7_000)
    assert method.unknown_threshold == pytest.approx(0.3)
    assert method.recipes["view 1"].grey == 0.5  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"known_score": 1.5}, "--known-score is 1.5"),
        ({"uncertainty_limit": 0.6}, "--uncertainty-limit has no effect without --as-released"),
        ({"known_score": 0.6, "as_released": True}, "--known-score has no effect with --as-released"),
    ],
)
def test_options_that_cannot_work_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        config_from_options({"method": "cmu", **options})


# ---- the first release -----------------------------------------------------------------------------------------------


@pytest.fixture
def released(toy_backbone: nn.Module) -> ReleasedCMU:
    made: ReleasedCMU = made_up(toy_backbone, as_released=True).eval()
    made.discriminator = Discriminator(NECK, hidden=16).eval()
    with torch.no_grad():
        for head in made.heads:
            head.weight.mul_(4)  # type: ignore[operator, union-attr]
    return made


def uncertainty(method: ReleasedCMU, z: np.ndarray) -> tuple[float, float, float]:
    """Entropy, disagreement and doubt."""
    p = heads_of(method, z)
    deviations = [math.sqrt(sum((one[c] - np.mean(p, axis=0)[c]) ** 2 for one in p) / 4) for c in range(CLASSES)]
    return float(np.mean([entropy(one) for one in p])), float(np.mean(deviations)), float(1 - p[0].max())


def slow_uncertainties(method: ReleasedCMU, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(ê + ĉ) / 2 and (ê + ĉ + doubt) / 3 of all target images."""
    e, c, doubt = np.array([uncertainty(method, z) for z in rows]).T
    e, c = ((values - values.min()) / (values.max() - values.min()) for values in (e, c))
    return (e + c) / 2, (e + c + doubt) / 3


def test_the_first_release_looks_every_tenth_of_a_run(released: ReleasedCMU, batches: Batches) -> None:
    (phase,) = released.phases()
    assert type(released) is ReleasedCMU and phase.round is not None
    assert (phase.round.every, phase.round.at_end, phase.source) == (7, True, "balanced")
    assert [group.scale for group in phase.turns[0].groups] == [1, 1, 5] and phase.turns[0].decay == 5
    rows = in_numpy(released, batches[1].images)  # type: ignore[arg-type]
    two, three = slow_uncertainties(released, rows)
    look(released, batches, 7)
    assert released.theta.item() == pytest.approx(two.mean(), rel=1e-5)
    with torch.no_grad():
        scores = released.score(released.features(batches[1].images))
    np.testing.assert_allclose(scores.unknown, three, atol=1e-5)
    is_unknown = (decided(released, scores) == CLASSES).numpy()
    assert (is_unknown == (three > 0.55)).all() and 0 < is_unknown.sum() < len(rows)
    mean = np.mean([heads_of(released, z)[0] for z, u in zip(rows, three, strict=True) if u <= 0.55], axis=0)
    assert released.class_weights.tolist() == pytest.approx((mean / mean.max()).tolist(), rel=1e-5)


@pytest.mark.parametrize(("step", "is_on"), [(6, False), (7, True), (30, True)])
def test_losses_of_the_first_release(released: ReleasedCMU, batches: Batches, step: int, is_on: bool) -> None:
    look(released, batches, 7)
    source, target = with_wanted(released, batches, step)
    target = target._replace(extra={"view 1": target.extra["view 1"]})
    rows = len(target.extra["view 1"].images)
    # As many source images as target ones: a target image's weight is from the source image in its place.
    source = source._replace(
        labels=source.labels[:rows],
        extra={name: made._replace(images=made.images[:rows]) for name, made in source.extra.items()},
    )
    z_s = in_numpy(released, source.extra["view 1"].images)  # type: ignore[arg-type]
    z_t = in_numpy(released, target.extra["view 1"].images)  # type: ignore[arg-type]
    of_source = [(e + c) / 2 for e, c, _ in (uncertainty(released, z) for z in z_s)]
    released.theta.fill_(2 * sum(of_source) / rows)  # so that some are below half of it
    sure = [one < released.theta.item() / 2 for one in of_source]
    assert 0 < sum(sure) < rows
    w_s = [is_on * released.class_weights[label].item() for label in source.labels.tolist()]
    domains = [[is_source(released.discriminator, z) for z in rows] for rows in (z_s, z_t)]
    expected = {
        "closed": slow_heads_loss(released, source) / 5,
        "adversarial": domain_loss(*domains, w_s, [float(is_on and one) for one in sure]),
    }
    found = {name: loss.item() for name, loss in released.training_step(source, target, step).items()}
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("step", [7, 30])
def test_gradients_of_the_first_release_are_reversed_by_the_ramp(
    released: ReleasedCMU, batches: Batches, step: int
) -> None:
    """Of z of the first views: the classification as it is, D's part turned around, the weights constants."""
    look(released, batches, 7)
    released.theta.fill_(3.0)  # every image is sure
    released.class_weights.copy_(torch.tensor([1.0, 0.25, 0.0, 0.5]))
    source, target = with_wanted(released, batches, step)
    labels, rows = source.labels[:10].tolist(), 10
    z_s, z_t = (in_numpy(released, batch.extra["view 1"].images)[:rows] for batch in (source, target))  # type: ignore[arg-type]
    w_s, w_t = [released.class_weights[label].item() for label in labels], [1.0] * rows

    def ramp(call: int) -> float:
        """Of the published run's place: 5,000 steps, two calls in each."""
        return 2 / (1 + math.exp(-10 * (2 * step + call) * 5000 / STEPS / 10_000)) - 1

    def of_source(z: np.ndarray) -> float:
        closed = cross_entropy([linear(released.heads[0], row) for row in z], labels) / 5  # type: ignore[arg-type]
        return closed - ramp(0) * domain_loss([is_source(released.discriminator, row) for row in z], [0.5], w_s, [0.0])

    def of_target(z: np.ndarray) -> float:
        return -ramp(1) * domain_loss([0.5], [is_source(released.discriminator, row) for row in z], [0.0], w_t)

    leaves = [torch.tensor(z, dtype=torch.float32, requires_grad=True) for z in (z_s, z_t)]
    others = iter([leaves[0], *(torch.ones(rows, NECK) for _ in range(4))])
    released.source_features, released.features = (lambda images: next(others)), (lambda images: leaves[1])  # type: ignore[method-assign, assignment, misc]
    losses = released.training_step(source._replace(labels=source.labels[:rows]), target, step)
    torch.stack(list(losses.values())).sum().backward()
    for leaf, slow, at in zip(leaves, (of_source, of_target), (z_s, z_t), strict=True):
        np.testing.assert_allclose(leaf.grad, slow_gradient(slow, at), atol=1e-5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "test",
    [
        contract.test_it_can_be_built_to_answer_from_the_number_of_classes_alone,
        contract.test_its_phases_can_be_walked,
        contract.test_groups_hold_parameters_once_and_together_all_that_can_learn,
        contract.test_wants_depend_on_the_step_alone_and_name_its_recipes,
        contract.test_losses_and_scores_are_float32_under_autocast,
        contract.test_an_image_is_unknown_above_the_threshold,
        contract.test_a_model_without_what_only_a_run_needs_answers_the_same,
    ],
)
def test_the_first_release_keeps_the_contract(test: Any) -> None:
    test("cmu", CMUOptions(as_released=True), None)
