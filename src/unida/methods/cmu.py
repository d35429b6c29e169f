"""CMU: Calibrated Multiple Uncertainties (Fu et al., Learning to Detect Open Classes, ECCV 2020).

The paper's release was never finished, and it reads the true list of shared classes. So this is the later, cleaner
version of the same group (TLlib, branch dev-tllib). `--as-released` is the first one: `unida.methods.cmu_released`.

    z: backbone → Linear, BatchNorm, ReLU, 256 numbers          classifier: z → C
    heads: five linear classifiers z → C, each drawn and trained in another way          D: domain discriminator
    margin: mean over heads of p₁ − p₂          entropy: mean over heads of H / log C
    s = (margin + 1 − entropy) / 2, high for images of shared classes

    stage 1, a seventh of the steps:
        L = CE(classifier(z), y) + Σ_k CE(head_k(z of view k), y)          five views: `unida.recipes.views`
    once, over the whole target:
        s with margin and entropy min-max over the target
        v = mean classifier probabilities of images with s ≥ 0.4, min-max over classes
        w[c] = 1 if v[c] > 0.1, else 0
    stage 2, every step:
        w_t = s of the target batch, min-max (with bounds that keep a hundredth of the old ones)
        L = CE(classifier(z_s), y) + ½ [ mean w[y] · BCE(D(z_s), 1) + mean w_t · BCE(D(z_t), 0) ]
        at every second step, for the heads alone:   Σ_k CE(head_k(z of view k), y), with z as when images are answered
    a target image is argmax classifier, or unknown if s < 0.7, with margin and entropy min-max over the target

The last rule looks at all target images at once. Here, the smallest and largest margin and entropy are measured after
the last step and kept with the model (and now and then before, for evaluations on the way). Then it is a rule for one
image; what is outside the bounds counts as on them. The unknown score is 1 − s.

Differences from that code:
    Heads in stage 2. It trains each head for 100 steps after every 200 steps of the rest. Here they learn beside it, at
    every second step: as many updates.
    Views. It draws other images for each view; here the five views show the batch's images.
    Weights w_t. As the bounds keep a hundredth of the old ones, weights can be a little below 0 or above 1. They have
    no limit if a batch's scores are almost equal, and are not finite if they are equal; here they are clamped to −1…2.
    It matters only if scores differ by less than about a hundredth.
    Schedules. The lengths of the stages, the reversal's ramp, the learning rates and the bounds' epochs of 200 steps
    are stretched to the run's length. The weight decay of 1e-3 and batches of 32 are options of every run.
    Result. It reports the epoch with the best H-score on the target; here the last step is the result.
"""

