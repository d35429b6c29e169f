"""GDA: Generalized Domain Adaptation (Mitsuzumi et al., CVPR 2021), with known domains.

    z: backbone → Linear, 256 numbers          E: classifier, z → C + 1; the last output is "unknown"
    D: domain discriminator behind reversed gradients          prior: 0.33 for "unknown", the rest even

    every step, t = step / steps:
        t < 0.1:
            L = CE(E(z_s), y) + [CE(D(z_s), source) + CE(D(z_t), target)]
            vote: "unknown" for the half of the target's batch with the highest entropy of the C classes, else argmax E
        t ≥ 0.1:
            ŷ = most frequent of the image's last 20 votes: of those at t = 0.1 until t = 0.2, then of the newest ones
            L = CE(E(z), [y, ŷ]) + CE(D(z), domain) + prior loss, each a mean over both domains' images
            prior loss = −Σ_c prior_c · log(mean of p_c)
            vote: argmax E
    a target image is argmax E, over C + 1

The unknown score is the softmax between "unknown" and the best class: above ½ exactly if "unknown" is the largest
output. There is a vote for each image of a step's target batch.

Left out: the first stage of the paper, which finds out the domain of each image. (It clusters features of small, grey,
shuffled images, learnt by contrast.) Here the two folders are the two domains.

The published run has 1,000 epochs, in which an image votes 1,000 times. The parts above and the ramp of reversed
gradients are shares of the run here. In a short run an image has fewer votes in the first part than 20. Then as many
votes decide as an image has had there on average, rounded up: the first part's votes are forgotten as soon as they
would be in a long run.

In the kept regime, the backbone's feature is in a frame (`unida.models.frame`). There is a layer before the classifier,
so nothing is solved: it learns by steps in both regimes.

Differences from the released code:
    Votes. It votes with a pass of its own, in evaluation mode, after the update. Here the step's own pass votes: one
    update earlier, with BatchNorm's statistics of the target's batch (in the published regime).
    Empty votes. It starts with 20 votes for class 0. Here an image without votes has no label, and is left out of the
    loss. Of classes with equally many votes it takes the first; here the one that was voted for last.
    Refreshing. It finds pseudo-labels when an epoch starts, here when a step needs them: the same, if an image comes
    once in an epoch.
    Passes. From t = 0.1 it sends both domains through the network in one pass. Here each has its own, so that
    BatchNorm does not mix them.
    Discriminator. It has two outputs and a softmax; one output and a sigmoid say the same.
    Prior. Its numbers sum to 0.99, here to 1.
    Learning rate. It is the same for all layers there; here the backbone's is --backbone-lr. SGD has Nesterov's
    momentum here. As there, the rate does not fall.
    Images. It normalises with mean and deviation ½; here as the backbone was pretrained. It draws images with
    replacement, so that the domains that it has found come equally often; here each image of a domain does.
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unida.losses.adversarial import domain_loss, reversal_ramp, reverse_gradient
from unida.losses.pseudo_labels import (
    NO_LABEL,
    early_votes,
    labelled_cross_entropy,
    most_frequent,
    prior_loss,
    with_votes,
)
from unida.losses.source_free import negative_score
from unida.methods.base import DomainName, Losses, Method, Phase, Problem, Scores, SourceBatch, TargetBatch, Turn
from unida.methods.gda_options import CARD, GDAOptions
from unida.models.backbone import Backbone
from unida.models.discriminator import Discriminator
from unida.support.processes import gather, gather_with_gradients


class GDA(Method):
    card = CARD
    run_only = ("discriminator.", "votes", "first_labels", "counted")

    votes: Tensor  # (N_t, 20) int64, the newest first
    first_labels: Tensor  # (N_t,) int64: the votes' result when pseudo-labels begin
    counted: Tensor  # () int64: how many of the votes decide

    def __init__(self, backbone: Backbone, problem: Problem, options: GDAOptions) -> None:
        super().__init__(backbone, problem, options)
        C = problem.num_classes
        self.bottleneck = nn.Linear(self.frame.size, options.bottleneck)
        self.classifier = nn.Linear(options.bottleneck, C + 1)
        nn.init.xavier_uniform_(self.classifier.weight, gain=0.1)  # (GDA's code)
        nn.init.zeros_(self.classifier.bias)  # (GDA's code)
        self.discriminator = Discriminator(options.bottleneck)
        self.register_buffer("votes", torch.full((problem.num_target, options.history), NO_LABEL))
        self.register_buffer("first_labels", torch.full((problem.num_target,), NO_LABEL))
        self.register_buffer("counted", torch.tensor(options.history))
        self.labels_begin = round(options.first_share * problem.steps)
        self.labels_change = round((options.first_share + options.hold_share) * problem.steps)

    def phases(self) -> tuple[Phase]:
        """One phase: the optimiser goes on when pseudo-labels begin."""
        turn = Turn(self.training_step, self.groups(), decay=0.0)
        return (replace(self.plain_phase(), turns=(turn,), source="shuffled"),)

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
        ramp = reversal_ramp(step / self.problem.steps)
        fooled_s, fooled_t = (self.discriminator(reverse_gradient(z, ramp)) for z in (z_s, z_t))
        of_domains = self.options.domain_weight * domain_loss(fooled_s, fooled_t)
        if step < self.labels_begin:
            losses = {"closed": F.cross_entropy(logits_s, source.labels), "domain": of_domains}
            self.vote(target.indices, early_votes(gather(logits_t), self.options.early_unknown))
            return losses
        labels = self.pseudo_labels(target.indices, step)
        self.vote(target.indices, gather(logits_t).argmax(dim=1))
        logits = torch.cat([logits_s, logits_t])
        return {
            "closed": labelled_cross_entropy(logits, torch.cat([source.labels, labels])),
            "domain": of_domains / 2,  # a mean over both domains, no longer a sum of two means (GDA's code)
            "prior": self.options.prior_weight * prior_loss(gather_with_gradients(logits), self.prior(logits)),
        }

    def vote(self, indices: Tensor, votes: Tensor) -> None:
        """Write down the votes of the whole batch; `indices` are this process's."""
        self.votes.copy_(with_votes(self.votes, gather(indices), votes))

    def pseudo_labels(self, indices: Tensor, step: int) -> Tensor:
        """(B,) int64 in 0…C, or NO_LABEL for images that have not voted."""
        if step == self.labels_begin:
            each = (self.votes != NO_LABEL).sum(dim=1).float().mean()
            self.counted.copy_(each.ceil().clamp(min=1))
            self.first_labels.copy_(most_frequent(self.votes[:, : int(self.counted)]))
        if step < self.labels_change:
            labels = self.first_labels[indices]
        else:
            labels = most_frequent(self.votes[indices, : int(self.counted)])
        self.watched["labelled_unknown"] = lambda: (labels == self.num_classes).float().mean()  # share of the batch
        return labels

    def prior(self, like: Tensor) -> Tensor:
        """(C + 1,) shares that answers should have."""
        prior = torch.full((self.num_classes + 1,), (1 - self.options.unknown_prior) / self.num_classes)
        prior[-1] = self.options.unknown_prior
        return prior.to(like)

    def score(self, features: Tensor) -> Scores:
        answers = self.classifier(features).float()
        known, unknown = answers.split([self.num_classes, 1], dim=1)
        return Scores(known, negative_score(known, unknown))
