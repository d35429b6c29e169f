"""OVANet against what its authors' released code does, rule by rule."""

import dataclasses

import numpy as np
import pytest
import torch
from few_steps import Batches, decided, turn_of
from torch import Tensor, nn
from torch.optim import Optimizer

from unida.config import complete, config_from_options
from unida.data.options import DataOptions
from unida.methods import METHODS
from unida.methods.base import Problem
from unida.methods.ovanet import OVANet
from unida.methods.ovanet_options import OVANetOptions
from unida.training.optim import build_optimiser, inverse_decay, set_learning_rate
from unida.training.options import TrainingOptions


def made_up(backbone: nn.Module, **options: float) -> OVANet:
    torch.manual_seed(2)
    return OVANet(backbone, Problem(4), OVANetOptions(**options))  # type: ignore[arg-type]


@pytest.fixture
def method(toy_backbone: nn.Module) -> OVANet:
    return made_up(toy_backbone)


def optimiser_of(method: OVANet, **options: float) -> Optimizer:
    """As a run in the published regime has it with these options."""
    config = config_from_options({"regime": "published", **options})
    return build_optimiser(turn_of(method), complete(config, has_gpu=False).training)


def slow_losses(method: OVANet, batches: Batches) -> dict[str, float]:
    """One step's losses from the features on, in NumPy and float64."""
    source, target = batches
    closed = method.closed.weight.detach().double().numpy()
    rows = method.one_vs_all.weight.detach().double().numpy()
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    with torch.no_grad():
        source_features = method.features(source.images).double().numpy()
        target_features = method.features(target.images).double().numpy()
    cross_entropy, right, wrong, entropy = [], [], [], []
    for feature, label in zip(source_features, source.labels.tolist(), strict=True):
        logits = closed @ feature
        cross_entropy.append(np.log(np.exp(logits).sum()) - logits[label])
        is_class = probability_is(rows, feature)
        right.append(-np.log(is_class[label]))
        wrong.append(max(-np.log(1 - p) for k, p in enumerate(is_class) if k != label))
    for feature in target_features:
        entropy += [-(p * np.log(p) + (1 - p) * np.log(1 - p)) for p in probability_is(rows, feature)]
    return {
        "closed": float(np.mean(cross_entropy)),
        "one_vs_all": float((np.mean(right) + np.mean(wrong)) / 2),
        "entropy": float(0.1 * np.mean(entropy)),
    }


def probability_is(rows: np.ndarray, feature: np.ndarray) -> np.ndarray:
    """(C,): row k is "not k", row C + k is "k"."""
    logits = (rows @ feature).reshape(2, -1)
    return np.exp(logits[1]) / np.exp(logits).sum(axis=0)


def set_answers(method: OVANet, closed: list[float], margins: list[float]) -> Tensor:
    """Make the heads give these logits, and these log-odds of "is this class". Returns the features to score."""
    with torch.no_grad():
        method.closed.weight.zero_()
        method.one_vs_all.weight.zero_()
        method.closed.weight[:, 0] = torch.tensor(closed)
        method.one_vs_all.weight[method.num_classes :, 0] = torch.tensor(margins)
    return torch.tensor([[1.0] + [0.0] * 7])


def test_two_heads_without_bias(method: OVANet) -> None:
    heads = {name: tuple(p.shape) for name, p in method.named_parameters() if not name.startswith("backbone.")}
    assert heads == {"closed.weight": (4, 8), "one_vs_all.weight": (8, 8)}


def test_the_losses_are_the_papers_sum(method: OVANet, batches: Batches) -> None:
    expected = slow_losses(method, batches)
    found = {name: loss.item() for name, loss in method.training_step(*batches, step=0).items()}
    assert found == pytest.approx(expected, rel=1e-4)
    assert min(expected.values()) > 0.01  # none of them is idle


def test_lambda_weighs_the_entropy_alone(toy_backbone: nn.Module, batches: Batches) -> None:
    def losses(**options: float) -> dict[str, float]:
        method = made_up(toy_backbone, **options)
        return {name: loss.item() for name, loss in method.training_step(*batches, step=0).items()}

    usual, five_fold = losses(), losses(entropy_weight=0.5)
    assert five_fold == pytest.approx({**usual, "entropy": 5 * usual["entropy"]})


def test_rows_of_the_one_vs_all_head_have_unit_length_whenever_a_step_uses_them(
    method: OVANet, batches: Batches
) -> None:
    lengths: list[Tensor] = []
    method.one_vs_all.register_forward_pre_hook(lambda head, _: lengths.append(head.weight.detach().norm(dim=1)))
    optimiser = torch.optim.SGD(method.parameters(), lr=1.0)
    after_step = []
    for step in range(3):
        sum(method.training_step(*batches, step).values()).backward()  # type: ignore[union-attr]
        optimiser.step()
        optimiser.zero_grad()
        after_step.append(method.one_vs_all.weight.detach().norm(dim=1))
    assert len(lengths) == 6  # source and target, three times
    for length in lengths:
        torch.testing.assert_close(length, torch.ones(8))
    assert all((length - 1).abs().max() > 1e-3 for length in after_step)  # the optimiser is free in between


def test_a_step_leaves_the_closed_head_as_it_is(method: OVANet, batches: Batches) -> None:
    with torch.no_grad():
        method.closed.weight.mul_(3)
    before = method.closed.weight.detach().clone()
    method.training_step(*batches, step=0)
    assert torch.equal(method.closed.weight, before)


