"""Mosaics are made of as many images as they say, and nothing else shows how many."""

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from unida.methods.spa.options import MAX_GRID
from unida.recipes.base import ImageRecipe, Made, SetRecipe
from unida.recipes.mosaic import Layout, Mosaic, assemble

GRIDS = range(2, MAX_GRID + 1)
SIDE = 60  # a multiple of every grid

every_grid = pytest.mark.parametrize("grid", GRIDS)


def plain_images(count: int, side: int = SIDE) -> Tensor:
    """(N, 3, side, side): image i has the colour i + 1 everywhere, so that what is no image's (0) would show."""
    return torch.arange(1.0, count + 1)[:, None, None, None].expand(count, 3, side, side).contiguous()


def make(images: Tensor, grid: int = 2, seed: int = 0, of: np.ndarray | None = None) -> Made:
    """As many mosaics as images; the images are all different unless `of` says otherwise."""
    identities = np.arange(len(images)) if of is None else of
    return Mosaic(grid).make_of_several(images, identities, np.random.default_rng(seed), len(images))


def cells_of(mosaics: Tensor, grid: int) -> Tensor:
    """(B, 3, H, W) → (B, g², 3, h, w), row by row."""
    rows = mosaics.unflatten(3, (grid, -1)).unflatten(2, (grid, -1))  # (B, 3, g, h, g, w)
    return rows.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)


def chi_square(observed: np.ndarray) -> float:
    """Standard deviations that the χ² of counts, which should all be alike, lies above its mean."""
    expected, freedom = observed.mean(), len(observed) - 1
    return float(((observed - expected) ** 2 / expected).sum() - freedom) / float(np.sqrt(2 * freedom))


@every_grid
def test_a_mosaic_holds_as_many_images_as_its_label_says(grid: int) -> None:
    images = plain_images(40)
    batch = make(images, grid)
    assert batch.images.shape == images.shape and batch.labels.shape == (40,)
    assert batch.labels.dtype == torch.int64
    assert batch.labels.min() >= 0 and batch.labels.max() < grid**2
    cells = cells_of(batch.images, grid).flatten(2)
    torch.testing.assert_close(cells.amin(dim=2), cells.amax(dim=2), rtol=0, atol=1e-4)  # each cell shows one image
    shown = [len(set(colours.tolist())) for colours in cells[:, :, 0].round()]
    assert shown == (batch.labels + 1).tolist()
    assert len(set(shown)) > 2


@every_grid
def test_a_side_that_the_grid_does_not_divide_is_filled_all_the_same(grid: int) -> None:
    side = 6 * grid + 5
    recipe, images = Mosaic(grid), plain_images(40, side)
    layout = recipe.draw_layout(40, np.arange(40), np.random.default_rng(3))
    mosaics = assemble(images, layout, grid)
    assert mosaics.shape == images.shape
    middles = (torch.arange(grid) + 0.5) * side / grid
    colours = mosaics[:, 0][:, middles.long()][:, :, middles.long()].flatten(1)
    torch.testing.assert_close(colours, torch.from_numpy(layout.image + 1.0).float())


@every_grid
def test_every_number_of_images_is_equally_likely(grid: int) -> None:
    layout = Mosaic(grid).draw_layout(20_000, np.arange(40), np.random.default_rng(1))
    assert layout.instances.min() == 1
    assert chi_square(np.bincount(layout.instances, minlength=grid**2 + 1)[1:]) < 4


@every_grid
def test_every_image_is_equally_likely_to_be_shown(grid: int) -> None:
    layout = Mosaic(grid).draw_layout(4000, np.arange(40), np.random.default_rng(2))
    shown = np.concatenate([np.unique(row) for row in layout.image])
    assert chi_square(np.bincount(shown, minlength=40)) < 4


@pytest.mark.parametrize("instances", [2, 3, 4])
def test_cells_are_given_by_a_uniform_surjection(instances: int) -> None:
    """ "One cell each, the rest at random" would favour even shares; so would drawing until all have a cell."""
    layout = Mosaic(2).draw_layout(30_000, np.arange(instances), np.random.default_rng(4))
    maps = Counter(map(tuple, layout.image[layout.instances == instances].tolist()))
    surjections = [m for m in itertools.product(range(instances), repeat=4) if len(set(m)) == instances]
    assert set(maps) == set(surjections)
    assert chi_square(np.array([maps[m] for m in surjections])) < 4


