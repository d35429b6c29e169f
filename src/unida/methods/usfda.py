"""USFDA: Universal Source-Free Domain Adaptation (Kundu et al., CVPR 2020).

    M: backbone, frozen            F_s, F_t: extractors of source and target, M → 256        G: decoder, 256 → M
    C_s: 256 → C classes           C_n: 256 → N negative classes                             p: one softmax over both

    procurement, with the source alone. Step t takes the update t mod 4; each has an Adam of its own:
        0:  CE(source image, its class) + 0.2 · CE(spliced image, pair of the classes in it)     → F_s, C_s, C_n
        1:  L_p: features near the Gaussian of their class, far from others                      → F_s
        2:  ‖M(x) − G(F_s(M(x)))‖²                                                               → F_s, G
        3:  ‖u − F_s(G(u))‖², for features u drawn from the Gaussians                            → F_s, G
        ten times, first of all: mean and covariance of F_s(M(x)) of each class
        1 and 3 begin after a tenth of the steps
    deployment, with the target alone:
        F_t ← F_s
        w, w′: how much [C_s, C_n](F_s(M(x))) says "known", and how little
        every step:  w · −log ŷ + w′ · −log(1 − ŷ) + 0.1 [w H(C_s) + w′ H(C_n)]                  → F_t
            where ŷ = Σ p of the C classes and H are of F_t
    a target image is argmax p of F_t: a class, or unknown if it is a negative class

The unknown score is the softmax between the best negative class and the best known one: above ½ exactly if the largest
of all logits is a negative one.

Source-free: deployment asks for no image of the source. Of the source it has the weights; its labels are forgotten when
it starts, and the Gaussians are not used any more. Procurement asks for no image of the target. (With --spa, words are
found in both domains before the first step.)

M is frozen whatever --train says, as in the paper: its weights and BatchNorm statistics stay. --train head is the
paper's method from kept features, and the fastest. With tail and all, images pass M (or its end) in every step.

Differences from the released code (of which settings and network are known, and the rest from a fork of it only):
    Names. `extractor` is F_s in procurement and F_t in deployment; F_s is then kept aside in `source_extractor`.
    Passes. It computes all features in every step, whichever loss is due, so BatchNorm of F_s also sees drawn features
    in every step. Here a step computes what its loss needs.
    Spliced images. It makes 20,000 beforehand, four of each pair of images of different classes. Here pairs are drawn
    of all images, and those of one class are left out of the loss; `--spliced-images` are kept, or new ones are made
    in each step (--train all).
    Gaussians. It finds them while BatchNorm takes the statistics of each batch, here in evaluation mode. It divides by
    zero for a class of one image, and its L_p is −∞ for a feature at the mean of its class; here both are finite.
    Weights. The authors' are not known. The fork has five; the second is the paper's pair, exp(p) and exp(1 − p) for
    the best known class, each brought to 0…1 over the batch, and is the default here. Its third is `mass`.
    Logarithms are taken of logits, and need no guard. Without one, its log(1 − ŷ) can be −∞.
    Schedule. It begins losses 1 and 3 at step 50 of 500 and computes Gaussians every 50. Here these are a tenth of the
    procurement, however long. Its first step is number 1, here 0. It takes the best step by target labels; here the
    last step counts.
    Images. It turns images by 90° at random and averages the softmax over copies of a test image. Here they are cropped
    and mirrored as for every method, and the central crop is answered. A batch has --batch-size source images and as
    many spliced ones (32 and 32), and as many target images (64).
"""

import copy
import logging

import torch
import torch.nn.functional as F
from torch import Tensor

from unida.errors import UserError
from unida.losses.class_gaussians import (
    ClassGaussians,
    class_gaussians,
    compactness_loss,
    reconstruction_loss,
    samples,
)
from unida.losses.source_free import (
    exponential_weights,
    known_confidence,
    mass_weights,
    pair_classes,
)
from unida.methods.base import (
    Group,
    Losses,
    Phase,
    Problem,
    Round,
    SourceBatch,
    Sweep,
    TargetBatch,
    Turn,
    TurnLosses,
    Want,
    spans,
)
from unida.methods.source_free import SourceFree
from unida.methods.usfda_options import CARD, USFDAOptions
from unida.models.backbone import Backbone
from unida.models.frame import SAMPLED_IMAGES
from unida.models.source_free import Decoder, Extractor, SplitHead, SplitLogits, keep_pretrained
from unida.recipes.splice import Splice
from unida.support.processes import gather
from unida.support.random import generator

