"""The colour space CIE Lab (white D65): L is how light a colour is, 0…100; a and b are its colour, 0 for grey."""

from collections.abc import Sequence

import torch
from torch import Tensor

# From linear sRGB to XYZ, divided by the white point.
TO_XYZ = ((0.412453, 0.357580, 0.180423), (0.212671, 0.715160, 0.072169), (0.019334, 0.119193, 0.950227))
WHITE = (0.95047, 1.0, 1.08883)
SMALL, SLOPE, OFFSET = 0.008856, 7.787, 16 / 116  # near black, the cube root is a straight line


def to_pixels(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """(B, 3, H, W) normalised images → sRGB in 0…1."""
    shift, scale = (images.new_tensor(numbers)[:, None, None] for numbers in (mean, std))
    return (images * scale + shift).clamp(0, 1)


def lightness(pixels: Tensor) -> Tensor:
    """(B, 3, H, W) sRGB in 0…1 → (B, 1, H, W) L in 0…100."""
    light = torch.einsum("c,bchw->bhw", pixels.new_tensor(TO_XYZ[1]), _linear(pixels))
    return 116 * _root(light[:, None]) - 16


def srgb_to_lab(pixels: Tensor) -> Tensor:
    """(B, 3, H, W) sRGB in 0…1 → L, a, b."""
    xyz = torch.einsum("xc,bchw->bxhw", _matrix(pixels), _linear(pixels))
    x, y, z = _root(xyz).unbind(dim=1)
    return torch.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], dim=1)


def lab_to_srgb(lab: Tensor) -> Tensor:
    """(B, 3, H, W) L, a, b → sRGB in 0…1; colours that a screen cannot show are cut off."""
    light, a, b = lab.unbind(dim=1)
    y = (light + 16) / 116
    root = torch.stack([y + a / 500, y, y - b / 200], dim=1)
    xyz = torch.where(root > SMALL ** (1 / 3), root**3, (root - OFFSET) / SLOPE)
    linear = torch.einsum("cx,bxhw->bchw", torch.linalg.inv(_matrix(lab)), xyz).clamp(0, 1)
    return torch.where(linear > 0.0031308, 1.055 * linear ** (1 / 2.4) - 0.055, 12.92 * linear)


def _matrix(like: Tensor) -> Tensor:
    return like.new_tensor(TO_XYZ) / like.new_tensor(WHITE)[:, None]


def _linear(pixels: Tensor) -> Tensor:
    return torch.where(pixels > 0.04045, ((pixels + 0.055) / 1.055) ** 2.4, pixels / 12.92)


def _root(share: Tensor) -> Tensor:
    return torch.where(share > SMALL, share.clamp_min(SMALL) ** (1 / 3), SLOPE * share + OFFSET)