@every_grid
def test_crops_stay_inside_their_image(grid: int) -> None:
    layout = Mosaic(grid, smallest=0.3).draw_layout(2000, np.arange(40), np.random.default_rng(5))
    for start in (layout.top, layout.left):
        assert start.min() >= 0 and (start + layout.side).max() <= 1
        assert start.max() > 0.6  # they do go everywhere
    assert layout.side.min() >= 0.3 and layout.side.max() > 0.99


@every_grid
def test_a_cell_shows_its_crop_and_nothing_beyond(grid: int) -> None:
    """An image whose colours are the coordinates shows where every pixel was taken; what lies outside would be 0."""
    along = (torch.arange(SIDE) + 0.5) / SIDE
    x, y = along.expand(SIDE, SIDE), along[:, None].expand(SIDE, SIDE)
    images = torch.stack([x, y, torch.ones(SIDE, SIDE)])[None].repeat(40, 1, 1, 1)
    layout = Mosaic(grid).draw_layout(20, np.arange(40), np.random.default_rng(6))
    cells = cells_of(assemble(images, layout, grid), grid)
    assert torch.allclose(cells[:, :, 2], torch.ones(()), atol=1e-6)
    for channel, start in ((0, layout.left), (1, layout.top)):
        low, high = torch.from_numpy(start), torch.from_numpy(start + layout.side)
        values = cells[:, :, channel].flatten(2).double()
        assert (values.amin(dim=2) >= low - 1e-6).all() and (values.amax(dim=2) <= high + 1e-6).all()
        # from edge to edge: the outermost pixels lie half a pixel of the cell inside
        within = torch.from_numpy(layout.side) * grid / SIDE
        assert (values.amin(dim=2) <= low + within).all() and (values.amax(dim=2) >= high - within).all()


@every_grid
def test_a_cell_is_its_crop_resized(grid: int) -> None:
    """Against torch's own sampling, cell by cell."""
    images = torch.rand(12, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    layout = Mosaic(grid).draw_layout(8, np.arange(12), np.random.default_rng(7))
    cells = cells_of(assemble(images, layout, grid), grid)
    length = SIDE // grid
    centres = (torch.arange(length, dtype=torch.float64) + 0.5) / length
    for mosaic, cell in itertools.product(range(8), range(grid**2)):
        top, left, side = layout.top[mosaic, cell], layout.left[mosaic, cell], layout.side[mosaic, cell]
        columns = centres.flip(0) if layout.flip[mosaic, cell] else centres
        y, x = torch.meshgrid(2 * (top + side * centres) - 1, 2 * (left + side * columns) - 1, indexing="ij")
        image = images[layout.image[mosaic, cell]].double()[None]
        places = torch.stack([x, y], dim=-1)[None]
        expected = F.grid_sample(image, places, mode="bilinear", padding_mode="border", align_corners=False)[0]
        torch.testing.assert_close(cells[mosaic, cell].double(), expected, rtol=1e-4, atol=1e-4)


def test_flips_mirror_half_of_the_cells_each_by_itself() -> None:
    images = torch.rand(6, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))
    layout = Mosaic(2).draw_layout(50, np.arange(6), np.random.default_rng(8))
    flipped = cells_of(assemble(images, layout, 2), 2)
    plain = cells_of(assemble(images, layout._replace(flip=np.zeros_like(layout.flip)), 2), 2)
    expected = torch.where(torch.from_numpy(layout.flip)[:, :, None, None, None], plain.flip(4), plain)
    assert torch.equal(flipped, expected)
    assert not torch.equal(flipped, plain)
    assert 0.35 < layout.flip.mean() < 0.65
    assert not (layout.flip == layout.flip[:, :1]).all()


def test_a_mosaic_of_one_image_has_different_crops_too() -> None:
    """Or the number of seams would give the label away."""
    layout = Mosaic(2).draw_layout(500, np.arange(9), np.random.default_rng(9))
    of_one = layout.instances == 1
    assert of_one.any()
    for values in (layout.top, layout.left, layout.side):
        assert all(len(set(row)) == 4 for row in values[of_one].tolist())
        # and crops of one image are drawn as those of many
        assert values[of_one].mean() == pytest.approx(values[~of_one].mean(), abs=0.03)


