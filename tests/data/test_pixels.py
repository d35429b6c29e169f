"""Windows and subsets of decoded images hold the pixels that were asked for."""

import time
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_pixels import SIZE, open_in

from unida.data.folders import ImageFile
from unida.data.images import ResizeMode


def test_squash_windows(tmp_path: Path, files: list[ImageFile]) -> None:
    pixels = open_in(tmp_path, files)
    index, top, left = np.array([4, 0, 4]), np.array([1, 2, 3]), np.array([3, 2, 1])
    windows, new_top, new_left = pixels.windows(index, top, left)
    assert windows.shape == (3, SIZE, SIZE, 3)
    for window, i in zip(windows, index, strict=True):
        assert np.array_equal(window, pixels.image(i))
    assert np.array_equal(new_top, top)
    assert np.array_equal(new_left, left)
    windows[:] = 0  # a copy
    assert pixels.image(4).any()


@pytest.mark.parametrize("limit", [None, 0])
@pytest.mark.parametrize("crop", [1, 17, SIZE])
def test_ragged_windows_hold_the_crop(tmp_path: Path, files: list[ImageFile], crop: int, limit: int | None) -> None:
    pixels = open_in(tmp_path, files, "short", memory_limit=limit)
    assert (pixels.shapes.min(axis=1) == SIZE).all()
    assert (pixels.shapes.max(axis=1) > SIZE).any()
    rng = np.random.default_rng(crop)
    index = rng.integers(0, len(pixels), 200)
    room = pixels.shapes[index] - crop
    corners = (rng.random((200, 2)) * (room + 1)).astype(np.int64)
    corners[:50] = room[:50]  # the far corner
    windows, top, left = pixels.windows(index, corners[:, 0], corners[:, 1])
    assert windows.dtype == np.uint8
    assert windows.shape == (200, SIZE, SIZE, 3)
    for i, (y, x), window, t, l in zip(index, corners, windows, top, left, strict=True):  # noqa: E741
        expected = pixels.image(i)[y : y + crop, x : x + crop]
        assert expected.shape == (crop, crop, 3)
        assert np.array_equal(window[t : t + crop, l : l + crop], expected)


def test_windows_of_tensors_gives_tensors(tmp_path: Path, files: list[ImageFile]) -> None:
    pixels = open_in(tmp_path, files, "short")
    index, top, left = torch.tensor([2, 1]), torch.tensor([0, 0]), torch.tensor([0, 0])
    windows, new_top, _ = pixels.windows(index, top, left)
    assert torch.equal(new_top, top)
    assert new_top.dtype == top.dtype
    assert np.array_equal(windows[0], pixels.image(2)[:SIZE, :SIZE])


@pytest.mark.parametrize("mode", ["squash", "short"])
def test_subset_shares_the_buffer(tmp_path: Path, files: list[ImageFile], mode: ResizeMode) -> None:
    pixels = open_in(tmp_path, files, mode)
    chosen = [7, 2, 5]
    part = pixels.subset(np.array(chosen)).subset(torch.tensor([2, 0]))
    assert part.files == [files[5], files[7]]
    assert np.shares_memory(part.image(0), pixels.image(5))
    zeros = np.zeros(2, np.int64)
    windows, _, _ = part.windows(np.array([1, 0]), zeros, zeros)
    assert np.array_equal(windows[0], pixels.image(7)[:SIZE, :SIZE])
    assert np.array_equal(part.shapes, pixels.shapes[[5, 7]])
    mask = np.arange(len(files)) % 2 == 0
    assert pixels.subset(mask).files == files[::2]


@pytest.mark.parametrize("mode", ["squash", "short"])
def test_a_window_costs_microseconds(tmp_path: Path, files: list[ImageFile], mode: ResizeMode) -> None:
    pixels = open_in(tmp_path, files, mode)
    index = np.random.default_rng(0).integers(0, len(pixels), 1000)
    zeros = np.zeros(1000, np.int64)
    fastest = np.inf
    for _ in range(5):
        start = time.process_time()
        pixels.windows(index, zeros, zeros)
        fastest = min(fastest, time.process_time() - start)
    assert fastest / 1000 < 200e-6  # a few in truth; decoding even these small files takes longer