import logging
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unida.losses.adversarial import domain_loss, reversal_ramp, reverse_gradient
from unida.losses.transferability import rejection_score, rejection_threshold
from unida.losses.uncertainty import (
    ensemble_entropy,
    ensemble_margin,
    known_score,
    moved_bound,
    shared_classes,
    weights_of_batch,
    within,
)
from unida.methods.base import (
    DOMAINS,
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
from unida.methods.cmu_options import CARD, CMUOptions
from unida.methods.cmu_released import ReleasedCMU
from unida.models.backbone import Backbone
from unida.models.discriminator import Discriminator
from unida.models.heads import EnsembleHead
from unida.recipes.views import cmu_views
from unida.support.processes import gather

log = logging.getLogger("unida")

STAGES = (5, 30)  # epochs of 200 steps (later code)
THOUSANDS = (1.0, 6.0, 15.0)  # published steps of stage 1, of stage 2, and of the heads' schedule in it (later code)
LOOKS = 6  # times that bounds are measured in stage 2, beside the last one; only evaluations on the way need them


class CMU(Method):
    card = CARD
    run_only = ("discriminator.", "class_weights", "batch_bounds")

    class_weights: Tensor  # (C,) w, 1 or 0
    batch_bounds: Tensor  # (2,) smallest and largest s of batches
    lowest: Tensor  # (2,) smallest margin and entropy over the target
    highest: Tensor  # (2,) largest ones

    def __new__(cls, *arguments: Any) -> Any:
        """With --as-released it is another algorithm under the same name."""
        return ReleasedCMU(*arguments) if arguments and arguments[-1].as_released else super().__new__(cls)

    def __init__(self, backbone: Backbone, problem: Problem, options: CMUOptions) -> None:
        super().__init__(backbone, problem, options)
        self.unknown_threshold = rejection_threshold(options.known_score)
        self.recipes = cmu_views(backbone.mean, backbone.std)
        size = options.bottleneck
        self.bottleneck = nn.Sequential(nn.Linear(self.frame.size, size), nn.BatchNorm1d(size), nn.ReLU())
        self.classifier = nn.Linear(size, problem.num_classes)
        self.heads = EnsembleHead(size, problem.num_classes)
        self.discriminator = Discriminator(size, normalise=True)
        self.register_buffer("class_weights", torch.ones(problem.num_classes))
        self.register_buffer("batch_bounds", torch.zeros(2))
        self.register_buffer("lowest", torch.zeros(2))
        self.register_buffer("highest", torch.ones(2))
        self.stage_one, self.stage_two = spans([Phase((), share=share) for share in STAGES], problem.steps)
        self.epoch = max(1, round(len(self.stage_two) / STAGES[1]))  # steps after which the batches' bounds start anew

    def phases(self) -> tuple[Phase, Phase]:
        backbone, _ = self.groups()
        classifier = [*self.bottleneck.parameters(), *self.classifier.parameters()]
        heads, adversary = list(self.heads.parameters()), list(self.discriminator.parameters())
        first = Turn(self.first_step, (backbone, Group([*classifier, *heads])), decay=THOUSANDS[0])
        goal = Turn(self.training_step, (backbone, Group([*classifier, *adversary])), decay=THOUSANDS[1])
        beside = Turn(self.heads_step, (Group(heads),), "heads", decay=THOUSANDS[2], due=self.heads_learn)
        looks = Round(self.look, every=max(1, math.ceil(len(self.stage_two) / LOOKS)), at_end=True)
        start = self.measure_frame if self.frame.is_on else None
        return (
            Phase(
                (first,),
                "source and ensemble",
                share=STAGES[0],
                start=start,
                source="shuffled",
                target=False,
                sweeps=DOMAINS if start else ("target",),
            ),
            Phase((goal, beside), "alignment", share=STAGES[1], round=looks, source="shuffled"),
        )

    def heads_learn(self, step: int) -> bool:
        """In every step of stage 1, and in every second one of stage 2."""
        return step in self.stage_one or (step - self.stage_two.start) % 2 == 0

    def wants(self, step: int) -> list[Want]:
        return [Want(name, "source", recipe=name) for name in self.recipes] if self.heads_learn(step) else []

    def features(self, images: Tensor, domain: DomainName = "target") -> Tensor:
        """(B, 3, H, W) → (B, 256)."""
        z: Tensor = self.bottleneck(self.frame(self.backbone(images), domain))
        return z

    def source_features(self, images: Tensor) -> Tensor:
        """The same, of images of the source: each domain has its own mean in the frame."""
        return self.features(images, "source")

    def first_step(self, source: SourceBatch, target: TargetBatch, step: int) -> Losses:
        """Of stage 1. One pass for each view: BatchNorm must not mix their statistics."""
        logits = self.classifier(self.source_features(source.images)).float()
        views = [self.source_features(source.extra[name].images) for name in self.recipes]
        return {"closed": F.cross_entropy(logits, source.labels), "heads": self._heads_loss(views, source.labels)}

    def heads_step(self, source: SourceBatch, target: TargetBatch, step: int) -> Losses:
        """Of stage 2, for the heads alone: features are in evaluation mode and do not learn."""
        was_training = self.training
        self.eval()
        with torch.no_grad():
            views = [self.source_features(source.extra[name].images) for name in self.recipes]
        self.train(was_training)
        return {"heads": self._heads_loss(views, source.labels)}

    def _heads_loss(self, views: list[Tensor], labels: Tensor) -> Tensor:
        """Σ_k CE(head_k(z of view k), y)."""
        pairs = zip(self.heads, views, strict=True)
        return torch.stack([F.cross_entropy(head(z).float(), labels) for head, z in pairs]).sum()

    def training_step(self, source: SourceBatch, target: TargetBatch, step: int) -> Losses:
        """Of stage 2. Two passes: BatchNorm must not mix the statistics of the two domains."""
        z_s, z_t = self.source_features(source.images), self.features(target.images)
        logits = self.classifier(z_s).float()
        done = (step - self.stage_two.start) / len(self.stage_two)
        # TLlib's ramp has a steepness of 1 for every 1,000 steps, and stage 2 has 6,000 of them.
        ramp = reversal_ramp(done, steepness=THOUSANDS[1])
        both: Tensor = self.discriminator(reverse_gradient(torch.cat([z_s, z_t]), ramp))
        weights = self.class_weights[source.labels], self._target_weights(z_t, step)
        return {
            "closed": F.cross_entropy(logits, source.labels),
            "adversarial": 0.5 * domain_loss(both[: len(z_s)], both[len(z_s) :], *weights),
        }

    @torch.no_grad()
    def _target_weights(self, features: Tensor, step: int) -> Tensor:
        """(B,) of this process's target images. Those of all processes move the bounds."""
        if (step - self.stage_two.start) % self.epoch == 0:
            self.batch_bounds.zero_()  # as the later code starts every epoch
        scores = known_score(*self._sureness(features))
        whole = gather(scores)
        self.batch_bounds.copy_(moved_bound(self.batch_bounds, torch.stack([whole.min(), whole.max()])))
        return weights_of_batch(scores, self.batch_bounds[0], self.batch_bounds[1])

    def _sureness(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """(B,) margin and (B,) entropy of the heads."""
        logits = self.heads(features)
        return ensemble_margin(logits), ensemble_entropy(logits)

    def look(self, step: int, sweep: Sweep) -> None:
        """Measure the bounds over the target and, when stage 2 starts, say which classes are shared."""
        features = sweep("target")
        sureness = torch.stack(self._sureness(features))
        self.lowest.copy_(sureness.amin(dim=1))
        self.highest.copy_(sureness.amax(dim=1))
        if step == self.stage_two.start:
            probabilities = F.softmax(self.classifier(features).float(), dim=1)
            options = self.options
            shared = shared_classes(probabilities, self.known(features), options.confident_score, options.class_cut)
            self.class_weights.copy_(shared)
            log.info("%d of %d classes look shared", int(shared.sum()), self.num_classes)

    def known(self, features: Tensor) -> Tensor:
        """(B,) s, by the bounds over the target."""
        margin, entropy = self._sureness(features)
        return known_score(
            within(margin, self.lowest[0], self.highest[0]), within(entropy, self.lowest[1], self.highest[1])
        )

    def score(self, features: Tensor) -> Scores:
        logits = self.classifier(features).float()
        return Scores(logits, rejection_score(self.known(features), self.options.known_score))
