"""The contrastive domain discrepancy against its formula, one pair of images at a time in float64."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from unida.losses.cdd import contrastive_domain_discrepancy

SHAPES = [(1, 1, 4), (1, 3, 8), (2, 1, 4), (3, 2, 5)]


def made_up(shape: tuple[int, int, int], seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Source and target (C, n, d): classes differ, and so do the domains."""
    draw = torch.Generator().manual_seed(seed)
    classes = torch.randn(shape[0], 1, shape[2], generator=draw, dtype=torch.float64)
    source, target = (classes + torch.randn(shape, generator=draw, dtype=torch.float64) for _ in range(2))
    return source.to(dtype).requires_grad_(), (target + 0.3).to(dtype).requires_grad_()


def slow_mmd(one: Tensor, other: Tensor, constant_bandwidth: bool = True) -> Tensor:
    """MMD² of two sets of images (n, d) with the bandwidth of their union."""
    union = [*one, *other]
    distances = [((x - y) ** 2).sum() for i, x in enumerate(union) for j, y in enumerate(union) if i != j]
    bandwidth = torch.stack(distances).mean()
    if constant_bandwidth:
        bandwidth = bandwidth.detach()

    def kernel(x: Tensor, y: Tensor) -> Tensor:
        ratios = [((x - y) ** 2).sum() / (bandwidth * factor) for factor in (0.25, 0.5, 1, 2, 4)]
        bounded = [ratio if 1e-5 <= ratio <= 1e5 else 0 * ratio + (1e-5 if ratio < 1 else 1e5) for ratio in ratios]
        return torch.stack([torch.exp(-ratio) for ratio in bounded]).sum()

    def mean_kernel(xs: Tensor, ys: Tensor) -> Tensor:
        return torch.stack([kernel(x, y) for x in xs for y in ys]).mean()

    return mean_kernel(one, one) + mean_kernel(other, other) - 2 * mean_kernel(one, other)


def slow_cdd(source: Tensor, target: Tensor, matched: int, constant_bandwidth: bool = True) -> Tensor:
    intra, inter = torch.zeros(()), torch.zeros(())
    for i in range(len(source)):
        for j in range(len(target)):
            mmd = slow_mmd(source[i], target[j], constant_bandwidth)
            if i == j:
                intra = intra + mmd / matched
            elif matched > 1:
                inter = inter + mmd / (matched * (matched - 1))
    return intra - inter


def gradients(value: Tensor, *inputs: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(value, inputs))


# −1: a class comes twice, and each time as a class of its own.
@pytest.mark.parametrize(
    ("shape", "extra"), [*itertools.product(SHAPES, [-1, 0, 1, 4]), pytest.param((4, 3, 16), 1, id="larger")]
)
def test_value_and_gradient_are_the_slow_formula(shape: tuple[int, int, int], extra: int) -> None:
    source, target = made_up(shape)
    matched = max(1, shape[0] + extra)
    fast = contrastive_domain_discrepancy(source, target, matched)
    slow = slow_cdd(source, target, matched)
    assert fast.shape == () and fast.dtype == torch.float64
    torch.testing.assert_close(fast, slow, rtol=1e-9, atol=1e-9, check_dtype=False)
    torch.testing.assert_close(
        gradients(fast, source, target), gradients(slow, source, target), rtol=1e-6, atol=1e-9, check_dtype=False
    )


def test_float32_is_close_to_float64() -> None:
    exact = made_up((6, 6, 256))
    rounded = [x.detach().float().requires_grad_() for x in exact]
    value = contrastive_domain_discrepancy(*exact)
    single = contrastive_domain_discrepancy(*rounded)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), value, rtol=1e-4, atol=1e-6)
    for ours, right in zip(gradients(single, *rounded), gradients(value, *exact), strict=True):
        torch.testing.assert_close(ours.double(), right, rtol=1e-3, atol=1e-7)


