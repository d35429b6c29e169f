"""Source-only: train on the source, reject by confidence. The baseline that every adaptation must beat.

    L = CE(C1(f_s), y)                       (+ L_ova(C2(f_s), y) with the one-vs-all rejection)

The target is not used in training. Three rules say "unknown":
    entropy       entropy of the softmax above a share of log C (½: the rule of the SPA paper's NTR measure)
    max-prob      largest probability below a threshold
    one-vs-all    OVANet's rule, from one-vs-all classifiers trained on the source alone
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from unida.losses.one_vs_all import one_vs_all_loss, probability_not_class
from unida.methods.base import Method, Scores, SourceBatch, TargetBatch
from unida.models.backbone import Backbone
from unida.models.heads import OneVsAllHead


@dataclass(frozen=True)
class SourceOnlyOptions:
    rejection: Literal["entropy", "max-prob", "one-vs-all"] = "entropy"
    """How unknowns are told. The default needs no tuning: it is the entropy rule with the paper's threshold."""
    threshold: float = 0.5
    """entropy: share of log C above which an image is unknown (½ in the SPA paper's NTR); max-prob: probability below
    which it is unknown; one-vs-all: probability of "not this class" above which it is unknown (½ in OVANet)."""


class SourceOnly(Method):
    name = "source-only"
    title = "Classifier trained on the source alone, unknown by confidence"
    paper = "baseline"
    settings = "CDA, PDA, OSDA, UniDA"
    Options = SourceOnlyOptions
    looks_at_target_batch = False

    def __init__(self, backbone: Backbone, num_classes: int, options: SourceOnlyOptions) -> None:
        super().__init__(backbone, num_classes, options)
        self.unknown_threshold = 1 - options.threshold if options.rejection == "max-prob" else options.threshold
        self.closed = nn.Linear(backbone.num_features, num_classes, bias=False)
        self.one_vs_all = (
            OneVsAllHead(backbone.num_features, num_classes) if options.rejection == "one-vs-all" else None
        )

    def training_step(self, source: SourceBatch, target: TargetBatch, step: int) -> dict[str, Tensor]:
        features = self.features(source.images)
        losses = {"closed": F.cross_entropy(self.closed(features).float(), source.labels)}
        if self.one_vs_all is not None:
            self.one_vs_all.normalise_rows()
            losses["one_vs_all"] = one_vs_all_loss(self.one_vs_all(features), source.labels)
        return losses

    def score(self, features: Tensor) -> Scores:
        logits = self.closed(features).float()
        if self.one_vs_all is not None:
            return Scores(logits, probability_not_class(self.one_vs_all(features), logits.argmax(dim=1)))
        log_p = F.log_softmax(logits, dim=1)
        if self.options.rejection == "entropy":
            entropy = (log_p.exp() * -log_p).sum(dim=1)
            # Rounding can carry an even distribution above 1.
            return Scores(logits, (entropy / math.log(self.num_classes)).clamp(max=1))
        return Scores(logits, 1 - log_p.amax(dim=1).exp())
