"""InheriTune: Towards Inheritable Models for Open-Set Domain Adaptation (Kundu et al., CVPR 2020).

    M: backbone, frozen               E_s, E_t: extractors of source and target, M → 256
    G_s: 256 → C classes              G_n: 256 → 45 negative classes              p: one softmax over both

    vendor, with the source alone:
        spliced feature: M(x), whose largest 15 % and smallest 10 % of numbers are those of M(x′), of another class
        first of all: 20,000 spliced features in 45 clusters, by k-means; a cluster is a negative class
        every step:   CE(source image, its class) + 0.2 · CE(spliced feature, its cluster)     → E_s, G_s, G_n
    client, with the target alone:
        E_t ← E_s
        c: the largest known probability of [G_s, G_n](E_s(M(x)))
        pseudo-labels: the 15 % of the images with the largest c get argmax p; all negative classes are one, the first
        W = c / max c in the batch,   W′ = 1 − W
        steps in turns, each with an Adam of its own, both → E_t:
            CE(64 images with pseudo-labels)           (not in the first 50 of 15,000 steps)
            W · −log ŷ + W′ · −log(1 − ŷ) + 0.1 [W H(G_s) + W′ H(G_n)]
            where ŷ = Σ p of the C classes and H are of E_t
    a target image is argmax p of E_t: a class, or unknown if it is a negative class

The unknown score is the softmax between the best negative class and the best known one: above ½ exactly if the largest
of all logits is a negative one.

Source-free: the client asks for no image and no label of the source. Of the source it has the weights. The vendor asks
for no image of the target. (With --spa, words are found in both domains before the first step.)

M is frozen whatever --train says, as in the paper: its weights and BatchNorm statistics stay. --train head is the
paper's method from kept features, and the fastest. With tail and all, images pass M (or its end) in every step.

Differences from the released code:
    Names. `extractor` is E_s for the vendor and E_t for the client; E_s is then kept aside in `source_extractor`.
    Spliced features. It makes 20,000 beforehand, of pairs within batches, and learns from these. Here a step splices
    the features of its own batch, and the class is the nearest of the clusters' centres: nothing has to be stored.
    Clusters are found as the extractor sees features (in the frame, in the kept regime).
    Schedule. It trains 60 or 90 steps, then 15,000 at a tenth of the rate (25,000 at a fifth, from webcam to dslr);
    pseudo-labels begin after 50 of these (300 if the target is amazon). Here the client has what the vendor leaves of
    --steps, and pseudo-labels begin after 50/15,000 of that. The client's rate grows as its steps shrink, up to the
    vendor's: at 1e-5, a few hundred steps of Adam would move nothing. It takes the best step by target labels; here the
    last step counts.
    Passes. It sends both batches of the client through E_t in every step, whichever loss is due. Here a step sends the
    one that it learns from, so BatchNorm of E_t sees either batch in turns.
    Pseudo-labels are found in evaluation mode; there BatchNorm of M and E_t takes the statistics of each batch. It
    keeps one feature of each such image; here they are training views like all others.
    Logarithms are taken of logits, and need no guard. Without one, its log(1 − ŷ) can be −∞.
    Images. It turns images by 90° at random. Here they are cropped and mirrored as for every method. A batch has
    --batch-size source images, as many spliced features, and as many target images (64).
"""

import copy
import logging

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from unida.clustering.kmeans import kmeans, nearest
from unida.losses.source_free import (
    known_confidence,
    relative_weights,
)
from unida.methods.base import (
    Group,
    Losses,
    Phase,
    Problem,
    SourceBatch,
    Sweep,
    TargetBatch,
    Turn,
    Want,
)
from unida.methods.inheritune_options import CARD, InheriTuneOptions
from unida.methods.source_free import SourceFree
from unida.models.backbone import Backbone
from unida.models.frame import SAMPLED_IMAGES
from unida.models.source_free import Extractor, SplitHead, SplitLogits, keep_pretrained
from unida.support.processes import gather
from unida.support.random import generator

log = logging.getLogger("unida")

PSEUDO = "pseudo"  # name of the images with pseudo-labels
PSEUDO_BATCH = 64  # of them in a step, drawn with replacement (InheriTune's code)
CLIENT_STEPS, WITHOUT_PSEUDO = 15_000, 50  # as published, of which the first are without pseudo-labels
MOST_FASTER = 10.0  # times the client's rate, in a short run


