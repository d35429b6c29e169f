"""I-UAN: pseudo-margin-based universal domain adaptation (Yin et al., Knowledge-Based Systems 229, 2021).

    z: backbone → Linear, 256 numbers          classifier: 2 z/‖z‖ → C, with a bias
    D: domain discriminator of z behind reversed gradients; source 1, target 0
    m: one number for each class, the running mean of the margins of target images that are predicted as it
    r: number of steps in m

    every step:
        b[c] = mean over target images with argmax c of p₁ − p₂, their two largest probabilities; 0 if there are none
        m′ = (r m + b) / (r + 1)
        w_s = m′[y]          w_t = p₁
        both min-max over the batch, then over their mean; no gradient; w_s below `cut` ← 0
        if more than 60 % of the source batch is classified correctly:
            L = CE + mean w_s · BCE(D(z_s), 1) + mean w_t · BCE(D(z_t), 0),   m ← m′,   r ← r + 1
        else:
            L = CE
    a target image is argmax classifier, or unknown if p₁ < ½

Written from facts about the method, without its code, which is AGPL-licensed.

Differences from the released code:
    Steps with a closed gate. Their gradient is 0 for D, but momentum and weight decay still act on it. The released
    code leaves D out of the update.
    Schedules. The coefficient of reversed gradients counts calls, two in a step, on a scale of 10,000; a run has 20,000
    steps. Here it is stretched to the run's length. The learning rate falls over the first 10,000 steps and then stays;
    here it falls over the whole run, to the same value.
    BatchNorm. As in UAN, the stem's first layer keeps its statistics; here all layers of the backbone do in the kept
    regime, and none in the published one.
    Result. It reports the step with the best accuracy on the target; here the last step is the result.
    Images. It resizes the short side: `--resize short`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unida.losses.adversarial import domain_loss, ramp_by_calls, reverse_gradient
from unida.losses.transferability import (
    EPSILON,
    batch_weights,
    class_margins,
    prediction_margin,
    rejection_score,
    rejection_threshold,
)
from unida.methods.base import DomainName, Losses, Method, Problem, Scores, SourceBatch, TargetBatch
from unida.methods.iuan_options import CARD, IUANOptions
from unida.models.backbone import Backbone
from unida.models.discriminator import Discriminator
from unida.support.processes import gather, of_whole_batch

PUBLISHED_STEPS = 20_000  # on Office-31 (released code)


class IUAN(Method):
    card = CARD
    run_only = ("discriminator.", "margins", "records")

    margins: Tensor  # (C,) m
    records: Tensor  # () int64: r

    def __init__(self, backbone: Backbone, problem: Problem, options: IUANOptions) -> None:
        super().__init__(backbone, problem, options)
        self.unknown_threshold = rejection_threshold(options.confidence)
        self.bottleneck = nn.Linear(self.frame.size, options.bottleneck)
        self.classifier = nn.Linear(options.bottleneck, problem.num_classes)
        self.discriminator = Discriminator(options.bottleneck)
        self.register_buffer("margins", torch.zeros(problem.num_classes))
        self.register_buffer("records", torch.tensor(0))

    def features(self, images: Tensor, domain: DomainName = "target") -> Tensor:
        """(B, 3, H, W) → (B, 256), before they get one length."""
        z: Tensor = self.bottleneck(self.frame(self.backbone(images), domain))
        return z

    def source_features(self, images: Tensor) -> Tensor:
        """The same, of images of the source: each domain has its own mean in the frame."""
        return self.features(images, "source")

    def logits(self, features: Tensor) -> Tensor:
        """(B, 256) → (B, C) in float32."""
        logits: Tensor = self.classifier(self.options.radius * F.normalize(features.float(), dim=1))
        return logits.float()

    def training_step(self, source: SourceBatch, target: TargetBatch, step: int) -> Losses:
        # Two passes: BatchNorm must not mix the statistics of the two domains.
        z_s, z_t = self.source_features(source.images), self.features(target.images)
        logits_s, logits_t = self.logits(z_s), self.logits(z_t)
        accuracy = gather((logits_s.argmax(dim=1) == source.labels).float()).mean()
        is_open = accuracy > self.options.accuracy_gate
        margins = self._look_at(logits_t, is_open)

        def source_weights(values: Tensor) -> Tensor:
            weights = batch_weights(values, EPSILON)
            return weights.where(weights >= self.options.cut, 0.0)

        def target_weights(values: Tensor) -> Tensor:
            return batch_weights(values, EPSILON)

        w_s = of_whole_batch(source_weights, margins[source.labels])
        w_t = of_whole_batch(target_weights, F.softmax(logits_t, dim=1).amax(dim=1))
        ramp_s, ramp_t = ramp_by_calls(step, self.problem.steps, PUBLISHED_STEPS)
        fooled_s = self.discriminator(reverse_gradient(z_s, ramp_s))
        fooled_t = self.discriminator(reverse_gradient(z_t, ramp_t))
        adversarial = domain_loss(fooled_s, fooled_t, w_s, w_t)
        self.watched["gate"] = lambda: is_open.float()
        return {
            "closed": F.cross_entropy(logits_s, source.labels),
            # Behind a closed gate the value is still there, for the log; its gradient is 0.
            "adversarial": torch.where(is_open, adversarial, adversarial.detach()),
        }

    @torch.no_grad()
    def _look_at(self, logits: Tensor, is_open: Tensor) -> Tensor:
        """(C,) the running margins with those of this batch; they are kept if the gate is open.

        Args:
            logits: (B, C) of this process's target images. Those of all processes count.
        """
        margins, classes = gather(prediction_margin(logits)), gather(logits.argmax(dim=1))
        batch = class_margins(margins, classes, self.num_classes)
        running = (self.records * self.margins + batch) / (self.records + 1)
        self.margins.copy_(torch.where(is_open, running, self.margins))
        self.records += is_open
        return running

    def score(self, features: Tensor) -> Scores:
        logits = self.logits(features)
        confidence = F.softmax(logits, dim=1).amax(dim=1)
        return Scores(logits, rejection_score(confidence, self.options.confidence))
