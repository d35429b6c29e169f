"""ATI-λ: assign, transform, iterate (Panareda Busto & Gall, Open Set Domain Adaptation, ICCV 2017).

    x: fixed features, each divided by its sum, then standardised in each domain
    S: (C, d) class means of the source            T: (N, d) the target's features
    W: the map of the source so far, the identity at first

    at most 6 times:
        d_tc = ‖T_t − S_c‖,   λ = ½ (min d + max d)
        target image t gets its nearest class c, or none if d_tc > λ           (`unida.clustering.assignment`)
        V ← argmin Σ ‖S_c V − T_t‖² over all images t with a class c
        E ← √ of this sum, over what it was with the first assignment and V = I
        from the second time on, stop without V if E rises, E changes by less than 0.001, or no image has a new class
        S ← S V,   W ← W V
    classifier ← the best linear one for the mapped source, x_s W
    a target image is argmax of the classifier, or unknown if it would now get no class: min_c d_tc > λ

The unknown score is m / (m + λ) for the distance m = min_c d_tc: above ½ exactly if m > λ.

Target images stay where they are, so answering needs the classifier, S and λ, but not W.

It takes --train head only: one map for all images needs features that do not change. Everything happens before the
first step, in a second or so. In the kept regime, features are in a frame instead of standardised, the classifier is
solved too, and there are no steps. With --regime published the classifier learns by steps.

Differences from the released code (Matlab):
    Classifier. It trains a linear support vector machine for each pair of classes (C = 0.001). Here it is the softmax
    classifier that all methods here have.
    Unknown. Its classifier knows "unknown" as a class, from source images of unknown classes. Such images are not
    there in universal domain adaptation. How the published tables without them say "unknown" is not known; here it is
    the rejection of the assignment.
    Map. It looks for V with at most 33 to 50 evaluations from the identity. Here V is the exact minimum of the sum
    plus a small cost for leaving the identity (--map-ridge): C equations instead of d².
    λ. The file of parameters has no rejection (λ at the largest distance), the script and the paper have ½.
    Steps. Its script moves the source by 0.66 of the way; the parameters and the paper have the whole way, as here.
    Sums. It divides a feature by the sum of its numbers, none of which is negative there. Here signs do not count.
    PCA. It reduces features of AlexNet and VGG to a third. Not here.
    Neighbours. The paper's variant in which neighbours get the same class is not here; it is off by default there.
"""

import logging
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unida.clustering.assignment import REJECTED, assign, reject_cost
from unida.clustering.kmeans import means
from unida.errors import UserError
from unida.methods.ati_options import CARD, ATIOptions
from unida.methods.base import (
    DOMAINS,
    DomainName,
    Losses,
    Method,
    Phase,
    Problem,
    Round,
    Scores,
    SourceBatch,
    Sweep,
    TargetBatch,
)
from unida.models.backbone import Backbone
from unida.models.frame import LENGTH
from unida.models.options import KEPT
from unida.models.solve import solve_classifier
from unida.models.source_free import keep_pretrained

log = logging.getLogger("unida")

LEAST_CHANGE = 0.001  # of the energy (ATI's code, which has 0.01 in some versions)
LEAST_RIDGE = 1e-12  # if all class means are 0, as with constant features


