"""What the network sees, against one image at a time: sliced in NumPy, or through torchvision's own transforms."""

from collections.abc import Callable
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms

from unida.data.augment import (
    Preprocess,
    Views,
    _cut_by_copies,
    _cut_by_gather,
    centre_views,
    crop_and_flip,
    random_views,
)
from unida.data.folders import scan
from unida.data.images import ResizeMode
from unida.data.pixels import Pixels, decode_in_memory
from unida.data.sampling import shard
from unida.support.random import generator

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CPU = torch.device("cpu")
both_modes = pytest.mark.parametrize("mode", get_args(ResizeMode))


def write_images(folder: Path, count: int, low: int = 30, high: int = 90) -> None:
    rng = np.random.default_rng(count)
    for i in range(count):
        shape = (*rng.integers(low, high, 2), 3)
        Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8)).save(folder / f"{i}.png")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_images(tmp_path, 11)
    return tmp_path


def decode(folder: Path, mode: ResizeMode, size: int = 40) -> Pixels:
    return decode_in_memory(scan(folder)[0], mode, size)


def slow_view(image: np.ndarray, top: int, left: int, flip: bool, crop: int) -> np.ndarray:
    """One picture: cut, mirror, (x / 255 − mean) / std. float64 (3, crop, crop)."""
    part = image[top : top + crop, left : left + crop].astype(np.float64)
    assert part.shape == (crop, crop, 3)
    if flip:
        part = part[:, ::-1]
    return ((part / 255 - np.array(MEAN)) / np.array(STD)).transpose(2, 0, 1)


@both_modes
@pytest.mark.parametrize("crop", [1, 17, 32, 40])
def test_training_views_are_slices_of_each_image(folder: Path, mode: ResizeMode, crop: int) -> None:
    pixels = decode(folder, mode)
    if mode == "short":
        assert len(set(map(tuple, pixels.shapes.tolist()))) > 5  # ragged
    index = np.array([3, 0, 10, 3, 7, 1, 9, 3])  # out of order, one of them thrice
    preprocess = Preprocess(crop, MEAN, STD, CPU)
    found = preprocess.training_view(pixels, index, generator(5, "view"), slice(0, len(index)))
    views = random_views(generator(5, "view"), pixels.shapes[index], crop)
    expected = [
        slow_view(pixels.image(i), *view, crop=crop)
        for i, *view in zip(index, *views, strict=True)  # type: ignore[misc]
    ]
    np.testing.assert_allclose(found.numpy(), np.stack(expected), atol=2e-6)
    assert views.flip.any() and not views.flip.all()


@both_modes
def test_any_corner_of_any_image_can_be_cut(folder: Path, mode: ResizeMode) -> None:
    pixels, crop = decode(folder, mode), 33
    preprocess = Preprocess(crop, MEAN, STD, CPU)
    for i in range(len(pixels)):
        height, width = pixels.shapes[i] - crop
        for top, left, flip in [(0, 0, True), (0, width, False), (height, 0, False), (height, width, True)]:
            window, *corner = pixels.windows(np.array([i]), np.array([top]), np.array([left]))
            part = crop_and_flip(torch.from_numpy(window), Views(*corner, np.array([flip])), crop)
            found = preprocess.normalise(part)
            np.testing.assert_allclose(found[0], slow_view(pixels.image(i), top, left, flip, crop), atol=2e-6)


@pytest.mark.parametrize("cut", [crop_and_flip, _cut_by_copies, _cut_by_gather])  # a CPU uses one, a GPU the other
def test_crop_and_flip_takes_bytes_as_they_are(cut: Callable[[torch.Tensor, Views, int], torch.Tensor]) -> None:
    canvas = torch.arange(2 * 4 * 4 * 3, dtype=torch.uint8).view(2, 4, 4, 3)
    views = Views(np.array([1, 2]), np.array([2, 0]), np.array([False, True]))
    found = cut(canvas, views, 2)
    assert found.dtype == torch.uint8
    assert torch.equal(found[0], canvas[0, 1:3, 2:4])
    assert torch.equal(found[1], canvas[1, 2:4, 0:2].flip(1))
    assert found.is_contiguous()