def test_an_image_twice_and_nearly_twice_are_the_slow_formula() -> None:
    """As a class of few images shows them. What is nearer than the smallest ratio gets no gradient."""
    given = [x.detach() for x in made_up((3, 4, 5))]
    for rows in given:
        rows[:, 1], rows[:, 2] = rows[:, 0], rows[:, 0] + 1e-3
    source, target = (rows.requires_grad_() for rows in given)
    fast, slow = contrastive_domain_discrepancy(source, target, 7), slow_cdd(source, target, 7)
    torch.testing.assert_close(fast, slow, rtol=1e-9, atol=1e-9, check_dtype=False)
    torch.testing.assert_close(gradients(fast, source, target), gradients(slow, source, target), check_dtype=False)


def test_two_single_images_by_hand() -> None:
    """One image a domain at distance 1: the bandwidth is 1, and k(x, x) = 5 exp(−1e-5)."""
    value = contrastive_domain_discrepancy(torch.zeros(1, 1, 1), torch.ones(1, 1, 1))
    across = sum(math.exp(-1 / w) for w in (0.25, 0.5, 1, 2, 4))
    assert value.item() == pytest.approx(10 * math.exp(-1e-5) - 2 * across, rel=1e-6)


def test_bandwidth_is_a_constant_to_the_gradient() -> None:
    source, target = made_up((3, 2, 5))
    ours = gradients(contrastive_domain_discrepancy(source, target), source)[0]
    other = gradients(slow_cdd(source, target, 3, constant_bandwidth=False), source)[0]
    assert (ours - other).abs().max() > 1e-3


def test_the_batch_counts_as_all_classes_unless_set() -> None:
    source, target = made_up((3, 2, 5))
    assert contrastive_domain_discrepancy(source, target) == contrastive_domain_discrepancy(source, target, 3)
    assert contrastive_domain_discrepancy(source, target) != contrastive_domain_discrepancy(source, target, 4)


def test_equal_domains_leave_only_the_push() -> None:
    source, _ = made_up((4, 3, 8))
    assert contrastive_domain_discrepancy(source[:1], source[:1]).item() == pytest.approx(0, abs=1e-12)
    assert contrastive_domain_discrepancy(source, source).item() < 0


def test_coinciding_images_give_finite_gradients() -> None:
    source, target = (torch.ones(2, 3, 4, requires_grad=True) for _ in range(2))
    value = contrastive_domain_discrepancy(source, target)
    assert value.item() == 0
    assert all(bool((g == 0).all()) for g in gradients(value, source, target))


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_stays_finite_at_extreme_scales(scale: float) -> None:
    source, target = (x.detach() * scale for x in made_up((3, 2, 5), dtype=torch.float32))
    source.requires_grad_()
    value = contrastive_domain_discrepancy(source, target)
    assert value.isfinite() and gradients(value, source)[0].isfinite().all()


def test_scale_does_not_matter() -> None:
    source, target = made_up((3, 2, 5))
    value = contrastive_domain_discrepancy(source, target)
    torch.testing.assert_close(contrastive_domain_discrepancy(100 * source, 100 * target), value)


def test_half_precision_is_computed_in_float32() -> None:
    source, target = (x.detach().bfloat16() for x in made_up((3, 4, 32)))
    expected = contrastive_domain_discrepancy(source.float(), target.float())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = contrastive_domain_discrepancy(source, target)
    assert value.dtype == torch.float32
    assert value == expected


def test_descent_pulls_the_domains_of_a_class_together() -> None:
    draw = torch.Generator().manual_seed(0)
    classes = 3 * torch.randn(3, 1, 8, generator=draw)
    source = classes + 0.1 * torch.randn(3, 4, 8, generator=draw)
    target = (classes + 2 + 0.1 * torch.randn(3, 4, 8, generator=draw)).requires_grad_()
    gap = (source.mean(1) - target.mean(1)).norm(dim=1).mean()
    for _ in range(50):
        loss = contrastive_domain_discrepancy(source, target)
        (gradient,) = gradients(loss, target)
        target = (target - 5 * gradient).detach().requires_grad_()
    assert (source.mean(1) - target.mean(1)).norm(dim=1).mean() < gap / 2


def test_wrong_shapes_are_refused() -> None:
    source, target = made_up((3, 2, 5))
    with pytest.raises(ValueError, match="must both be"):
        contrastive_domain_discrepancy(source, target[:2])
