"""DANN: Domain-Adversarial Training of Neural Networks (Ganin et al., JMLR 2016), with a rule for unknown images.

    z: backbone → Linear, BatchNorm, ReLU, 256 numbers          D: domain discriminator; source 1, target 0
    classifier: z → C + 1; the last output is a dummy, which no image is labelled with

    every step:
        λ = 2 / (1 + e^(−10 progress)) − 1          progress: from 0 at the first step to 1 at the last
        L = CE(classifier(z_s), y) + ½ [mean BCE(D(z_s), 1) + mean BCE(D(z_t), 0)]
        gradients are multiplied by −λ between z and D: z learns that D cannot tell the domains apart
    a target image is argmax classifier over C, or unknown (`--rejection`):
        max-prob    if the largest of the C probabilities is below 0.9, in a softmax over C + 1
        entropy     if the entropy of the softmax over C, without the dummy, is above ½ log C

DANN was made for closed sets and aligns whole domains: unknown images too are drawn to the source. The open-set rule is
the one of TLlib, whose version this is. There, the dummy's probability is replaced by the threshold, and the largest of
all C + 1 numbers wins: the same rule. The unknown score is 1 − the largest probability, or the entropy over log C.

Source and target go through backbone and layers in one pass, as in TLlib: BatchNorm normalises both by statistics of
both. In the kept regime, BatchNorm of the backbone keeps its statistics, and features are in a frame, in which each
domain has its own mean. Layers learn by steps there too: discriminator and features learn against each other.

Differences from TLlib:
    Schedules. The exponent of λ is t / 1000, and the learning rate falls as (1 + 0.001 t)^−0.75, over 10,000 steps.
    Here both are stretched to the run's length.
    Entropy. It has the rule max-prob alone. The entropy is our choice, as papers that report DANN on open sets do not
    say which rule they used.
    Logarithms. It takes them of D's rounded probabilities, and none is below −100. Here they are exact.
    Batches. It drops the incomplete batch of an epoch; here the next epoch follows on. Its batches of 32 images and its
    weight decay of 1e-3 are options of every run.
    Result. It reports the epoch with the best H-score on the target, and says that later epochs are much worse; here
    the last step is the result.
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unida.losses.adversarial import domain_loss, reversal_ramp, reverse_gradient
from unida.losses.entropy import share_of_largest_entropy
from unida.losses.transferability import rejection_score, rejection_threshold
from unida.methods.base import Losses, Method, Phase, Problem, Scores, SourceBatch, TargetBatch
from unida.methods.dann_options import CARD, DANNOptions
from unida.models.backbone import Backbone
from unida.models.discriminator import Discriminator


class DANN(Method):
    card = CARD
    run_only = ("discriminator.",)

    def __init__(self, backbone: Backbone, problem: Problem, options: DANNOptions) -> None:
        super().__init__(backbone, problem, options)
        by_entropy, size = options.rejection == "entropy", options.bottleneck
        limit = rejection_threshold(options.probability_threshold)
        self.unknown_threshold = options.entropy_threshold if by_entropy else limit
        self.bottleneck = nn.Sequential(nn.Linear(self.frame.size, size), nn.BatchNorm1d(size), nn.ReLU())
        self.classifier = nn.Linear(size, problem.num_classes + 1)
        self.discriminator = Discriminator(size, normalise=True)

    def phases(self) -> tuple[Phase]:
        return (replace(self.plain_phase(), source="shuffled"),)

    def training_step(self, source: SourceBatch, target: TargetBatch, step: int) -> Losses:
        count = len(source.images)
        features = self.features(torch.cat([source.images, target.images]))
        framed = self.frame(features[:count], "source"), self.frame(features[count:], "target")
        z = self.bottleneck(torch.cat(framed))
        # TLlib's exponent is 10 at the end of its 10,000 steps. Here it is 10 at the end of any run.
        domains = self.discriminator(reverse_gradient(z, reversal_ramp(step / self.problem.steps)))
        return {
            "closed": F.cross_entropy(self.classifier(z[:count]).float(), source.labels),
            "adversarial": self.options.domain_weight * 0.5 * domain_loss(domains[:count], domains[count:]),
        }

    def score(self, features: Tensor) -> Scores:
        answers = self.classifier(self.bottleneck(self.frame(features, "target"))).float()
        logits = answers[:, : self.num_classes]
        if self.options.rejection == "entropy":
            return Scores(logits, share_of_largest_entropy(logits))
        largest = F.softmax(answers, dim=1)[:, : self.num_classes].amax(dim=1)
        return Scores(logits, rejection_score(largest, self.options.probability_threshold))
