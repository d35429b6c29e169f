"""Scores and answers for images one by one: image → feature → the method's scores → a class, or unknown.

Only here images are scored: evaluation, prediction and the count of multiply-adds use this module.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unida.data.augment import Preprocess
from unida.data.pixels import Pixels
from unida.errors import UserError
from unida.features.inputs import Inputs
from unida.methods.base import Method
from unida.support.fabric import Fabric
from unida.support.progress import progress

BATCH, BATCH_ON_CPU = 64, 16  # images at a time; on a CPU, more would only take more memory


@dataclass(frozen=True)
class Answers:
    """One row per image."""

    prediction: Tensor  # (N,) int64, 0…C; C is "unknown"
    closed: Tensor  # (N,) int64, 0…C−1: the best class, unknown or not
    probability: Tensor  # (N,) float32, of the best class
    unknown_score: Tensor  # (N,) float32, higher is more unknown


@dataclass(frozen=True)
class Scored:
    """What the method says about each image, one row per image."""

    directions: Tensor  # (N, d) float16: features at unit length. Half the memory, and neighbours stay the same
    probabilities: Tensor  # (N, C) float32
    unknown: Tensor  # (N,) float32 in 0…1

    def __len__(self) -> int:
        return len(self.unknown)

    def rows(self, index: Tensor) -> "Scored":
        return Scored(self.directions[index], self.probabilities[index], self.unknown[index])


def decide(probabilities: Tensor, unknown: Tensor, threshold: float) -> Answers:
    """(N, C) and (N,) → answers. An image is unknown if its score is above the threshold."""
    probability, closed = probabilities.max(dim=1)
    prediction = torch.where(unknown > threshold, probabilities.shape[1], closed)
    return Answers(prediction, closed, probability, unknown)


class Answering(nn.Module):
    """The whole path from images to answers: label, probability and unknown score, by the method's own rule."""

    def __init__(self, method: Method) -> None:
        super().__init__()
        self.method = method

    def forward(self, images: Tensor) -> Answers:
        """Images (B, 3, H, W), or kept features instead of them → answers, on the device."""
        return self.of_features(self.method.features(images))

    def of_features(self, features: Tensor) -> Answers:
        """(B, d) → answers."""
        scores = self.method.score(features)
        return decide(scores.logits.softmax(dim=1), scores.unknown, self.method.unknown_threshold)


def score_pixels(
    method: Method,
    pixels: Pixels,
    inputs: Inputs | Preprocess,
    fabric: Fabric,
    visible: bool = True,
    features: Tensor | None = None,
) -> Scored:
    """Scores of all images, in order, on the host. Several processes share the work; each gets all scores.

    Args:
        features: (N, d) of the images, if they are known already.
    """
    count, processes = len(pixels), fabric.world_size
    share = -(-count // processes)  # of equal length, so that they can be gathered: the surplus is cut off below
    mine = np.arange(fabric.global_rank * share, (fabric.global_rank + 1) * share) % count
    was_training = method.training
    method.eval()
    parts = []
    with progress("answering", share, visible=visible and fabric.is_global_zero) as report:
        size = BATCH if fabric.device.type != "cpu" else BATCH_ON_CPU
        for start in range(0, share, size):
            index = mine[start : start + size]
            with fabric.autocast(), torch.inference_mode():
                if features is None:
                    some = method.features(inputs.test_view(pixels, index))
                else:
                    some = features[torch.from_numpy(index).to(features.device)]
                scores = method.score(some)
            directions = F.normalize(some.float(), dim=1).half()
            parts.append(Scored(directions, scores.logits.softmax(dim=1), scores.unknown))
            report(min(start + size, share), "")
    method.train(was_training)

    def joined(name: str) -> Tensor:
        local = torch.cat([getattr(part, name) for part in parts])
        if processes > 1:
            # Not fabric.all_gather: it is made for gradients, and warns on every process.
            gathered = [torch.empty_like(local) for _ in range(processes)]
            torch.distributed.all_gather(gathered, local)
            local = torch.cat(gathered)
        return local[:count].cpu()

    scored = Scored(joined("directions"), joined("probabilities"), joined("unknown"))
    columns = (scored.directions, scored.probabilities, scored.unknown[:, None])
    finite = torch.stack([column.isfinite().all(dim=1) for column in columns]).all(dim=0)
    if bad := int((~finite).sum()):
        raise UserError(f"{bad} of {count} images have a score that is not finite: start again with a lower --lr")
    return scored
