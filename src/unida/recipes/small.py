"""Small pictures: the labels of tasks that ask for a picture."""

import torch.nn.functional as F
from torch import Tensor

STRIDE = 4  # pixels of the image for each of the small picture: 56 × 56 of 224 × 224 (Zhang et al. 2016)


def small_size(images: Tensor) -> tuple[int, int]:
    height, width = (max(1, side // STRIDE) for side in images.shape[-2:])
    return height, width


def shrunk(pixels: Tensor) -> Tensor:
    """(B, C, H, W) → (B, C, h, w): means of squares."""
    return F.adaptive_avg_pool2d(pixels, small_size(pixels))
