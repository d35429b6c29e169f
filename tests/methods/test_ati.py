"""ATI-λ against its pseudo-code, written with loops."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from few_steps import Batches, Looking, decided, phases_of, prepare
from torch import Tensor, nn

from unida.config import complete, config_from_options
from unida.errors import UserError
from unida.methods.ati import ATI, map_to_assigned, rejection_score, residual
from unida.methods.ati_options import ATIOptions
from unida.methods.base import Problem
from unida.methods.build import build_method
from unida.methods.spa.options import SPAOptions, resolve
from unida.models.backbone import create_backbone

C = 4


def made_up(backbone: nn.Module, regime: Any = "published", framed: bool = False, **options: Any) -> ATI:
    torch.manual_seed(2)
    problem = Problem(C, num_source=12, num_target=10, steps=20, regime=regime, framed=framed)
    backbone.requires_grad_(False)  # the toy is no `Backbone`, which the method freezes itself
    return ATI(backbone, problem, ATIOptions(**options))  # type: ignore[arg-type]


def aligned(method: ATI, batches: Batches) -> tuple[np.ndarray, np.ndarray]:
    """Before the first step; the features of both domains, as the backbone gives them."""
    prepare(method, batches, rounds=True).eval()
    with torch.no_grad():
        source, target = (method.backbone(batch.images).double().numpy() for batch in batches)
    return source, target


# ---- the pseudo-code, slowly -----------------------------------------------------------------------------------------


def standardised(features: np.ndarray) -> np.ndarray:
    x = np.array([row / sum(abs(row)) for row in features])
    x = (x - x.mean(axis=0)) / x.std(axis=0, ddof=1)
    return x * 10 / np.sqrt(x.shape[1])


def slow_map(s: np.ndarray, t: np.ndarray, classes: list[int], ridge: float) -> np.ndarray:
    """V by the normal equations of all d² numbers, image by image."""
    d, used = s.shape[1], sorted({c for c in classes if c >= 0})
    n = sum(c >= 0 for c in classes) / len(used)
    r = ridge * np.mean([s[c] @ s[c] for c in used])
    left, right = r * np.eye(d), r * np.eye(d)
    for i, c in enumerate(classes):
        if c >= 0:
            left += np.outer(s[c], s[c]) / n
            right += np.outer(s[c], t[i]) / n
    return np.linalg.solve(left, right)


def slow_ati(x_s: np.ndarray, labels: list[int], x_t: np.ndarray, options: ATIOptions) -> dict[str, Any]:
    S = np.array([np.mean([x for x, y in zip(x_s, labels, strict=True) if y == c], axis=0) for c in range(C)])
    T, W, energies, before = x_t, np.eye(len(S[0])), [], [-1] * len(x_t)

    def assigned() -> tuple[list[int], float]:
        d = np.array([[np.linalg.norm(t - s) for s in S] for t in T])
        cost = d.min() + options.reject_place * (d.max() - d.min())
        return [int(row.argmin()) if row.min() <= cost else -1 for row in d], cost

    def energy(means: np.ndarray, classes: list[int]) -> float:
        return float(np.sqrt(sum(sum((means[c] - T[t]) ** 2) for t, c in enumerate(classes) if c >= 0)))

    for number in range(options.iterations):
        classes, _ = assigned()
        V = slow_map(S, T, classes, options.map_ridge)
        first = energy(S, classes) if number == 0 else first  # noqa: F821
        energies.append(energy(S @ V, classes) / first)
        new = [c for c, old in zip(classes, before, strict=True) if c >= 0 and c != old]
        if number and (energies[-1] > energies[-2] or abs(energies[-1] - energies[-2]) < 0.001 or not new):
            break
        S, W, before = S @ V, W @ V, classes
    classes, cost = assigned()
    return {"S": S, "W": W, "cost": cost, "classes": classes, "energies": energies}


@pytest.mark.parametrize(
    "options", [{}, {"reject_place": 0.3}, {"reject_place": 1.0, "map_ridge": 0.01}, {"iterations": 1}]
)
def test_it_is_its_pseudo_code(toy_backbone: nn.Module, batches: Batches, options: dict[str, Any]) -> None:
    method = made_up(toy_backbone, **options)
    source, target = aligned(method, batches)
    x_s, x_t = standardised(source), standardised(target)
    slow = slow_ati(x_s, batches[0].labels.tolist(), x_t, method.options)
    assert len(slow["energies"]) == 1 if options.get("iterations") == 1 else len(slow["energies"]) > 1
    np.testing.assert_allclose(method.class_means.numpy(), slow["S"], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(method.map.numpy(), slow["W"], rtol=1e-4, atol=1e-4)
    assert method.cost.item() == pytest.approx(slow["cost"], rel=1e-4)
    # Unknown images are those that the last assignment rejects.
    with torch.no_grad():
        scores = method.score(method.features(batches[1].images))
    assert [c < 0 for c in slow["classes"]] == (decided(method, scores) == C).tolist()
    if options.get("reject_place") == 0.3:
        assert 0 < (scores.unknown > 0.5).sum() < len(target)
    np.testing.assert_allclose(scores.logits, x_t @ method.closed.weight.detach().double().numpy().T, atol=1e-4)


def test_steps_learn_the_mapped_source(toy_backbone: nn.Module, batches: Batches) -> None:
    method = made_up(toy_backbone)
    source, _ = aligned(method, batches)
    loss = method.training_step(*batches, 0)["closed"]
    logits = standardised(source) @ method.map.double().numpy() @ method.closed.weight.detach().double().numpy().T
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    slow = -np.mean([row[y] for row, y in zip(log_p, batches[0].labels.tolist(), strict=True)])
    assert loss.item() == pytest.approx(slow, rel=1e-4)
    loss.backward()
    assert {name for name, p in method.named_parameters() if p.grad is not None} == {"closed.weight"}


# ---- rules -----------------------------------------------------------------------------------------------------------


def test_the_map_is_the_exact_minimum() -> None:
    """Also with a class without images, and more numbers than images."""
    rng = torch.Generator().manual_seed(0)
    S, T = torch.randn(5, 12, generator=rng), torch.randn(9, 12, generator=rng)
    classes = torch.tensor([0, 1, 1, -1, 3, 4, 4, 4, -1])
    left, right = map_to_assigned(S, T, classes, ridge=0.05)
    assert left.shape == (12, 4) and right.shape == (4, 12)
    expected = slow_map(S.double().numpy(), T.double().numpy(), classes.tolist(), 0.05)
    np.testing.assert_allclose((torch.eye(12) + left @ right).numpy(), expected, rtol=1e-4, atol=1e-5)
    near = map_to_assigned(S, T, classes, ridge=1e-6)
    means = torch.stack([T[classes == c].mean(dim=0) for c in (0, 1, 3, 4)])
    torch.testing.assert_close((S + S @ near[0] @ near[1])[[0, 1, 3, 4]], means, rtol=1e-3, atol=1e-3)


def test_constant_features_give_finite_numbers() -> None:
    for S, T in (
        (torch.zeros(3, 4), torch.zeros(5, 4)),
        (torch.zeros(3, 4), torch.ones(5, 4)),
        (torch.ones(3, 4),) * 2,
    ):
        classes = torch.zeros(len(T), dtype=torch.int64)
        left, right = map_to_assigned(S, T, classes, 0.1)
        assert (left @ right).isfinite().all() and residual(S, T, classes) >= 0


def test_the_score_is_above_a_half_exactly_beyond_the_cost() -> None:
    cost = torch.tensor(3.3)
    above, below = (cost.nextafter(torch.tensor(limit)) for limit in (9.0, 0.0))
    nearest = torch.stack([torch.tensor(0.0), below, cost, above, torch.tensor(1e30)])
    scores = rejection_score(nearest, cost)
    assert (scores > 0.5).tolist() == [False, False, False, True, True]
    assert scores[0] == 0 and scores[-1] == 1 and (scores.diff() >= 0).all()
    assert rejection_score(torch.zeros(1), torch.zeros(())).tolist() == [0]


def test_every_class_needs_as_many_images(toy_backbone: nn.Module, batches: Batches) -> None:
    method = made_up(toy_backbone, assignment="every-class")
    aligned(method, batches)
    with torch.no_grad():
        x = method.seen(method.features(batches[1].images), "target")
        found = method._assign(method.class_means, x)
    assert set(range(C)) <= set(found.tolist())
    few = ATI(toy_backbone, Problem(C, num_target=3), method.options)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"for each of the 4 source classes, but there are 3: use --assignment nearest"):
        few.phases()


# ---- regimes, --train and SPA ----------------------------------------------------------------------------------------


def test_in_the_kept_regime_all_is_solved_in_the_frame(toy_backbone: nn.Module, batches: Batches) -> None:
    method = made_up(toy_backbone, regime="kept", framed=True)
    (phase,) = phases_of(method)
    assert (phase.share, phase.turns, phase.round) == (0, (), None) and phase.sweeps == ("source", "target")
    aligned(method, batches)
    assert method.frame.source_mean.abs().sum() > 0 and not torch.equal(method.map, torch.eye(9))
    with torch.no_grad():
        source = method.frame(method.features(batches[0].images), "source")
        assert torch.equal(method.closed(source @ method.map).argmax(dim=1), batches[0].labels)
        target = method.frame(method.features(batches[1].images), "target")
        m = (target[:, None] - method.class_means).norm(dim=2).amin(dim=1)
        unknown = method.score(method.features(batches[1].images)).unknown
    torch.testing.assert_close(unknown, m / (m + method.cost))


def test_published_steps_follow_the_map(toy_backbone: nn.Module) -> None:
    (phase,) = made_up(toy_backbone).phases()
    assert phase.share == 1 and phase.start is not None and phase.round is None
    assert not phase.target and phase.sweeps == ("source", "target") and phase.source == "balanced"


@pytest.mark.parametrize("preset", ["best", "paper"])
def test_with_learning_words_the_map_is_found_again_at_the_end(preset: str) -> None:
    spa = resolve(SPAOptions(spa=True, spa_preset=preset, spa_vocabulary=12))  # type: ignore[arg-type]
    backbone = create_backbone("test_resnet", "none")
    problem = Problem(C, num_source=12, num_target=10, steps=40)
    (phase,) = build_method("ati", backbone, problem, ATIOptions(), spa).phases()
    assert phase.start is not None and not any(p.requires_grad for p in backbone.parameters())
    assert (phase.round is not None and phase.round.at_end) == (preset == "paper")


def test_the_order_of_images_changes_nothing(toy_backbone: nn.Module, batches: Batches) -> None:
    source, target = batches
    found: list[Tensor] = []
    for order in (torch.arange(10), torch.arange(9, -1, -1)):
        method = made_up(toy_backbone)
        with torch.no_grad():
            method.align(Looking(method.eval(), (source, target._replace(images=target.images[order]))))
        found.append(method.class_means.clone())
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


def test_defaults_are_the_papers_on_fixed_features_with_a_gpu_too() -> None:
    for has_gpu in (False, True):
        config = complete(config_from_options({"method": "ati"}), has_gpu)
        assert (config.model.train, config.training.regime) == ("head", "kept")
    assert dataclasses.asdict(ATIOptions()) == {
        "reject_place": 0.5,
        "assignment": "nearest",
        "iterations": 6,
        "map_ridge": 0.1,
    }
