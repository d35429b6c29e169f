"""Target images to classes, or to none: the assignment problem of ATI-λ (Panareda Busto & Gall, ICCV 2017).

    minimise    Σ_t Σ_c d_tc x_tc + λ Σ_t o_t          x_tc = 1: image t has class c; o_t = 1: it has none
    such that   Σ_c x_tc + o_t = 1 for every image t, and, if every class must have an image, Σ_t x_tc ≥ 1 for every c

Without the second rule each image is a problem of its own: the nearest class, or none if that is farther than λ.
"""

import torch
from torch import Tensor

REJECTED = -1


def reject_cost(distances: Tensor, place: float) -> Tensor:
    """(): λ, the price of giving an image no class: min d + place · (max d − min d).

    Args:
        distances: (N, C), N ≥ 1.
        place: in 0…1. With 1 nothing is rejected; ½ is the mean of the smallest and the largest distance.
    """
    low, high = distances.min(), distances.max()
    return torch.lerp(low, high, place).clamp(low, high)  # rounding must not reject the nearest image of all


def assign(distances: Tensor, cost: Tensor, every_class: bool = False) -> Tensor:
    """The cheapest assignment: (N,) int64, a class 0…C−1 or `REJECTED`.

    Args:
        distances: (N, C) of each image from each class.
        cost: () λ. An image at exactly this distance is kept.
        every_class: whether each class must have an image; N ≥ C then.
    """
    nearest = distances.min(dim=1)
    classes = torch.where(nearest.values <= cost, nearest.indices, REJECTED)
    return _with_every_class(distances, cost, classes) if every_class else classes


def _with_every_class(distances: Tensor, cost: Tensor, classes: Tensor) -> Tensor:
    """The cheapest assignment in which each class has an image.

    In any such assignment, each class has one image that stands for it. All other images are free, and best where
    `classes` has them. So the total is that of `classes`, and what each of the C images costs more than there. Which
    images make that least is a linear assignment problem.
    """
    from scipy.optimize import linear_sum_assignment  # few runs need it, and it loads slowly

    free = distances.min(dim=1).values.minimum(cost)  # (N,) what an image costs where it is best
    extra = (distances - free[:, None]).T.double().cpu().numpy()  # (C, N)
    standing_for, images = linear_sum_assignment(extra)
    found = classes.clone()
    found[torch.from_numpy(images).to(found.device)] = torch.from_numpy(standing_for).to(found)
    return found
