"""OVANet: One-vs-All Network for Universal Domain Adaptation (Saito & Saenko, ICCV 2021).

    C1: closed-set classifier, d → C          C2: C one-vs-all classifiers, d → 2C; neither has a bias

    every step:
        rows of C2 ← rows / ‖row‖
        L = CE(C1(f_s), y) + L_ova(C2(f_s), y) + λ · H(C2(f_t))
    a target image is ŷ = argmax C1, or unknown if C2's classifier of ŷ says "not this class" (p > ½)

In the kept regime, f is in a frame (`unida.models.frame`), and L is solved for C1 and C2 on all images at once.

Differences from the released code: logs are taken as softplus instead of log(p + 1e-8); the schedule spans the run's
own number of steps (10,000 in the paper; the code takes one more, at the schedule's end); see `unida.data.sampling` for
the target's last batch of an epoch.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from unida.losses.one_vs_all import one_vs_all_entropy, one_vs_all_loss, probability_not_class
from unida.methods.base import Losses, Method, Problem, Scores, SourceBatch, Sweep, TargetBatch
from unida.methods.ovanet_options import CARD, OVANetOptions
from unida.models.backbone import Backbone
from unida.models.heads import OneVsAllHead
from unida.models.solve import solve_classifier


class OVANet(Method):
    card = CARD

    def __init__(self, backbone: Backbone, problem: Problem, options: OVANetOptions) -> None:
        super().__init__(backbone, problem, options)
        self.closed = nn.Linear(self.frame.size, problem.num_classes, bias=False)
        self.one_vs_all = OneVsAllHead(self.frame.size, problem.num_classes)

    def training_step(self, source: SourceBatch, target: TargetBatch, step: int) -> Losses:
        self.one_vs_all.normalise_rows()
        # Two passes: BatchNorm must not mix the statistics of the two domains.
        source_features = self.frame(self.features(source.images), "source")
        target_features = self.frame(self.features(target.images), "target")
        return {
            "closed": F.cross_entropy(self.closed(source_features).float(), source.labels),
            "one_vs_all": one_vs_all_loss(self.one_vs_all(source_features), source.labels),
            "entropy": self.options.entropy_weight * one_vs_all_entropy(self.one_vs_all(target_features)),
        }

    def solve(self, sweep: Sweep) -> None:
        source, target, labels = sweep("source"), sweep("target"), sweep.source_labels
        self.frame.measure(source, target)
        source, target = self.frame(source, "source"), self.frame(target, "target")
        solve_classifier(self.closed, source, labels)
        self.one_vs_all.solve(source, labels, target, self.options.entropy_weight)

    def score(self, features: Tensor) -> Scores:
        features = self.frame(features, "target")
        logits = self.closed(features).float()
        unknown = probability_not_class(self.one_vs_all(features), logits.argmax(dim=1))
        return Scores(logits, unknown)
