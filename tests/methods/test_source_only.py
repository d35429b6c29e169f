"""The baseline: it learns from the source alone, and its three rules refuse what they say they refuse."""

import math
from typing import Literal

import numpy as np
import pytest
import torch
from few_steps import Batches, decided
from torch import Tensor, nn

from unida.methods.base import Problem, Scores, TargetBatch
from unida.methods.source_only import SourceOnly
from unida.methods.source_only_options import SourceOnlyOptions

Rejection = Literal["entropy", "max-prob", "one-vs-all"]
REJECTIONS: list[Rejection] = ["entropy", "max-prob", "one-vs-all"]


def made_up(backbone: nn.Module, rejection: Rejection = "entropy", threshold: float = 0.5) -> SourceOnly:
    torch.manual_seed(2)
    return SourceOnly(backbone, Problem(4), SourceOnlyOptions(rejection, threshold))  # type: ignore[arg-type]


def scores_of(method: SourceOnly, logits: Tensor) -> Scores:
    """Scores of images for which the closed head gives these logits (B, 4)."""
    with torch.no_grad():
        method.closed.weight.copy_(torch.eye(4, 8))
        return method.score(torch.cat([logits, torch.zeros(len(logits), 4)], dim=1))


def logits_of(*probabilities: float) -> Tensor:
    return torch.tensor([probabilities]).log()


def varied_logits() -> Tensor:
    draw = torch.Generator().manual_seed(3)
    return torch.randn(200, 4, generator=draw) * torch.logspace(-1, 1, 200)[:, None]


def softmax64(logits: Tensor) -> np.ndarray:
    powers = np.exp(logits.double().numpy())
    return powers / powers.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("threshold", [0.2, 0.5, 0.9])
def test_entropy_above_a_share_of_log_c_is_unknown(toy_backbone: nn.Module, threshold: float) -> None:
    method, logits = made_up(toy_backbone, "entropy", threshold), varied_logits()
    p = softmax64(logits)
    share = np.array([-sum(q * math.log(q) for q in row) / math.log(4) for row in p])
    scores = scores_of(method, logits)
    np.testing.assert_allclose(scores.unknown.numpy(), share, atol=1e-6)
    expected = np.where(share > threshold, 4, p.argmax(axis=1))
    assert decided(method, scores).tolist() == expected.tolist()
    assert 20 < (expected == 4).sum() < 180  # both answers are asked for


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.95])
def test_a_largest_probability_below_the_threshold_is_unknown(toy_backbone: nn.Module, threshold: float) -> None:
    method, logits = made_up(toy_backbone, "max-prob", threshold), varied_logits()
    p = softmax64(logits)
    scores = scores_of(method, logits)
    np.testing.assert_allclose(scores.unknown.numpy(), 1 - p.max(axis=1), atol=1e-6)
    expected = np.where(p.max(axis=1) < threshold, 4, p.argmax(axis=1))
    assert decided(method, scores).tolist() == expected.tolist()
    assert 5 < (expected == 4).sum() < 195


@pytest.mark.parametrize("threshold", [0.2, 0.5, 0.9])
def test_the_chosen_classs_own_classifier_refuses(toy_backbone: nn.Module, threshold: float) -> None:
    method, logits = made_up(toy_backbone, "one-vs-all", threshold), varied_logits()
    assert method.one_vs_all is not None
    with torch.no_grad():
        method.one_vs_all.weight.normal_(generator=torch.Generator().manual_seed(0))
    scores = scores_of(method, logits)
    rows = method.one_vs_all.weight.detach().double().numpy()[:, :4]
    best = logits.argmax(dim=1).tolist()
    margins = [float((rows[4 + k] - rows[k]) @ x.double().numpy()) for k, x in zip(best, logits, strict=True)]
    refusal = np.array([1 / (1 + math.exp(m)) for m in margins])
    np.testing.assert_allclose(scores.unknown.numpy(), refusal, atol=1e-6)
    assert decided(method, scores).tolist() == [4 if r > threshold else k for k, r in zip(best, refusal, strict=True)]


def test_rules_by_hand(toy_backbone: nn.Module) -> None:
    even, sure, halves = logits_of(0.25, 0.25, 0.25, 0.25), logits_of(0.97, 0.01, 0.01, 0.01), logits_of(0.6, 0.4, 0, 0)
    by_entropy, by_probability = made_up(toy_backbone, "entropy"), made_up(toy_backbone, "max-prob", 0.7)
    pictures = torch.cat([even, sure, halves.clamp_min(-100)])
    # Two halves are just under ½ log 4 of entropy, but at 0.6 surely below a largest probability of 0.7.
    assert decided(by_entropy, scores_of(by_entropy, pictures)).tolist() == [4, 0, 0]
    assert decided(by_probability, scores_of(by_probability, pictures)).tolist() == [4, 0, 4]


