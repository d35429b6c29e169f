"""RTN: Residual Transfer Networks (Long et al., Unsupervised Domain Adaptation with …, NIPS 2016).

    z: backbone → Linear, ReLU, 256 numbers
    f_T: target classifier, z → C          f_S(x) = f_T(x) + Δ(f_T(x)): source classifier
    Δ: Linear C → C, ReLU, Linear C → C: a small difference between the two, near 0 at the start
    z ⊗ f_T: every feature times every logit, 256 C numbers

    every step:
        L = CE(f_S(x_s), y)
          + 0.1 · ramp(t) · H(softmax f_T(x_t))
          + 0.3 · MMD²(z ⊗ f_T of the source, z ⊗ f_T of the target)          `unida.losses.mmd`
    a target image is argmax f_T, or unknown if its largest probability is below 0.8

RTN is for two domains with the same classes (CDA). PDA runs without a change. For OSDA it needs a rule for unknown
images, and has none of its own: here it is that of TLlib's DANN, or with `--rejection entropy` an entropy above
½ log C. The SPA paper's table does not say which rule its RTN had. The unknown score is 1 − the largest probability, or
the entropy over log C.

In the kept regime, the backbone's feature is in a frame (`unida.models.frame`). Layers behind it learn by steps: z is a
hidden layer, so they cannot be solved.

Differences from the released code (Caffe, AlexNet):
    Discrepancy. It estimates MMD² from as many random quadruples as images, and draws others for the gradient than for
    the value, which is a sum over them (the gradient is that of the mean). Here it is over all pairs; `--quadruples`
    estimates as the released code, from one draw for both, as a mean. Its weight is 1 there. With all pairs and a
    frame, 1 failed on drawn pictures: features shrank to almost 0, and all images got one answer (docs/methods/rtn.md).
    So the default is the paper's 0.3.
    Products. It pools the matrix of features and logits (the largest of 2 × 2), and by a reshape it takes two
    neighbouring images of the batch for one. Here nothing is pooled, and each image stands for itself.
    Entropy. It sets the gradient of probabilities below 0.001 to zero. Here the gradient is exact.
    Schedules. The entropy's ramp has 2,000 of 20,000 steps; here it has the first tenth of the run. The learning rate
    falls over the run's own length, to the same value.
    Rates. Biases of new layers learn twice as fast as their weights there, and there is no weight decay; here new
    layers learn at one rate, and --weight-decay holds as for all methods.
    Sizes. z has 128 numbers there, and batches have 64 images: `--bottleneck 128 --batch-size 64`.
    Start. It draws the weights of z and f_T with deviations of 0.005 and 0.01, with a bias of 0.1 for z. Here both are
    as torch draws them.
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unida.losses.adversarial import reversal_ramp
from unida.losses.entropy import entropy_of_logs, share_of_largest_entropy
from unida.losses.mmd import outer_products, quadruple_mmd, squared_mmd
from unida.losses.transferability import rejection_score, rejection_threshold
from unida.methods.base import DomainName, Losses, Method, Phase, Problem, Scores, SourceBatch, TargetBatch
from unida.methods.rtn_options import CARD, RTNOptions
from unida.models.backbone import Backbone
from unida.support.processes import gather_with_gradients
from unida.support.random import generator

RAMP_SHARE = 0.1  # of the run, in which the entropy's weight rises (RTN's code: 2,000 of 20,000 steps)
DECAY = 20.0  # of the learning rate over the run: (1 + 0.001 t)^−0.75 up to t = 20,000 (RTN's code)
RESIDUAL_DEVIATION = 0.01  # of the weights of Δ at the start (RTN's code)


class RTN(Method):
    card = CARD
    run_only = ("residual.",)

    def __init__(self, backbone: Backbone, problem: Problem, options: RTNOptions) -> None:
        super().__init__(backbone, problem, options)
        C = problem.num_classes
        by_entropy = options.rejection == "entropy"
        self.unknown_threshold = (
            options.entropy_threshold if by_entropy else rejection_threshold(options.least_probability)
        )
        self.bottleneck = nn.Sequential(nn.Linear(self.frame.size, options.bottleneck), nn.ReLU())
        self.classifier = nn.Linear(options.bottleneck, C)  # f_T
        layers = [nn.Linear(C, C), nn.Linear(C, C)]
        for layer in layers:
            nn.init.normal_(layer.weight, std=RESIDUAL_DEVIATION)
            nn.init.zeros_(layer.bias)
        self.residual = nn.Sequential(layers[0], nn.ReLU(), layers[1])  # Δ

    def phases(self) -> tuple[Phase]:
        phase = self.plain_phase()
        return (replace(phase, turns=[replace(turn, decay=DECAY) for turn in phase.turns], source="shuffled"),)

    def features(self, images: Tensor, domain: DomainName = "target") -> Tensor:
        """(B, 3, H, W) → (B, 256)."""
        z: Tensor = self.bottleneck(self.frame(self.backbone(images), domain))
        return z

    def source_features(self, images: Tensor) -> Tensor:
        """The same, of images of the source: each domain has its own mean in the frame."""
        return self.features(images, "source")

    def training_step(self, source: SourceBatch, target: TargetBatch, step: int) -> Losses:
        # Two passes: BatchNorm of the backbone must not mix the statistics of the two domains.
        z_s, z_t = self.source_features(source.images), self.features(target.images)
        logits_s, logits_t = self.classifier(z_s), self.classifier(z_t)
        of_source = logits_s + self.residual(logits_s)  # f_S
        ramp = reversal_ramp(min(1.0, step / (RAMP_SHARE * self.problem.steps)))
        entropy = entropy_of_logs(F.log_softmax(logits_t.float(), dim=1)).mean()
        return {
            "closed": F.cross_entropy(of_source.float(), source.labels),
            "entropy": self.options.entropy_weight * ramp * entropy,
            "mmd": self.options.mmd_weight * self._discrepancy((z_s, logits_s), (z_t, logits_t), step),
        }

    def _discrepancy(self, source: tuple[Tensor, Tensor], target: tuple[Tensor, Tensor], step: int) -> Tensor:
        """MMD² of the whole batch, on every process: z and f_T of each domain, (B, 256) and (B, C)."""
        of_source, of_target = (outer_products(*map(gather_with_gradients, it)) for it in (source, target))
        with torch.autocast(of_source.device.type, enabled=False):
            if not self.options.quadruples:
                return squared_mmd(of_source, of_target)
            places = some_quadruples(len(of_source), len(of_target), self.problem.seed, step)
            return quadruple_mmd(of_source, of_target, places.to(of_source.device))

    def score(self, features: Tensor) -> Scores:
        logits = self.classifier(features).float()
        if self.options.rejection == "entropy":
            return Scores(logits, share_of_largest_entropy(logits))
        largest = F.softmax(logits, dim=1).amax(dim=1)
        return Scores(logits, rejection_score(largest, self.options.least_probability))


def some_quadruples(num_source: int, num_target: int, seed: int, step: int) -> Tensor:
    """(n, 4) places of s₁ ≠ s₂ in the source and t₁ ≠ t₂ in the target, n of the source; the same on every process.

    A domain with one image has no two: then it is taken twice.
    """
    draw, columns = generator(seed, "quadruples", step), []
    for count in (num_source, num_target):
        first = torch.from_numpy(draw.integers(count, size=num_source))
        others = torch.from_numpy(draw.integers(max(1, count - 1), size=num_source))
        columns += [first, (first + 1 + others) % count]
    return torch.stack(columns, dim=1)
