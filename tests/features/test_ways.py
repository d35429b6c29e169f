"""Kept features of recipes with few ways: every image can be seen in each of them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_shelf import WHOLE, Counting, inputs_for
from torch import Tensor

from unida.data.pixels import Pixels
from unida.features.inputs import PixelInputs
from unida.features.kept import FeatureInputs
from unida.models.backbone import Backbone
from unida.recipes.base import Made
from unida.recipes.rotation import AnyRotation, Rotation

NO_VIEWS = torch.empty(0)


def made(inputs: FeatureInputs, pixels: Pixels, seed: int, part: slice = WHOLE) -> Made:
    return inputs.made(AnyRotation(), pixels, np.arange(len(pixels)), np.random.default_rng(seed), part, NO_VIEWS)


def opened(backbone: Backbone, tmp_path: Path, views: int) -> tuple[FeatureInputs, Counting]:
    return inputs_for(backbone, tmp_path / "cache", views=views)


def test_without_random_views_a_step_still_draws_any_way(backbone: Backbone, pixels: Pixels, tmp_path: Path) -> None:
    inputs, counting = opened(backbone, tmp_path, views=0)
    index, seen = np.arange(len(pixels)), set[tuple[int, int]]()
    in_order: list[Tensor] = [inputs.test_view(pixels, index)]
    in_order += [inputs.made_test_view(Rotation(quarters), pixels, index) for quarters in (1, 2, 3)]
    computed = counting.images
    for seed in range(20):
        images, labels, of = made(inputs, pixels, seed)
        for row, way, (i,) in zip(images, labels.tolist(), of.tolist(), strict=True):
            assert torch.equal(row, in_order[way][i])
            seen.add((way, i))
    assert seen == {(way, i) for way in range(4) for i in index.tolist()}
    assert counting.images == computed == 4 * len(pixels)  # the ways share their shelves with the rotations


@pytest.mark.parametrize("views", [0, 2])
def test_two_processes_together_draw_what_one_draws(
    views: int, backbone: Backbone, pixels: Pixels, tmp_path: Path
) -> None:
    inputs, _ = opened(backbone, tmp_path, views)
    whole, parts = made(inputs, pixels, 1), [made(inputs, pixels, 1, part) for part in (slice(0, 4), slice(4, 9))]
    for column, *halves in zip(whole, *parts, strict=True):
        assert torch.equal(column, torch.cat(halves))
    assert len(set(whole.labels.tolist())) > 1


def test_jobs_are_its_ways_each_once(backbone: Backbone, pixels: Pixels, tmp_path: Path) -> None:
    inputs, counting = opened(backbone, tmp_path, views=0)
    recipes = {"any": AnyRotation(), "left": Rotation(1)}
    jobs = inputs.jobs(recipes, [(pixels, range(1))])
    assert [job.recipe for job in jobs] == [None, Rotation(1), Rotation(2), Rotation(3)]
    inputs.prepare(jobs, visible=False)
    made(inputs, pixels, 0)
    assert counting.images == 4 * len(pixels)


def test_over_all_images_both_kinds_of_inputs_turn_alike(backbone: Backbone, pixels: Pixels, tmp_path: Path) -> None:
    kept, _ = opened(backbone, tmp_path, views=0)
    index = np.arange(len(pixels))
    pixel_inputs = PixelInputs(kept.preprocess.crop, backbone.mean, backbone.std, torch.device("cpu"))
    with torch.no_grad():
        expected = backbone.stem(pixel_inputs.made_test_view(AnyRotation(), pixels, index))
    torch.testing.assert_close(kept.made_test_view(AnyRotation(), pixels, index), expected, rtol=2e-2, atol=2e-2)
