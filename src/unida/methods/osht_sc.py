"""A re-implementation, from its abstract, of OSHT-SC: Feng, Xu & Tao, Open-Set Hypothesis Transfer with Semantic
Consistency (IEEE TIP 2021). No code is public, and the formulas below are ours. Results are not the authors' results.

The abstract says: the source is not available when the model adapts to the target; the model first discovers confident
predictions and learns to classify with them as pseudo-labels; then it must give consistent and definite predictions for
semantically similar inputs (an image and what a transformation makes of it); so unlabelled images end up in classes
that are either source classes or unknown ones. Everything else is ours:

    z: backbone → Linear, 256 numbers          W: z → C known outputs and K unknown ones, in one softmax          K = C

    first half, with the source alone:
        L = CE(known outputs alone, y), labels smoothed by 0.1
    second half, with the target alone; the known part of W stays as it is, all else learns:
        ten times, first of all, for all target images, by their best known class:
            H: entropy of the softmax over the known outputs
            cut the entropies in two, so that the variance between the sides is largest (Otsu)
            ŷ = the class, for H at most the mean of the lower side
            ŷ = unknown, for H at least the mean of the upper side; as many as have the class, the others have no ŷ
        every step:
            x′: a strongly augmented view of x (`unida.recipes.strong`)
            L = CE(W z, ŷ) − 0.3 · I(W z(x); W z(x′))
            where "unknown" is all K unknown outputs together, and I is the mutual information of the two answers
    a target image is argmax W: a class, or unknown if it is one of the K unknown outputs

The unknown score is the softmax between the best unknown output and the best known one: above ½ exactly if the largest
of all outputs is an unknown one.

Mutual information is "consistent and definite" in one number: it is large if the two views have the same answer and
each answer is certain, and if not all images have the same one. It also divides unknown images among the K outputs.
It uses all outputs equally often if it can. So it is small in the loss: classes of the source that the target does not
have would be filled with other images.

The rule for pseudo-labels has no fixed threshold: how certain a model is depends on how long it was trained, and runs
are short here. It compares images of one class only, and takes equally many known and unknown ones. On drawn pictures,
with one cut for all images, few classes had any pseudo-label, and most images ended up in these or as unknown. It
always finds two sides, also if the target has no unknown image.

The known outputs are the source's hypothesis. As they stay, their entropy keeps its meaning while z moves.

Source-free: the second half asks for no image and no label of the source. The first half asks for no image of the
target. (With --spa, words are found in both domains before the first step.)

In the kept regime, the backbone's feature is in a frame (`unida.models.frame`): the source's mean is measured when the
first half starts, the target's when the second does. There is a layer before W, so nothing is solved. BatchNorm: views
of a batch go through the network in passes of their own.

The learning rate's schedule spans each half, and pseudo-labels are found every tenth of the second half: nothing else
depends on the number of steps.
"""

import logging

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unida.losses.pseudo_labels import NO_LABEL, confident_labels, mutual_information, open_cross_entropy
from unida.losses.source_free import negative_score
from unida.methods.base import (
    DomainName,
    Group,
    Losses,
    Method,
    Phase,
    Problem,
    Round,
    Scores,
    SourceBatch,
    Sweep,
    TargetBatch,
    Turn,
    Want,
    spans,
)
from unida.methods.osht_sc_options import CARD, OSHTSCOptions
from unida.models.backbone import Backbone
from unida.models.frame import SAMPLED_IMAGES
from unida.models.source_free import SplitHead
from unida.recipes.strong import Strong
from unida.support.processes import gather, gather_with_gradients

log = logging.getLogger("unida")

STRONG = "strong"  # name of the recipe and of the images that it makes
ROUNDS = 10  # of pseudo-labels


