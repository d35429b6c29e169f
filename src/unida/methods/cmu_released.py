"""CMU as first released (Fu et al., ECCV 2020), without the true classes that it reads: `--method cmu --as-released`.

    z: backbone → Linear, 256 numbers          heads: five linear classifiers z → C; the first one answers
    D: domain discriminator behind reversed gradients; source 1, target 0
    e: mean over heads of H / log C          c: mean over classes of the deviation of a probability over heads
    ê, ĉ: min-max over the whole target

    every step, with z_k of view k of the source batch and z_t of view 1 of the target batch:
        L = mean_k CE(head_k(z_k), y) + mean w_s · BCE(D(z_1), 1) + mean w_t · BCE(D(z_t), 0)
        w_t = 1 if (e + c) / 2 < θ / 2, else 0, with e and c of the *source* image in the same place (a slip, kept)
        w_s = v[y]
        both are 0 in the first tenth of the run
    every tenth of the run, over the whole target:
        θ = mean (ê + ĉ) / 2
        v = mean of p over images that the last rule calls known, divided by its largest number
    a target image is argmax p (first head), or unknown if (ê + ĉ + 1 − max p) / 3 > 0.55

Left out of the released code:
    w_s. It is 1 if the label is a truly shared class, a list that a method must not see. v takes its place.
    The best step. It keeps the one with the best accuracy on the target's labels; here the last step is the result.

Other differences: five loaders draw other images for each view; here the five views show the batch's images. Bounds of
the last rule are measured after the last step and kept with the model; what is outside counts as on them. Tenths,
ramp and learning rate are stretched from 5,000 steps to the run's length.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unida.losses.adversarial import domain_loss, ramp_by_calls, reverse_gradient
from unida.losses.uncertainty import ensemble_disagreement, ensemble_entropy, within
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
)
from unida.methods.cmu_options import CARD, CMUOptions
from unida.models.backbone import Backbone
from unida.models.discriminator import Discriminator
from unida.models.heads import EnsembleHead
from unida.recipes.views import cmu_views

PUBLISHED_STEPS = 5_000  # on Office-31 (first release); its schedules have a scale of 10,000
FIRST = "view 1"
HEADS_SCALE = 5.0  # of the heads' learning rate (first release)


class ReleasedCMU(Method):
    card = CARD
    run_only = ("discriminator.", "class_weights", "theta")

    class_weights: Tensor  # (C,) v
    theta: Tensor  # () θ
    lowest: Tensor  # (2,) smallest e and c over the target
    highest: Tensor  # (2,) largest ones

    def __init__(self, backbone: Backbone, problem: Problem, options: CMUOptions) -> None:
        super().__init__(backbone, problem, options)
        self.unknown_threshold = float(torch.tensor(options.uncertainty_limit))  # as float32 holds it
        self.recipes = cmu_views(backbone.mean, backbone.std, first_grey=0.1)
        self.bottleneck = nn.Linear(self.frame.size, options.bottleneck)
        self.heads = EnsembleHead(options.bottleneck, problem.num_classes)
        self.discriminator = Discriminator(options.bottleneck)
        self.register_buffer("class_weights", torch.zeros(problem.num_classes))
        self.register_buffer("theta", torch.zeros(()))
        self.register_buffer("lowest", torch.zeros(2))
        self.register_buffer("highest", torch.ones(2))
        self.tenth = max(1, round(problem.steps / 10))

    def phases(self) -> tuple[Phase]:
        backbone, _ = self.groups()
        new = Group([*self.bottleneck.parameters(), *self.discriminator.parameters()])
        heads = Group(list(self.heads.parameters()), scale=HEADS_SCALE)
        goal = Turn(self.training_step, (backbone, new, heads), decay=10 * PUBLISHED_STEPS / 10_000)
        return (
            Phase(
                (goal,),
                start=self.measure_frame if self.frame.is_on else None,
                round=Round(self.look, every=self.tenth, at_end=True),
                target=False,  # it uses only the first view of the target's batch
                sweeps=DOMAINS if self.frame.is_on else ("target",),
            ),
        )

    def wants(self, step: int) -> list[Want]:
        return [*(Want(name, "source", recipe=name) for name in self.recipes), Want(FIRST, "target", recipe=FIRST)]

    def features(self, images: Tensor, domain: DomainName = "target") -> Tensor:
        """(B, 3, H, W) → (B, 256)."""
        z: Tensor = self.bottleneck(self.frame(self.backbone(images), domain))
        return z

    def source_features(self, images: Tensor) -> Tensor:
        """The same, of images of the source: each domain has its own mean in the frame."""
        return self.features(images, "source")

    def training_step(self, source: SourceBatch, target: TargetBatch, step: int) -> Losses:
        # One pass for each view and domain: BatchNorm must not mix their statistics.
        views = [self.source_features(source.extra[name].images) for name in self.recipes]
        z_t = self.features(target.extra[FIRST].images)
        pairs = zip(self.heads, views, strict=True)
        closed = torch.stack([F.cross_entropy(head(z).float(), source.labels) for head, z in pairs]).mean()
        ramp_s, ramp_t = ramp_by_calls(step, self.problem.steps, PUBLISHED_STEPS)
        fooled_s = self.discriminator(reverse_gradient(views[0], ramp_s))
        fooled_t = self.discriminator(reverse_gradient(z_t, ramp_t))
        adversarial = domain_loss(fooled_s, fooled_t, *self._weights(views[0], source.labels, step))
        return {"closed": closed, "adversarial": adversarial}

    @torch.no_grad()
    def _weights(self, features: Tensor, labels: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """(B,) w_s and (B,) w_t, from features of the source."""
        entropy, disagreement = self._uncertainty(features)
        is_sure = (entropy + disagreement) / 2 < self.theta / 2
        is_on = float(step >= self.tenth)
        return is_on * self.class_weights[labels], is_on * is_sure.float()

    def _uncertainty(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """(B,) e and (B,) c."""
        logits = self.heads(features)
        return ensemble_entropy(logits), ensemble_disagreement(logits)

    def look(self, step: int, sweep: Sweep) -> None:
        """Measure the bounds over the target, θ and v."""
        features = sweep("target")
        numbers = torch.stack(self._uncertainty(features))
        self.lowest.copy_(numbers.amin(dim=1))
        self.highest.copy_(numbers.amax(dim=1))
        self.theta.copy_(torch.stack(self._normalised(features)).mean())
        logits, unknown = self.score(features)
        limit = unknown.min().clamp(min=self.unknown_threshold)  # if no image is known, the surest ones count
        mean = F.softmax(logits[unknown <= limit], dim=1).mean(dim=0)
        self.class_weights.copy_(mean / mean.max())

    def _normalised(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """(B,) ê and (B,) ĉ."""
        entropy, disagreement = self._uncertainty(features)
        return (
            within(entropy, self.lowest[0], self.highest[0]),
            within(disagreement, self.lowest[1], self.highest[1]),
        )

    def score(self, features: Tensor) -> Scores:
        logits = self.heads[0](features).float()
        entropy, disagreement = self._normalised(features)
        doubt = 1 - F.softmax(logits, dim=1).amax(dim=1)
        return Scores(logits, ((entropy + disagreement + doubt) / 3).clamp(0, 1))