def test_scoring_does_not_normalise(method: OVANet) -> None:
    with torch.no_grad():
        method.one_vs_all.weight.mul_(3)
    before = method.one_vs_all.weight.detach().clone()
    features = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    scores = method.score(features)
    assert torch.equal(method.one_vs_all.weight, before)
    for feature, logits, unknown in zip(features, scores.logits, scores.unknown, strict=True):
        is_class = probability_is(before.double().numpy(), feature.double().numpy())
        assert unknown.item() == pytest.approx(1 - is_class[logits.argmax()], abs=1e-6)


def test_the_closed_head_chooses_the_class_and_that_class_is_asked(method: OVANet) -> None:
    # Class 1 wins the closed head; its own classifier accepts, all others refuse.
    features = set_answers(method, closed=[0, 5, 1, 2], margins=[-9, 2, -9, -9])
    assert decided(method, method.score(features)).tolist() == [1]
    # Its classifier refuses; that another class's accepts does not matter.
    features = set_answers(method, closed=[0, 5, 1, 2], margins=[9, -0.1, 9, 9])
    assert decided(method, method.score(features)).tolist() == [4]


def test_exactly_one_half_is_known(method: OVANet) -> None:
    scores = method.score(set_answers(method, closed=[0, 0, 3, 0], margins=[0, 0, 0, 0]))
    assert scores.unknown.tolist() == [0.5]
    assert decided(method, scores).tolist() == [2]
    scores = method.score(set_answers(method, closed=[0, 0, 3, 0], margins=[0, 0, -1e-6, 0]))
    assert decided(method, scores).tolist() == [4]


def test_the_domains_pass_the_backbone_apart(method: OVANet, batches: Batches) -> None:
    source, target = batches
    method.training_step(source, target, step=0)
    seen = method.backbone.seen
    assert len(seen) == 2
    assert torch.equal(seen[0], source.images) and torch.equal(seen[1], target.images)


def test_batch_statistics_are_each_domains_own_and_running_ones_are_shared(method: OVANet, batches: Batches) -> None:
    source, target = batches
    losses = method.training_step(source, target, step=0)
    running = torch.zeros(8)
    with torch.no_grad():
        for images in (source.images, target.images):
            running = 0.9 * running + 0.1 * method.backbone.conv(images).mean(dim=(0, 2, 3))  # type: ignore[operator]
    torch.testing.assert_close(method.backbone.norm.running_mean, running)
    # Other target images leave the source's losses as they were.
    others = method.training_step(source, target._replace(images=5 - target.images), step=0)
    assert others["closed"].item() == losses["closed"].item()
    assert others["one_vs_all"].item() == losses["one_vs_all"].item()
    assert others["entropy"].item() != losses["entropy"].item()


def test_target_gradients_reach_backbone_and_one_vs_all_head_only(method: OVANet, batches: Batches) -> None:
    method.training_step(*batches, step=0)["entropy"].backward()
    assert method.closed.weight.grad is None
    for part in (method.one_vs_all.weight, method.backbone.conv.weight):
        assert part.grad is not None and part.grad.abs().max() > 0


def test_defaults_are_the_released_codes(method: OVANet) -> None:
    assert dataclasses.asdict(OVANetOptions()) == {"entropy_weight": 0.1}
    training, data = TrainingOptions(), DataOptions()
    assert training.method == "ovanet"
    assert (training.batch_size, training.momentum, training.weight_decay) == (36, 0.9, 5e-4)
    (phase,), card = method.phases(), METHODS["ovanet"]
    (turn,) = phase.turns
    assert (training.lr, card.lr, card.steps) == (None, 0.01, 10_000)
    assert (turn.optimiser, turn.decay, phase.source, phase.target) == ("sgd", 10, "balanced", True)
    assert method.unknown_threshold == 0.5
    assert training.clip_norm is None
    assert (data.resize, data.image_size, data.crop) == ("squash", 256, 224)


def test_optimiser_is_nesterov_sgd_with_the_backbone_at_a_tenth(method: OVANet) -> None:
    optimiser = optimiser_of(method)
    assert [group["lr"] for group in optimiser.param_groups] == pytest.approx([0.001, 0.01])
    for group in optimiser.param_groups:
        assert (group["momentum"], group["nesterov"], group["weight_decay"], group["dampening"]) == (0.9, True, 5e-4, 0)
    names = {id(p): name for name, p in method.named_parameters()}
    backbone, new = ([names[id(p)] for p in group["params"]] for group in optimiser.param_groups)
    assert sorted(backbone) == ["backbone.conv.weight", "backbone.norm.bias", "backbone.norm.weight"]
    assert sorted(new) == ["closed.weight", "one_vs_all.weight"]


def test_a_backbone_rate_that_is_given_is_taken(method: OVANet) -> None:
    optimiser = optimiser_of(method, lr=0.2, backbone_lr=0.005)
    assert [group["lr"] for group in optimiser.param_groups] == [0.005, 0.2]


@pytest.mark.parametrize("step", [0, 1, 500, 5000, 9999, 10_000])
def test_schedule_is_the_papers(method: OVANet, step: int) -> None:
    optimiser = optimiser_of(method)
    for earlier in (0, 7, step):  # a step's rate does not depend on the rates before it
        set_learning_rate(optimiser, earlier, 10_000)
    factor = 1 / (1 + 10 * step / 10_000) ** 0.75
    assert inverse_decay(step, 10_000) == pytest.approx(factor, rel=1e-12)
    assert [group["lr"] for group in optimiser.param_groups] == pytest.approx([0.001 * factor, 0.01 * factor])
