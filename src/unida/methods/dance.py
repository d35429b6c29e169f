"""DANCE: Universal Domain Adaptation through Self-Supervision (Saito et al., NeurIPS 2020).

    W: a direction for each of C classes; logits are W f/‖f‖ / T       T = 0.05
    M: a memory of all target images, N_t × d, zeros at the start      ρ = ½ log C

    every step:
        rows of W ← rows / ‖row‖
        L_nc: f_t against W, M without the batch's images, and the rest of the batch: entropy of one softmax over all
        L_es = −mean max(|H(softmax W f_t) − ρ|, m)
        L = CE(W f_s, y) + η (L_nc + L_es)
        M ← f_t/‖f_t‖ at the batch's images
    a target image is ŷ = argmax W f, or unknown if the entropy of its softmax is above ρ

The unknown score is that entropy over log C, so the threshold is ½. Slots of images that were not seen yet are zeros:
they are in the softmax with a similarity of 0, as in the released code. With two classes, no entropy is further than
m = ½ from ρ, and L_es does nothing.

BatchNorm: the released code has no layers for one domain alone. It has two passes through one network: each domain is
normalised by the statistics of its own batch, the kept statistics collect both, and answers use these. So it is here.
In the kept regime, BatchNorm keeps its pretrained statistics.

In the kept regime, f is in a frame (`unida.models.frame`). W learns by steps there too: if L is solved to its end on
features that do not move, L_nc draws unknown images to classes as well (tried on drawn pictures).

Differences from the released code:
    Memory. It is written before the losses, not after the update. The batch's slots are hidden from the losses, so
    these see the same numbers. Only the batch's rows are normalised again: the others have unit length already.
    Twice in a batch. The released code drops the incomplete batch of an epoch. Here the next epoch follows on, so a
    batch may show an image twice: the two are no neighbours, and the memory keeps the last one.
    Views. Its transforms are kept by the name of the list file. Training and test have the same list of the target, so
    target images are trained on in the test's view, and only source images are cropped at random and mirrored. Here
    both are.
    ρ. Its configs round ½ log C to two or three digits; one (Office-Home, class-incremental) has another value.
    Answers. Its test takes 0 · log 0, which is NaN. Here that is 0.
    Precision. Similarities are computed in 32 bits, also under mixed precision.
    Schedule. It spans the run's own number of steps (10,000 in the paper).
"""

import math

import torch.nn.functional as F
from torch import Tensor

from unida.losses.entropy import share_of_largest_entropy
from unida.losses.neighbourhood import entropy_separation, neighbourhood_clustering, similarities_to_others
from unida.methods.base import Losses, Method, Problem, Scores, SourceBatch, TargetBatch
from unida.methods.dance_options import CARD, DANCEOptions
from unida.models.backbone import Backbone
from unida.models.heads import CosineClassifier
from unida.models.memory import FeatureMemory
from unida.support.processes import gather, gather_with_gradients


class DANCE(Method):
    card = CARD
    run_only = ("memory",)

    def __init__(self, backbone: Backbone, problem: Problem, options: DANCEOptions) -> None:
        super().__init__(backbone, problem, options)
        self.unknown_threshold = options.entropy_threshold
        self.classifier = CosineClassifier(self.frame.size, problem.num_classes, options.temperature)
        self.memory = FeatureMemory(problem.num_target, self.frame.size, options.memory_momentum)

    @property
    def threshold(self) -> float:
        """ρ, in nats."""
        share: float = self.options.entropy_threshold
        return share * math.log(self.num_classes)

    def training_step(self, source: SourceBatch, target: TargetBatch, step: int) -> Losses:
        self.classifier.normalise_rows()
        # Two passes: BatchNorm must not mix the statistics of the two domains.
        source_logits = self.classifier(self.frame(self.features(source.images), "source"))
        target_features = F.normalize(self.frame(self.features(target.images), "target").float(), dim=1)
        target_logits = self.classifier(target_features)
        batch, indices = gather_with_gradients(target_features), gather(target.indices)
        self.memory.write(indices, batch.detach())  # the next line hides these rows
        similarities = similarities_to_others(
            target_features, target.indices, batch, indices, self.memory.rows, self.options.temperature
        )
        weight, margin = self.options.target_weight, self.options.margin
        return {
            "closed": F.cross_entropy(source_logits, source.labels),
            "neighbours": weight * neighbourhood_clustering(target_logits, similarities),
            "separation": weight * entropy_separation(target_logits, self.threshold, margin),
        }

    def score(self, features: Tensor) -> Scores:
        logits = self.classifier(self.frame(features, "target"))
        return Scores(logits, share_of_largest_entropy(logits))