def test_an_image_that_is_there_twice_counts_once() -> None:
    identities = np.array([7, 7, 3, 3, 3, 7, 5, 5, 0, 7] * 4)
    images = plain_images(40)
    batch = make(images, seed=10, of=identities)
    colours = cells_of(batch.images, 2)[:, :, 0, 0, 0].round().long().numpy() - 1  # positions in the batch
    assert [len(set(row)) for row in identities[colours].tolist()] == (batch.labels + 1).tolist()
    assert len(set(batch.labels.tolist())) == 4
    without = make(images, seed=10)  # or the test would hold of anything
    colours = cells_of(without.images, 2)[:, :, 0, 0, 0].round().long().numpy() - 1
    assert [len(set(row)) for row in identities[colours].tolist()] != (without.labels + 1).tolist()


@pytest.mark.parametrize("count", [1, 2, 3])
def test_with_fewer_images_than_cells_counts_end_with_them(count: int) -> None:
    layout = Mosaic(2).draw_layout(3000, np.arange(count), np.random.default_rng(11))
    assert set(layout.instances.tolist()) == set(range(1, count + 1))
    assert [len(set(row)) for row in layout.image.tolist()] == layout.instances.tolist()
    batch = make(plain_images(count), grid=3, seed=11)
    assert batch.images.shape[0] == count and batch.labels.max() < count


def test_the_generator_decides_everything() -> None:
    images = torch.rand(8, 3, 20, 20, generator=torch.Generator().manual_seed(2))
    first, again, other = (make(images, seed=seed) for seed in (0, 0, 1))
    torch.manual_seed(3)
    assert torch.equal(first.images, again.images) and torch.equal(first.labels, again.labels)
    assert not torch.equal(first.images, other.images)
    before = torch.get_rng_state()
    make(images)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_images_are_left_as_they_are_and_mosaics_are_in_the_networks_layout() -> None:
    images = torch.rand(4, 3, 20, 20, generator=torch.Generator().manual_seed(4))
    images = images.contiguous(memory_format=torch.channels_last)
    copy = images.clone()
    mosaics = make(images).images
    assert torch.equal(images, copy)
    assert mosaics.is_contiguous(memory_format=torch.channels_last)
    assert mosaics.dtype == torch.float32


def test_oblong_images_keep_their_shape() -> None:
    along = (torch.arange(24) + 0.5) / 24
    images = along.expand(3, 3, 36, 24).contiguous()  # the colour is the column's place
    one = np.zeros((1, 4))
    layout = Layout(np.array([1]), one.astype(np.int64), one + 0.25, one + 0.5, one + 0.5, one.astype(bool))
    mosaic = assemble(images, layout, 2)
    assert mosaic.shape == (1, 3, 36, 24)
    expected = 0.5 + 0.5 * (torch.arange(12) + 0.5) / 12
    torch.testing.assert_close(mosaic[0, 0, 0], expected.clamp(max=float(along[-1])).repeat(2))


def test_it_says_which_image_each_cell_shows() -> None:
    identities = np.array([30, 10, 20, 40, 50, 10])
    made = make(plain_images(6), grid=3, of=identities)
    assert made.of.shape == (6, 9) and made.of.dtype == torch.int64
    colours = cells_of(made.images, 3)[:, :, 0, 0, 0].round().long() - 1  # positions in the batch
    assert torch.equal(made.of, torch.from_numpy(identities)[colours])
    assert [len(set(row)) for row in made.of.tolist()] == (made.labels + 1).tolist()


@pytest.mark.parametrize("count", [1, 5, 30])
def test_it_makes_as_many_as_asked_whatever_the_number_of_images(count: int) -> None:
    made = Mosaic(2).make_of_several(plain_images(7), np.arange(7), np.random.default_rng(0), count)
    assert len(made.images) == len(made.labels) == len(made.of) == count
    assert made.images.shape[1:] == (3, SIDE, SIDE)


def test_its_key_has_every_number_that_changes_a_mosaic() -> None:
    """The size of the pool changes none: a larger pool begins with the smaller one."""
    keys = [recipe.key for recipe in (Mosaic(2), Mosaic(3), Mosaic(2, smallest=0.4))]
    assert len(set(keys)) == 3
    assert Mosaic(2, pool=64).key == Mosaic(2).key


def test_it_is_a_recipe_for_several_images() -> None:
    assert isinstance(Mosaic(2), SetRecipe) and not isinstance(Mosaic(2), ImageRecipe)
