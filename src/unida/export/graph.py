"""The whole path from pixels to answers as one module, which torch can export."""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unida.answering.alone import Scored, decide
from unida.answering.together import Kept
from unida.methods.base import Method
from unida.runs.modelfile import ModelInfo
from unida.runs.targetfile import KEPT


class AnsweringGraph(nn.Module):
    """Pixels → answers, as `unida predict` gives them for new images. Nothing of it can learn.

    Args:
        kept: what the run keeps of its target; None if each image answers alone.
        threshold: above this unknown score an image is unknown.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, method: Method, info: ModelInfo, kept: Kept | None, threshold: float) -> None:
        super().__init__()
        self.method, self.threshold, self._kept = method, threshold, kept
        shift = [-mean / std for mean, std in zip(info.mean, info.std, strict=True)]
        self.register_buffer("scale", torch.tensor([1 / (255 * std) for std in info.std])[:, None, None])
        self.register_buffer("shift", torch.tensor(shift)[:, None, None])
        for name in KEPT if kept is not None else ():
            self.register_buffer(name, getattr(kept, name))
        self.eval().requires_grad_(False)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Centres of images (B, crop, crop, 3) uint8 → label, probability, unknown score (B,), probabilities (B, C).

        The label is the number of a class; C is "unknown".
        """
        features = self.method.features(images.permute(0, 3, 1, 2).float() * self.scale + self.shift)
        scores = self.method.score(features)
        probabilities, unknown = scores.logits.softmax(dim=1), scores.unknown
        if self._kept is not None:
            kept = replace(self._kept, **{name: getattr(self, name) for name in KEPT})
            directions = F.normalize(features.float(), dim=1).half()
            probabilities, unknown = kept.join_few(Scored(directions, probabilities, unknown))
        answers = decide(probabilities, unknown, self.threshold)
        return answers.prediction, answers.probability, answers.unknown_score, probabilities
