"""STA: Separate to Adapt (Liu et al., Open Set Domain Adaptation via Progressive Separation, CVPR 2019).

    f: backbone          h: f → Linear, 256 numbers          z: h → BatchNorm, LeakyReLU
    G_c: classifier, z → C + 1; the last output is "unknown"
    G_k: C binary classifiers on f, "is it class k?"          G_b: f → known or unknown
    D: domain discriminator on h, behind reversed gradients; source 1, target 0

    step 1, separation; f stays as it is:
        stage 1, 500 steps:    L = Σ_k BCE(G_k(f_s), is y = k)
        stage 2, 400 steps:    the same, and in each target batch, ranked by max_k G_k (or Σ_k G_k):
                               L = CE(G_b, known) of the 2 highest + CE(G_b, unknown) of the 2 lowest
    step 2, adaptation; G_b stays as it is, w = G_b's probability of "known", without a gradient:
        stage 3, 1,500 steps:  L = CE(G_c(z_s), y) + 0.1 · mean w H(G_c(z_t))
                                 + 0.3 · [ mean BCE(D(h_s), 1) + mean w BCE(D(h_t), 0) ]
        stage 4, 400 steps:    the same + 0.3 · CE(G_c(z_t), unknown) of the 2 target images with the lowest w
    a target image is argmax G_c, over C + 1

The unknown score is p_unknown / (p_unknown + p_best class): above ½ exactly if "unknown" is the largest output. Before
step 2, G_c is as it was drawn: an evaluation then says nothing.

In the kept regime f is in a frame. Heads have hidden layers, so they cannot be solved and learn by steps.

Differences from the released code:
    Ranking. It has the sum (`--ranking sum`), the paper's table the maximum, which is the default here. What else
    STA_max may do in another way is not known.
    Two images alone. In stage 4 it passes the two chosen images through z by themselves: BatchNorm then has the
    statistics of two images, and adds them to its averages. Before its scale and bias, each of the 256 numbers is near
    +1 for one of the two and near −1 for the other, whatever they show. Here their outputs are those of the whole
    target batch. `--as-released` does as the released code (but for stage 3, where the two pass without a loss): in
    short runs much depends on it (docs/methods/sta.md).
    Step 1. It trains a G_c too, which reaches neither G_k nor G_b, and is then drawn anew: it is left out here. G_k is
    updated before it ranks the batch, not after. BatchNorm's averages of f go on into step 2, where it starts from
    pretrained ones.
    Small batches. At most half of a batch is taken as known, and half as unknown. With `--as-released`, one image
    cannot pass BatchNorm by itself: then its output is that of the whole batch's pass.
    Lengths. It ends a stage only where its data begin anew, so its lengths are least ones. Here they are shares of the
    run. The reversal's ramp (by calls, on a scale of 10,000) and the learning rates (10,000 steps, of which 900 and
    1,900 are taken) are stretched with them.
    Logarithms. Domain losses (1e-12 there) and the entropy (1e-20) have no small number in them; all others do.
    Images. It draws them with replacement and does not mirror them, its batches have 32 images, and step 2 reads the
    target from another list.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unida.losses.adversarial import domain_loss, ramp_by_calls, reverse_gradient
from unida.losses.cross_entropy import weighted_cross_entropy
from unida.losses.separation import binary_heads_loss, chosen_by_rank, known_ranks, weighted_entropy
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
    TargetBatch,
    Turn,
    spans,
)
from unida.methods.sta_options import CARD, STAOptions
from unida.models.backbone import Backbone
from unida.models.discriminator import Discriminator
from unida.models.heads import BinaryHeads, hidden_layer
from unida.support.processes import gather, gather_with_gradients, of_whole_batch

STAGES = (500, 400, 1500, 400)  # steps (STA's code)
STEPS_OF = (STAGES[0] + STAGES[1], STAGES[2] + STAGES[3])  # of separation and of adaptation
DECAYS = tuple(steps / 1000 for steps in STEPS_OF)  # (1 + 10 t / 10,000)^−0.75 up to the last step (STA's code)
RATES = (1.0, 0.5)  # 1e-3 and 5e-4 (STA's code)
LATE = 1 - STAGES[0] / 1000  # G_b's rate falls from stage 2 on (STA's code): 1 + (t − 500) / 1000 = LATE + t / 1000
EPSILON = 1e-12  # in the logarithm of every cross-entropy (STA's code)
LEAK = 0.2  # slope of LeakyReLU below 0 (STA's code)
KNOWN, UNKNOWN = 0, 1  # outputs of G_b


class STA(Method):
    card = CARD
    run_only = ("binary.", "separator.", "discriminator.")

    def __init__(self, backbone: Backbone, problem: Problem, options: STAOptions) -> None:
        super().__init__(backbone, problem, options)
        size, hidden = self.frame.size, options.bottleneck
        self.neck = nn.Sequential(*hidden_layer(size, hidden))
        self.classifier = nn.Linear(hidden, problem.num_classes + 1)  # G_c
        self.binary = BinaryHeads(size, problem.num_classes, hidden)  # G_k
        self.separator = nn.Sequential(nn.Linear(size, hidden), nn.LeakyReLU(LEAK), nn.Linear(hidden, 2))  # G_b
        self.discriminator = Discriminator(hidden, normalise=True, leak=LEAK)
        self.stages = spans([Phase((), share=share) for share in STAGES], problem.steps)

    def phases(self) -> tuple[Phase, Phase]:
        """Two stages share a phase, and with it optimisers and schedule."""
        heads = Turn(self.heads_step, [Group(list(self.binary.parameters()))], decay=DECAYS[0])
        separator = Turn(
            self.separation_step,
            [Group(list(self.separator.parameters()), scale=LATE**-0.75)],
            "separation",
            decay=DECAYS[0] / LATE,
            due=lambda step: step in self.stages[1],
        )
        is_new = {id(p) for part in (self.neck, self.classifier, self.discriminator) for p in part.parameters()}
        pretrained, new = (group._replace(scale=RATES[1]) for group in self.groups())
        new = new._replace(parameters=[p for p in new.parameters if id(p) in is_new])
        start = self.measure_frame if self.frame.is_on else None
        return (
            Phase(
                (heads, separator),
                "separation",
                STEPS_OF[0],
                start=start,
                source="shuffled",
                sweeps=DOMAINS if start else ("target",),
            ),
            Phase(
                (Turn(self.adaptation_step, (pretrained, new), decay=DECAYS[1]),),
                "adaptation",
                STEPS_OF[1],
                source="shuffled",
            ),
        )

    def _seen(self, images: Tensor, domain: DomainName) -> Tensor:
        """f, (B, 3, H, W) → (B, frame.size): in the frame, if it is on."""
        return self.frame(self.backbone(images), domain)

    # ---- step 1: separation ------------------------------------------------------------------------------------------

    def heads_step(self, source: SourceBatch, target: TargetBatch, step: int) -> Losses:
        """For G_k, in both stages."""
        seen = self._seen(source.images, "source").detach()
        return {"binary": binary_heads_loss(self.binary(seen), source.labels, EPSILON)}

    def separation_step(self, source: SourceBatch, target: TargetBatch, step: int) -> Losses:
        """For G_b, in stage 2."""
        seen = self._seen(target.images, "target").detach()
        with torch.no_grad():
            ranks = known_ranks(self.binary(seen), self.options.ranking)
        chosen = self._chosen(ranks)
        answers, losses = self.separator(seen), []
        for label in (KNOWN, UNKNOWN):
            labels = torch.full((len(seen),), label, device=seen.device)
            losses.append(weighted_cross_entropy(answers, labels, epsilon=EPSILON, image_weights=chosen[:, label]))
        return {"separation": losses[KNOWN] + losses[UNKNOWN]}

    def _chosen(self, ranks: Tensor) -> Tensor:
        """(B, 2) weights of the images that are taken as known and as unknown, out of the batch of all processes."""
        return of_whole_batch(lambda whole: chosen_by_rank(whole, self.options.ranked_images), ranks)

    # ---- step 2: adaptation ------------------------------------------------------------------------------------------

    def adaptation_step(self, source: SourceBatch, target: TargetBatch, step: int) -> Losses:
        """Of stages 3 and 4. Two passes: BatchNorm must not mix the statistics of the two domains."""
        options, to_h, to_z = self.options, self.neck[0], self.neck[1:]
        seen_s, seen_t = self._seen(source.images, "source"), self._seen(target.images, "target")
        h_s, h_t = to_h(seen_s), to_h(seen_t)
        z_s, z_t = to_z(h_s), to_z(h_t)
        answers, w = self.classifier(z_t), self.known_weights(seen_t)
        begin, end = self.stages[2].start, self.stages[3].stop
        ramp_s, ramp_t = ramp_by_calls(step - begin, end - begin, STEPS_OF[1])
        fooled_s, fooled_t = (
            self.discriminator(reverse_gradient(h_s, ramp_s)),
            self.discriminator(reverse_gradient(h_t, ramp_t)),
        )
        losses = {
            "closed": weighted_cross_entropy(self.classifier(z_s), source.labels, epsilon=EPSILON),
            "adversarial": options.adversarial_weight * domain_loss(fooled_s, fooled_t, target_weights=w),
            "entropy": options.entropy_weight * weighted_entropy(answers, w),
        }
        if step in self.stages[3]:
            losses["unknown"] = options.unknown_weight * self._unknown_loss(seen_t, answers, w)
        return losses

    def _unknown_loss(self, seen: Tensor, answers: Tensor, w: Tensor) -> Tensor:
        """Of the images with the lowest w in the batch of all processes."""
        weights = self._chosen(w)[:, UNKNOWN]
        chosen = gather(weights).nonzero().flatten()
        if self.options.as_released and len(chosen) > 1:  # by themselves, on every process
            answers = self.classifier(self.neck(gather_with_gradients(seen)[chosen]))
            weights = torch.ones(len(chosen), device=chosen.device)
        labels = torch.full((len(answers),), self.num_classes, device=answers.device)
        return weighted_cross_entropy(answers, labels, epsilon=EPSILON, image_weights=weights)

    @torch.no_grad()
    def known_weights(self, seen: Tensor) -> Tensor:
        """(B,) w, in 0…1."""
        w = F.softmax(self.separator(seen).float(), dim=1)[:, KNOWN]
        self.watched["known_weight"] = w.mean
        return w

    # ---- answers -----------------------------------------------------------------------------------------------------

    def features(self, images: Tensor) -> Tensor:
        """z, (B, 3, H, W) → (B, 256)."""
        z: Tensor = self.neck(self._seen(images, "target"))
        return z

    def source_features(self, images: Tensor) -> Tensor:
        """The same, of images of the source: each domain has its own mean in the frame."""
        z: Tensor = self.neck(self._seen(images, "source"))
        return z

    def score(self, features: Tensor) -> Scores:
        answers = self.classifier(features).float()
        return Scores(answers[:, : self.num_classes], unknown_class_score(answers))