class ATI(Method):
    card = CARD
    run_only = ("map", "source_centre", "source_spread")

    map: Tensor  # (d, d) W, for rows: x_s W
    class_means: Tensor  # (C, d) S, of the mapped source
    cost: Tensor  # () λ

    def __init__(self, backbone: Backbone, problem: Problem, options: ATIOptions) -> None:
        super().__init__(backbone, problem, options)
        keep_pretrained(backbone)
        size = self.frame.size
        self.closed = nn.Linear(size, problem.num_classes, bias=False)
        self.register_buffer("map", torch.eye(size))
        self.register_buffer("class_means", torch.zeros(problem.num_classes, size))
        self.register_buffer("cost", torch.ones(()))
        for domain in DOMAINS:
            self.register_buffer(f"{domain}_centre", torch.zeros(size))
            self.register_buffer(f"{domain}_spread", torch.ones(size))

    def phases(self) -> tuple[Phase]:
        if self.options.assignment == "every-class" and self.problem.num_target < self.num_classes:
            raise UserError(
                f"--assignment every-class needs a target image for each of the {self.num_classes} source classes, but "
                f"there are {self.problem.num_target}: use --assignment nearest"
            )
        phase = self.plain_phase(target=False)
        if self.problem.regime == KEPT:
            return (phase,)
        if any(p.requires_grad for p in self.backbone.parameters()):  # SPA's words: features move, and so must the map
            again = Round(lambda step, sweep: self.align(sweep), every=self.problem.steps, at_end=True)
            return (replace(phase, start=None, round=again, sweeps=DOMAINS),)
        return (replace(phase, start=self.align, sweeps=DOMAINS),)

    def align(self, sweep: Sweep) -> None:
        """Find W, S and λ."""
        source, target = sweep("source"), sweep("target")
        with torch.autocast(source.device.type, enabled=False):
            self._measure(source, target)
            centres, _ = means(self.seen(source, "source"), sweep.source_labels, self.num_classes)
            self._iterate(centres, self.seen(target, "target"))

    def _measure(self, source: Tensor, target: Tensor) -> None:
        self.frame.measure(source, target)
        if self.frame.is_on:
            return
        for domain, features in zip(DOMAINS, (source, target), strict=True):
            centre, spread = centre_and_spread(of_unit_sum(features))
            self.get_buffer(f"{domain}_centre").copy_(centre)
            self.get_buffer(f"{domain}_spread").copy_(spread)

    def _iterate(self, centres: Tensor, target: Tensor) -> None:
        """From class means (C, d) of the source, which are S, and features (N, d) of the target, T."""
        before, first, energy = torch.full((len(target),), REJECTED, device=target.device), 0.0, 0.0
        self.map.copy_(torch.eye(len(self.map)))
        for number in range(1, self.options.iterations + 1):
            classes = self._assign(centres, target)
            left, right = map_to_assigned(centres, target, classes, self.options.map_ridge)
            mapped = centres + centres @ left @ right
            first = first or residual(centres, target, classes)
            last, energy = energy, residual(mapped, target, classes) / (first or 1.0)
            log.info("iteration %d: %d target images have a class, energy %.3f", number, (classes >= 0).sum(), energy)
            has_new = bool(((classes != before) & (classes != REJECTED)).any())
            if number > 1 and (energy > last or abs(energy - last) < LEAST_CHANGE or not has_new):
                break
            centres, before = mapped, classes
            self.map.add_(self.map @ left @ right)
        self.class_means.copy_(centres)
        self._assign(centres, target)

    def _assign(self, centres: Tensor, target: Tensor) -> Tensor:
        """Set λ, and give each target image a class or none."""
        d = distances(target, centres)
        self.cost.copy_(reject_cost(d, self.options.reject_place))
        return assign(d, self.cost, self.options.assignment == "every-class")

    def solve(self, sweep: Sweep) -> None:
        self.align(sweep)
        source = self.seen(sweep("source"), "source")
        solve_classifier(self.closed, source @ self.map, sweep.source_labels)

    def training_step(self, source: SourceBatch, target: TargetBatch, step: int) -> Losses:
        mapped = self.seen(self.features(source.images), "source") @ self.map
        return {"closed": F.cross_entropy(self.closed(mapped).float(), source.labels)}

    def seen(self, features: Tensor, domain: DomainName) -> Tensor:
        """(B, d') → (B, d): x, in the frame or standardised."""
        if self.frame.is_on:
            return self.frame(features, domain)
        x = of_unit_sum(features) - self.get_buffer(f"{domain}_centre")
        # The scale changes neither assignments nor maps. Steps need it: features of a length near 10, as in the frame.
        return x / self.get_buffer(f"{domain}_spread") * (LENGTH / x.shape[1] ** 0.5)

    def score(self, features: Tensor) -> Scores:
        x = self.seen(features, "target")
        with torch.autocast(x.device.type, enabled=False):
            nearest = distances(x, self.class_means).amin(dim=1)
        return Scores(self.closed(x).float(), rejection_score(nearest, self.cost))


# ---- rules -----------------------------------------------------------------------------------------------------------


def of_unit_sum(features: Tensor) -> Tensor:
    """(B, d): each row over its sum, and times d, so that numbers are near 1. Signs do not count in the sum."""
    return F.normalize(features.float(), p=1, dim=1) * features.shape[1]


def centre_and_spread(features: Tensor) -> tuple[Tensor, Tensor]:
    """(N, d) → mean and standard deviation, (d,) each. A number that never changes has the deviation 1.

    The sum of squares is divided by N − 1 (ATI's code).
    """
    spread = features.std(dim=0, correction=min(1, len(features) - 1))  # one image has the deviation 0
    changes = spread > 1e-6 * features.abs().amax(dim=0)  # the rest is rounding
    return features.mean(dim=0), torch.where(changes, spread, 1.0)


def distances(points: Tensor, centres: Tensor) -> Tensor:
    """(N, d), (C, d) → (N, C) Euclidean."""
    return torch.cdist(points.float(), centres.float(), compute_mode="use_mm_for_euclid_dist")


def map_to_assigned(centres: Tensor, target: Tensor, classes: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    """The linear map V that brings class means S nearest to the images T of their class, for rows: S V ≈ T.

    V is the minimum of Σ_t ‖S_{c(t)} V − T_t‖² / n + r ‖V − I‖², where n is the mean number of images of a class that
    has some, and r is `ridge` times the mean squared length of these classes' means. The first part depends on the
    mean T̄_c of each class's images alone. With V = I + Sᵀ B, C × C equations are left: (S Sᵀ + r n/n_c) B = T̄ − S.

    Args:
        centres: (C, d) S.
        target: (N, d) T.
        classes: (N,) int64, 0…C−1 or `REJECTED`.

    Returns:
        (d, K) and (K, d), whose product is V − I; K classes have images.
    """
    kept = classes != REJECTED
    wanted, counts = means(target[kept], classes[kept], len(centres))
    some = counts > 0
    centres, wanted, counts = centres[some], wanted[some], counts[some].float()
    r = (ridge * centres.square().sum(dim=1).mean()).clamp_min(LEAST_RIDGE)
    equations = centres @ centres.T + torch.diag(r * counts.mean() / counts)
    return centres.T, torch.linalg.solve(equations, wanted - centres)


def residual(centres: Tensor, target: Tensor, classes: Tensor) -> float:
    """√ Σ ‖S_c − T_t‖² over all images t with a class c."""
    kept = classes != REJECTED
    return float((centres[classes[kept]] - target[kept]).norm())


def rejection_score(nearest: Tensor, cost: Tensor) -> Tensor:
    """(B,) in 0…1, above ½ exactly if the distance of the nearest class is above λ.

    Args:
        nearest: (B,) distances ≥ 0.
        cost: () λ ≥ 0.
    """
    score = nearest / (nearest + cost).clamp_min(torch.finfo(torch.float32).tiny)
    just_above = 0.5 + torch.finfo(torch.float32).eps  # rounding must not decide
    return torch.where(nearest > cost, score.clamp(min=just_above), score.clamp(max=0.5))
