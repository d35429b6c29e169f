"""A re-implementation, from its abstract, of Zhu & Li, Self-supervised Universal Domain Adaptation with Adaptive Memory
Separation (ICDM 2021). No code is public, and the formulas below are ours. Results are not the authors' results.

The abstract says: a memory holds all target samples and the source's class centres; it divides target samples, while
training goes on, by their entropy into a common, an uncertain and an unknown area; each target sample gets a specific
neighbourhood, and is clustered to its neighbour in it; consistency regularisation makes the classifier's output more
reliable, step by step. Everything else is taken from DANCE (`unida.methods.dance`), on which it builds, or is ours:

    W: a direction for each of C classes; logits are W f/‖f‖ / T        T = 0.05, ρ = ½ log C, m = ½
    M: a memory of all target images, zeros at the start                 c: C source centres, moving averages

    every step:
        rows of W ← rows / ‖row‖
        c ← μ c + (1 − μ) batch's class means;  M ← f_t/‖f_t‖ at the batch's images
        H: entropy of softmax W f, of the batch and of all rows of M
        area: common if H < ρ − m, unknown if H > ρ + m, else uncertain
        neighbourhood: common → c and M's common area; unknown → M's unknown area; uncertain → c and all of M
        L_n: entropy of the softmax over similarities to the neighbourhood, without the image itself
        L_c = KL(p(weak view) ‖ p(strong view)), with a gradient for the strong view only
        L = CE(W f_s, y) + 0.05 (L_n + L_c)
    a target image is ŷ = argmax W f, or unknown if the entropy of its softmax is above ρ

The unknown score is that entropy over log C, so the threshold is ½. The weak view is the batch's (crop and mirror), the
strong one is made by `unida.recipes.strong`, from a crop of its own. Images of M that were not seen yet are nobody's
neighbours. The areas of M follow the classifier: no image stays in the area that it was in when it was written.

BatchNorm: three passes, one for the source, one for each kind of view of the target; all add to the kept statistics.

If the backbone is frozen, features cannot move: L_n is then a constant, and L_c alone is learnt beside the source. In
the kept regime, f is in a frame (`unida.models.frame`), and W learns by steps.

The learning rate's schedule spans the run's own number of steps; nothing else depends on their number.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from unida.losses.entropy import share_of_largest_entropy
from unida.losses.memory_areas import (
    COMMON,
    UNKNOWN,
    areas,
    clustering_in_neighbourhoods,
    consistency,
    moved_centres,
    neighbourhoods,
)
from unida.losses.neighbourhood import softmax_entropy
from unida.methods.base import DomainName, Losses, Method, Problem, Scores, SourceBatch, TargetBatch, Want
from unida.methods.zhu_options import CARD, ZhuOptions
from unida.models.backbone import Backbone
from unida.models.heads import CosineClassifier
from unida.models.memory import FeatureMemory
from unida.recipes.strong import Strong
from unida.support.processes import gather

STRONG = "strong"  # name of the recipe and of the images that it makes


class Zhu(Method):
    card = CARD
    run_only = ("memory", "centres")

    centres: Tensor  # (C, d) unit rows, zeros before a class is seen

    def __init__(self, backbone: Backbone, problem: Problem, options: ZhuOptions) -> None:
        super().__init__(backbone, problem, options)
        self.unknown_threshold = options.entropy_threshold
        self.recipes = {STRONG: Strong()}
        self.classifier = CosineClassifier(self.frame.size, problem.num_classes, options.temperature)
        self.memory = FeatureMemory(problem.num_target, self.frame.size, options.memory_momentum)
        self.register_buffer("centres", torch.zeros(problem.num_classes, self.frame.size))

    def wants(self, step: int) -> Sequence[Want]:
        return [Want(STRONG, "target", recipe=STRONG)]

    def training_step(self, source: SourceBatch, target: TargetBatch, step: int) -> Losses:
        self.classifier.normalise_rows()
        # A pass for each: BatchNorm must not mix their statistics.
        source_features = self._unit(source.images, "source")
        weak = self._unit(target.images, "target")
        strong = self._unit(target.extra[STRONG].images, "target")
        momentum = self.options.centre_momentum
        self.centres.copy_(moved_centres(self.centres, gather(source_features), gather(source.labels), momentum))
        self.memory.write(gather(target.indices), gather(weak))
        weak_logits = self.classifier(weak)
        clustering = clustering_in_neighbourhoods(*self._neighbourhoods(weak, weak_logits, target.indices))
        return {
            "closed": F.cross_entropy(self.classifier(source_features), source.labels),
            "neighbours": self.options.cluster_weight * clustering,
            "consistency": self.options.consistency_weight * consistency(weak_logits, self.classifier(strong)),
        }

    def _unit(self, images: Tensor, domain: DomainName) -> Tensor:
        """(B, d) features of unit length."""
        return F.normalize(self.frame(self.features(images), domain).float(), dim=1)

    def _neighbourhoods(self, features: Tensor, logits: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
        """(B, C + N) similarities to centres and memory, and whether each is in the image's neighbourhood."""
        known = (self.centres, self.memory.rows)
        own, in_memory = self._areas(logits), self._areas(self.classifier(self.memory.rows))
        self.watched["area_common"] = lambda: (own == COMMON).float().mean()  # shares of the batch
        self.watched["area_unknown"] = lambda: (own == UNKNOWN).float().mean()
        allowed = neighbourhoods(own, in_memory, self.num_classes)
        allowed &= torch.cat([rows.any(dim=1) for rows in known])  # seen before
        own_places = torch.arange(len(indices), device=indices.device), self.num_classes + indices
        allowed[own_places] = False
        with torch.autocast(features.device.type, enabled=False):  # 16 bits are too few for a temperature of 0.05
            similarities = torch.cat([features @ rows.T for rows in known], dim=1) / self.options.temperature
        return similarities, allowed

    @torch.no_grad()
    def _areas(self, logits: Tensor) -> Tensor:
        threshold = self.options.entropy_threshold * math.log(self.num_classes)
        return areas(softmax_entropy(logits), threshold, self.options.margin)

    def score(self, features: Tensor) -> Scores:
        logits = self.classifier(self.frame(features, "target"))
        return Scores(logits, share_of_largest_entropy(logits))