def test_normalise_is_exact_for_every_byte() -> None:
    images = torch.arange(256, dtype=torch.uint8).view(1, 16, 16, 1).expand(1, 16, 16, 3)
    found = Preprocess(16, MEAN, STD, CPU).normalise(images)
    expected = (images.double().permute(0, 3, 1, 2) / 255 - torch.tensor(MEAN).view(3, 1, 1).double()) / torch.tensor(
        STD
    ).view(3, 1, 1).double()
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("count", [1, 5])
def test_views_are_channels_last_in_memory(folder: Path, count: int) -> None:
    pixels = decode(folder, "squash")
    preprocess = Preprocess(32, MEAN, STD, CPU)
    index = np.arange(count)
    for view in (
        preprocess.test_view(pixels, index),
        preprocess.training_view(pixels, index, generator(0, "view"), slice(None)),
    ):
        assert view.shape == (count, 3, 32, 32) and view.dtype == torch.float32
        assert view.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("crop", [3, 4, 7])
def test_centre_rounds_as_torchvision_does(crop: int) -> None:
    sides = range(crop, crop + 9)  # both parities of the margin, and the halves that round to even
    shapes = np.array([(h, w) for h in sides for w in sides])
    views = centre_views(shapes, crop)
    assert not views.flip.any()
    for (height, width), top, left in zip(shapes, views.top, views.left, strict=True):
        places = torch.arange(height * width).view(1, height, width)
        expected = transforms.CenterCrop(crop)(places)
        assert torch.equal(expected, places[:, top : top + crop, left : left + crop])


@both_modes
@pytest.mark.parametrize(("size", "crop"), [(256, 224), (64, 57)])
def test_the_test_view_is_torchvisions_pipeline(tmp_path: Path, mode: ResizeMode, size: int, crop: int) -> None:
    rng = np.random.default_rng(0)
    for name, shape in {
        "wide.png": (100, 301),
        "tall.jpg": (333, 210),
        "small.png": (31, 47),
        "even.png": (256, 256),
    }.items():
        Image.fromarray(rng.integers(0, 256, (*shape, 3), dtype=np.uint8)).save(tmp_path / name)
    pixels = decode(tmp_path, mode, size)
    pipeline = transforms.Compose(
        [
            transforms.Resize((size, size) if mode == "squash" else size),
            transforms.CenterCrop(crop),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )
    expected = torch.stack([pipeline(Image.open(file.path).convert("RGB")) for file in pixels.files])
    found = Preprocess(crop, MEAN, STD, CPU).test_view(pixels, np.arange(len(pixels)))
    assert len(found) == 4
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_crops_and_mirrors_are_uniform_and_reach_the_last_position() -> None:
    count = 32_000
    shapes = np.tile([[6, 7]], (count, 1))
    views = random_views(generator(1, "view"), shapes, 4)
    seen = np.zeros((3, 4, 2))  # 6 − 4 + 1 rows, 7 − 4 + 1 columns, mirrored or not
    np.add.at(seen, (views.top, views.left, views.flip.astype(int)), 1)
    assert seen.sum() == count
    expected = count / seen.size
    assert ((seen - expected) ** 2 / expected).sum() < 60  # χ² of 23 degrees of freedom: exceeded once in 30,000 seeds


def test_every_image_is_cropped_within_its_own_shape() -> None:
    shapes = np.tile([[5, 9], [12, 5], [5, 5]], (2000, 1))
    views = random_views(generator(2, "view"), shapes, 5)
    for number, (rows, columns) in enumerate([(0, 4), (7, 0), (0, 0)]):
        assert set(views.top[number::3]) == set(range(rows + 1))
        assert set(views.left[number::3]) == set(range(columns + 1))


@both_modes
@pytest.mark.parametrize("processes", [2, 3, 5, 11, 13])
def test_the_draw_does_not_depend_on_the_number_of_processes(folder: Path, mode: ResizeMode, processes: int) -> None:
    pixels, preprocess = decode(folder, mode), Preprocess(24, MEAN, STD, CPU)
    index = np.random.default_rng(0).permutation(11)
    whole = preprocess.training_view(pixels, index, generator(3, "view", 8), slice(0, 11))
    parts = [
        preprocess.training_view(pixels, index, generator(3, "view", 8), shard(index, rank, processes))
        for rank in range(processes)
    ]
    assert torch.equal(torch.cat(parts), whole)
