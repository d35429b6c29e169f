"""What recipes make of images must belong to the images that were asked for: from pixels, and from kept features."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_shelf import CROP, VIEWS, WHOLE, Fixed, inputs_for, pixels_of, preprocess_for, rows_files
from torch import Tensor

from unida.data.pixels import Pixels
from unida.errors import UserError
from unida.features.inputs import Inputs, PixelInputs
from unida.features.kept import FeatureInputs
from unida.features.shelf import Shelf
from unida.features.stem import Stem
from unida.models.backbone import Backbone
from unida.recipes.base import ImageRecipe, Made, Recipe
from unida.recipes.mosaic import Mosaic
from unida.recipes.rotation import Rotation

INDEX = np.array([4, 0, 7, 7, 2, 8])
NO_VIEWS = torch.empty(0)

every_turn = pytest.mark.parametrize("quarters", range(4))


@pytest.fixture
def pixels(tmp_path: Path) -> Pixels:
    """Noise: no picture looks like another one, nor like itself when it is turned."""
    folder, draw = tmp_path / "noise", np.random.default_rng(0)
    folder.mkdir()
    for i in range(9):
        Image.fromarray(draw.integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(folder / f"{i}.png")
    return pixels_of(folder, tmp_path)


def pixel_inputs(backbone: Backbone) -> PixelInputs:
    return PixelInputs(CROP, backbone.mean, backbone.std, torch.device("cpu"))


def kept_images(backbone: Backbone, cache: Path) -> FeatureInputs:
    """Their stem keeps the images themselves."""
    stem = Stem(lambda images: images, (3, CROP, CROP), "identity", "fp16")
    return FeatureInputs(preprocess_for(backbone), stem, VIEWS, cache)


def prepared(inputs: FeatureInputs, pixels: Pixels, recipe: Recipe) -> FeatureInputs:
    inputs.prepare(inputs.jobs({"it": recipe}, [(pixels, inputs.every_view)]), visible=False)
    return inputs


def made(inputs: Inputs, recipe: Recipe, pixels: Pixels, index: np.ndarray = INDEX, part: slice = WHOLE) -> Made:
    return inputs.made(recipe, pixels, index, np.random.default_rng(3), part, NO_VIEWS)


def turned(images: Tensor, quarters: Tensor | int) -> Tensor:
    """By hand, image by image."""
    each = [quarters] * len(images) if isinstance(quarters, int) else quarters.tolist()
    return torch.stack([image.rot90(q, dims=(1, 2)) for image, q in zip(images, each, strict=True)])


def distance_to_views(image: Tensor, pixels: Pixels, i: int, backbone: Backbone) -> float:
    """How far an image is from the nearest crop, mirrored or not, of the picture i."""
    whole = preprocess_for(backbone).normalise(torch.from_numpy(pixels.image(i).copy())[None])[0]
    crops = whole.unfold(1, CROP, 1).unfold(2, CROP, 1).permute(1, 2, 0, 3, 4).flatten(0, 1)
    return float((torch.cat([crops, crops.flip(3)]) - image).abs().flatten(1).amax(dim=1).min())


BOTH: Mapping[str, Callable[[Backbone, Path, Pixels, Recipe], Inputs]] = {
    "pixels": lambda backbone, cache, pixels, recipe: pixel_inputs(backbone),
    "kept": lambda backbone, cache, pixels, recipe: prepared(kept_images(backbone, cache), pixels, recipe),
}
both_kinds = pytest.mark.parametrize("kind", BOTH)


# Rotations


@every_turn
def test_from_pixels_a_made_image_is_the_view_of_its_index_turned(
    quarters: int, backbone: Backbone, pixels: Pixels
) -> None:
    inputs = pixel_inputs(backbone)
    batch = made(inputs, Rotation(quarters), pixels)
    views = inputs.training_view(pixels, INDEX, np.random.default_rng(3), WHOLE)
    assert torch.equal(batch.images, turned(views, quarters))
    assert batch.labels.tolist() == [quarters] * len(INDEX)
    assert batch.of.tolist() == INDEX[:, None].tolist()


@both_kinds
@pytest.mark.parametrize("quarters", [0, 1, 2, 3, None])
def test_turned_back_by_its_label_a_made_image_is_a_view_of_its_index(
    kind: str, quarters: int | None, backbone: Backbone, pixels: Pixels, tmp_path: Path
) -> None:
    recipe = Rotation(quarters)
    batch = made(BOTH[kind](backbone, tmp_path, pixels, recipe), recipe, pixels)
    assert batch.of.tolist() == INDEX[:, None].tolist()
    for image, i in zip(turned(batch.images, -batch.labels), INDEX, strict=True):
        assert distance_to_views(image, pixels, i, backbone) < 5e-3
    wrong = turned(batch.images, 1 - batch.labels)
    assert all(distance_to_views(image, pixels, i, backbone) > 1 for image, i in zip(wrong, INDEX, strict=True))
    if quarters is None:
        assert len(set(batch.labels.tolist())) > 1
    else:
        assert set(batch.labels.tolist()) == {quarters}


@both_kinds
@pytest.mark.parametrize("quarters", [1, None])
def test_two_processes_together_make_what_one_makes(
    kind: str, quarters: int | None, backbone: Backbone, pixels: Pixels, tmp_path: Path
) -> None:
    recipe = Rotation(quarters)
    inputs = BOTH[kind](backbone, tmp_path, pixels, recipe)
    whole = made(inputs, recipe, pixels)
    parts = [made(inputs, recipe, pixels, part=part) for part in (slice(0, 3), slice(3, 6))]
    for field in Made._fields:
        assert torch.equal(torch.cat([getattr(part, field) for part in parts]), getattr(whole, field))


@both_kinds
@every_turn
def test_a_made_test_view_is_the_test_view_turned(
    kind: str, quarters: int, backbone: Backbone, pixels: Pixels, tmp_path: Path
) -> None:
    recipe = Rotation(quarters)
    inputs = BOTH[kind](backbone, tmp_path, pixels, recipe)
    expected = turned(inputs.test_view(pixels, INDEX), quarters)
    assert torch.equal(inputs.made_test_view(recipe, pixels, INDEX), expected)


def test_drawn_test_views_are_the_same_in_every_run_and_from_either_inputs(
    backbone: Backbone, pixels: Pixels, tmp_path: Path
) -> None:
    recipe, every = Rotation(), np.arange(len(pixels))
    views = pixel_inputs(backbone).test_view(pixels, every)
    found = pixel_inputs(backbone).made_test_view(recipe, pixels, every)
    of_view = [[q for q in range(4) if torch.equal(turned(views[i : i + 1], q)[0], found[i])] for i in every]
    assert all(len(of_one) == 1 for of_one in of_view)
    assert len({q for (q,) in of_view}) > 1
    assert torch.equal(pixel_inputs(backbone).made_test_view(recipe, pixels, INDEX), found[INDEX])
    kept = prepared(kept_images(backbone, tmp_path), pixels, recipe)
    torch.testing.assert_close(kept.made_test_view(recipe, pixels, INDEX), found[INDEX], rtol=2e-3, atol=2e-3)


def test_kept_features_are_the_stem_of_made_images(backbone: Backbone, pixels: Pixels, tmp_path: Path) -> None:
    recipe = Rotation()
    images = made(prepared(kept_images(backbone, tmp_path), pixels, recipe), recipe, pixels)
    features = made(prepared(inputs_for(backbone, tmp_path)[0], pixels, recipe), recipe, pixels)
    with torch.no_grad():
        expected = backbone.stem(images.images)
    torch.testing.assert_close(features.images, expected, rtol=2e-2, atol=2e-2)  # images have 16 bits, too
    assert torch.equal(features.labels, images.labels) and torch.equal(features.of, images.of)
    assert features.images.dtype == torch.float32 and features.labels.dtype == torch.int64


def test_made_features_are_computed_once_and_found_again_with_their_labels(
    backbone: Backbone, pixels: Pixels, tmp_path: Path
) -> None:
    recipe = Rotation()
    first, counting = inputs_for(backbone, tmp_path)
    jobs = first.jobs({"it": recipe}, [(pixels, first.every_view)])
    of_each = len(pixels) * (VIEWS + 1)
    assert first.count_missing(jobs) == 2 * of_each, "the images, and what is made of them"
    prepared(first, pixels, recipe)
    assert counting.images == 2 * of_each
    before = made(first, recipe, pixels)
    again, counting = inputs_for(backbone, tmp_path)  # as another run, method or seed would
    part = pixels.subset([8, 7, 4, 2, 0])
    place = {8: 0, 7: 1, 4: 2, 2: 3, 0: 4}
    assert again.count_missing(again.jobs({"other name": recipe}, [(part, again.every_view)])) == 0
    prepared(again, part, recipe)
    assert counting.images == 0
    found = made(again, recipe, part, index=np.array([place[i] for i in INDEX.tolist()]))
    assert torch.equal(found.images, before.images) and torch.equal(found.labels, before.labels)
    other, counting = inputs_for(backbone, tmp_path)
    prepared(other, pixels, Rotation(1))
    assert counting.images == of_each, "another recipe has features of its own; the images' own are there"


def test_a_made_view_is_none_of_the_views_of_the_batch(backbone: Backbone, pixels: Pixels, tmp_path: Path) -> None:
    """A recipe that turns nothing gives other crops than the kept views of the images: it is a view of its own."""
    recipe, every = Rotation(0), np.arange(len(pixels))
    inputs = prepared(kept_images(backbone, tmp_path), pixels, recipe)
    for view in range(1, VIEWS + 1):
        draw: Any = Fixed(view)
        views = inputs.training_view(pixels, every, draw, WHOLE)
        assert not torch.equal(inputs.made(recipe, pixels, every, draw, WHOLE, views).images, views)


# Labels of any shape


@dataclass(frozen=True)
class Dimmed:
    """A random part of an image is dimmed. The label is a map: by how much, in each of 2×3 cells."""

    name: ClassVar[str] = "dimmed images"
    key: ClassVar[str] = "dimmed"

    def choose(self, count: int, draw: np.random.Generator) -> np.ndarray:
        return draw.random((count, 2, 3), dtype=np.float32)

    def make_each(self, images: Tensor, choices: np.ndarray) -> tuple[Tensor, Tensor]:
        maps = torch.from_numpy(choices)
        shares = torch.nn.functional.interpolate(maps[:, None], images.shape[2:], mode="nearest")
        return images * shares, maps


@both_kinds
def test_labels_may_be_maps_of_numbers(kind: str, backbone: Backbone, pixels: Pixels, tmp_path: Path) -> None:
    recipe = Dimmed()
    assert isinstance(recipe, ImageRecipe)
    inputs = BOTH[kind](backbone, tmp_path, pixels, recipe)
    batch = made(inputs, recipe, pixels)
    assert batch.labels.shape == (len(INDEX), 2, 3) and batch.labels.dtype == torch.float32
    shares = torch.nn.functional.interpolate(batch.labels[:, None], batch.images.shape[2:], mode="nearest")
    bright = torch.where(shares > 0.05, batch.images / shares, torch.nan)
    for image, i in zip(bright, INDEX, strict=True):
        whole = preprocess_for(backbone).normalise(torch.from_numpy(pixels.image(i).copy())[None])[0]
        crops = whole.unfold(1, CROP, 1).unfold(2, CROP, 1).permute(1, 2, 0, 3, 4).flatten(0, 1)
        apart = (torch.cat([crops, crops.flip(3)]) - image).abs().nan_to_num(0).flatten(1).amax(dim=1)
        assert apart.min() < 0.05 < apart.median()


# Mosaics: images of several images


def test_from_pixels_each_process_makes_mosaics_of_its_own_images(backbone: Backbone, pixels: Pixels) -> None:
    inputs, recipe = pixel_inputs(backbone), Mosaic()
    index = np.array([0, 1, 2, 3, 5, 6, 7, 8])
    views = inputs.training_view(pixels, index, np.random.default_rng(1), WHOLE)
    batches = []
    for part in (slice(0, 4), slice(4, 8)):
        batch = inputs.made(recipe, pixels, index, np.random.default_rng(3), part, views[part])
        assert batch.images.shape == (4, 3, CROP, CROP)
        assert set(batch.of.flatten().tolist()) <= set(index[part].tolist())
        assert [len(set(of)) for of in batch.of.tolist()] == (batch.labels + 1).tolist()
        batches.append(batch)
    layouts = [
        np.searchsorted(index[part], b.of.numpy()) for part, b in zip((slice(0, 4), slice(4, 8)), batches, strict=True)
    ]
    assert not np.array_equal(*layouts), "processes draw differently"


def test_jobs_are_of_images_and_of_recipes_for_one_image(backbone: Backbone, pixels: Pixels, tmp_path: Path) -> None:
    """What is made of several images is a pool: no views of it are kept for each image."""
    inputs = kept_images(backbone, tmp_path)
    turn = Rotation(1)
    jobs = inputs.jobs({"turned": turn, "pretext": Mosaic()}, [(pixels, inputs.every_view)])
    assert [job.recipe for job in jobs] == [None, turn]


# Kills and damage


@pytest.mark.parametrize("appended", range(1, 6))
def test_a_kill_between_features_and_labels_is_made_good(
    appended: int, backbone: Backbone, pixels: Pixels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unida.features.kept.BATCH", 4)
    recipe, calls, append = Rotation(), [], Shelf.append

    def dies(shelf: Shelf, digests: list[bytes], values: Tensor) -> None:
        if len(calls) == 9 + appended:  # 3 batches of 3 views of the images themselves come before
            raise KeyboardInterrupt
        calls.append(1)
        append(shelf, digests, values)

    with monkeypatch.context() as patched:
        patched.setattr(Shelf, "append", dies)
        with pytest.raises(KeyboardInterrupt):
            prepared(kept_images(backbone, tmp_path), pixels, recipe)
    assert_same_as_apart(prepared(kept_images(backbone, tmp_path), pixels, recipe), backbone, pixels, tmp_path)


def assert_same_as_apart(inputs: FeatureInputs, backbone: Backbone, pixels: Pixels, cache: Path) -> None:
    apart = prepared(kept_images(backbone, cache / "apart"), pixels, Rotation())
    for view in inputs.every_view:
        draw: Any = Fixed(view)
        every = np.arange(len(pixels))
        found, expected = (i.made(Rotation(), pixels, every, draw, WHOLE, NO_VIEWS) for i in (inputs, apart))
        assert all(torch.equal(*both) for both in zip(found, expected, strict=True))


@pytest.mark.parametrize("shelf", range(4))
def test_damage_of_features_or_labels_is_found_and_computed_again(
    shelf: int, backbone: Backbone, pixels: Pixels, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recipe = Rotation()
    prepared(kept_images(backbone, tmp_path), pixels, recipe)
    files = rows_files(tmp_path)
    assert len(files) == 3 * (VIEWS + 1), "images, what is made of them, and its labels"
    smallest_first = sorted(files, key=lambda path: path.stat().st_size)
    path = smallest_first[2 * shelf]  # labels are small
    content = bytearray(path.read_bytes())
    content[-1] ^= 0x40
    path.write_bytes(content)
    again = prepared(kept_images(backbone, tmp_path), pixels, recipe)
    assert "damaged" in caplog.text
    assert_same_as_apart(again, backbone, pixels, tmp_path)


def test_damage_that_is_found_in_a_run_names_the_folder_and_the_next_run_computes_again(
    backbone: Backbone, pixels: Pixels, tmp_path: Path
) -> None:
    recipe = Rotation()
    inputs = prepared(kept_images(backbone, tmp_path), pixels, recipe)
    for path in rows_files(tmp_path):
        content = bytearray(path.read_bytes())
        content[-1] ^= 0x40
        path.write_bytes(content)  # in place: the run has the file open
    every = np.arange(len(pixels))
    with pytest.raises(UserError, match=f"{tmp_path}/features/.* damaged .* continue with --resume"):
        inputs.test_view(pixels, every)
    with pytest.raises(UserError, match=f"{tmp_path}/features/.* damaged .* continue with --resume"):
        made(inputs, recipe, pixels, index=every)
    assert_same_as_apart(prepared(kept_images(backbone, tmp_path), pixels, recipe), backbone, pixels, tmp_path)


def folder_for_file(path: Path) -> None:
    path.unlink()
    path.mkdir()


def file_for_folder(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.write_text("no folder")


IN_THE_WAY: Mapping[str, Callable[[Path], None]] = {
    "rows.16": lambda shelf: folder_for_file(shelf / "rows.16"),
    "index": lambda shelf: folder_for_file(shelf / "index"),
    "the lock": lambda shelf: folder_for_file(shelf.with_name(f"{shelf.name}.lock")),
    "the shelf": file_for_folder,
    "all features": lambda shelf: file_for_folder(shelf.parent),
}


@pytest.mark.parametrize("what", IN_THE_WAY)
@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("recipe", [Rotation(), Mosaic(pool=1)])
def test_a_folder_where_a_file_should_be_and_the_reverse_are_one_line(
    what: str, number: int, recipe: Recipe, backbone: Backbone, pixels: Pixels, tmp_path: Path
) -> None:
    def prepare() -> None:
        inputs = kept_images(backbone, tmp_path)
        inputs.count_missing_in_pools({"it": recipe}, {"source": pixels})
        inputs.prepare_pools({"it": recipe}, {"source": pixels}, visible=False)
        prepared(inputs, pixels, recipe)

    prepare()
    by_size = sorted(rows_files(tmp_path), key=lambda path: path.stat().st_size)
    IN_THE_WAY[what](by_size[number * (len(by_size) - 1) // 2].parent)
    with pytest.raises(UserError) as caught:
        prepare()
    message = str(caught.value)
    assert str(tmp_path) in message and "--cache" in message and "\n" not in message


def test_a_full_disk_is_one_line(
    backbone: Backbone, pixels: Pixels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, content: bytes, place: int) -> int:
        return len(content) - 1

    monkeypatch.setattr("unida.features.shelf.os.pwrite", full)
    with pytest.raises(UserError, match="No space left on device"):
        prepared(kept_images(backbone, tmp_path), pixels, Rotation())
    monkeypatch.undo()
    assert_same_as_apart(prepared(kept_images(backbone, tmp_path), pixels, Rotation()), backbone, pixels, tmp_path)
