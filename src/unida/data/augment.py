"""Crop, flip and normalise a batch of cached images, on the device."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from unida.data.pixels import Pixels


class Views(NamedTuple):
    """Where each image of a batch is cropped, and whether it is mirrored. Drawn on the host: a few bytes per image."""

    top: np.ndarray  # (B,) int64
    left: np.ndarray  # (B,) int64
    flip: np.ndarray  # (B,) bool


def random_views(draw: np.random.Generator, shapes: np.ndarray, crop: int) -> Views:
    """A uniform crop inside each image and a fair coin for mirroring (OVANet's and DCC's training transform).

    Args:
        shapes: (B, 2) height and width of each image; none is smaller than `crop`.
    """
    room = shapes - crop + 1
    top, left = draw.integers(room[:, 0]), draw.integers(room[:, 1])
    return Views(top, left, draw.random(len(shapes)) < 0.5)


def centre_views(shapes: np.ndarray, crop: int) -> Views:
    """The central crop, not mirrored: the test transform. Rounds as torchvision's CenterCrop does."""
    corner = np.round((shapes - crop) / 2).astype(np.int64)
    return Views(corner[:, 0], corner[:, 1], np.zeros(len(shapes), dtype=bool))


def crop_and_flip(canvas: Tensor, views: Views, crop: int) -> Tensor:
    """Cut every image's window: in one gather on a GPU, by a copy per image on a CPU (20 × faster there).

    Args:
        canvas: (B, S, S, 3) uint8, on the device.
        views: offsets inside the canvas.

    Returns:
        (B, crop, crop, 3) uint8.
    """
    return (_cut_by_copies if canvas.device.type == "cpu" else _cut_by_gather)(canvas, views, crop)


def _cut_by_copies(canvas: Tensor, views: Views, crop: int) -> Tensor:
    images = canvas.new_empty((len(canvas), crop, crop, 3))
    places = zip(views.top.tolist(), views.left.tolist(), views.flip.tolist(), strict=True)
    for image, whole, (top, left, flip) in zip(images, canvas, places, strict=True):
        part = whole[top : top + crop, left : left + crop]
        image.copy_(part.flip(1) if flip else part)
    return images


def _cut_by_gather(canvas: Tensor, views: Views, crop: int) -> Tensor:
    along = np.arange(crop)
    rows = views.top[:, None] + along
    columns = views.left[:, None] + np.where(views.flip[:, None], along[::-1], along)
    rows_on_device = torch.from_numpy(rows).to(canvas.device, non_blocking=True)
    columns_on_device = torch.from_numpy(columns).to(canvas.device, non_blocking=True)
    batch = torch.arange(len(canvas), device=canvas.device)
    return canvas[batch[:, None, None], rows_on_device[:, :, None], columns_on_device[:, None, :]]


class Preprocess:
    """From cached pixels to the network's input: float32 (B, 3, crop, crop), channels-last in memory.

    Args:
        crop: side in pixels.
        mean, std: of the backbone's pretrained weights, for pixels in 0…1.
    """

    def __init__(self, crop: int, mean: Sequence[float], std: Sequence[float], device: torch.device) -> None:
        self.crop, self.device = crop, device
        self.scale = torch.tensor([1 / (255 * s) for s in std], device=device)
        self.shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], device=device)

    def training_view(self, pixels: Pixels, index: np.ndarray, draw: np.random.Generator, part: slice) -> Tensor:
        """Random crop and mirror of the images at `index[part]`; the draw is made for all of `index`."""
        views = random_views(draw, pixels.shapes[index], self.crop)
        return self.view(pixels, index[part], Views(*(values[part] for values in views)))

    def test_view(self, pixels: Pixels, index: np.ndarray) -> Tensor:
        """Central crop of the images at `index` (B,)."""
        return self.view(pixels, index, centre_views(pixels.shapes[index], self.crop))

    def view(self, pixels: Pixels, index: np.ndarray, views: Views) -> Tensor:
        """The images at `index` (B,), cropped and mirrored as `views` says."""
        window, top, left = pixels.windows(index, views.top, views.left)
        canvas = torch.from_numpy(window)
        if self.device.type == "cuda":
            canvas = canvas.pin_memory()
        canvas = canvas.to(self.device, non_blocking=True)
        return self.normalise(crop_and_flip(canvas, Views(top, left, views.flip), self.crop))

    def normalise(self, images: Tensor) -> Tensor:
        """uint8 (B, H, W, 3) → float32 (B, 3, H, W). NHWC memory seen as NCHW is torch's channels_last: no copy."""
        width = images.shape[2]
        rows = images.float().flatten(2)  # whole rows and in place: over the 3 channels alone, this took 10 × as long
        torch.addcmul(self.shift.repeat(width), rows, self.scale.repeat(width), out=rows)
        return rows.unflatten(2, (width, 3)).permute(0, 3, 1, 2)
