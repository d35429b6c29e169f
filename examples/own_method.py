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
    weight: float = 0.1  # of the target's entropy


class Mine(Method):
    def __init__(self, backbone, problem, options):
        super().__init__(backbone, problem, options)
        self.head = torch.nn.Linear(backbone.num_features, problem.num_classes)

    def training_step(self, source, target, step):  # losses by name; a target batch has no labels
        closed = torch.nn.functional.cross_entropy(self.head(self.features(source.images)), source.labels)
        entropies = torch.special.entr(self.head(self.features(target.images)).softmax(dim=1)).sum(dim=1)
        return {"closed": closed, "entropy": self.options.weight * entropies.mean()}

    def score(self, features):  # an image is unknown above `unknown_threshold`, by default ½
        logits = self.head(features)
        return Scores(logits, unknown=1 - logits.softmax(dim=1).amax(dim=1))


if __name__ == "__main__":
    out, steps = Path((sys.argv[1:2] or ["runs/own-method"])[0]), int((sys.argv[2:3] or ["100"])[0])
    METHODS["mine"] = Card("mine", "Entropy on the target", "none", "UniDA", MineOptions, code="__main__:Mine")
    data = write_glyphs(out / "pictures", shared=4, source_private=2, target_private=2, per_class=6)
    unida.adapt(data.source, data.target, out / "run", method="mine", weight=0.05, steps=steps, image_size=96, crop=80)
