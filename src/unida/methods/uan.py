"""UAN: Universal Adaptation Network (You et al., Universal Domain Adaptation, CVPR 2019).

    z: backbone → Linear, 256 numbers          classifier: z → C
    D: domain discriminator behind reversed gradients          D′: one that only looks on; source 1, target 0
    H: entropy of the classifier's softmax, over log C

    every step:
        w_s = H(z_s; temperature 10) − D′(z_s)          w_t = D′(z_t) − H(z_t)
        both min-max over the batch, then over their mean; no gradient
        L = CE(classifier(z_s), y)
          + mean w_s · BCE(D(z_s), 1) + mean w_t · BCE(D(z_t), 0)          z learns that D cannot tell domains apart
          + mean BCE(D′(z_s), 1) + mean BCE(D′(z_t), 0)                    z does not learn from this
    a target image is argmax classifier, or unknown if w_t < w_0 = −½ (not normalised)

D′ has dropout in training, so weights are noisy there; they are not when images are answered. The unknown score is
(1 − w_t) / 2.

Differences from the released code:
    Cross-entropy. It takes probabilities for logits, and so the softmax twice. Here it is taken once (`--as-released`
    does as the released code).
    Constant batches. If all weights of a batch are equal, it divides by zero; here they are 0.
    Schedules. The coefficient of reversed gradients counts calls, two in a step, on a scale of 10,000; a run has 20,000
    steps. Here it is stretched to the run's length. The learning rate falls over the first 10,000 steps and then stays;
    here it falls over the whole run, to the same value. Its run ends with an epoch; here the number of steps is exact.
    BatchNorm. The stem's first layer keeps its statistics; here all layers of the backbone do in the kept regime, and
    none in the published one.
    Result. It reports the step with the best accuracy on the target; here the last step is the result.
    Images. It resizes the short side: `--resize short`.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from unida.losses.adversarial import domain_loss, ramp_by_calls, reverse_gradient
from unida.losses.transferability import (
    batch_weights,
    rejection_score,
    rejection_threshold,
    uan_source_weight,
    uan_target_weight,
)
from unida.methods.base import DomainName, Losses, Method, Problem, Scores, SourceBatch, TargetBatch
from unida.methods.uan_options import CARD, UANOptions
from unida.models.backbone import Backbone
from unida.models.discriminator import Discriminator
from unida.support.processes import of_whole_batch

PUBLISHED_STEPS = 20_000  # on Office-31 (released code)


class UAN(Method):
    card = CARD
    run_only = ("adversary.",)

    def __init__(self, backbone: Backbone, problem: Problem, options: UANOptions) -> None:
        super().__init__(backbone, problem, options)
        self.unknown_threshold = rejection_threshold(options.weight_threshold, low=-1, high=1)
        self.bottleneck = nn.Linear(self.frame.size, options.bottleneck)
        self.classifier = nn.Linear(options.bottleneck, problem.num_classes)
        self.adversary = Discriminator(options.bottleneck)  # D
        self.onlooker = Discriminator(options.bottleneck)  # D′

    def features(self, images: Tensor, domain: DomainName = "target") -> Tensor:
        """(B, 3, H, W) → (B, 256)."""
        z: Tensor = self.bottleneck(self.frame(self.backbone(images), domain))
        return z

    def source_features(self, images: Tensor) -> Tensor:
        """The same, of images of the source: each domain has its own mean in the frame."""
        return self.features(images, "source")

    def training_step(self, source: SourceBatch, target: TargetBatch, step: int) -> Losses:
        # Two passes: BatchNorm must not mix the statistics of the two domains.
        z_s, z_t = self.source_features(source.images), self.features(target.images)
        logits_s, logits_t = self.classifier(z_s).float(), self.classifier(z_t).float()
        look_s, look_t = self.onlooker(z_s.detach()), self.onlooker(z_t.detach())
        w_s = of_whole_batch(batch_weights, uan_source_weight(logits_s, look_s))
        w_t = of_whole_batch(batch_weights, uan_target_weight(logits_t, look_t))
        ramp_s, ramp_t = ramp_by_calls(step, self.problem.steps, PUBLISHED_STEPS)
        fooled_s, fooled_t = (
            self.adversary(reverse_gradient(z_s, ramp_s)),
            self.adversary(reverse_gradient(z_t, ramp_t)),
        )
        answers = F.softmax(logits_s, dim=1) if self.options.as_released else logits_s
        return {
            "closed": F.cross_entropy(answers, source.labels),
            "adversarial": domain_loss(fooled_s, fooled_t, w_s, w_t),
            "onlooker": domain_loss(look_s, look_t),
        }

    def score(self, features: Tensor) -> Scores:
        logits = self.classifier(features).float()
        weight = uan_target_weight(logits, self.onlooker(features))
        return Scores(logits, rejection_score(weight, self.options.weight_threshold, low=-1, high=1))
