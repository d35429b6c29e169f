"""The images of a study, and which target images are private, if the target has labels."""

from dataclasses import dataclass

import torch
from torch import Tensor

from unida.analysis.taps import some_images
from unida.data.domains import Source, Target
from unida.data.pixels import Pixels
from unida.evaluation.truth import Truth


@dataclass(frozen=True)
class StudiedImages:
    source: Pixels
    source_labels: Tensor  # (N,) int64
    target: Pixels
    target_is_private: Tensor | None  # (M,) bool, if the target has labels


def images_to_study(
    source: Source, target: Target, truth: Truth | None, most_source: int, most_target: int, seed: int
) -> StudiedImages:
    """Some images of each domain, drawn at random. If the target has labels, its images for evaluation are used."""
    target_pixels = target.pixels if truth is None else truth.pixels
    source_rows = some_images(len(source.pixels), most_source, "source", seed)
    target_rows = some_images(len(target_pixels), most_target, "target", seed)
    return StudiedImages(
        source=source.pixels.subset(source_rows),
        source_labels=torch.from_numpy(source.labels[source_rows]),
        target=target_pixels.subset(target_rows),
        target_is_private=None if truth is None else torch.from_numpy(truth.labels[target_rows] >= len(source.classes)),
    )
