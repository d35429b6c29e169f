"""CMU's views: each change against a slow or another version of it."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as TF

from unida.recipes.base import ImageRecipe, SetRecipe
from unida.recipes.views import RANDOM_NUMBERS, View, affine, cmu_views, grey, jittered, moved, perspective

MEAN, STD = (0.4, 0.5, 0.3), (0.2, 0.25, 0.5)
SIDE = 32


def photos(count: int = 4) -> Tensor:
    """Smooth images in 0…1: interpolation hardly matters."""
    noise = torch.rand(count, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    return torch.nn.functional.interpolate(noise, (SIDE, SIDE), mode="bicubic").clamp(0, 1)


def normalised(pixels: Tensor) -> Tensor:
    return (pixels - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]


def pixels_of(images: Tensor) -> Tensor:
    return images * torch.tensor(STD)[:, None, None] + torch.tensor(MEAN)[:, None, None]


def view(**changes: Any) -> View:
    return View(MEAN, STD, **changes)


def middle(count: int = 4) -> np.ndarray:
    """Choices that rotate, shift, scale and change colours by nothing; no perspective."""
    return np.full((count, RANDOM_NUMBERS), 0.5)


def test_a_view_without_changes_leaves_the_image() -> None:
    images = normalised(photos())
    for recipe in (view(), view(degrees=30, shear=0.2), view(perspective=True), view(jitter=0.2)):
        made, labels = recipe.make_each(images, middle())
        torch.testing.assert_close(made, images, rtol=0, atol=2e-5)
        assert labels.tolist() == [0] * 4


def test_a_rotation_is_about_the_centre() -> None:
    choices = middle()
    choices[:, 0] = 1.0
    made, _ = view(degrees=90).make_each(normalised(photos()), choices)
    expected = [normalised(photos()).rot90(quarters, dims=(2, 3)) for quarters in (1, 3)]
    assert min(float((made - one).abs().max()) for one in expected) < 1e-4


def test_the_map_of_an_affine_change_is_rotation_scale_shear_and_shift() -> None:
    draw = np.random.default_rng(0).random((3, 5))
    for row, found in zip(draw, affine(draw, 30, 10), strict=True):
        turn, lean, right, down, size = 2 * row - 1
        angle = np.radians(30 * turn)
        rotation = np.array([[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1]])
        shear = np.array([[1, np.tan(np.radians(10 * lean)), 0], [0, 1, 0], [0, 0, 1]])
        scale = np.diag([1 + 0.1 * size, 1 + 0.1 * size, 1])
        shift = np.array([[1, 0, 0.2 * right], [0, 1, 0.2 * down], [0, 0, 1]])
        np.testing.assert_allclose(found, shift @ rotation @ scale @ shear, atol=1e-12)


def test_a_shift_moves_the_image_and_white_comes_in() -> None:
    choices = middle()
    choices[:, 2] = 1.0  # to the right, by a tenth of the side
    made = pixels_of(view(degrees=1).make_each(normalised(torch.zeros(4, 3, 40, 40)), choices)[0])
    assert made[..., :3].min() > 0.99 and made[..., 5:].abs().max() < 0.01


def test_perspective_is_torchvisions() -> None:
    inwards = 0.5 * np.random.default_rng(0).random((4, 8))
    found = moved(photos(), perspective(inwards))
    corners = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]])
    for image, ours, amounts in zip(photos(), found, inwards.reshape(4, 4, 2), strict=True):
        ends = corners * (1 - amounts)
        start, end = (((points + 1) * SIDE / 2).tolist() for points in (corners, ends))
        theirs = TF.perspective(image - 1, start, end) + 1  # white outside
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


def test_extreme_perspectives_are_finite() -> None:
    inwards = np.array([[0.5, 0.5, 0, 0, 0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5, 0, 0, 0.5, 0.5], [0.5] * 8, [0.0] * 8])
    assert moved(photos(), perspective(inwards)).isfinite().all()


@pytest.mark.parametrize("corner", [(-1, -1), (1, -1), (-1, 1), (1, 1)])
def test_a_corner_is_cut_out_and_enlarged(corner: tuple[int, int]) -> None:
    made = pixels_of(view(corner=corner).make_each(normalised(photos()), middle())[0])
    cut = SIDE * 7 // 8
    left, top = ((SIDE - cut) * (side > 0) for side in corner)
    part = photos()[:, :, top : top + cut, left : left + cut]
    expected = torch.nn.functional.interpolate(part, (SIDE, SIDE), mode="bilinear", align_corners=False)
    torch.testing.assert_close(made[..., 2:-2, 2:-2], expected[..., 2:-2, 2:-2], rtol=0, atol=1e-4)


def test_colours_change_as_in_torchvision() -> None:
    amounts = torch.tensor([[0.2, -0.1, 0.15, 0.1], [-0.2, 0.2, -0.2, -0.2], [0.0, 0.0, 0.0, 0.0], [0.1, 0, 0, 0]])
    found = jittered(photos(), amounts)
    for image, ours, (brightness, contrast, saturation, hue) in zip(photos(), found, amounts.tolist(), strict=True):
        theirs = TF.adjust_brightness(image, 1 + brightness)
        theirs = TF.adjust_contrast(theirs, 1 + contrast)
        theirs = TF.adjust_hue(TF.adjust_saturation(theirs, 1 + saturation), hue)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)
    torch.testing.assert_close(grey(photos()), TF.rgb_to_grayscale(photos()), rtol=0, atol=1e-4)


def test_some_images_lose_their_colours() -> None:
    choices = middle()
    choices[:, 18] = [0.05, 0.09, 0.11, 0.9]
    made = pixels_of(view(grey=0.1).make_each(normalised(photos()), choices)[0])
    spread = (made.amax(dim=1) - made.amin(dim=1)).amax(dim=(1, 2))
    assert (spread < 1e-5).tolist() == [True, True, False, False]


def test_the_five_views_differ_and_have_keys_of_their_own() -> None:
    views = cmu_views(MEAN, STD)
    assert list(views) == [f"view {number}" for number in range(1, 6)]
    assert all(isinstance(one, ImageRecipe) and not isinstance(one, SetRecipe) for one in views.values())
    images, choices = normalised(photos()), np.random.default_rng(0).random((4, RANDOM_NUMBERS))
    made = [one.make_each(images, choices)[0] for one in views.values()]
    assert all((a - b).abs().mean() > 0.01 for i, a in enumerate(made) for b in made[:i])
    others = [*cmu_views(MEAN, (0.2, 0.2, 0.2)).values(), cmu_views(MEAN, STD, first_grey=0.1)["view 1"]]
    assert len({one.key for one in (*views.values(), *others)}) == 11


@pytest.mark.parametrize("name", cmu_views(MEAN, STD))
def test_an_image_does_not_depend_on_the_others_of_its_batch(name: str) -> None:
    recipe = cmu_views(MEAN, STD)[name]
    images = normalised(photos()).contiguous(memory_format=torch.channels_last)
    before, choices = images.clone(), recipe.choose(4, np.random.default_rng(3))
    together, _ = recipe.make_each(images, choices)
    assert together.isfinite().all() and together.shape == images.shape
    assert torch.equal(images, before) and together.is_contiguous(memory_format=torch.channels_last)
    for i in range(4):
        alone, _ = recipe.make_each(images[i : i + 1], choices[i : i + 1])
        torch.testing.assert_close(alone[0], together[i], rtol=0, atol=1e-5)
    white = pixels_of(together)
    assert white.min() > -1e-4 and white.max() < 1 + 1e-4
