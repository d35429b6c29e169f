"""The maximum mean discrepancy against its formula, one pair of images at a time in float64."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from unida.losses.cdd import class_pair_mmd
from unida.losses.mmd import outer_products, quadruple_mmd, squared_mmd

WIDTHS = (0.25, 0.5, 1.0, 2.0, 4.0)
PLACES = torch.tensor([[0, 1, 2, 0], [3, 1, 1, 2], [2, 0, 0, 1]])


def made_up(n: int = 4, m: int = 3, d: int = 5) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    source, target = (torch.randn(count, d, generator=draw, dtype=torch.float64) for count in (n, m))
    return source.requires_grad_(), (target + 0.5).requires_grad_()


def slow_kernels(source: Tensor, target: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """By the released code: exp(−g 2^(k−2) d²) for k = 0…4, g = 1 / mean squared distance of different images."""
    union = [row.detach() for row in (*source, *target)]
    distances = [float(((a - b) ** 2).sum()) for i, a in enumerate(union) for j, b in enumerate(union) if i != j]
    g = len(distances) / sum(distances)
    return lambda x, y: torch.stack([torch.exp(-g * 2.0 ** (k - 2) * ((x - y) ** 2).sum()) for k in range(5)]).sum()


def slow_mmd(source: Tensor, target: Tensor) -> Tensor:
    kernel = slow_kernels(source, target)

    def mean(xs: Tensor, ys: Tensor) -> Tensor:
        return torch.stack([kernel(x, y) for x in xs for y in ys]).mean()

    return mean(source, source) + mean(target, target) - 2 * mean(source, target)


def slow_quadruples(source: Tensor, target: Tensor, places: Tensor) -> Tensor:
    kernel, terms = slow_kernels(source, target), []
    for s1, s2, t1, t2 in places.tolist():
        terms += [kernel(source[s1], source[s2]), kernel(target[t1], target[t2])]
        terms += [-kernel(source[s1], target[t2]), -kernel(source[s2], target[t1])]
    return torch.stack(terms).sum() / len(places)


@pytest.mark.parametrize("sizes", [(4, 3), (1, 1), (2, 4)])
def test_all_pairs(sizes: tuple[int, int]) -> None:
    source, target = made_up(*sizes)
    assert_same(squared_mmd(source, target), slow_mmd(source, target), source, target)


def test_quadruples() -> None:
    source, target = made_up()
    fast, slow = (it(source, target, PLACES) for it in (quadruple_mmd, slow_quadruples))
    assert_same(fast, slow, source, target)
    assert fast.item() != pytest.approx(squared_mmd(source, target).item(), rel=0.01)


def assert_same(fast: Tensor, slow: Tensor, *inputs: Tensor) -> None:
    assert fast.shape == ()
    torch.testing.assert_close(fast, slow, rtol=1e-6, atol=1e-9)
    ours, theirs = (torch.autograd.grad(value, inputs) for value in (fast, slow))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-8)


def test_two_images_by_hand() -> None:
    """At distance 1 the mean is 1, and k(x, x) = 5."""
    value = squared_mmd(torch.zeros(1, 1), torch.ones(1, 1))
    assert value.item() == pytest.approx(10 - 2 * sum(math.exp(-1 / width) for width in WIDTHS), rel=1e-6)


def test_it_is_the_cdds_for_one_class() -> None:
    """But for the bounds of the CDD's ratios: an image with itself counts 5 exp(−1e-5) there, three times in nine."""
    source, target = made_up(3, 3)
    of_cdd = class_pair_mmd(source[None], target[None])[0, 0]
    torch.testing.assert_close(squared_mmd(source, target), of_cdd + 2 * 5 * (1 - math.exp(-1e-5)) / 3)


@pytest.mark.parametrize("scale", [0.0, 1e-6, 1e6])
def test_equal_tiny_and_huge_images_are_finite(scale: float) -> None:
    given = [(scale * rows.detach().float()).requires_grad_() for rows in made_up()]
    for value in (squared_mmd(given[0], given[1]), quadruple_mmd(given[0], given[1], PLACES)):
        assert value.dtype == torch.float32 and value.isfinite()
        assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(value, given))
    assert scale or squared_mmd(given[0], given[1]).item() == 0


def test_sixteen_bits_are_computed_in_float32() -> None:
    source, target = (rows.detach().bfloat16() for rows in made_up())
    assert squared_mmd(source, target) == squared_mmd(source.float(), target.float())
    products = outer_products(source, target[[0, 1, 2, 0]])
    assert products.dtype == torch.float32


def test_products_are_of_every_feature_and_every_logit() -> None:
    features, logits = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), torch.tensor([[1.0, 10.0], [2.0, 20.0]])
    assert outer_products(features, logits).tolist() == [[1, 10, 2, 20, 3, 30], [8, 80, 10, 100, 12, 120]]
