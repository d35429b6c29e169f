"""ROS: rotation-based open set (Bucci et al., On the Effectiveness of Image Rotation …, ECCV 2020).

    f: backbone      r: a quarter turn, 0…3, drawn for each image      x_r: another view of x, turned by r
    E: classifier, f → C + 1; the last output is "unknown"
    R: C heads of 4, [f(x), f(x_r)] → 4C: class and rotation           g: C branches beside them, with 4C centres m
    R₂: one head of 4, [f(x), f(x_r)] → rotation                       each head: Linear, BatchNorm, LeakyReLU, Linear

    stage I, separation, on the source:
        L = CE(E(x), y) + 3 · CE(R(x, x_r), 4y + r) + λ · ‖g(x, x_r) − m_{4y+r}‖²
        the target passes through f and E for BatchNorm's statistics only
    then, for every target image, over its four rotations:
        normality   max_k mean_r p_R(class k, rotation r | x, x_r)
        certainty   1 − mean_r H(p_R(x, x_r)), scaled to 0…1 over the target
        score       the larger of the two
        n = how many scores are above the mean score, rounded up to the next tenth
        known: the n highest scores; unknown: the n lowest
    stage II, adaptation, from the weights of stage I; optimisers, schedule and R₂ are new:
        labelled = the source, and the unknown images with label C, whose weight is w = 2 N_s / (C n)
        L = Σ w_y CE(E(x), y) / B on labelled + 3 · CE(R₂(x, x_r), r) + 0.1 · H(E(x)) on known
        a random target batch passes through f and E, as above
    a target image is argmax E, over C + 1

The unknown score is p_unknown / (p_unknown + p_best class): above ½ exactly if "unknown" is the largest output.

Training only the last stage of the backbone, as ROS does, is `--train tail`; there the frozen layers keep their
pretrained BatchNorm statistics. In the kept regime f is in a frame; the heads have a hidden layer, so they cannot be
solved and learn by steps.

Differences from the released code:
    Threshold. It reads a digit of the printed mean: a mean of 0.9 or more becomes 0.1. Here it becomes 1, which no
    score exceeds: then nothing is known or unknown, and stage II trains on the source alone, with a warning.
    Sets. If n is above half of the target, an image is in both. Here n is at most half, so the sets differ.
    Small sets. It drops incomplete batches, so that fewer than 32 known images give none. Here the next shuffle
    follows. So N_s is the number of source images, not of those in whole batches.
    Repeats. It keeps the batches of a set that is used up before the others, and shows them again, in the same views:
    the target in stage I, the smaller of its two sets in an epoch of stage II. Here every view is drawn anew.
    Passes. It runs some passes twice, so that BatchNorm's averages count rotated images for a fifth; here each is run
    once: a third in stage I, a quarter in stage II.
    Stages. It counts epochs. Here the stages share the run's steps, and each schedule spans its stage.
    Mirrored views: as for all methods here, half of the training views are mirrored.
"""

import logging
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unida.losses.adversarial import min_max
from unida.losses.centre import centre_loss
from unida.losses.cross_entropy import weighted_cross_entropy
from unida.losses.entropy import entropy_of_logs
from unida.losses.unknown_class import unknown_class_score
from unida.methods.base import (
    DOMAINS,
    DomainName,
    Group,
    Losses,
    Method,
    Phase,
    Problem,
    Scores,
    SourceBatch,
    Sweep,
    TargetBatch,
    Turn,
    Want,
    spans,
)
from unida.methods.ros_options import CARD, ROSOptions
from unida.models.backbone import Backbone
from unida.models.heads import hidden_layer
from unida.recipes.rotation import AnyRotation, Rotation
from unida.support.processes import gather
from unida.support.random import generator

log = logging.getLogger("unida")

EPSILON = 1e-12  # in the logarithm of every cross-entropy (ROS's code)
UNKNOWN, NEITHER, KNOWN = -1, 0, 1  # where a target image is
ROTATED, LABELLED, OF_KNOWN = "rotated", "labelled", "known"  # names of the images that it wants
AT_A_TIME = 4096  # images whose rotations are scored at once