log = logging.getLogger("unida")

SPLICED = "spliced"  # name of the recipe, and of the images that it makes
UPDATES, ON_GAUSSIANS = 4, (1, 3)  # of the procurement, which take turns; those that need Gaussians
ROUNDS = 10  # of Gaussians in the procurement; losses on them begin with the second
DRAWN = 32  # features from the Gaussians in a step (USFDA's code)
FORGOTTEN = -1  # instead of a label
LARGEST = 2**27  # numbers in the negative classifier, or in the Gaussians: 512 MiB


class USFDA(SourceFree):
    card = CARD
    run_only = ("source_extractor", "decoder", "means", "factors", "source_labels")

    means: Tensor  # (C, d) of the classes' Gaussians
    factors: Tensor  # (C, d, d) of their covariances
    source_labels: Tensor  # (N_s,) int64; FORGOTTEN in deployment

    def __init__(self, backbone: Backbone, problem: Problem, options: USFDAOptions) -> None:
        super().__init__(backbone, problem, options)
        C, size = problem.num_classes, options.bottleneck
        self.num_negative = number_of_negative_classes(C, options.negative_classes)
        refuse_sizes(C, self.num_negative, size)
        self.froze_backbone = keep_pretrained(backbone)
        self.recipes = {SPLICED: Splice(pool=options.spliced_images)}
        self.extractor = Extractor(self.frame.size, size)
        self.head = SplitHead(size, C, self.num_negative)
        self.decoder = Decoder(size, self.frame.size)
        self.source_extractor = copy.deepcopy(self.extractor).requires_grad_(False)
        self.register_buffer("means", torch.zeros(C, size))
        self.register_buffer("factors", torch.eye(size).repeat(C, 1, 1))
        self.register_buffer("source_labels", torch.zeros(problem.num_source, dtype=torch.int64))
        share = options.procurement_share
        self.shares = (share, 1 - share)
        self.procurement = spans([Phase((), share=each) for each in self.shares], problem.steps)[0]
        self.every = max(1, round(len(self.procurement) / ROUNDS))

    def train(self, mode: bool = True) -> "USFDA":
        super().train(mode)
        self.source_extractor.eval()  # frozen parts are in evaluation mode (USFDA's code)
        return self

    def phases(self) -> tuple[Phase, Phase]:
        if self.froze_backbone:
            log.info("usfda does not train the backbone, as in its paper: --train head does the same in less time")
        return self._procure(), self._deploy()

    def _procure(self) -> Phase:
        of_words = [group for group in self.groups()[:1] if group.parameters]  # with SPA; else nothing learns there
        F_s, G, C = (list(part.parameters()) for part in (self.extractor, self.decoder, self.head))
        turns = (
            self._turn(0, self.classification, *of_words, Group([*F_s, *C])),
            self._turn(1, self.compactness, Group(F_s)),
            self._turn(2, self.reconstruction, Group([*F_s, *G])),
            self._turn(3, self.latent_reconstruction, Group([*F_s, *G])),
        )
        return Phase(
            turns,
            "procurement",
            self.shares[0],
            start=self.meet_source,
            round=Round(self.find_gaussians, self.every),
            source="shuffled",
            target=False,
            sweeps=("source",),
        )

    def _turn(self, place: int, losses: TurnLosses, *groups: Group) -> Turn:
        """The update of steps t with t mod 4 = place."""
        begins = self.every if place in ON_GAUSSIANS else 0

        def is_due(step: int) -> bool:
            return step % UPDATES == place and step >= begins

        return Turn(losses, groups, losses.__name__, optimiser="adam", decay=0.0, due=is_due)

    def _deploy(self) -> Phase:
        rate = self.options.deployment_rate
        groups = [Group(list(self.extractor.parameters()), scale=rate)]
        adapt = Turn(self.adaptation, groups, "adaptation", optimiser="adam", decay=0.0)
        return Phase((adapt,), "deployment", self.shares[1], start=self.leave_source, source=None)

    def meet_source(self, sweep: Sweep) -> None:
        self.source_labels.copy_(sweep.source_labels)
        if self.frame.is_on:
            self.frame.measure_source(sweep("source", self.backbone, SAMPLED_IMAGES))

    def find_gaussians(self, step: int, sweep: Sweep) -> None:
        features = sweep("source")
        with torch.autocast(features.device.type, enabled=False):
            found = class_gaussians(features, sweep.source_labels, self.num_classes)
        self.means.copy_(found.means)
        self.factors.copy_(found.factors)

    def leave_source(self, sweep: Sweep) -> None:
        """F_t ← F_s, and nothing else of the source stays but weights and Gaussians."""
        self.source_extractor.load_state_dict(self.extractor.state_dict())
        self.source_labels.fill_(FORGOTTEN)
        if self.frame.is_on:
            self.frame.measure_target(sweep("target", self.backbone, SAMPLED_IMAGES))

    def wants(self, step: int) -> list[Want]:
        is_classification = step in self.procurement and step % UPDATES == 0
        return [Want(SPLICED, "source", recipe=SPLICED)] if is_classification else []

    def classification(self, source: SourceBatch, target: TargetBatch, step: int) -> Losses:
        made = source.extra[SPLICED]
        seen = [self.framed(images, "source") for images in (source.images, made.images)]
        logits = self.head(self.extractor(torch.cat(seen))).joined  # one pass, as in USFDA's code
        known, spliced = logits.split([len(source.images), len(made.images)])
        return {
            "classification": F.cross_entropy(known, source.labels),
            "negative": self.options.negative_weight * self._negative_loss(spliced, self.source_labels[made.of]),
        }

    def _negative_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Mean cross-entropy of spliced images of two classes; those of one class show nothing new.

        Args:
            logits: (B, C + N).
            labels: (B, 2) classes of the two images.
        """
        pairs = pair_classes(labels, self.num_classes)
        is_pair = (pairs >= 0).float()
        losses = F.cross_entropy(logits, self.num_classes + pairs.clamp(min=0) % self.num_negative, reduction="none")
        share = gather(is_pair).mean()  # of all processes, so that their mean is that of the whole batch
        return (losses * is_pair).mean() / share.clamp_min(torch.finfo(torch.float32).tiny)

    def compactness(self, source: SourceBatch, target: TargetBatch, step: int) -> Losses:
        features = self.source_features(source.images).float()
        with torch.autocast(features.device.type, enabled=False):
            return {"compactness": compactness_loss(features, source.labels, self.gaussians)}

    def reconstruction(self, source: SourceBatch, target: TargetBatch, step: int) -> Losses:
        seen = self.framed(source.images, "source").detach()
        return {"reconstruction": reconstruction_loss(self.decoder(self.extractor(seen)), seen)}

    def latent_reconstruction(self, source: SourceBatch, target: TargetBatch, step: int) -> Losses:
        drawn = self.drawn(step)
        return {"latent": reconstruction_loss(self.extractor(self.decoder(drawn)), drawn)}

    def drawn(self, step: int) -> Tensor:
        """(32, d) features of random classes: the same on every process."""
        draw = generator(self.problem.seed, "features from Gaussians", step)
        classes = torch.from_numpy(draw.integers(self.num_classes, size=DRAWN)).to(self.means.device)
        noise = torch.from_numpy(draw.standard_normal((DRAWN, self.means.shape[1]))).to(self.means)
        with torch.autocast(self.means.device.type, enabled=False):
            return samples(self.gaussians, classes, noise)

    @property
    def gaussians(self) -> ClassGaussians:
        return ClassGaussians(self.means, self.factors)

    def image_weights(self, logits: SplitLogits) -> tuple[Tensor, Tensor]:
        if self.options.instance_weights == "mass":
            return mass_weights(*logits)
        confidence = known_confidence(*logits)
        return exponential_weights(confidence, gather(confidence))


def number_of_negative_classes(num_classes: int, limit: int) -> int:
    """One for each unordered pair of classes, or `limit` if that is fewer; 0 is no limit. At least 1."""
    pairs = num_classes * (num_classes - 1) // 2
    return max(1, min(pairs, limit) if limit else pairs)


def refuse_sizes(num_classes: int, num_negative: int, size: int) -> None:
    """Pairs grow with the square of the number of classes, Gaussians with the square of the feature's size."""
    if num_negative * size > LARGEST:
        raise UserError(
            f"usfda has a negative class for each pair of {num_classes:,} classes: {num_negative:,} of them need "
            f"{num_negative * size * 4 / 2**30:.1f} GiB. Set --negative-classes, for example to 150"
        )
    if num_classes * size**2 > LARGEST:
        raise UserError(
            f"--bottleneck {size} with {num_classes:,} classes needs {num_classes * size**2 * 4 / 2**30:.1f} GiB for "
            "Gaussians: lower it"
        )
