"""A method's answers for a set of images, in one pass."""

from dataclasses import dataclass

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor

from unida.data.augment import Inputs
from unida.data.cache import Pixels
from unida.methods.base import Method
from unida.progress import progress


@dataclass(frozen=True)
class Answers:
    """One row per image, on the host."""

    prediction: Tensor  # (N,) int64, 0…C; C is "unknown"
    closed: Tensor  # (N,) int64, 0…C−1: the best class, unknown or not
    probability: Tensor  # (N,) float32, of the best class
    unknown_score: Tensor  # (N,) float32, higher is more unknown


def answer_batch(method: Method, features: Tensor) -> Answers:
    """(B, d) → answers, still on the device."""
    scores = method.score(features)
    probability, closed = scores.logits.softmax(dim=1).max(dim=1)
    return Answers(method.decide(scores), closed, probability, scores.unknown)


def answer_pixels(
    method: Method,
    pixels: Pixels,
    inputs: Inputs,
    fabric: Fabric,
    batch_size: int = 64,
    visible: bool = True,
    features: Tensor | None = None,
) -> Answers:
    """Answers for all images, in order. Several processes share the work; each ends up with all answers.

    Args:
        features: (N, d) of the images, where they have been computed already.
    """
    count, processes = len(pixels), fabric.world_size
    share = -(-count // processes)  # all the same length, so that they can be gathered: the surplus is cut off below
    mine = np.arange(fabric.global_rank * share, (fabric.global_rank + 1) * share) % count
    was_training = method.training
    method.eval()
    parts = []
    with progress("answering", share, visible=visible and fabric.is_global_zero) as report:
        for start in range(0, share, batch_size):
            index = mine[start : start + batch_size]
            with fabric.autocast(), torch.inference_mode():
                if features is None:
                    parts.append(answer_batch(method, method.features(inputs.test_view(pixels, index))))
                else:
                    parts.append(answer_batch(method, features[torch.from_numpy(index).to(features.device)]))
            report(min(start + batch_size, share), "")
    method.train(was_training)

    def joined(name: str) -> Tensor:
        local = torch.cat([getattr(part, name) for part in parts])
        if processes > 1:
            # Not fabric.all_gather: that one is made for gradients, and warns on every process.
            gathered = [torch.empty_like(local) for _ in range(processes)]
            torch.distributed.all_gather(gathered, local)
            local = torch.cat(gathered)
        return local[:count].cpu()

    return Answers(joined("prediction"), joined("closed"), joined("probability"), joined("unknown_score"))
