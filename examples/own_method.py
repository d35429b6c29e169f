"""A method of your own in one file: options, class, card, run. `python examples/own_method.py [OUT] [STEPS]`"""

import sys
from dataclasses import dataclass
from pathlib import Path

import torch

import unida
from unida.data.glyphs import write_glyphs
from unida.methods import METHODS, Card
from unida.methods.base import Method, Scores


@dataclass(frozen=True)
class MineOptions:
    weight: float = 0.1
    """Of the target's entropy."""


class Mine(Method):
    def __init__(self, backbone, problem, options):
        super().__init__(backbone, problem, options)
        self.head = torch.nn.Linear(backbone.num_features, problem.num_classes)

    def training_step(self, source, target, step):  # losses by name; a target batch has no labels
        # Each domain in a pass of its own: BatchNorm must not mix them. Losses and scores are float32.
        of_source, of_target = (self.head(self.features(batch.images)).float() for batch in (source, target))
        entropies = torch.special.entr(of_target.softmax(dim=1)).sum(dim=1)
        closed = torch.nn.functional.cross_entropy(of_source, source.labels)
        return {"closed": closed, "entropy": self.options.weight * entropies.mean()}

    def score(self, features):  # an image is unknown above `unknown_threshold`, by default ½
        logits = self.head(features).float()
        return Scores(logits, unknown=1 - logits.softmax(dim=1).amax(dim=1))


METHODS["mine"] = Card("mine", "Entropy on the target", "none", "UniDA", MineOptions, code=f"{__name__}:Mine")

if __name__ == "__main__":
    out, steps = Path((sys.argv[1:2] or ["runs/own-method"])[0]), int((sys.argv[2:3] or ["100"])[0])
    data = write_glyphs(out / "pictures", shared=4, source_private=2, target_private=2, per_class=6)
    small = {"backbone": "tf_efficientnet_lite0", "image_size": 96, "crop": 80}
    unida.adapt(data.source, data.target, out / "run", method="mine", weight=0.05, steps=steps, **small)