class OSHTSC(Method):
    card = CARD
    run_only = ("pseudo_labels",)

    pseudo_labels: Tensor  # (N_t,) int64 in 0…C, or NO_LABEL

    def __init__(self, backbone: Backbone, problem: Problem, options: OSHTSCOptions) -> None:
        super().__init__(backbone, problem, options)
        C = problem.num_classes
        self.recipes = {STRONG: Strong()}
        self.bottleneck = nn.Linear(self.frame.size, options.bottleneck)
        self.head = SplitHead(options.bottleneck, C, options.unknown_outputs or C)
        self.register_buffer("pseudo_labels", torch.full((problem.num_target,), NO_LABEL))
        self.shares = (options.source_share, 1 - options.source_share)
        self.adaptation = spans([Phase((), share=share) for share in self.shares], problem.steps)[1]

    def phases(self) -> tuple[Phase, Phase]:
        learn = Turn(self.source_step, self._groups_without(self.head.negative))
        adapt = Turn(self.target_step, self._groups_without(self.head.known))
        every = max(1, round(len(self.adaptation) / ROUNDS))
        return (
            Phase((learn,), "source", self.shares[0], start=self.meet_source, target=False, sweeps=("source",)),
            Phase(
                (adapt,),
                "target",
                self.shares[1],
                start=self.meet_target,
                round=Round(self.find_pseudo_labels, every),
                source=None,
            ),
        )

    def _groups_without(self, part: nn.Module) -> tuple[Group, Group]:
        left_out = {id(p) for p in part.parameters()}
        pretrained, new = self.groups()
        return pretrained, new._replace(parameters=[p for p in new.parameters if id(p) not in left_out])

    def meet_source(self, sweep: Sweep) -> None:
        if self.frame.is_on:
            self.frame.measure_source(sweep("source", self.backbone, SAMPLED_IMAGES))

    def meet_target(self, sweep: Sweep) -> None:
        if self.frame.is_on:
            self.frame.measure_target(sweep("target", self.backbone, SAMPLED_IMAGES))

    def source_step(self, source: SourceBatch, target: TargetBatch, step: int) -> Losses:
        logits = self.head(self.source_features(source.images)).known
        smoothing = self.options.label_smoothing
        return {"closed": F.cross_entropy(logits, source.labels, label_smoothing=smoothing)}

    def find_pseudo_labels(self, step: int, sweep: Sweep) -> None:
        labels = confident_labels(self.head(sweep("target")).known)
        self.pseudo_labels.copy_(labels)
        unknown, none = (int((labels == label).sum()) for label in (self.num_classes, NO_LABEL))
        known = len(labels) - unknown - none
        log.debug("%d target images are surely known, %d surely unknown, of %d", known, unknown, len(labels))

    def wants(self, step: int) -> list[Want]:
        return [Want(STRONG, "target", recipe=STRONG)] if step in self.adaptation else []

    def target_step(self, source: SourceBatch, target: TargetBatch, step: int) -> Losses:
        # A pass for each: BatchNorm must not mix their statistics.
        weak = self.head(self.features(target.images))
        strong = self.head(self.features(target.extra[STRONG].images))
        labels = self.pseudo_labels[target.indices]
        is_labelled = (labels != NO_LABEL).float()
        share = gather(is_labelled).mean()  # of all processes, so that their mean is that of the whole batch
        self.watched["labelled"] = lambda: share
        losses = open_cross_entropy(weak.known, weak.negative, labels)
        classification = losses.mean() / share.clamp_min(torch.finfo(torch.float32).tiny)
        information = mutual_information(gather_with_gradients(weak.joined), gather_with_gradients(strong.joined))
        return {
            "pseudo": self.options.pseudo_weight * classification,
            "consistency": -self.options.consistency_weight * information,
        }

    def features(self, images: Tensor, domain: DomainName = "target") -> Tensor:
        """(B, 3, H, W) → (B, 256)."""
        z: Tensor = self.bottleneck(self.frame(self.backbone(images), domain))
        return z

    def source_features(self, images: Tensor) -> Tensor:
        """The same, of images of the source: each domain has its own mean in the frame."""
        return self.features(images, "source")

    def score(self, features: Tensor) -> Scores:
        logits = self.head(features)
        return Scores(logits.known, negative_score(*logits))
