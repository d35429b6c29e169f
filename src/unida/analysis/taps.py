"""Features at every tap of a backbone, and measures of them. Target labels are used only if the caller gives them."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from unida.analysis.measures import (
    domain_invariance_score,
    negative_transfer_risk,
    source_negative_transfer_risk,
    validated_l2,
    word_vocabulary,
)
from unida.data.augment import Preprocess
from unida.data.pixels import Pixels
from unida.models.backbone import Backbone
from unida.models.words import prototype_alignment_score
from unida.support.progress import progress
from unida.support.random import generator

BATCH = 64
LOCATIONS = 4096  # of each domain, for words and PAS: some in every image, and 16 for each of 256 words


@dataclass(frozen=True)
class TapFeatures:
    """The output of one tap for N images."""

    pooled: Tensor  # (N, D) float32, mean over the locations of the map
    locations: Tensor  # (N, P, D) float32, P random locations of each image


@dataclass(frozen=True)
class TapMeasures:
    """One row of the study; None if something that a measure needs is missing."""

    tap: str
    channels: int
    ntr: float | None  # needs target labels
    source_ntr: float | None  # needs three classes
    dis: float
    pas: float


def some_images(count: int, limit: int, name: str, seed: int) -> np.ndarray:
    """(≤ limit,) of 0…count−1, drawn at random, sorted. The same seed gives the same ones."""
    if count <= limit:
        return np.arange(count)
    return np.sort(generator(seed, f"{name} images to look at").permutation(count)[:limit])


def digests(pixels: Pixels) -> np.ndarray:
    """(N,) the digest of each image, for `domain_invariance_score`."""
    return np.array([file.digest for file in pixels.files])


@torch.inference_mode()
def features_at_taps(
    backbone: Backbone, pixels: Pixels, preprocess: Preprocess, title: str, seed: int = 0, visible: bool = True
) -> dict[str, TapFeatures]:
    """The output of each tap, shallow to deep, for the test views of all images, in one pass through the backbone."""
    count = len(pixels)
    per_image = max(1, LOCATIONS // count)
    places = torch.from_numpy(generator(seed, f"{title} locations").random((count, per_image, 2)))  # in 0…1
    pooled: dict[str, list[Tensor]] = {tap: [] for tap in backbone.taps}
    locations: dict[str, list[Tensor]] = {tap: [] for tap in backbone.taps}
    backbone.eval()
    with progress(f"features of the {title}", count, visible=visible) as report:
        for start in range(0, count, BATCH):
            index = np.arange(start, min(start + BATCH, count))
            state, before = preprocess.test_view(pixels, index), None
            for tap in backbone.taps:
                state, before = backbone.run(state, after=before, upto=tap), tap
                maps = backbone.spatial(state, tap, (preprocess.crop, preprocess.crop)).float()
                pooled[tap].append(maps.mean(dim=(2, 3)).cpu())
                locations[tap].append(_at(maps, places[index]).cpu())
            report(int(index[-1]) + 1)
    return {tap: TapFeatures(torch.cat(pooled[tap]), torch.cat(locations[tap])) for tap in backbone.taps}


def _at(maps: Tensor, places: Tensor) -> Tensor:
    """(B, D, H, W) and (B, P, 2) in 0…1 → (B, P, D): the same places of an image, for a map of any size."""
    size = torch.tensor(maps.shape[2:])
    row, column = (places * size).long().clamp(max=size - 1).to(maps.device).unbind(dim=2)
    batch = torch.arange(len(maps), device=maps.device)[:, None]
    return maps[batch, :, row, column]


def measure_tap(
    tap: str,
    source: TapFeatures,
    source_labels: Tensor,
    target: TapFeatures,
    images: tuple[np.ndarray, np.ndarray],
    target_is_private: Tensor | None,
    words: int,
    seed: int = 0,
) -> TapMeasures:
    """All measures at one tap.

    Args:
        source_labels: (N,) int64, any ids.
        images: of the source (N,) and the target (M,), which image each row shows.
        target_is_private: (M,) bool for NTR, or None: NTR is the only measure that uses target labels.
        words: size of the vocabulary for PAS.
    """
    classes, labels = torch.unique(source_labels, return_inverse=True)
    num_classes, ntr, source_ntr = len(classes), None, None
    l2 = validated_l2(source.pooled, labels, num_classes)
    if target_is_private is not None:
        ntr = negative_transfer_risk(source.pooled, labels, target.pooled, target_is_private, num_classes, l2)
    if num_classes > 2:
        source_ntr = source_negative_transfer_risk(source.pooled, labels, seed, l2=l2)
    return TapMeasures(
        tap=tap,
        channels=source.pooled.shape[1],
        ntr=ntr,
        source_ntr=source_ntr,
        dis=domain_invariance_score(source.pooled, target.pooled, seed, *images),
        pas=_pas_of_new_images(source.locations, target.locations, words, seed),
    )


def _pas_of_new_images(source: Tensor, target: Tensor, words: int, seed: int) -> float:
    """Mean PAS of the target (as in SPA, figure 5C), against words made from other images.

    The backbone has no words of its own, so half of each domain's images give a vocabulary, and the target's other half
    is measured. On the locations that gave the words, PAS would be 1 with as many words as locations.
    """
    draw = generator(seed, "images that give words")
    givers = [torch.from_numpy(draw.permutation(len(domain))) for domain in (source, target)]
    halves = [order[: (len(order) + 1) // 2] for order in givers]
    material = torch.cat([domain[half].flatten(0, 1) for domain, half in zip((source, target), halves, strict=True)])
    others = target[givers[1][len(halves[1]) :]].flatten(0, 1)
    return float(prototype_alignment_score(others, word_vocabulary(material, words, seed)).mean())
