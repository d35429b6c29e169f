"""The five views of CMU: one way to change images for each head of its ensemble, so that heads make other mistakes.

The released codes change the whole image and then cut a corner or the centre out of it. Here a recipe is given an image
that was cropped and mirrored already, so a corner is cut out of that and enlarged. All changes of place are one map,
and pixels are read once (bilinear; the released codes read them at each change, bicubic). What comes from outside the
image is white. Colours change in a fixed order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.transforms.v2.functional import adjust_hue

RANDOM_NUMBERS = 19  # for each image, whatever its view
SHIFT, SCALE = 0.1, 0.1  # of the side; 0.9…1.1 (CMU's codes)
DISTORTION = 0.5  # how far a corner may move, of half the side (CMU's codes)
CORNER_SHARE = 7 / 8  # of the side: 224 of 256 pixels (CMU's codes)
GREY = (0.2989, 0.587, 0.114)  # shares of red, green and blue (torchvision)
CORNERS = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]], dtype=np.float64)  # x, y from the top left, clockwise
HORIZON = 1e-6  # a point behind it is not on the image


@dataclass(frozen=True)
class View:
    """One of the five ways to change an image. Numbers in 0…1 that `choose` draws say how much.

    Attributes:
        mean, std: of the backbone's input, to get back to pixels in 0…1.
        degrees: rotate by up to this; also shift, scale and shear a little. 0: none of it.
        shear: in degrees.
        perspective: move the corners inwards in every second image.
        corner: −1 or 1 for left or right, then for top or bottom: cut this corner out; None: keep the whole.
        jitter: change brightness, contrast and saturation by up to this share, and hue by up to this part of a turn.
        grey: the chance of an image without colours.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    degrees: float = 0.0
    shear: float = 0.0
    perspective: bool = False
    corner: tuple[int, int] | None = None
    jitter: float = 0.0
    grey: float = 0.0
    name: ClassVar[str] = "changed images"

    @property
    def key(self) -> str:
        return repr(self)

    def choose(self, count: int, draw: np.random.Generator) -> np.ndarray:
        return draw.random((count, RANDOM_NUMBERS))

    def make_each(self, images: Tensor, choices: np.ndarray) -> tuple[Tensor, Tensor]:
        shift, scale = (torch.tensor(numbers, device=images.device)[:, None, None] for numbers in (self.mean, self.std))
        pixels = moved(images * scale + shift, self.place(choices))
        amounts = torch.from_numpy(choices[:, 14:].astype(np.float32)).to(images.device)
        if self.jitter:
            pixels = jittered(pixels, self.jitter * (2 * amounts[:, :4] - 1))
        if self.grey:
            is_grey = amounts[:, 4] < self.grey
            pixels = torch.where(is_grey[:, None, None, None], grey(pixels).expand_as(pixels), pixels)
        made = ((pixels - shift) / scale).contiguous(memory_format=torch.channels_last)
        return made, torch.zeros(len(images), dtype=torch.int64, device=images.device)

    def place(self, choices: np.ndarray) -> np.ndarray:
        """(B, 3, 3) where each point of the new image comes from, in coordinates −1…1 (x, y, 1)."""
        place = np.broadcast_to(np.eye(3), (len(choices), 3, 3))
        if self.degrees:
            place = place @ np.linalg.inv(affine(choices[:, :5], self.degrees, self.shear))
        if self.perspective:
            inwards = np.where(choices[:, 5, None] < 0.5, DISTORTION * choices[:, 6:14], 0.0)
            place = place @ perspective(inwards)
        if self.corner is not None:
            x, y = ((1 - CORNER_SHARE) * side for side in self.corner)
            place = place @ np.array([[CORNER_SHARE, 0, x], [0, CORNER_SHARE, y], [0, 0, 1]])
        return place


def cmu_views(mean: Sequence[float], std: Sequence[float], first_grey: float = 0.5) -> dict[str, View]:
    """The five views by name.

    Args:
        first_grey: of the first view (CMU's later code ½, its first release 0.1).
    """
    numbers = (tuple(mean), tuple(std))
    five = (
        View(*numbers, degrees=30, shear=0.2, grey=first_grey),
        View(*numbers, perspective=True, corner=(-1, -1), jitter=0.2),
        View(*numbers, degrees=30, shear=0.2, corner=(1, -1), jitter=0.2),
        View(*numbers, degrees=10, shear=0.1, perspective=True, corner=(-1, 1)),
        View(*numbers, perspective=True, corner=(1, 1), grey=0.5),
    )
    return {f"view {number}": view for number, view in enumerate(five, 1)}


