"""The heads: where their outputs lie, what normalising their rows changes, and how an ensemble is drawn."""

import math

import pytest
import torch

from unida.models.heads import CosineClassifier, EnsembleHead, OneVsAllHead

FEATURES, CLASSES = 6, 4


def made_up_head() -> OneVsAllHead:
    torch.manual_seed(0)
    return OneVsAllHead(FEATURES, CLASSES)


def test_it_has_one_matrix_and_no_bias() -> None:
    assert {name: tuple(p.shape) for name, p in made_up_head().named_parameters()} == {
        "weight": (2 * CLASSES, FEATURES)
    }


def test_row_k_says_not_k_and_row_c_plus_k_says_k() -> None:
    head, features = made_up_head(), torch.randn(5, FEATURES)
    found = head(features)
    assert found.shape == (5, 2, CLASSES)
    for b in range(5):
        for k in range(CLASSES):
            torch.testing.assert_close(found[b, 0, k], head.weight[k] @ features[b])
            torch.testing.assert_close(found[b, 1, k], head.weight[CLASSES + k] @ features[b])


def test_outputs_are_float32_under_autocast() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert made_up_head()(torch.randn(2, FEATURES)).dtype == torch.float32


def test_normalising_gives_every_row_unit_length_and_keeps_its_direction() -> None:
    head = made_up_head()
    with torch.no_grad():
        head.weight.mul_(torch.logspace(-3, 3, 2 * CLASSES)[:, None])
    before = head.weight.detach().clone()
    head.normalise_rows()
    torch.testing.assert_close(head.weight.norm(dim=1), torch.ones(2 * CLASSES))
    torch.testing.assert_close(head.weight * before.norm(dim=1, keepdim=True), before)


def test_normalising_changes_the_parameter_itself_outside_the_gradient() -> None:
    head = made_up_head()
    parameter, memory = head.weight, head.weight.data_ptr()
    head.normalise_rows()
    assert head.weight is parameter and parameter.data_ptr() == memory  # an optimiser's reference stays good
    assert parameter.is_leaf and parameter.requires_grad


def test_a_row_of_zeros_stays_one() -> None:
    head = made_up_head()
    with torch.no_grad():
        head.weight[1] = 0
    head.normalise_rows()
    assert head.weight[1].tolist() == [0.0] * FEATURES
    assert head.weight.isfinite().all()


# ---- cosines ---------------------------------------------------------------------------------------------------------


def test_logits_are_cosines_over_the_temperature() -> None:
    torch.manual_seed(0)
    head, features = CosineClassifier(FEATURES, CLASSES, temperature=0.05), 7 * torch.randn(5, FEATURES)
    head.normalise_rows()
    expected = [[float(row @ f / (row.norm() * f.norm())) / 0.05 for row in head.weight.detach()] for f in features]
    torch.testing.assert_close(head(features), torch.tensor(expected))
    assert {name: tuple(p.shape) for name, p in head.named_parameters()} == {"weight": (CLASSES, FEATURES)}
    with torch.no_grad():  # it does not normalise its rows itself
        head.weight.mul_(3)
    torch.testing.assert_close(head(features), 3 * torch.tensor(expected))


def test_cosines_are_not_rounded_under_autocast_and_zeros_give_zeros() -> None:
    head, features = CosineClassifier(FEATURES, CLASSES, 0.05), torch.randn(3, FEATURES)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(head(features), head(features.float())) and head(features).dtype == torch.float32
        found = head(features)
    assert torch.equal(found, head(features))
    assert not head(torch.zeros(2, FEATURES)).any()


def test_heads_of_an_ensemble_are_drawn_in_five_ways() -> None:
    torch.manual_seed(0)
    heads = EnsembleHead(256, 20)
    bounds = {1: math.sqrt(2) * math.sqrt(6 / 276), 3: math.sqrt(6 / 256)}  # uniform: Xavier with ReLU's gain, Kaiming
    for number, bound in bounds.items():
        assert 0.98 * bound < heads[number].weight.abs().max() <= bound  # type: ignore[operator, union-attr]
    deviations = {2: math.sqrt(2 / 276), 4: math.sqrt(2 / 256)}  # normal: Xavier, Kaiming
    for number, deviation in deviations.items():
        assert heads[number].weight.std().item() == pytest.approx(deviation, rel=0.05)  # type: ignore[operator, union-attr]
    assert 0.98 / 16 < heads[0].weight.abs().max() <= 1 / 16  # type: ignore[operator, union-attr]
    features = torch.randn(3, 256)
    logits = heads(features)
    assert logits.shape == (5, 3, 20)
    assert all(torch.equal(logits[k], head(features)) for k, head in enumerate(heads))
