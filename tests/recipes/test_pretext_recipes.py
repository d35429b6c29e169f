"""Recipes of SPA's other pretext tasks, each beside a slow version of itself."""

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from unida.recipes.base import ImageRecipe, WaysRecipe
from unida.recipes.grey import Grey
from unida.recipes.hole import Hole
from unida.recipes.jigsaw import SHUFFLED, Jigsaw, far_orders
from unida.recipes.lab import lab_to_srgb, lightness, srgb_to_lab, to_pixels
from unida.recipes.quadrant import AnyQuadrant, Quadrant

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
RECIPES: list[ImageRecipe] = [Jigsaw(), AnyQuadrant(), Grey(MEAN, STD), Hole(MEAN, STD)]


def made_images(count: int = 5, height: int = 24, width: int = 24) -> Tensor:
    """Normalised images of pixels in 0…1."""
    pixels = torch.rand(count, 3, height, width, generator=torch.Generator().manual_seed(0))
    shift, scale = (torch.tensor(numbers)[:, None, None] for numbers in (MEAN, STD))
    return ((pixels - shift) / scale).contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: type(recipe).__name__)
@pytest.mark.parametrize("size", [(24, 24), (23, 29), (3, 4)])
def test_images_keep_their_size_and_layout_and_are_made_one_by_one(recipe: ImageRecipe, size: tuple[int, int]) -> None:
    images = made_images(4, *size)
    before, choices = images.clone(), recipe.choose(4, np.random.default_rng(0))
    made, labels = recipe.make_each(images, choices)
    assert torch.equal(images, before) and made.shape == images.shape and made.dtype == torch.float32
    assert made.is_contiguous(memory_format=torch.channels_last)
    for i in range(4):  # as two processes do, which share a batch
        one, label = recipe.make_each(images[i : i + 1], choices[i : i + 1])
        torch.testing.assert_close(made[i : i + 1], one)
        assert torch.equal(labels[i : i + 1], label)


# ---- jigsaw ----------------------------------------------------------------------------------------------------------


def test_orders_are_as_far_apart_as_a_greedy_choice_can_make_them() -> None:
    orders = far_orders()
    assert orders.shape == (31, 9) and orders[0].tolist() == list(range(9))
    assert all(sorted(order) == list(range(9)) for order in orders.tolist())
    distances = np.array([[sum(a != b for a, b in zip(x, y, strict=True)) for y in orders] for x in orders])
    assert distances[np.triu_indices(31, 1)].min() == 7
    assert (distances[:9, :9] + 9 * np.eye(9) == 9).all()  # nine orders can differ in every place, and no tenth
    others = np.array([*itertools.islice(itertools.permutations(range(9)), 0, None, 37)], dtype=np.int8)
    for place in range(1, 31):  # none of ten thousand others is farther from those before
        from_others = np.stack([np.count_nonzero(others != earlier, axis=1) for earlier in orders[:place]])
        best = max(zip(from_others.min(axis=0).tolist(), from_others.sum(axis=0).tolist(), strict=True))
        assert (distances[place, :place].min(), distances[place, :place].sum()) >= best


def test_a_jigsaw_is_the_slow_one() -> None:
    images, choices = made_images(31, 12, 15), np.arange(31)
    made, labels = Jigsaw().make_each(images, choices)
    assert labels.tolist() == choices.tolist()
    for image, found, order in zip(images, made, far_orders(), strict=True):
        for place, tile in enumerate(order):
            (row, column), (top, left) = divmod(place, 3), divmod(int(tile), 3)
            expected = image[:, 4 * top : 4 * top + 4, 5 * left : 5 * left + 5]
            assert torch.equal(found[:, 4 * row : 4 * row + 4, 5 * column : 5 * column + 5], expected)


def test_labels_are_uniform() -> None:
    draw = np.random.default_rng(0)
    for recipe, classes in ((Jigsaw(), SHUFFLED + 1), (AnyQuadrant(), 4)):
        found = np.bincount(recipe.choose(classes * 1000, draw), minlength=classes)
        assert len(found) == classes and ((found - 1000) ** 2 / 1000).sum() < 2 * classes + 10  # chi-squared


