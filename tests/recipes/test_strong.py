"""Strong augmentation: each part against an obvious version, and what an image's choices depend on."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as tv

from unida.recipes.base import ImageRecipe, SetRecipe
from unida.recipes.strong import (
    COLOUR,
    COLUMNS,
    CONTRAST,
    DOWN,
    LEFT,
    LIGHT,
    RIGHT,
    SCALE,
    SHEAR,
    SIDE,
    TOP,
    TURN,
    Strong,
)

NEUTRAL = 0.5


def noise(count: int = 6, side: int = 16) -> Tensor:
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(0))


def choices(count: int = 6, **changes: float) -> Tensor:
    """All in the middle, but for these."""
    found = torch.full((count, COLUMNS), NEUTRAL)
    for name, value in changes.items():
        found[:, globals()[name]] = value
    return found


def test_it_is_a_recipe_for_single_images() -> None:
    assert isinstance(Strong(), ImageRecipe) and not isinstance(Strong(), SetRecipe)


def test_middle_choices_bend_nothing() -> None:
    torch.testing.assert_close(Strong().bend(noise(), choices()), noise(), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("changes", "angle", "scale", "shift"),
    [
        ({"TURN": 1.0}, 30, 1.0, (0, 0)),
        ({"TURN": 0.25}, -15, 1.0, (0, 0)),
        ({"SCALE": 1.0}, 0, 1 / 1.25, (0, 0)),
        ({"RIGHT": 1.0, "DOWN": 0.75}, 0, 1.0, (-0.1, -0.05)),
    ],
)
def test_bending_is_that_of_torchvision(
    changes: dict[str, float], angle: float, scale: float, shift: tuple[float, float]
) -> None:
    """Inside the image: at the border, ours is mirrored."""
    images = tv.gaussian_blur(noise(side=40), 9)
    moved = [round(40 * share) for share in shift]
    expected = tv.affine(images, -angle, moved, scale, [0.0], InterpolationMode.BILINEAR)  # its angles are clockwise
    found = Strong().bend(images, choices(**changes))
    torch.testing.assert_close(found[:, :, 12:28, 12:28], expected[:, :, 12:28, 12:28], atol=2e-2, rtol=0)
    assert (found - images)[:, :, 12:28, 12:28].abs().max() > 0.1


def test_shearing_moves_rows_by_their_distance_from_the_centre() -> None:
    image = torch.zeros(1, 3, 41, 41)
    image[:, :, :, 20] = 1  # an upright line
    bent = Strong(shear=45).bend(image, choices(1, SHEAR=1.0))[0, 0]
    assert [int(bent[row].argmax()) for row in (10, 20, 30)] == [30, 20, 10]


def test_what_comes_from_outside_is_the_mirrored_image() -> None:
    bent = Strong(shift=0.5).bend(torch.ones(2, 3, 8, 8), choices(2, RIGHT=1.0))
    torch.testing.assert_close(bent, torch.ones(2, 3, 8, 8))


def test_colours_are_changed_as_they_should() -> None:
    images = noise()
    grey = Strong().recolour(images, choices(COLOUR=0.0))
    for channel in range(3):
        torch.testing.assert_close(grey[:, channel], images.mean(dim=1))
    same = choices(COLOUR=1 / 1.5)
    torch.testing.assert_close(Strong().recolour(images, same), images)
    same[:, LIGHT] = 0.0
    torch.testing.assert_close(Strong().recolour(images, same), images - 0.6)
    same[:, LIGHT], same[:, CONTRAST] = NEUTRAL, 1.0
    harder = Strong().recolour(images, same)
    for before, after in zip(images, harder, strict=True):
        assert after.mean().item() == pytest.approx(before.mean().item(), abs=1e-5)
        assert after.std().item() == pytest.approx(1.8 * before.std().item(), rel=1e-4)


def test_a_square_is_hidden_and_the_rest_is_left() -> None:
    images = 3 + noise(4, side=20).abs()
    drawn = choices(4, TOP=0.3, LEFT=0.8, SIDE=1.0)  # half of the side: 10 pixels about row 6 and column 16
    hidden = Strong().hide(images, drawn)
    expected = images.clone()
    expected[:, :, 1:11, 11:20] = 0
    assert torch.equal(hidden, expected)
    assert torch.equal(Strong().hide(images, choices(4, SIDE=0.0)), images)


def test_a_row_depends_on_the_draw_alone_and_an_image_on_its_row() -> None:
    recipe, images = Strong(), noise()
    rows = recipe.choose(20, np.random.default_rng(5))
    assert rows.shape == (20, COLUMNS) and rows.min() >= 0 and rows.max() < 1
    assert np.array_equal(rows[:7], recipe.choose(7, np.random.default_rng(5)))
    assert not np.array_equal(rows, recipe.choose(20, np.random.default_rng(6)))
    together, labels = recipe.make_each(images, rows[:6])
    assert np.array_equal(labels.numpy(), rows[:6])
    for i in range(6):
        alone, _ = recipe.make_each(images[i : i + 1], rows[i : i + 1])
        torch.testing.assert_close(alone[0], together[i], atol=1e-5, rtol=1e-5)


def test_images_change_and_keep_their_shape_layout_and_original() -> None:
    images = noise(5, side=24)[:, :, :, :18].contiguous(memory_format=torch.channels_last)
    copy = images.clone()
    made, _ = Strong().make_each(images, Strong().choose(5, np.random.default_rng(0)))
    assert torch.equal(images, copy) and made.shape == images.shape and made.dtype == images.dtype
    assert made.is_contiguous(memory_format=torch.channels_last) and made.isfinite().all()
    assert ((made - images).abs().amax(dim=(1, 2, 3)) > 0.5).all()


def test_every_number_is_in_the_key() -> None:
    changed = [dataclasses.replace(Strong(), **{field.name: 0.123}) for field in dataclasses.fields(Strong)]
    assert len({recipe.key for recipe in (Strong(), *changed)}) == len(changed) + 1


def test_every_column_is_used() -> None:
    columns = (TURN, SCALE, SHEAR, DOWN, RIGHT, CONTRAST, LIGHT, COLOUR, TOP, LEFT, SIDE)
    assert sorted(columns) == list(range(COLUMNS))
    middle = choices()
    usual = Strong().make_each(noise(), middle.numpy())[0]
    for column in columns:
        middle[:, column] = 0.2
        assert not torch.equal(Strong().make_each(noise(), middle.numpy())[0], usual), column
        middle[:, column] = NEUTRAL
