"""Answers for images one by one: image → feature → the method's scores → a class, or unknown.

Only here a score becomes an answer: evaluation, prediction and the count of multiply-adds use this module.
"""

from dataclasses import dataclass

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from unida.data.augment import Preprocess
from unida.data.pixels import Pixels
from unida.errors import UserError
from unida.features.inputs import Inputs
from unida.methods.base import Method
from unida.support.progress import progress

BATCH = 64


@dataclass(frozen=True)
class Answers:
    """One row per image."""

    prediction: Tensor  # (N,) int64, 0…C; C is "unknown"
    closed: Tensor  # (N,) int64, 0…C−1: the best class, unknown or not
    probability: Tensor  # (N,) float32, of the best class
    unknown_score: Tensor  # (N,) float32, higher is more unknown


class Answering(nn.Module):
    """The whole path from images to answers: label, probability and unknown score."""

    def __init__(self, method: Method) -> None:
        super().__init__()
        self.method = method

    def forward(self, images: Tensor) -> Answers:
        """Images (B, 3, H, W), or kept features instead of them → answers, on the device."""
        return self.of_features(self.method.features(images))

    def of_features(self, features: Tensor) -> Answers:
        """(B, d) → answers. An image is unknown if its score is above the method's threshold."""
        scores = self.method.score(features)
        probability, closed = scores.logits.softmax(dim=1).max(dim=1)
        is_unknown = scores.unknown > self.method.unknown_threshold
        prediction = torch.where(is_unknown, self.method.num_classes, closed)
        return Answers(prediction, closed, probability, scores.unknown)


def answer_pixels(
    method: Method,
    pixels: Pixels,
    inputs: Inputs | Preprocess,
    fabric: Fabric,
    visible: bool = True,
    features: Tensor | None = None,
) -> Answers:
    """Answers for all images, in order, on the host. Several processes share the work; each gets all answers.

    Args:
        features: (N, d) of the images, if they are known already.
    """
    count, processes = len(pixels), fabric.world_size
    share = -(-count // processes)  # of equal length, so that they can be gathered: the surplus is cut off below
    mine = np.arange(fabric.global_rank * share, (fabric.global_rank + 1) * share) % count
    answering, was_training = Answering(method), method.training
    method.eval()
    parts = []
    with progress("answering", share, visible=visible and fabric.is_global_zero) as report:
        for start in range(0, share, BATCH):
            index = mine[start : start + BATCH]
            with fabric.autocast(), torch.inference_mode():
                if features is None:
                    parts.append(answering(inputs.test_view(pixels, index)))
                else:
                    parts.append(answering.of_features(features[torch.from_numpy(index).to(features.device)]))
            report(min(start + BATCH, share), "")
    method.train(was_training)

    def joined(name: str) -> Tensor:
        local = torch.cat([getattr(part, name) for part in parts])
        if processes > 1:
            # Not fabric.all_gather: it is made for gradients, and warns on every process.
            gathered = [torch.empty_like(local) for _ in range(processes)]
            torch.distributed.all_gather(gathered, local)
            local = torch.cat(gathered)
        return local[:count].cpu()

    answers = Answers(joined("prediction"), joined("closed"), joined("probability"), joined("unknown_score"))
    bad = int((~(answers.unknown_score.isfinite() & answers.probability.isfinite())).sum())
    if bad:
        raise UserError(f"{bad} of {count} images have a score that is not finite: start again with a lower --lr")
    return answers