# ---- quadrants -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(8, 12), (7, 9)])
def test_quadrants_are_enlarged_corners(size: tuple[int, int]) -> None:
    height, width = size
    images = made_images(4, height, width)
    made, labels = AnyQuadrant().make_each(images, np.arange(4))
    assert labels.tolist() == [0, 1, 2, 3]
    half = -(-height // 2), -(-width // 2)
    corners = [images[0, :, : half[0], : half[1]], images[1, :, : half[0], -half[1] :]]
    corners += [images[2, :, -half[0] :, : half[1]], images[3, :, -half[0] :, -half[1] :]]
    for corner, found in zip(corners, made, strict=True):
        for y, x in itertools.product(range(height), range(width)):
            torch.testing.assert_close(found[:, y, x], bilinear(corner, (y + 0.5) / height, (x + 0.5) / width))


def bilinear(image: Tensor, down: float, right: float) -> Tensor:
    """The colour at a place in 0…1 of the height and the width."""
    height, width = image.shape[-2:]
    y, x = (min(max(at * n - 0.5, 0), n - 1) for at, n in ((down, height), (right, width)))
    y0, x0 = int(y), int(x)
    y1, x1 = min(y0 + 1, height - 1), min(x0 + 1, width - 1)
    fy, fx = y - y0, x - x0
    above = (1 - fx) * image[:, y0, x0] + fx * image[:, y0, x1]
    below = (1 - fx) * image[:, y1, x0] + fx * image[:, y1, x1]
    return (1 - fy) * above + fy * below


def test_each_quadrant_is_a_way_of_its_own() -> None:
    recipe = AnyQuadrant()
    assert isinstance(recipe, WaysRecipe) and not isinstance(Quadrant(1), WaysRecipe)
    images = made_images(2)
    for number, way in enumerate(recipe.ways):
        assert way is not None
        choices = way.choose(2, np.random.default_rng(0))
        assert torch.equal(way.make_each(images, choices)[0], recipe.make_each(images, np.full(2, number))[0])
    assert len({way.key for way in (recipe, *recipe.ways) if way}) == 5


# ---- colours ---------------------------------------------------------------------------------------------------------

# skimage.color.rgb2lab
KNOWN = {
    (1.0, 0.0, 0.0): (53.2406, 80.0923, 67.2028),
    (0.0, 1.0, 0.0): (87.7351, -86.1813, 83.1775),
    (0.0, 0.0, 1.0): (32.2957, 79.1870, -107.8618),
    (1.0, 1.0, 1.0): (100.0, 0.0, 0.0),
    (0.0, 0.0, 0.0): (0.0, 0.0, 0.0),
}


def test_lab_has_known_values_and_the_way_back() -> None:
    for rgb, lab in KNOWN.items():
        found = srgb_to_lab(torch.tensor(rgb)[None, :, None, None]).flatten()
        assert found.tolist() == pytest.approx(lab, abs=0.02)
    pixels = torch.rand(2, 3, 7, 5, generator=torch.Generator().manual_seed(0))
    lab = srgb_to_lab(pixels)
    torch.testing.assert_close(lightness(pixels), lab[:, :1])
    torch.testing.assert_close(lab_to_srgb(lab), pixels, atol=1e-4, rtol=0)
    expected = np.array([[slow_lab(colour) for colour in image.flatten(1).T.tolist()] for image in pixels])
    np.testing.assert_allclose(lab.flatten(2).transpose(1, 2).numpy(), expected, atol=1e-3)


def slow_lab(colour: list[float]) -> list[float]:
    """The definition, one number at a time."""
    red, green, blue = (((c + 0.055) / 1.055) ** 2.4 if c > 0.04045 else c / 12.92 for c in colour)
    x = (0.412453 * red + 0.357580 * green + 0.180423 * blue) / 0.95047
    y = 0.212671 * red + 0.715160 * green + 0.072169 * blue
    z = (0.019334 * red + 0.119193 * green + 0.950227 * blue) / 1.08883
    fx, fy, fz = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (x, y, z))
    return [116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)]


def test_a_grey_image_tells_no_colour_and_its_labels_do() -> None:
    images = made_images(3, 8, 12)
    made, labels = Grey(MEAN, STD).make_each(images, np.zeros(3, dtype=np.int64))
    pixels, light = to_pixels(images, MEAN, STD), to_pixels(made, MEAN, STD)
    torch.testing.assert_close(light, (srgb_to_lab(pixels)[:, :1] / 100).expand(-1, 3, -1, -1))
    assert labels.shape == (3, 2, 2, 3) and labels.dtype == torch.int8
    for image, label in zip(pixels, labels, strict=True):
        for row, column in itertools.product(range(2), range(3)):
            square = image[:, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4].mean(dim=(1, 2))
            assert label[:, row, column].tolist() == pytest.approx(slow_lab(square.tolist())[1:], abs=0.51)


# ---- holes -----------------------------------------------------------------------------------------------------------


def test_a_hole_hides_a_quarter_at_any_place_and_its_labels_tell_what_was_there() -> None:
    recipe, images = Hole(MEAN, STD), made_images(300, 24, 32)
    made, labels = recipe.make_each(images, recipe.choose(300, np.random.default_rng(0)))
    assert labels.shape == (300, 4, 6, 8) and labels.dtype == torch.uint8
    small = to_pixels(images, MEAN, STD).unflatten(3, (8, 4)).unflatten(2, (6, 4)).mean(dim=(3, 5))
    assert (labels[:, :3].float() - 255 * small).abs().max() <= 0.5001
    hidden = labels[:, 3:].repeat_interleave(4, dim=2).repeat_interleave(4, dim=3).bool()
    assert torch.equal(made, torch.where(hidden, 0.0, images))
    places = set()
    for mask in labels[:, 3].numpy():
        rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
        assert len(rows) == 3 and len(columns) == 4 and mask[np.ix_(rows, columns)].all() and mask.sum() == 12
        places.add((rows[0], columns[0]))
    assert places == set(itertools.product(range(4), range(5)))  # 20 places, 300 draws
