"""Source-only: train on the source, reject by confidence. The baseline that every adaptation must beat.

    L = CE(C1(f_s), y)                       (+ L_ova(C2(f_s), y) with the one-vs-all rejection)

The target is not used in training. (In the kept regime, its mean is: `unida.models.frame`.) Three rules say "unknown":
    entropy       entropy of the softmax above a share of log C (½: the rule of the SPA paper's NTR measure)
    max-prob      largest probability below a threshold
    one-vs-all    OVANet's rule, from one-vs-all classifiers trained on the source alone
"""

import math

import torch.nn.functional as F
from torch import Tensor, nn

from unida.losses.entropy import entropy_of_logs
from unida.losses.one_vs_all import one_vs_all_loss, probability_not_class
from unida.methods.base import Losses, Method, Phase, Problem, Scores, SourceBatch, Sweep, TargetBatch
from unida.methods.source_only_options import CARD, SourceOnlyOptions
from unida.models.backbone import Backbone
from unida.models.heads import OneVsAllHead
from unida.models.solve import solve_classifier


class SourceOnly(Method):
    card = CARD

    def __init__(self, backbone: Backbone, problem: Problem, options: SourceOnlyOptions) -> None:
        super().__init__(backbone, problem, options)
        threshold = options.rejection_threshold
        self.unknown_threshold = 1 - threshold if options.rejection == "max-prob" else threshold
        self.closed = nn.Linear(self.frame.size, problem.num_classes, bias=False)
        self.one_vs_all = (
            OneVsAllHead(self.frame.size, problem.num_classes) if options.rejection == "one-vs-all" else None
        )

    def phases(self) -> tuple[Phase]:
        return (self.plain_phase(target=False),)

    def training_step(self, source: SourceBatch, target: TargetBatch, step: int) -> Losses:
        features = self.frame(self.features(source.images), "source")
        losses = {"closed": F.cross_entropy(self.closed(features).float(), source.labels)}
        if self.one_vs_all is not None:
            self.one_vs_all.normalise_rows()
            losses["one_vs_all"] = one_vs_all_loss(self.one_vs_all(features), source.labels)
        return losses

    def solve(self, sweep: Sweep) -> None:
        source, target, labels = sweep("source"), sweep("target"), sweep.source_labels
        self.frame.measure(source, target)
        source = self.frame(source, "source")
        solve_classifier(self.closed, source, labels)
        if self.one_vs_all is not None:
            self.one_vs_all.solve(source, labels)

    def score(self, features: Tensor) -> Scores:
        features = self.frame(features, "target")
        logits = self.closed(features).float()
        if self.one_vs_all is not None:
            return Scores(logits, probability_not_class(self.one_vs_all(features), logits.argmax(dim=1)))
        log_p = F.log_softmax(logits, dim=1)
        if self.options.rejection == "entropy":
            # Rounding can lift an even distribution above 1.
            return Scores(logits, (entropy_of_logs(log_p) / math.log(self.num_classes)).clamp(max=1))
        return Scores(logits, 1 - log_p.amax(dim=1).exp())