class InheriTune(SourceFree):
    card = CARD
    run_only = ("source_extractor", "centres", "is_cluster", "pseudo_images", "pseudo_labels")

    centres: Tensor  # (N, d) of the clusters of spliced features
    is_cluster: Tensor  # (N,) bool: few images have fewer clusters
    pseudo_images: Tensor  # (n,) int64: which images of the target have pseudo-labels
    pseudo_labels: Tensor  # (n,) int64 in 0…C; C is unknown

    def __init__(self, backbone: Backbone, problem: Problem, options: InheriTuneOptions) -> None:
        super().__init__(backbone, problem, options)
        negative = options.negative_classes
        self.froze_backbone = keep_pretrained(backbone)
        self.extractor = Extractor(self.frame.size, options.bottleneck)
        self.head = SplitHead(options.bottleneck, problem.num_classes, negative)
        self.source_extractor = copy.deepcopy(self.extractor).requires_grad_(False)
        self.register_buffer("centres", torch.zeros(negative, self.frame.size))
        self.register_buffer("is_cluster", torch.zeros(negative, dtype=torch.bool))
        labelled = min(problem.num_target, max(1, int(options.pseudo_share * problem.num_target)))
        self.register_buffer("pseudo_images", torch.zeros(labelled, dtype=torch.int64))
        self.register_buffer("pseudo_labels", torch.zeros(labelled, dtype=torch.int64))
        self.of_vendor = max(1, min(options.vendor_steps, problem.steps // 2))  # steps
        self.of_client = problem.steps - self.of_vendor

    def train(self, mode: bool = True) -> "InheriTune":
        super().train(mode)
        self.source_extractor.eval()  # frozen
        return self

    def phases(self) -> tuple[Phase, Phase]:
        if self.froze_backbone:
            log.info("inheritune does not train the backbone, as in its paper: --train head does the same in less time")
        of_words = [group for group in self.groups()[:1] if group.parameters]  # with SPA; else nothing learns there
        learning = Group([*self.extractor.parameters(), *self.head.parameters()])
        sell = Turn(self.classification, [*of_words, learning], optimiser="adam", decay=0.0)
        vendor = Phase(
            turns=(sell,),
            name="vendor",
            share=self.of_vendor,
            start=self.meet_source,
            source="shuffled",
            target=False,
            sweeps=("source",),
        )
        turns = (self._client_turn("pseudo"), self._client_turn("adaptation"))
        return vendor, Phase(turns, "client", self.of_client, start=self.leave_source, source=None)

    def _client_turn(self, name: str) -> Turn:
        groups = [Group(list(self.extractor.parameters()), scale=self.client_scale())]
        losses, due = (
            (self.pseudo, self.is_pseudo_step) if name == "pseudo" else (self.adaptation, self.is_adaptation_step)
        )
        return Turn(losses, groups, name, optimiser="adam", decay=0.0, due=due)

    def client_scale(self) -> float:
        """Of --lr: Adam moves a weight by about the rate in each step, so fewer steps have a higher one."""
        faster = CLIENT_STEPS / max(1, self.of_client)
        return float(self.options.client_rate * min(MOST_FASTER, max(1.0, faster)))

    def is_pseudo_step(self, step: int) -> bool:
        """The client's first step is one of these, and every second one; those at its beginning are skipped."""
        number = step - self.of_vendor
        return number >= round(WITHOUT_PSEUDO / CLIENT_STEPS * self.of_client) and number % 2 == 0

    def is_adaptation_step(self, step: int) -> bool:
        return (step - self.of_vendor) % 2 == 1

    # ---- vendor ------------------------------------------------------------------------------------------------------

    def meet_source(self, sweep: Sweep) -> None:
        """Find the negative classes."""
        count = self.options.spliced_features
        features = sweep("source", self.backbone, count)  # more images than features to make are not needed
        self.frame.measure_source(features[:SAMPLED_IMAGES])
        labels = sweep.source_labels[: len(features)]
        draw = generator(self.problem.seed, "spliced features")
        first, second = (torch.from_numpy(it).to(features.device) for it in pairs(labels.cpu().numpy(), count, draw))
        self.is_cluster.fill_(False)
        if not len(first):
            log.warning("inheritune: the source has one class, so there is nothing to splice and no negative class")
            return
        with torch.autocast(features.device.type, enabled=False):
            spliced = self.frame(self.splice(features[first], features[second]), "source")
            found = kmeans(spliced, self.options.negative_classes, self.problem.seed).centres
        self.centres[: len(found)] = found
        self.is_cluster[: len(found)] = True
        log.info("%d spliced features in %d negative classes", len(first), len(found))

    def splice(self, first: Tensor, second: Tensor) -> Tensor:
        return splice_features(first, second, self.options.spliced_top, self.options.spliced_bottom)

    def classification(self, source: SourceBatch, target: TargetBatch, step: int) -> Losses:
        features = self.backbone(source.images)
        spliced, clusters = self._spliced_batch(features, source.labels, step)
        logits = self.head(self.extractor(torch.cat([self.frame(features, "source"), spliced]))).joined  # one pass
        known, negative = logits.split([len(features), len(spliced)])
        # 0 if the batch has one class: there is nothing to splice.
        loss = F.cross_entropy(negative, self.num_classes + clusters, reduction="sum") / max(1, len(spliced))
        return {
            "classification": F.cross_entropy(known, source.labels),
            "negative": self.options.negative_weight * loss,
        }

    @torch.no_grad()
    def _spliced_batch(self, features: Tensor, labels: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Each feature of the whole batch with one of another class: (K, frame.size), and (K,) their clusters."""
        features, labels = gather(features), gather(labels)  # the same on every process
        draw = generator(self.problem.seed, "spliced batch", step)
        first, second = (torch.from_numpy(it).to(labels.device) for it in partners(labels.cpu().numpy(), draw))
        if not bool(self.is_cluster.any()):
            first, second = first[:0], second[:0]
        with torch.autocast(features.device.type, enabled=False):
            spliced = self.frame(self.splice(features[first], features[second]), "source").float()
            places = self.is_cluster.nonzero().squeeze(1)
            return spliced, nearest(spliced, self.centres[places])[0] if len(spliced) else first

    # ---- client ------------------------------------------------------------------------------------------------------

    def leave_source(self, sweep: Sweep) -> None:
        """E_t ← E_s, and pseudo-labels. Nothing of the source is asked for."""
        self.source_extractor.load_state_dict(self.extractor.state_dict())
        if self.frame.is_on:
            self.frame.measure_target(sweep("target", self.backbone, SAMPLED_IMAGES))
        logits = sweep("target", lambda images: self.head(self.extractor(self.framed(images, "target"))).joined)
        images, labels = pseudo_labels(logits, self.num_classes, len(self.pseudo_images))
        self.pseudo_images.copy_(images)
        self.pseudo_labels.copy_(labels)
        log.info("%d pseudo-labels, %d of them unknown", len(labels), (labels == self.num_classes).sum())

    def wants(self, step: int) -> list[Want]:
        if not self.is_pseudo_step(step):
            return []
        return [Want(PSEUDO, "target", self.pseudo_images.cpu().numpy()[self._drawn(step)])]

    def _drawn(self, step: int) -> np.ndarray:
        """(64,) places in `pseudo_images`."""
        return generator(self.problem.seed, "pseudo-labels", step).integers(len(self.pseudo_images), size=PSEUDO_BATCH)

    def pseudo(self, source: SourceBatch, target: TargetBatch, step: int) -> Losses:
        logits = self.head(self.features(target.extra[PSEUDO].images)).joined
        places = torch.from_numpy(self._drawn(step)).to(logits.device)
        return {"pseudo": F.cross_entropy(logits, self.pseudo_labels[places])}

    def image_weights(self, logits: SplitLogits) -> tuple[Tensor, Tensor]:
        confidence = known_confidence(*logits)
        return relative_weights(confidence, gather(confidence))


# ---- rules -----------------------------------------------------------------------------------------------------------


def splice_features(first: Tensor, second: Tensor, top: float, bottom: float) -> Tensor:
    """(B, d): the first feature, whose largest and smallest numbers are replaced by the second's at the same places.

    Args:
        first: (B, d).
        second: (B, d).
        top: share of the numbers that are replaced because they are the largest; at least one is.
        bottom: the same of the smallest.
    """
    d = first.shape[1]
    highest, lowest = (max(1, int(share * d)) for share in (top, bottom))
    order = first.argsort(dim=1, stable=True)
    places = torch.cat([order[:, :lowest], order[:, d - highest :]], dim=1)
    return first.scatter(1, places, second.gather(1, places))


def pairs(labels: np.ndarray, count: int, draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Ordered pairs of images of different classes: (K,) and (K,) indices.

    All pairs, if there are no more than `count`; else so many that are drawn, with replacement. Pairs are counted, not
    listed: of many images there are too many.

    Args:
        labels: (N,) int64 ≥ 0.
    """
    sizes = np.bincount(labels)
    others = len(labels) - sizes[labels]  # (N,) how many pairs an image is the first of
    ends = np.cumsum(others)
    which = np.arange(ends[-1]) if ends[-1] <= count else draw.integers(ends[-1], size=count)
    first = np.searchsorted(ends, which, side="right")
    rank = which - (ends - others)[first]  # of the second, among all images of other classes
    starts = np.cumsum(sizes) - sizes  # of each class, in the order of labels
    skipped = np.where(rank >= starts[labels[first]], sizes[labels[first]], 0)  # its own class
    return first, np.argsort(labels, kind="stable")[rank + skipped]


def partners(labels: np.ndarray, draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Each image of a batch that has one of another class beside it, and such a one: (K,) and (K,) places."""
    chances = np.where(labels[:, None] != labels, draw.random((len(labels), len(labels))), -1.0)
    first = np.flatnonzero(chances.max(axis=1) >= 0)
    return first, chances.argmax(axis=1)[first]


def pseudo_labels(logits: Tensor, num_classes: int, count: int) -> tuple[Tensor, Tensor]:
    """The images that are most surely of a known class: (count,) indices, and (count,) their labels.

    A label is the largest of all logits; those of all negative classes are C, the first of them (InheriTune's code).

    Args:
        logits: (N, C + negative classes).
        num_classes: C.
    """
    confidence = known_confidence(logits[:, :num_classes], logits[:, num_classes:])
    images = confidence.argsort(descending=True, stable=True)[:count]
    return images, logits[images].argmax(dim=1).clamp(max=num_classes)
