"""SPA: Subsidiary Prototype Alignment for Universal Domain Adaptation (Kundu et al., NeurIPS 2022).

On top of any other method, whose own losses, heads and unknown rule stay as they are:

    h: backbone up to a tap      V: K word prototypes      f_g: the method's heads      f_n: pretext classifier
    φ^u = softmax_K(V h^u)       ψ = mean_u φ^u, the word histogram

    every step:
        goal      the method's losses on its images, through a feature that holds ψ          → h, f_g (not V)
        pretext   CE(f_n(ψ(mosaic)), number of images in it), both domains                    → h, V, f_n
        entropy   word entropy of un-shuffled images, of both domains or the target           → h, V
    f_n is dropped in the end.

Two presets. ``paper``: as printed; where the paper leaves a choice, as its cost table decides it (the words stand on
the last map, the histogram is the feature), goal and pretext in turns with an optimiser each. ``best``: what was
measured to help (docs/spa.md): words are found by k-means in the pretrained features of both domains and stay where
they are; the entropy loss is *anchored*: a location of a target image keeps the word that the pretrained network gives
it, in place of becoming sure of any word, and the more firmly, the more differently the two domains use words before
training; there is no pretext task.
"""

import copy
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unida.analysis.measures import prototype_alignment_score
from unida.clustering import kmeans
from unida.data.sampling import generator, torch_seed
from unida.methods.base import Domain, Method, ParameterGroups, Requests, Scores, SourceBatch, Sweep, TargetBatch
from unida.methods.spa_backbone import Seen, WordBackbone, map_at
from unida.methods.spa_options import SPAOptions
from unida.models.backbone import Backbone
from unida.models.words import entropy, histogram, usage_gap, word_entropy
from unida.pretext.bins import merge_overlapping, parse_bins
from unida.pretext.instance_count import InstanceCount, PretextBatch

log = logging.getLogger("unida")

DOMAINS: tuple[Domain, Domain] = ("source", "target")
ONCE = sys.maxsize  # a round before step 0, and none after
BATCHES_FOR_BINS = 8  # of mosaics of each domain, to see which numbers of images can be told apart
SAMPLED_IMAGES = 300  # of each domain, to find words in
SAMPLED_LOCATIONS = 8000  # of all of them


