"""OSBP: Open Set Domain Adaptation by Backpropagation (Saito et al., ECCV 2018).

    z: backbone → [Linear, BatchNorm, ReLU, dropout] twice, 256 numbers
    classifier: z → C + 1; the last output is "unknown", and p is its probability          t = ½, the boundary

    every step:
        L = CE(classifier(z_s), y)
          + mean −t log p(z_t) − (1 − t) log(1 − p(z_t))          gradients are reversed between z_t and the classifier
    a target image is argmax classifier, over C + 1

The classifier wants p = t for every target image. The features want the opposite: they move each image away from this
boundary, to the known classes (p = 0) or to "unknown" (p = 1). No image is ever labelled as unknown.

The unknown score is p / (p + p of the best class): above ½ exactly if "unknown" is the largest output.

This is the version that TLlib maintains. OSBP's own code is for VisDA alone: two layers of 1000 numbers, and a backbone
that does not learn, which is `--bottleneck 1000 --train head --regime published`.

In the kept regime, features are in a frame (`unida.models.frame`). Two parts learn against each other, so there is
nothing to be solved: they learn by steps.

Differences from TLlib:
    Schedule. The learning rate falls as (1 + 0.0003 t)^−0.75 over 10,000 steps. Here the same curve is stretched to the
    run's length. The reversal has the coefficient 1 from the first step on, so it has no schedule.
    Logarithms. It takes the log of 1 − p + 1e-6, where 1 − p is rounded. Here log(1 − p) is exact before 1e-6 is added.
    Batches. It drops the incomplete batch of an epoch; here the next epoch follows on. It has 32 images in a batch:
    `--batch-size 32`.
    Result. It reports the epoch with the best H-score on the target; here the last step is the result.
"""

from dataclasses import replace

import torch.nn.functional as F
from torch import Tensor, nn

from unida.losses.adversarial import reverse_gradient
from unida.losses.unknown_class import boundary_loss, unknown_class_score
from unida.methods.base import DomainName, Losses, Method, Phase, Problem, Scores, SourceBatch, TargetBatch, Turn
from unida.methods.osbp_options import CARD, OSBPOptions
from unida.models.backbone import Backbone

DECAY = 3.0  # 0.0003 · 10,000 steps (TLlib)


class OSBP(Method):
    card = CARD

    def __init__(self, backbone: Backbone, problem: Problem, options: OSBPOptions) -> None:
        super().__init__(backbone, problem, options)
        size = options.bottleneck
        self.bottleneck = nn.Sequential(*_hidden(self.frame.size, size), *_hidden(size, size))
        self.classifier = nn.Linear(size, problem.num_classes + 1)

    def phases(self) -> tuple[Phase]:
        turn = Turn(self.training_step, self.groups(), decay=DECAY)
        return (replace(self.plain_phase(), turns=(turn,), source="shuffled"),)

    def training_step(self, source: SourceBatch, target: TargetBatch, step: int) -> Losses:
        # Two passes: BatchNorm must not mix the statistics of the two domains.
        z_s = self._z(self.features(source.images), "source")
        z_t = self._z(self.features(target.images), "target")
        return {
            "closed": F.cross_entropy(self.classifier(z_s).float(), source.labels),
            "boundary": boundary_loss(self.classifier(reverse_gradient(z_t)), self.options.boundary),
        }

    def _z(self, features: Tensor, domain: DomainName) -> Tensor:
        z: Tensor = self.bottleneck(self.frame(features, domain))
        return z

    def score(self, features: Tensor) -> Scores:
        answers = self.classifier(self._z(features, "target")).float()
        return Scores(answers[:, : self.num_classes], unknown_class_score(answers))


def _hidden(inputs: int, units: int) -> tuple[nn.Module, ...]:
    return nn.Linear(inputs, units), nn.BatchNorm1d(units), nn.ReLU(), nn.Dropout()
