"""Heads that are solved at once are the heads that steps would come to in the end."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from unida.losses.one_vs_all import one_vs_all_entropy, one_vs_all_loss
from unida.models.heads import OneVsAllHead
from unida.models.solve import L2, minimise, solve_classifier

CLASSES, SIZE = 4, 12


def made_features(count: int = 60, length: float = 5.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    """(N, d) features of a given length in four bunches that touch, and labels."""
    draw = torch.Generator().manual_seed(seed)
    centres = torch.randn(CLASSES, SIZE, generator=torch.Generator().manual_seed(99))
    labels = torch.arange(count) % CLASSES
    features = centres[labels] + 1.2 * torch.randn(count, SIZE, generator=draw)
    return length * F.normalize(features, dim=1), labels


def new_head(seed: int = 0) -> OneVsAllHead:
    torch.manual_seed(seed)
    return OneVsAllHead(SIZE, CLASSES)


# ---- the softmax classifier ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1.0, 15.0])
def test_the_classifier_is_that_of_scikit_learn(length: float) -> None:
    """Its penalty is ‖W‖² / 2 beside C times the *sum* of losses; ours is for features of unit length."""
    features, labels = made_features(length=length)
    C = 1 / (len(labels) * L2 * length**2)
    reference = LogisticRegression(C=C, fit_intercept=False, tol=1e-10, max_iter=10_000)
    reference.fit(features.double().numpy(), labels.numpy())
    head = nn.Linear(SIZE, CLASSES, bias=False)
    loss = solve_classifier(head, features, labels)

    def objective(weight: np.ndarray) -> float:
        logits = features.double().numpy() @ weight.T
        logits -= logits.max(axis=1, keepdims=True)
        log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        return float(-log_p[np.arange(len(labels)), labels.numpy()].mean() + L2 / 2 * length**2 * (weight**2).sum())

    best = objective(reference.coef_)
    assert objective(head.weight.detach().double().numpy()) == pytest.approx(best, rel=2e-3)
    assert loss == pytest.approx(best, rel=5e-3)
    ours = F.softmax(head(features), dim=1).detach().numpy()
    assert ours == pytest.approx(reference.predict_proba(features.numpy()), abs=0.03)


def test_features_of_another_length_give_the_same_answers() -> None:
    features, labels = made_features(length=1.0)
    answers = []
    for length in (1.0, 15.0):
        head = nn.Linear(SIZE, CLASSES, bias=False)
        solve_classifier(head, length * features, labels)
        answers.append(F.softmax(head(length * features), dim=1).detach())
    assert answers[0].numpy() == pytest.approx(answers[1].numpy(), abs=0.03)


def test_the_classifier_does_not_depend_on_where_it_starts() -> None:
    features, labels = made_features()
    heads = [nn.Linear(SIZE, CLASSES, bias=False) for _ in range(2)]
    nn.init.normal_(heads[1].weight, std=10)
    for head in heads:
        solve_classifier(head, features, labels)
    assert torch.equal(heads[0].weight, heads[1].weight)


# ---- one-vs-all classifiers ------------------------------------------------------------------------------------------


def objective_of(head: OneVsAllHead, source: Tensor, labels: Tensor, target: Tensor, weight: float) -> float:
    """At unit rows; written as OVANet's step is."""
    unit = copy.deepcopy(head)
    unit.normalise_rows()
    return (one_vs_all_loss(unit(source), labels) + weight * one_vs_all_entropy(unit(target))).item()


def steps_of(head: OneVsAllHead, source: Tensor, labels: Tensor, target: Tensor, weight: float, count: int) -> float:
    """The loss after many steps, each on all images."""
    optimiser = torch.optim.SGD(head.parameters(), lr=0.02, momentum=0.9, nesterov=True)
    for _ in range(count):
        head.normalise_rows()
        optimiser.zero_grad()
        loss = one_vs_all_loss(head(source), labels) + weight * one_vs_all_entropy(head(target))
        loss.backward()
        optimiser.step()
    return objective_of(head, source, labels, target, weight)