class SPA(Method):
    """Any method with words under it. `unida.modelfile` builds it; it is not listed among the methods.

    Args:
        seed: words, heads and f_n are drawn from streams of their own, so that a run with SPA and one without start
            with the same heads.
    """

    bins: Tensor  # (g²,) int64, the pretext class of each number of images
    gap: Tensor  # () how differently the domains use words: 0 alike, 1 not one word in common

    def __init__(
        self, kind: type[Method], backbone: Backbone, num_classes: int, hyper: Any, options: SPAOptions, seed: int = 0
    ) -> None:
        nn.Module.__init__(self)  # the backbone belongs to the method below
        self.options, self.num_classes = options, num_classes
        torch.manual_seed(torch_seed(seed, "words"))
        words: Any = WordBackbone(backbone, options)
        torch.manual_seed(torch_seed(seed, "new layers"))
        self.base = kind(words, num_classes, hyper)
        self.watched = self.base.watched
        grid, bins = options.spa_grid, options.spa_bins
        assert grid is not None and bins is not None
        task = InstanceCount(grid)
        torch.manual_seed(torch_seed(seed, "pretext"))
        self.count = nn.Linear(len(words.words.prototypes), task.cells)  # f_n
        self.register_buffer("bins", torch.tensor(parse_bins(bins, task.cells)))
        self.register_buffer("gap", torch.ones(()))
        self.pretext = task if options.spa_pretext == "on" else None
        self.count.requires_grad_(self.pretext is not None)
        self.unknown_threshold = self.base.unknown_threshold
        self.balanced_source = self.base.balanced_source
        self.default_lr, self.lr_decay = self.base.default_lr, self.base.lr_decay
        self.looks_at_target_batch = self.base.looks_at_target_batch or options.spa_entropy == "on"
        self._weighs_gap = options.spa_gap == "on" and options.spa_entropy == "on"
        found_before = options.spa_init == "kmeans" or options.spa_scale == "root" or self._weighs_gap
        self.looks_at_source = self.base.looks_at_source or found_before
        prepares = found_before or (self.pretext is not None and bins == "auto")
        self.round_every = self.base.round_every or (ONCE if prepares else 0)
        self.round_at_end = self.base.round_at_end
        self._joint = options.spa_updates == "joint"
        self._learns = self.pretext is not None or options.spa_entropy == "on"
        in_turns = self._learns and not self._joint and any(self.parameter_groups("pretext"))
        self.turns = ("goal", "pretext") if in_turns else ("goal",)
        # No part of the model: outside of its parameters, of checkpoints and of the model file.
        anchors = options.spa_anchored == "on" and options.spa_entropy == "on"
        self._pretrained: tuple[Backbone, ...] = (copy.deepcopy(backbone),) if anchors else ()

    @property
    def words(self) -> WordBackbone:
        words: Any = self.base.backbone
        return words

    @property
    def backbone(self) -> Backbone:  # type: ignore[override]
        return self.words.backbone

    def begin(self, steps: int, seed: int) -> None:
        super().begin(steps, seed)
        self.base.begin(steps, seed)
        self.round_every = self.base.round_every or self.round_every

    def requests(self, step: int) -> Requests:
        return self.base.requests(step)

    def parameter_groups(self, turn: str = "goal") -> ParameterGroups:
        """Eq. 8: the goal updates h and f_g; pretext and entropy update h, V and f_n."""
        backbone = [p for p in self.backbone.parameters() if p.requires_grad]
        V, f_n = self.words.words.prototypes, [p for p in self.count.parameters() if p.requires_grad]
        apart = {id(p) for p in (*self.backbone.parameters(), V)}
        heads = [p for p in self.base.parameters() if p.requires_grad and id(p) not in apart]
        if turn == "pretext":
            return ParameterGroups(backbone, [V, *f_n] if self.words.pretext_learns else f_n)
        if self._joint and self._learns:
            return ParameterGroups(backbone, [*heads, V, *f_n] if V.requires_grad else [*heads, *f_n])
        return ParameterGroups(backbone, [*heads, V] if self.words.goal_learns else heads)

    def turn_losses(self, turn: str, source: SourceBatch, target: TargetBatch, step: int) -> dict[str, Tensor]:
        if turn == "pretext":
            return self.word_losses(source, target, [])
        if not (self._joint and self._learns):
            return self.base.training_step(source, target, step)
        with self.words.recording() as seen:
            losses = self.base.training_step(source, target, step)
        return {**losses, **self.word_losses(source, target, seen)}

    def word_losses(self, source: SourceBatch, target: TargetBatch, seen: list[Seen]) -> dict[str, Tensor]:
        """The pretext and entropy losses.

        Args:
            seen: what was computed already in this step.
        """
        losses, options = {}, self.options
        if options.spa_entropy == "on":
            # Squared, so that domains that look alike are left alone: there is nothing to hold the features against.
            losses["words"] = options.spa_entropy_weight * self.gap**2 * self._entropy_loss(source, target, seen)
        if source.pretext is not None and target.pretext is not None:
            with _keeping_statistics(self.words, options.spa_statistics == "images"):
                # Apart, as the goal's images: BatchNorm must not mix the statistics of the two domains.
                of_source = self._count_loss(source.pretext, "source")
                of_target = self._count_loss(target.pretext, "target")
            losses["count"] = options.spa_pretext_weight * (of_source + of_target)
        return losses

    def _entropy_loss(self, source: SourceBatch, target: TargetBatch, seen: list[Seen]) -> Tensor:
        """The mean over the un-shuffled images of both domains, whose batches are of one size, or of the target."""
        means, maps, logs = [], [], []
        batches = (target,) if self.options.spa_entropy_of == "target" else (source, target)
        for images in (batch.images for batch in batches):
            _, features, log_words = next((it for it in seen if it.images is images), (None, None, None))
            features = self.words.map(images) if features is None else features
            log_words = self.words.log_words(features) if log_words is None else log_words
            means.append(self._anchored_entropy(log_words, images) if self._pretrained else word_entropy(log_words))
            maps.append(features.detach())
            logs.append(log_words.detach())
        self._watch(torch.cat(maps), torch.cat(logs))
        return torch.stack(means).mean()

    def _anchored_entropy(self, log_words: Tensor, images: Tensor) -> Tensor:
        """−log φ^u of the word that the pretrained network sees at u.

        Where the plain entropy lets all locations agree on one word, or drift to any, here each has a word to be sure
        of. All images are held to the same vocabulary, those of shared classes and of private ones alike.
        """
        return F.nll_loss(log_words.flatten(0, 1), self._pretrained_words(images).flatten())

    @torch.no_grad()
    def _pretrained_words(self, images: Tensor) -> Tensor:
        """(B, U) the nearest word of every location, as it was before training."""
        backbone = self._pretrained[0].to(images.device).eval()
        backbone.starts_at_tap = self.backbone.starts_at_tap
        tap = self.words.tap
        return self.words.words(map_at(backbone, backbone.state(images, upto=tap), tap)).argmax(dim=-1)

    def _count_loss(self, batch: PretextBatch, domain: str) -> Tensor:
        shares = histogram(self.words.log_words(self.words.map(batch.images)))
        logits = self.count(shares * shares.shape[1]).float()  # times K: as the heads, f_n needs numbers around 1
        labels = self.bins[batch.labels]
        guesses = logits.detach().argmax(dim=1)
        self.watched[f"count_accuracy_{domain}"] = lambda: (guesses == labels).float().mean()
        return F.cross_entropy(logits, labels)

    def _watch(self, features: Tensor, log_words: Tensor) -> None:
        """The paper's PAS, which is to rise; and signs of a collapse: all locations sure, all of the same few words.

        Of the images that the entropy loss is of: their words have been read anyway.
        """

        def usage_entropy() -> Tensor:
            return entropy(log_words.exp().mean(dim=(0, 1)))

        self.watched |= {
            "pas": lambda: prototype_alignment_score(features, self.words.words.prototypes.detach()).mean(),
            "word_entropy": lambda: word_entropy(log_words),
            "usage_entropy": usage_entropy,
            "words_in_use": lambda: usage_entropy().exp(),  # the number of words that an even use of that entropy has
        }

    def on_round(self, step: int, sweep: Sweep) -> None:
        if step == 0:
            if self.options.spa_init == "kmeans":
                self._find_words(sweep)
            if self.options.spa_scale == "root":
                self._measure_length(sweep)
            if self._weighs_gap:
                self._measure_gap(sweep)
            if self.options.spa_bins == "auto" and self.pretext is not None:
                self._merge_bins(sweep)
        if self.base.round_every:
            self.base.on_round(step, sweep)

    def _find_words(self, sweep: Sweep) -> None:
        """k-means centres of what the pretrained network sees at locations of both domains."""
        locations = torch.cat([sweep(domain, self._locations, SAMPLED_IMAGES).flatten(0, 1) for domain in DOMAINS])
        pick = generator(0, "locations").permutation(len(locations))[:SAMPLED_LOCATIONS]
        sample = locations[torch.from_numpy(pick).to(locations.device)]
        if self.options.spa_similarity == "cosine":
            sample = F.normalize(sample, dim=1)
        centres = kmeans(sample, len(self.words.words.prototypes), seed=0).centres
        self.words.words.prototypes.data[: len(centres)] = centres  # fewer where there are fewer different points

    def _measure_length(self, sweep: Sweep) -> None:
        lengths = [sweep(domain, self.words.pooled_length, SAMPLED_IMAGES) for domain in DOMAINS]
        self.words.length.copy_(torch.cat(lengths).mean())

    def _measure_gap(self, sweep: Sweep) -> None:
        def shares(images: Tensor) -> Tensor:
            return histogram(self.words.log_words(self.words.map(images)))

        source, target = (sweep(domain, shares, SAMPLED_IMAGES).mean(dim=0) for domain in DOMAINS)
        self.gap.copy_(usage_gap(source, target))
        log.info("use of words: %.2f apart (0: source and target alike, 1: no word in common)", self.gap.item())

    def _locations(self, images: Tensor) -> Tensor:
        """(B, U, D) features at every location."""
        return self.words.map(images).flatten(2).transpose(1, 2)

    def _merge_bins(self, sweep: Sweep) -> None:
        """Numbers of images whose histograms have about the same entropy become one pretext class."""
        entropies, instances = [], []
        for domain in DOMAINS:
            for batch in sweep.pretext(domain, BATCHES_FOR_BINS):
                shares = histogram(self.words.log_words(self.words.map(batch.images)))
                entropies.append(entropy(shares).cpu().numpy())
                instances.append(batch.labels.cpu().numpy() + 1)
        task = self.pretext
        assert task is not None
        merged = merge_overlapping(np.concatenate(entropies), np.concatenate(instances), task.cells)
        self.bins.copy_(torch.tensor(merged))
        log.info("pretext classes of 1 to %d images: %s", task.cells, " ".join(str(bin + 1) for bin in merged))

    def features(self, images: Tensor) -> Tensor:
        return self.base.features(images)

    def score(self, features: Tensor) -> Scores:
        return self.base.score(features)

    def decide(self, scores: Scores) -> Tensor:
        return self.base.decide(scores)


@contextmanager
def _keeping_statistics(module: nn.Module, keep: bool) -> Iterator[None]:
    """BatchNorm uses its batch's statistics as ever, but does not add them to the kept ones."""
    layers = [m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)] if keep else []
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.momentum = 0.0
    try:
        yield
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