class Found(NamedTuple):
    """Target images by where they are. On the host, where indices are drawn."""

    known: np.ndarray  # (n,) indices
    unknown: np.ndarray  # (n,)


class ROS(Method):
    card = CARD
    run_only = ("class_rotation.", "branches.", "centres", "rotation.", "group", "source_labels")

    group: Tensor  # (N_t,) int64: KNOWN, UNKNOWN or NEITHER
    source_labels: Tensor  # (N_s,) int64

    def __init__(self, backbone: Backbone, problem: Problem, options: ROSOptions) -> None:
        super().__init__(backbone, problem, options)
        C, size, hidden = problem.num_classes, self.frame.size, options.bottleneck
        self.recipes = {ROTATED: AnyRotation(), **{_turned(quarters): Rotation(quarters) for quarters in (1, 2, 3)}}
        self.classifier = nn.Sequential(*hidden_layer(size, hidden), nn.Linear(hidden, C + 1))
        # C heads side by side: a grouped convolution keeps their last layers apart, BatchNorm and the rest are by unit.
        last = nn.Conv1d(C * hidden, 4 * C, kernel_size=1, groups=C)
        self.class_rotation = nn.Sequential(
            *hidden_layer(2 * size, C * hidden), nn.Unflatten(1, (C * hidden, 1)), last, nn.Flatten()
        )
        self.branches = nn.Sequential(*hidden_layer(2 * size, C * hidden))
        self.centres = nn.Parameter(torch.randn(4 * C, C * hidden))
        self.rotation = nn.Sequential(*hidden_layer(2 * size, hidden), nn.Linear(hidden, 4))
        self.register_buffer("group", torch.full((problem.num_target,), NEITHER))
        self.register_buffer("source_labels", torch.zeros(problem.num_source, dtype=torch.int64))
        self._found: Found | None = None  # kept only to save time: it follows from the buffers

    def phases(self) -> tuple[Phase, Phase]:
        separation, adaptation = self._shares()
        of_first = [self.classifier, self.class_rotation, self.branches]
        first = Turn(self.separation_step, self._groups_of(*of_first, centres=[self.centres]))
        second = Turn(self.adaptation_step, self._groups_of(self.classifier, self.rotation))
        return (
            Phase(
                turns=(first,),
                name="separation",
                share=separation,
                start=self.measure_frame if self.frame.is_on else None,
                source="shuffled",
                sweeps=DOMAINS if self.frame.is_on else ("target",),
            ),
            Phase(
                turns=(second,),
                name="adaptation",
                share=adaptation,
                start=self.separate,
                source="shuffled",
                sweeps_made=tuple(("target", _turned(quarters)) for quarters in (1, 2, 3)),
            ),
        )

    def _shares(self) -> tuple[float, float]:
        return self.options.separation_share, 1 - self.options.separation_share

    def _groups_of(self, *heads: nn.Module, centres: Sequence[nn.Parameter] = ()) -> tuple[Group, Group]:
        """The backbone and some of the new layers."""
        learning = {id(p) for p in (*centres, *(p for head in heads for p in head.parameters()))}
        pretrained, new = self.groups()
        return pretrained, new._replace(parameters=[p for p in new.parameters if id(p) in learning])

    def _framed(self, images: Tensor, domain: DomainName) -> Tensor:
        return self.frame(self.features(images), domain)

    # ---- stage I: separation -----------------------------------------------------------------------------------------

    def separation_step(self, source: SourceBatch, target: TargetBatch, step: int) -> Losses:
        options, rotated = self.options, source.extra[ROTATED]
        features = self._framed(source.images, "source")
        answers = self.classifier(features)
        self._show(target)
        pair = torch.cat([features, self._framed(rotated.images, "source")], dim=1)
        labels = 4 * source.labels + rotated.labels
        rotation = weighted_cross_entropy(self.class_rotation(pair), labels, epsilon=EPSILON)
        return {
            "closed": weighted_cross_entropy(answers, source.labels, epsilon=EPSILON),
            "rotation": options.rotation_weight * rotation,
            "centre": centre_loss(self.branches(pair), self.centres, labels, options.centre_weight),
        }

    @torch.no_grad()
    def _show(self, target: TargetBatch) -> None:
        """Let BatchNorm's statistics see the target. The classifier's are those of the batches of all processes."""
        self.classifier(self.frame(gather(self.features(target.images)), "target"))

    def separate(self, sweep: Sweep) -> None:
        """Score all target images, and find known and unknown ones."""
        scores = self._scores(sweep).double().cpu()
        threshold = next_tenth(scores.mean().item())
        known, unknown = known_and_unknown(scores, threshold)
        self.group.fill_(NEITHER)[known.to(self.group.device)] = KNOWN
        self.group[unknown.to(self.group.device)] = UNKNOWN
        self.source_labels.copy_(sweep.source_labels)
        self._found = None
        text = "%d of %d target images are taken as known, and as many as unknown (scores: mean %.2f, threshold %.1f)"
        log.info(text, len(known), len(scores), scores.mean().item(), threshold)
        if not len(known):
            log.warning("ros: no target image stands out, so none is learnt as unknown; more --steps may help")

    def _scores(self, sweep: Sweep) -> Tensor:
        original = self.frame(sweep("target"), "target")
        normality = original.new_zeros(len(original), self.num_classes)
        uncertainty = original.new_zeros(len(original))
        with torch.autocast(original.device.type, enabled=False):
            for quarters in range(4):
                turned = self.frame(sweep("target", recipe=_turned(quarters)), "target") if quarters else original
                for rows in torch.arange(len(original), device=original.device).split(AT_A_TIME):
                    pair = torch.cat([original[rows], turned[rows]], dim=1).float()
                    of_classes, entropies = rotation_evidence(self.class_rotation(pair), quarters)
                    normality[rows] += of_classes / 4
                    uncertainty[rows] += entropies / 4
        return separation_scores(normality, uncertainty)

    # ---- stage II: adaptation ----------------------------------------------------------------------------------------

    def adaptation_step(self, source: SourceBatch, target: TargetBatch, step: int) -> Losses:
        options, losses, has_known = self.options, {}, OF_KNOWN in target.extra
        if has_known:
            rotated = target.extra[ROTATED]
            turned = self._framed(rotated.images, "target")
            known = self._framed(target.extra[OF_KNOWN].images, "target")
            rotation = self.rotation(torch.cat([known, turned], dim=1))
            losses["rotation"] = options.rotation_weight * weighted_cross_entropy(
                rotation, rotated.labels, epsilon=EPSILON
            )
        losses["labelled"] = self._labelled_loss(source, target)
        self._show(target)
        if has_known:
            entropy = entropy_of_logs(F.log_softmax(self.classifier(known).float(), dim=1)).mean()
            losses["entropy"] = options.entropy_weight * entropy
        return losses

    def _labelled_loss(self, source: SourceBatch, target: TargetBatch) -> Tensor:
        """One pass, as in ROS's code: unknown images are normalised among the source's, not among themselves."""
        some = [batch.extra[LABELLED] for batch in (source, target) if LABELLED in batch.extra]
        features = self.features(torch.cat([made.images for made in some]))
        count = len(source.extra[LABELLED].images) if LABELLED in source.extra else 0
        parts = [self.frame(features[:count], "source"), self.frame(features[count:], "target")]
        answers = self.classifier(torch.cat(parts))
        labels = torch.full((len(features),), self.num_classes, device=features.device)
        if count:
            labels[:count] = self.source_labels[source.extra[LABELLED].of[:, 0]]
        weights = torch.ones(self.num_classes + 1, device=features.device)
        n = len(self.found().unknown)
        weights[-1] = unknown_class_weight(self.options.unknown_weight, self.problem.num_source, self.num_classes, n)
        return weighted_cross_entropy(answers, labels, weights, EPSILON)

    def wants(self, step: int) -> list[Want]:
        if step < self._first_step_of_adaptation():
            return [Want(ROTATED, "source", recipe=ROTATED)]
        found, size, seed = self.found(), self.options.labelled_batch, self.problem.seed
        N_s, n = self.problem.num_source, len(found.unknown)
        labelled = from_shuffles(N_s + n, size, seed, LABELLED, step)  # the source, then the unknown images
        is_source = labelled < N_s
        of_target = found.unknown[labelled[~is_source] - N_s]
        wants = [Want(LABELLED, "source", labelled[is_source]), Want(LABELLED, "target", of_target)]
        if n:
            known = found.known[from_shuffles(n, size, seed, OF_KNOWN, step)]
            wants += [Want(OF_KNOWN, "target", known), Want(ROTATED, "target", known, recipe=ROTATED)]
        return [want for want in wants if want.indices is not None and len(want.indices)]

    def _first_step_of_adaptation(self) -> int:
        return spans([Phase((), share=share) for share in self._shares()], self.problem.steps)[1].start

    def found(self) -> Found:
        if self._found is None:
            group = self.group.cpu().numpy()
            self._found = Found(np.flatnonzero(group == KNOWN), np.flatnonzero(group == UNKNOWN))
        return self._found

    def score(self, features: Tensor) -> Scores:
        answers = self.classifier(self.frame(features, "target")).float()
        return Scores(answers[:, : self.num_classes], unknown_class_score(answers))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        self._found = None  # it belongs to the old buffers
        super()._load_from_state_dict(state_dict, prefix, *arguments)


