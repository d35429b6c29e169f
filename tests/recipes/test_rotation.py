"""Rotations: against NumPy's, and which one an image gets."""

import numpy as np
import pytest
import torch
from torch import Tensor

from unida.recipes.base import ImageRecipe, SetRecipe, WaysRecipe
from unida.recipes.rotation import AnyRotation, Rotation

QUARTERS = range(4)


def noise(count: int = 12, side: int = 10) -> Tensor:
    return torch.rand(count, 3, side, side, generator=torch.Generator().manual_seed(0))


def test_an_image_is_turned_as_numpy_turns_it() -> None:
    images, choices = noise(), np.arange(12) % 4
    turned, labels = Rotation().make_each(images, choices)
    assert turned.shape == images.shape and turned.dtype == images.dtype
    for image, found, quarters in zip(images.numpy(), turned.numpy(), choices, strict=True):
        np.testing.assert_array_equal(found, np.rot90(image, k=quarters, axes=(1, 2)))
    assert labels.tolist() == choices.tolist() and labels.dtype == torch.int64


def test_the_turn_is_counter_clockwise() -> None:
    """What was in the top right corner is then in the top left one."""
    image = torch.zeros(1, 3, 5, 5)
    image[:, :, 0, 4] = 1
    corners = [Rotation(quarters).make_each(image, np.array([quarters]))[0][0, 0].nonzero() for quarters in QUARTERS]
    assert [corner.tolist() for corner in corners] == [[[0, 4]], [[0, 0]], [[4, 0]], [[4, 4]]]


def test_the_images_are_left_as_they_are_and_the_layout_is_kept() -> None:
    images = noise().contiguous(memory_format=torch.channels_last)
    copy = images.clone()
    turned, _ = Rotation().make_each(images, np.arange(12) % 4)
    assert torch.equal(images, copy)
    assert turned.is_contiguous(memory_format=torch.channels_last)


def test_drawn_turns_are_equally_likely() -> None:
    counts = np.bincount(Rotation().choose(8000, np.random.default_rng(0)), minlength=4)
    assert len(counts) == 4
    assert ((counts - 2000) ** 2 / 2000).sum() < 16.3  # χ² of three degrees of freedom: above it once in a thousand


@pytest.mark.parametrize("recipe", [Rotation(), Rotation(3)])
def test_a_row_depends_on_the_draw_alone(recipe: Rotation) -> None:
    """The same draw gives the same rows, and a longer draw begins with them: no row knows of an image or of others."""
    rows = recipe.choose(20, np.random.default_rng(5))
    assert rows.shape == (20,)
    assert np.array_equal(rows, recipe.choose(20, np.random.default_rng(5)))
    assert np.array_equal(rows[:7], recipe.choose(7, np.random.default_rng(5)))
    other = recipe.choose(20, np.random.default_rng(6))
    assert np.array_equal(rows, other) == (recipe.quarters is not None)
    images, choices = noise(), recipe.choose(12, np.random.default_rng(0))
    together, labels = recipe.make_each(images, choices)
    for i in range(12):
        alone, label = recipe.make_each(images[i : i + 1], choices[i : i + 1])
        assert torch.equal(alone[0], together[i]) and label[0] == labels[i]


@pytest.mark.parametrize("quarters", QUARTERS)
def test_a_fixed_turn_is_the_same_for_all(quarters: int) -> None:
    recipe = Rotation(quarters)
    choices = recipe.choose(12, np.random.default_rng(0))
    assert choices.tolist() == [quarters] * 12
    turned, labels = recipe.make_each(noise(), choices)
    assert torch.equal(turned, noise().rot90(quarters, dims=(2, 3))) and labels.tolist() == [quarters] * 12


def test_every_turn_and_a_drawn_one_have_keys_of_their_own() -> None:
    assert len({Rotation(quarters).key for quarters in (None, *QUARTERS)}) == 5


def test_it_is_a_recipe_for_single_images() -> None:
    assert isinstance(Rotation(), ImageRecipe) and not isinstance(Rotation(), SetRecipe)


def test_each_way_of_any_rotation_is_the_rotation_by_its_number() -> None:
    images, recipe = noise(), AnyRotation()
    assert isinstance(recipe, WaysRecipe) and not isinstance(Rotation(), WaysRecipe)
    assert len(recipe.ways) == 4 and recipe.ways[0] is None
    for number, way in enumerate(recipe.ways):
        choices = np.full(len(images), number)
        made, labels = recipe.make_each(images, choices)
        assert torch.equal(made, images if way is None else way.make_each(images, choices)[0])
        assert labels.tolist() == choices.tolist()
    assert set(recipe.choose(100, np.random.default_rng(0)).tolist()) == {0, 1, 2, 3}