@pytest.mark.parametrize("weight", [0.0, 0.1])
def test_solved_classifiers_are_those_of_very_many_steps(weight: float) -> None:
    """The hardest wrong class makes kinks in the loss, where the search stops a little above the least loss."""
    source, labels = made_features()
    target, _ = made_features(count=40, seed=1)
    solved, stepped = new_head(), new_head()
    loss = solved.solve(source, labels, target, weight)
    ours = objective_of(solved, source, labels, target, weight)
    after_300 = steps_of(stepped, source, labels, target, weight, 300)
    after_1500 = steps_of(stepped, source, labels, target, weight, 1200)
    assert ours < after_300 and ours - after_1500 < 0.1 * (after_300 - after_1500)
    assert loss == pytest.approx(ours, rel=1e-3)
    torch.testing.assert_close(solved.weight.norm(dim=1), torch.ones(2 * CLASSES))


def test_without_kinks_no_direction_along_the_unit_rows_is_better() -> None:
    """With two classes there is one wrong class for each image."""
    source, labels = made_features()
    source, labels = source[labels < 2], labels[labels < 2]
    target, _ = made_features(count=40, seed=1)

    def slope(head: OneVsAllHead) -> float:
        """Of the loss at the rows, without what would change their length."""
        loss = one_vs_all_loss(head(source), labels) + 0.1 * one_vs_all_entropy(head(target))
        (gradient,) = torch.autograd.grad(loss, [head.weight])
        along = (gradient * head.weight).sum(dim=1, keepdim=True) * head.weight
        return (gradient - along).norm().item()

    torch.manual_seed(0)
    head = OneVsAllHead(SIZE, 2)
    head.normalise_rows()
    before = slope(head)
    head.solve(source, labels, target, 0.1)
    assert slope(head) < 0.01 * before


def test_the_target_counts_by_its_weight_alone() -> None:
    source, labels = made_features()
    target, _ = made_features(count=40, seed=1)
    without, with_none, with_some = new_head(), new_head(), new_head()
    without.solve(source, labels)
    with_none.solve(source, labels, target, 0.0)
    with_some.solve(source, labels, target, 1.0)
    assert torch.equal(without.weight, with_none.weight)
    assert one_vs_all_entropy(with_some(target)).item() < 0.9 * one_vs_all_entropy(without(target)).item()


# ---- the search for a minimum ----------------------------------------------------------------------------------------


def test_a_bowl_is_solved_and_its_least_value_returned() -> None:
    x, goal = torch.zeros(3), torch.tensor([1.0, -2.0, 3.0])
    least = minimise(lambda: (x - goal).square().sum() + 1, [x], "bowl", visible=False)
    assert x.numpy() == pytest.approx(goal.numpy(), abs=1e-3)
    assert least == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("asks", [True, False])
def test_parameters_stay_as_they_were_but_for_their_values(asks: bool) -> None:
    parameter = nn.Parameter(torch.ones(3), requires_grad=asks)
    bystander = nn.Parameter(torch.ones(3))
    with torch.no_grad():  # as rounds and starts of phases are
        minimise(lambda: (parameter - 2).square().sum() + bystander.sum(), [parameter], "bowl", visible=False)
    assert parameter.requires_grad is asks and parameter.is_leaf
    assert parameter.grad is None and bystander.grad is None
    assert torch.equal(bystander, torch.ones(3))
    assert not torch.is_inference(parameter)
    if asks:  # steps go on from here
        parameter.sum().backward()
        assert torch.equal(parameter.grad, torch.ones(3))


def test_the_same_features_give_the_same_bits() -> None:
    source, labels = made_features()
    target, _ = made_features(count=40, seed=1)
    weights = []
    for _ in range(2):
        closed, head = nn.Linear(SIZE, CLASSES, bias=False), new_head()
        torch.seed()  # nothing here is drawn
        solve_classifier(closed, source, labels)
        head.solve(source, labels, target, 0.1)
        weights.append((closed.weight, head.weight))
    assert all(torch.equal(one, other) for one, other in zip(*weights, strict=True))
