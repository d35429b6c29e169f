"""Spliced images show two images on the two sides of a parabola, and say which two."""

from collections import Counter

import numpy as np
import torch
from torch import Tensor

from unida.recipes.base import ImageRecipe, Made, SetRecipe
from unida.recipes.splice import Cuts, Splice, splice

HEIGHT, WIDTH = 24, 36


def plain_images(count: int) -> Tensor:
    """(N, 3, H, W): image i has the colour i everywhere."""
    return torch.arange(float(count))[:, None, None, None].expand(count, 3, HEIGHT, WIDTH).contiguous()


def make(images: Tensor, seed: int = 0, of: np.ndarray | None = None, count: int | None = None) -> Made:
    identities = np.arange(len(images)) if of is None else of
    return Splice().make_of_several(images, identities, np.random.default_rng(seed), count or len(images))


def slow_splice(cuts: Cuts, b: int) -> np.ndarray:
    """(H, W) the number of the image that each pixel shows: a parabola fitted through three points."""
    first, second = cuts.images[b]
    x, y = cuts.middle[b]
    parabola = np.polynomial.Polynomial.fit([0, x, 1], [cuts.ends[b, 0], y, cuts.ends[b, 1]], deg=2)
    shown = np.zeros((HEIGHT, WIDTH))
    for row in range(HEIGHT):
        for column in range(WIDTH):
            down, right = (row + 0.5) / HEIGHT, (column + 0.5) / WIDTH
            is_first = right < parabola(down) if cuts.is_vertical[b] else down < parabola(right)
            shown[row, column] = first if is_first else second
    return shown


def test_every_pixel_is_on_its_side_of_the_parabola() -> None:
    cuts = Splice().draw_cuts(30, np.arange(7), np.random.default_rng(0))
    spliced = splice(plain_images(7), cuts)
    assert spliced.shape == (30, 3, HEIGHT, WIDTH) and spliced.is_contiguous(memory_format=torch.channels_last)
    for b in range(30):
        for channel in spliced[b]:
            np.testing.assert_array_equal(channel.numpy(), slow_splice(cuts, b))
    assert 5 < cuts.is_vertical.sum() < 25


def test_an_image_shows_both_of_those_that_it_names() -> None:
    identities = np.array([30, 10, 20, 40, 50, 60])
    made = make(plain_images(6), of=identities, count=80)
    assert made.of.shape == (80, 2) and made.of.dtype == torch.int64
    for image, of in zip(made.images, made.of.tolist(), strict=True):
        shown = {int(identities[int(colour)]) for colour in image.unique()}
        assert shown == set(of) and len(shown) == 2
        share = (image == image.unique()[0]).float().mean().item()
        assert 0.03 < share < 0.97  # the curve passes near the centre
    assert set(made.labels.tolist()) == {0, 1} and made.labels.dtype == torch.int64


def test_the_curve_passes_near_the_centre_and_its_ends_are_anywhere() -> None:
    cuts = Splice().draw_cuts(4000, np.arange(5), np.random.default_rng(1))
    assert np.abs(cuts.middle - 0.5).max() <= 30 / 224 and np.abs(cuts.middle - 0.5).max() > 0.13
    assert cuts.ends.min() < 0.01 and cuts.ends.max() > 0.99 and abs(cuts.ends.mean() - 0.5) < 0.02


def test_every_pair_of_images_is_equally_likely() -> None:
    cuts = Splice().draw_cuts(20_000, np.arange(4), np.random.default_rng(2))
    pairs = Counter(map(tuple, cuts.images.tolist()))
    assert set(pairs) == {(i, j) for i in range(4) for j in range(4) if i != j}
    assert max(pairs.values()) < 1.15 * min(pairs.values())


def test_an_image_that_is_there_twice_is_not_spliced_with_itself() -> None:
    made = make(plain_images(8), of=np.array([7, 7, 3, 3, 3, 7, 5, 7]), count=200)
    assert (made.of[:, 0] != made.of[:, 1]).all()


def test_a_single_image_stays_whole() -> None:
    """There is nothing to splice it with; `of` says so."""
    made = make(plain_images(3), of=np.array([4, 4, 4]), count=5)
    assert made.of.tolist() == [[4, 4]] * 5 and len(made.images) == 5
    assert all(len(image.unique()) == 1 for image in made.images)


def test_the_generator_decides_everything_and_images_stay_as_they_are() -> None:
    images = torch.rand(6, 3, HEIGHT, WIDTH, generator=torch.Generator().manual_seed(0))
    copy, before = images.clone(), torch.get_rng_state()
    first, again, other = (make(images, seed=seed) for seed in (0, 0, 1))
    assert all(torch.equal(*both) for both in zip(first, again, strict=True))
    assert not torch.equal(first.images, other.images)
    assert torch.equal(images, copy) and torch.equal(torch.get_rng_state(), before)


def test_its_key_has_every_number_that_changes_an_image() -> None:
    assert Splice(window=0.2).key != Splice().key
    assert Splice(pool=64).key == Splice().key


def test_it_is_a_recipe_for_several_images_of_the_source() -> None:
    assert isinstance(Splice(), SetRecipe) and not isinstance(Splice(), ImageRecipe)
    assert Splice().domains == ("source",)