def test_a_score_at_the_threshold_is_known(toy_backbone: nn.Module) -> None:
    for rejection in REJECTIONS:
        method = made_up(toy_backbone, rejection)
        scores = Scores(torch.tensor([[0.0, 1.0, 0.0, 0.0]] * 2), torch.tensor([0.5, 0.500001]))
        assert decided(method, scores).tolist() == [1, 4]


@pytest.mark.parametrize("rejection", ["entropy", "max-prob"])
@pytest.mark.parametrize("classes", [2, 3, 7, 10, 65, 200])
def test_the_unknown_score_stays_in_its_range(toy_backbone: nn.Module, rejection: Rejection, classes: int) -> None:
    method = SourceOnly(toy_backbone, Problem(classes), SourceOnlyOptions(rejection))  # type: ignore[arg-type]
    features = torch.cat([torch.zeros(1, 8), 1e-4 * torch.randn(500, 8), 1e4 * torch.randn(500, 8)])
    unknown = method.score(features).unknown  # nothing known at all, hardly anything, everything
    assert unknown.min() >= 0 and unknown.max() <= 1
    assert not unknown.signbit().any()  # no "-0.0000" in the table of answers


@pytest.mark.parametrize("rejection", REJECTIONS)
def test_the_target_is_never_used(toy_backbone: nn.Module, batches: Batches, rejection: Rejection) -> None:
    source, target = batches

    def losses_and_gradients(images: Tensor) -> list[Tensor]:
        method = made_up(toy_backbone, rejection)
        method.zero_grad()
        losses = method.training_step(source, TargetBatch(images, target.indices), step=0)
        torch.stack(list(losses.values())).sum().backward()
        gradients = [p.grad.clone() for p in method.parameters() if p.grad is not None]
        return [*(loss.detach() for loss in losses.values()), *gradients]

    usual = losses_and_gradients(target.images)
    for images in (-7 * target.images, torch.full_like(target.images, torch.nan)):
        others = losses_and_gradients(images)
        assert len(others) == len(usual) > 1
        assert all(torch.equal(a, b) for a, b in zip(usual, others, strict=True))
    assert all(torch.equal(images, source.images) for images in toy_backbone.seen)  # type: ignore[union-attr]


def test_a_run_draws_no_batch_of_the_target(toy_backbone: nn.Module) -> None:
    (phase,) = made_up(toy_backbone).phases()
    assert not phase.target and phase.source == "balanced"


def test_the_loss_is_cross_entropy(toy_backbone: nn.Module, batches: Batches) -> None:
    source, _ = batches
    method = made_up(toy_backbone)
    losses = method.training_step(*batches, step=0)
    with torch.no_grad():
        p = softmax64(method.closed(method.features(source.images)))
    expected = np.mean([-math.log(row[y]) for row, y in zip(p, source.labels.tolist(), strict=True)])
    assert {name: loss.item() for name, loss in losses.items()} == pytest.approx({"closed": expected}, rel=1e-5)


def test_one_vs_all_rejection_trains_its_own_head_with_unit_rows(toy_backbone: nn.Module, batches: Batches) -> None:
    method = made_up(toy_backbone, "one-vs-all")
    losses = method.training_step(*batches, step=0)
    assert list(losses) == ["closed", "one_vs_all"]
    assert method.one_vs_all is not None
    torch.testing.assert_close(method.one_vs_all.weight.norm(dim=1), torch.ones(8))
    assert made_up(toy_backbone, "entropy").one_vs_all is None  # no weights that nobody trains


@pytest.mark.parametrize("rejection", REJECTIONS)
def test_it_learns_a_toy_problem(toy_backbone: nn.Module, batches: Batches, rejection: Rejection) -> None:
    source, target = batches
    method = made_up(toy_backbone, rejection)
    optimiser = torch.optim.SGD(method.parameters(), lr=0.5, momentum=0.9)
    totals = []
    for step in range(60):
        total = torch.stack(list(method.training_step(source, target, step).values())).sum()
        total.backward()
        optimiser.step()
        optimiser.zero_grad()
        totals.append(total.item())
    assert totals[-1] < 0.3 * totals[0]
    assert (method.score(method.features(source.images)).logits.argmax(dim=1) == source.labels).all()