def affine(choices: np.ndarray, degrees: float, shear: float) -> np.ndarray:
    """(B, 3, 3) rotate, scale, shear and shift, about the centre: where each point of the old image goes.

    Args:
        choices: (B, 5) in 0…1, of rotation, shear, shift along x and y, and scale.
    """
    turn, lean, right, down, size = (2 * choices - 1).T
    angle, tangent, scale = np.radians(degrees * turn), np.tan(np.radians(shear * lean)), 1 + SCALE * size
    sine, cosine, zero = scale * np.sin(angle), scale * np.cos(angle), np.zeros_like(turn)
    rows = [
        [cosine, cosine * tangent - sine, 2 * SHIFT * right],  # the side is 2
        [sine, sine * tangent + cosine, 2 * SHIFT * down],
        [zero, zero, zero + 1],
    ]
    return np.moveaxis(np.array(rows), 2, 0)


def perspective(inwards: np.ndarray) -> np.ndarray:
    """(B, 3, 3) where each point of the new image comes from, if the old image's corners go inwards by this much.

    Args:
        inwards: (B, 8) at least 0: along x and y of the four corners, in the order of CORNERS; the side is 2.
    """
    x, y = np.moveaxis(CORNERS * (1 - inwards.reshape(-1, 4, 2)), 2, 0)  # (B, 4) each
    u, v = (np.broadcast_to(side, x.shape) for side in CORNERS.T)
    one, zero = np.ones_like(x), np.zeros_like(x)
    # u = (a x + b y + c) / (g x + h y + 1) and v = (d x + e y + f) / (g x + h y + 1), at all four corners
    of_u = np.stack([x, y, one, zero, zero, zero, -x * u, -y * u], axis=2)
    of_v = np.stack([zero, zero, zero, x, y, one, -x * v, -y * v], axis=2)
    system, right = np.concatenate([of_u, of_v], axis=1), np.concatenate([u, v], axis=1)
    solved = np.linalg.solve(system, right[:, :, None])[:, :, 0]
    return np.concatenate([solved, np.ones((len(solved), 1))], axis=1).reshape(-1, 3, 3)


def moved(pixels: Tensor, place: np.ndarray) -> Tensor:
    """(B, 3, H, W) in 0…1, read at the places (B, 3, 3); white where these are outside."""
    height, width = pixels.shape[-2:]
    across, down = ((2 * np.arange(n) + 1) / n - 1 for n in (width, height))  # centres of pixels
    points = np.stack([*np.meshgrid(across, down), np.ones((height, width))], axis=2).reshape(-1, 3)
    found = torch.from_numpy((points @ place.transpose(0, 2, 1)).astype(np.float32)).to(pixels.device)
    depth = found[..., 2:]
    grid = torch.where(depth > HORIZON, found[..., :2] / depth.clamp_min(HORIZON), 2.0)
    grid = grid.unflatten(1, (height, width))
    return F.grid_sample(pixels - 1, grid, mode="bilinear", padding_mode="zeros", align_corners=False) + 1


def grey(pixels: Tensor) -> Tensor:
    """(B, 3, H, W) → (B, 1, H, W)."""
    shares = torch.tensor(GREY, device=pixels.device)[:, None, None]
    return (pixels * shares).sum(dim=1, keepdim=True)


def jittered(pixels: Tensor, amounts: Tensor) -> Tensor:
    """(B, 3, H, W) in 0…1 with other brightness, contrast, saturation and hue.

    Args:
        amounts: (B, 4); 0 changes nothing, −1 takes all brightness, contrast or saturation away; of hue, in turns.
    """
    brightness, contrast, saturation = (1 + amounts[:, i, None, None, None] for i in range(3))
    pixels = (brightness * pixels).clamp(0, 1)
    mean = grey(pixels).mean(dim=(1, 2, 3), keepdim=True)
    pixels = (mean + contrast * (pixels - mean)).clamp(0, 1)
    pixels = (grey(pixels) + saturation * (pixels - grey(pixels))).clamp(0, 1)
    return torch.stack([adjust_hue(one, turn) for one, turn in zip(pixels, amounts[:, 3].tolist(), strict=True)])
