"""The word atlas of a run with SPA: what each visual word looks like in the source and in the target, and who uses it.

A word is at a location of an image with a share φ (`unida.models.words`). The mean of φ over all locations of a
domain's images is how much the domain uses the word.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from unida.methods.spa.backbone import WordBackbone

RARE = 0.1  # a domain that uses a word less than this share of what the other does is said not to use it


@dataclass(frozen=True)
class WordUse:
    """How one domain uses K words.

    Attributes:
        share: (K,) mean share of each word; sums to 1.
        strongest: (K, P) shares at the locations that show each word most strongly, falling, one location an image.
        images: (K, P) which image each of them is in.
        places: (K, P) which location of it, row by row.
        grid: height and width of the map that the locations are on.
    """

    share: Tensor
    strongest: Tensor
    images: Tensor
    places: Tensor
    grid: tuple[int, int]


@torch.inference_mode()
def word_use(backbone: WordBackbone, batches: Iterable[Tensor], patches: int) -> WordUse:
    """How some images use the words of a backbone.

    Args:
        batches: (B, 3, H, W) images, or kept features instead of them.
        patches: P, at most the number of images.
    """
    shares, peaks, places, grid = [], [], [], (1, 1)
    for images in batches:
        features = backbone.map(images)
        grid = (features.shape[2], features.shape[3])
        words = backbone.vocabulary(features).exp()  # (B, U, K)
        shares.append(words.mean(dim=1).cpu())
        peak = words.max(dim=1)
        peaks.append(peak.values.cpu())
        places.append(peak.indices.cpu())
    of_image, at_peak, where = torch.cat(shares), torch.cat(peaks), torch.cat(places)
    strongest, images_of = at_peak.topk(min(patches, len(at_peak)), dim=0)
    return WordUse(of_image.mean(dim=0), strongest.T, images_of.T, where.gather(0, images_of).T, grid)


def words_to_show(source: WordUse, target: WordUse, most: int) -> list[int]:
    """The words that are used most, by the domain that uses them more."""
    use = torch.maximum(source.share, target.share)
    return use.topk(min(most, len(use))).indices.tolist()


def used_by(source: WordUse, target: WordUse, word: int) -> str:
    """ "both", or the name of the only domain that uses a word."""
    one, other = float(source.share[word]), float(target.share[word])
    if other < RARE * one:
        return "source"
    return "target" if one < RARE * other else "both"


def patch_box(place: int, grid: tuple[int, int], crop: int) -> tuple[int, int, int, int]:
    """Left, top, right, bottom in pixels of the crop: the location's cell with half a cell around it."""
    row, column = divmod(place, grid[1])
    height, width = crop / grid[0], crop / grid[1]
    left, top = (column - 0.5) * width, (row - 0.5) * height
    right, bottom = (column + 1.5) * width, (row + 1.5) * height
    edge = float(crop)
    return round(max(left, 0)), round(max(top, 0)), round(min(right, edge)), round(min(bottom, edge))
