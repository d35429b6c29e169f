"""The one-vs-all head: where its outputs lie, and what normalising its rows changes."""

import torch

from unida.models.heads import OneVsAllHead

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