# ---- rules -----------------------------------------------------------------------------------------------------------


def rotation_evidence(logits: Tensor, quarters: int) -> tuple[Tensor, Tensor]:
    """What the heads say about images that were turned by `quarters`: (B, 4C) → (B, C), (B,).

    The probability of each class together with the true rotation, and the entropy of all 4C probabilities.
    """
    log_p = F.log_softmax(logits.float(), dim=1)
    return log_p[:, quarters::4].exp(), entropy_of_logs(log_p)


def separation_scores(normality: Tensor, uncertainty: Tensor) -> Tensor:
    """(N,) in 0…1, high for known images.

    Args:
        normality: (N, C) mean over rotations of the probability of each class with the true rotation.
        uncertainty: (N,) mean entropy over rotations.
    """
    return torch.maximum(normality.amax(dim=1), 1 - min_max(uncertainty))


def next_tenth(mean: float) -> float:
    """The mean, rounded up to the next tenth; a whole tenth goes one up, as in ROS's code (0.3 → 0.4)."""
    return (math.floor(10 * mean + 1e-6) + 1) / 10  # 0.7 as float32 is a little less than 0.7


def known_and_unknown(scores: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """(N,) scores → (n,) and (n,) indices: of the highest and of the lowest. No image is in both."""
    n = min(int((scores > threshold).sum()), len(scores) // 2)
    order = scores.argsort(stable=True)
    return order[len(scores) - n :], order[:n]


def unknown_class_weight(factor: float, num_source: int, num_classes: int, unknown: int) -> float:
    """All unknown images together count as much as `factor` source classes of average size. Without any: 1."""
    return factor * num_source / (num_classes * unknown) if unknown else 1.0


def from_shuffles(count: int, size: int, seed: int, purpose: str, step: int) -> np.ndarray:
    """(size,) of 0…count−1: a step's batch from an endless stream of shuffles."""
    epochs, places = np.divmod(np.arange(step * size, (step + 1) * size), count)
    shuffles = {epoch: generator(seed, purpose, epoch).permutation(count) for epoch in np.unique(epochs).tolist()}
    return np.array([shuffles[epoch][place] for epoch, place in zip(epochs.tolist(), places.tolist(), strict=True)])


def _turned(quarters: int) -> str:
    """The name of the recipe that turns all images alike."""
    return f"turned by {90 * quarters} degrees"
