"""SPA: Subsidiary Prototype Alignment for Universal Domain Adaptation (Kundu et al., NeurIPS 2022).

On top of any other method, whose own losses, heads and unknown rule stay as they are:

    h: backbone up to a tap      V: K word prototypes      f_g: the method's heads      f_n: pretext classifier
    φ^u = softmax_K(V h^u)       ψ = mean_u φ^u, the word histogram

    every step:
        goal      the method's losses on its images, through a feature that holds ψ          → h, f_g (not V)
        pretext   CE(f_n(ψ(mosaic)), number of images in it), both domains (or another task)  → h, V, f_n
        entropy   mean of −φ log φ over un-shuffled images, of both domains or the target     → h, V
    f_n is dropped in the end.

Two presets. ``paper``: as in the paper. Open choices follow its cost table (the words are on the last map, the
histogram is the feature); goal and pretext update in turns, with an optimiser each. ``best``: what helped when measured
(docs/spa.md): words are found by k-means in the pretrained features of both domains and stay fixed. The entropy loss
is *anchored*: a location of a target image keeps the word that the pretrained network gives it, instead of becoming
sure of any word. It is scaled by how differently the two domains use words before training. There is no pretext task.
"""

import copy
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unida.clustering.kmeans import kmeans
from unida.losses.entropy import entropy
from unida.methods.base import (
    DOMAINS,
    DomainName,
    Group,
    Losses,
    Method,
    Phase,
    Scores,
    SourceBatch,
    Sweep,
    TargetBatch,
    Turn,
    Want,
    spans,
)
from unida.methods.spa.backbone import Seen, WordBackbone
from unida.methods.spa.options import SPAOptions
from unida.models.backbone import Backbone
from unida.models.words import histogram, prototype_alignment_score, usage_gap, word_entropy
from unida.pretext.base import Task
from unida.pretext.count import Count
from unida.pretext.tasks import OTHER_TASKS
from unida.support.random import generator, torch_seed

log = logging.getLogger("unida")

PRETEXT = "pretext"  # name of the recipe, of the images that it makes and of the turn that learns from them
BATCHES_TO_LOOK_AT = 8  # of made images of each domain, for a task that looks at some before training
SAMPLED_IMAGES = 300  # of each domain, to find words in
SAMPLED_LOCATIONS = 8000  # of all these images


class SPA(Method):
    """A method with words under it: its phases are the method's, with SPA's losses beside the method's own.

    `unida.methods.build` makes it; it is not listed among the methods.

    Args:
        method: made on a `WordBackbone`.
    """

    gap: Tensor  # () how differently the domains use words: 0 alike, 1 no word in common

    def __init__(self, method: Method, options: SPAOptions) -> None:
        nn.Module.__init__(self)  # the backbone belongs to the method below
        self.method, self.options, self.problem = method, options, method.problem
        self.watched, self.unknown_threshold = method.watched, method.unknown_threshold
        self.has_entropy = options.spa_entropy == "on" and self._words_can_change
        self.has_pretext = options.spa_pretext == "on"
        # A stream of its own: a run with SPA and one without start with the same heads.
        torch.manual_seed(torch_seed(self.problem.seed, PRETEXT))
        self.task = _make_task(options, self.words)
        self.task.requires_grad_(self.has_pretext)
        self.register_buffer("gap", torch.ones(()))
        self.recipes = {**method.recipes, PRETEXT: self.task.recipe} if self.has_pretext else method.recipes
        self.run_only = ("task.", "gap", *(f"method.{name}" for name in method.run_only))
        # Not part of the model: not in its parameters, in checkpoints or in the model file.
        self._pretrained: tuple[Backbone, ...] = ()
        self._without_source: Sequence[range] = ()

    @property
    def words(self) -> WordBackbone:
        words: Any = self.method.backbone
        return words

    @property
    def prototypes(self) -> nn.Parameter:
        """V (K, D)."""
        return self.words.vocabulary.prototypes

    @property
    def backbone(self) -> Backbone:  # type: ignore[override]
        return self.words.backbone

    @property
    def _words_can_change(self) -> bool:
        """Whether the entropy loss has anything to learn: the words, or the layers that they are read from."""
        upto_words = self.backbone.parameters_upto(self.words.tap)
        return self.words.pretext_learns or any(p.requires_grad for p in upto_words)

    def phases(self) -> list[Phase]:
        """The method's phases, each with the losses on words."""
        phases = self.method.phases()
        has_turns = any(phase.turns for phase in phases)
        if not has_turns or (self.options.spa_entropy == "on" and not self.has_entropy):
            log.info(
                "backbone and words are fixed, so SPA's losses have nothing to change: with --train tail they have"
            )
        elif self.options.spa_anchored == "on" and self.has_entropy:
            self._pretrained = (copy.deepcopy(self.backbone),)
        steps = spans(phases, self.problem.steps)
        self._without_source = [span for phase, span in zip(phases, steps, strict=True) if phase.source is None]
        first, *others = (self._with_word_losses(phase) for phase in phases)
        return [self._prepared(first), *others]

    def _prepared(self, phase: Phase) -> Phase:
        """The first phase. Its start measures what SPA needs from the pretrained features."""
        options, weighs_gap = self.options, self.options.spa_gap == "on" and self.has_entropy
        looks_at_images = options.spa_init == "kmeans" or options.spa_scale == "root" or weighs_gap

        def start(sweep: Sweep) -> None:
            if options.spa_init == "kmeans":
                self._find_words(sweep)
            if options.spa_scale == "root":
                self._measure_length(sweep)
            if weighs_gap:
                self._measure_gap(sweep)
            if self.has_pretext and self.task.looks_first:
                made = (it for domain in DOMAINS for it in sweep.made(domain, PRETEXT, BATCHES_TO_LOOK_AT))
                log.info("%s", self.task.look(made, self._log_words_at))
            if phase.start is not None:
                phase.start(sweep)

        return replace(phase, start=start, sweeps=DOMAINS if looks_at_images else phase.sweeps)

    def _with_word_losses(self, phase: Phase) -> Phase:
        """Eq. 8: the goal updates h and f_g; pretext and entropy update h, V and f_n. In turns, or in one update."""
        of_words = self._word_groups()
        goal_words = [self.prototypes] if self.words.goal_learns else []
        turns = [self._regrouped(turn, goal_words) for turn in phase.turns]
        if not (self.has_entropy or self.has_pretext) or not turns:
            return replace(phase, turns=turns)
        if self.options.spa_updates == "joint":
            learning = [p for p in (self.prototypes, *self.task.head.parameters()) if p.requires_grad]
            turns[0] = self._joined(self._regrouped(phase.turns[0], learning))
        elif any(group.parameters for group in of_words):
            turns.append(Turn(self._words_alone, of_words, PRETEXT, decay=phase.turns[0].decay))
        return replace(phase, turns=turns, target=phase.target or self.has_entropy)

    def _joined(self, goal: Turn) -> Turn:
        def losses(source: SourceBatch, target: TargetBatch, step: int) -> Losses:
            with self.words.recording() as seen:
                of_goal = goal.losses(source, target, step)
            return {**of_goal, **self.word_losses(source, target, seen)}

        return replace(goal, losses=losses)

    def _words_alone(self, source: SourceBatch, target: TargetBatch, step: int) -> Losses:
        return self.word_losses(source, target, [])

    def _word_groups(self) -> list[Group]:
        f_n = [p for p in self.task.head.parameters() if p.requires_grad]
        upto_words = [p for p in self.backbone.parameters() if p.requires_grad and id(p) in self.words.read_by_words]
        return [
            Group(upto_words, pretrained=True),
            Group([self.prototypes, *f_n] if self.words.pretext_learns else f_n),
        ]

    def _regrouped(self, turn: Turn, learning: Sequence[nn.Parameter]) -> Turn:
        """Move new layers of the `WordBackbone` to the group of new layers; drop parameters that no loss reaches.

        Args:
            learning: parameters of words that the turn updates.
        """
        own = {id(p) for p in self.words.backbone.parameters()}
        reached = self.words.read_by_feature
        groups, moved = [], []
        for group in turn.groups:
            if group.pretrained:
                moved += [p for p in group.parameters if id(p) not in own and p is not self.prototypes]
                group = group._replace(parameters=[p for p in group.parameters if id(p) in own and id(p) in reached])
            groups.append(group)
        new = next((i for i, group in enumerate(groups) if not group.pretrained), None)
        if new is None:
            groups.append(Group([*moved, *learning]))
        else:
            groups[new] = groups[new]._replace(parameters=[*groups[new].parameters, *moved, *learning])
        return replace(turn, groups=groups)

    def wants(self, step: int) -> list[Want]:
        wants = list(self.method.wants(step))
        if self.has_pretext:
            without_source = any(step in span for span in self._without_source)
            domains: tuple[DomainName, ...] = ("target",) if without_source else DOMAINS
            wants += [Want(PRETEXT, domain, recipe=PRETEXT) for domain in domains]
        return wants

    def training_step(self, source: SourceBatch, target: TargetBatch, step: int) -> Losses:
        """The method's own losses; `phases` adds those on words."""
        return self.method.training_step(source, target, step)

    def word_losses(self, source: SourceBatch, target: TargetBatch, seen: list[Seen]) -> Losses:
        """The pretext and entropy losses.

        Args:
            seen: what was computed already in this step.
        """
        losses, options = {}, self.options
        if self.has_entropy:
            # Squared, so that the loss is tiny if the domains look alike: features then need no anchor.
            losses["words"] = options.spa_entropy_weight * self.gap**2 * self._entropy_loss(source, target, seen)
        if self.has_pretext:
            # One pass per domain, as for the goal: BatchNorm must not mix the statistics of the two domains.
            with _keeping_statistics(self.words, options.spa_statistics == "images"):
                of_domains = [
                    self._pretext_loss(domain, made[PRETEXT].images, made[PRETEXT].labels)
                    for domain, made in zip(DOMAINS, (source.extra, target.extra), strict=True)
                    if PRETEXT in made
                ]
            losses[self.task.name] = options.spa_pretext_weight * sum(of_domains[1:], of_domains[0])
        return losses

    def _pretext_loss(self, domain: str, images: Tensor, labels: Tensor) -> Tensor:
        loss, measure = self.task(self._log_words_at(images), labels)
        self.watched[f"{self.task.name}_{self.task.measure}_{domain}"] = lambda: measure.float().mean()
        return loss

    def _log_words_at(self, images: Tensor) -> Tensor:
        """(B, H, W, K) log φ at every place of the map."""
        features = self.words.map(images)
        return self.words.log_words(features).unflatten(1, features.shape[2:])

    def _entropy_loss(self, source: SourceBatch, target: TargetBatch, seen: list[Seen]) -> Tensor:
        """The mean over the un-shuffled images of both domains (their batches have one size), or of the target."""
        means, maps, logs = [], [], []
        batches = (target,) if self.options.spa_entropy_of == "target" else (source, target)
        for images in (batch.images for batch in batches if len(batch.images)):
            _, features, log_words = next((it for it in seen if it.images is images), (None, None, None))
            features = self.words.map(images) if features is None else features
            log_words = self.words.log_words(features) if log_words is None else log_words
            means.append(self._anchored_entropy(log_words, images) if self._pretrained else _plain_entropy(log_words))
            maps.append(features.detach())
            logs.append(log_words.detach())
        self._watch(torch.cat(maps), torch.cat(logs))
        return torch.stack(means).mean()

    def _anchored_entropy(self, log_words: Tensor, images: Tensor) -> Tensor:
        """−log φ^u of the word that the pretrained network sees at u.

        With the plain entropy, all locations may agree on one word, or move to any word. Here each keeps its own word.
        Images of shared and of private classes keep the same vocabulary.
        """
        return F.nll_loss(log_words.flatten(0, 1), self._pretrained_words(images).flatten())

    @torch.no_grad()
    def _pretrained_words(self, images: Tensor) -> Tensor:
        """(B, U) the nearest word of every location, as it was before training."""
        backbone = self._pretrained[0].to(images.device).eval()
        backbone.starts_at_tap = self.backbone.starts_at_tap
        tap = self.words.tap
        return self.words.vocabulary(backbone.spatial(backbone.state(images, upto=tap), tap)).argmax(dim=-1)

    def _watch(self, features: Tensor, log_words: Tensor) -> None:
        """The paper's PAS, which should rise, and signs of a collapse: all locations are sure of the same few words.

        Measured on the images of the entropy loss, whose words are known already.
        """

        def usage_entropy() -> Tensor:
            return entropy(log_words.exp().mean(dim=(0, 1)))

        self.watched |= {
            "pas": lambda: prototype_alignment_score(features, self.prototypes.detach()).mean(),
            "word_entropy": lambda: word_entropy(log_words),
            "usage_entropy": usage_entropy,
            "words_in_use": lambda: usage_entropy().exp(),  # number of words that have this entropy if used evenly
        }

    def _find_words(self, sweep: Sweep) -> None:
        """Set the words to k-means centres of the pretrained features at locations of both domains."""
        locations = torch.cat([sweep(domain, self._locations, SAMPLED_IMAGES).flatten(0, 1) for domain in DOMAINS])
        pick = generator(0, "locations").permutation(len(locations))[:SAMPLED_LOCATIONS]
        sample = locations[torch.from_numpy(pick).to(locations.device)]
        if self.options.spa_similarity == "cosine":
            sample = F.normalize(sample, dim=1)
        centres = kmeans(sample, len(self.prototypes), seed=0).centres
        self.prototypes.data[: len(centres)] = centres  # fewer if there are fewer different points

    def _measure_length(self, sweep: Sweep) -> None:
        lengths = [sweep(domain, self.words.pooled_length, SAMPLED_IMAGES) for domain in DOMAINS]
        self.words.length.copy_(torch.cat(lengths).mean())

    def _measure_gap(self, sweep: Sweep) -> None:
        def shares(images: Tensor) -> Tensor:
            return histogram(self.words.log_words(self.words.map(images)))

        source, target = (sweep(domain, shares, SAMPLED_IMAGES).mean(dim=0) for domain in DOMAINS)
        self.gap.copy_(usage_gap(source, target))
        log.info("difference in use of words: %.2f (0: source and target alike, 1: no word in common)", self.gap.item())

    def _locations(self, images: Tensor) -> Tensor:
        """(B, U, D) features at every location."""
        return self.words.map(images).flatten(2).transpose(1, 2)

    def measures(self) -> Mapping[str, Callable[[Tensor], Tensor]]:
        def pas(images: Tensor) -> Tensor:
            return prototype_alignment_score(self.words.map(images), self.prototypes.detach())

        return {**self.method.measures(), "pas": pas}

    def features(self, images: Tensor) -> Tensor:
        return self.method.features(images)

    def source_features(self, images: Tensor) -> Tensor:
        return self.method.source_features(images)

    def score(self, features: Tensor) -> Scores:
        return self.method.score(features)


def _plain_entropy(log_words: Tensor) -> Tensor:
    """(B, U, K) → L_em, the mean over images, locations and words: Eq. 6 has no sum over words.

    A sum is K times as large, and training with it broke down (docs/studies/spa.md).
    """
    return word_entropy(log_words) / log_words.shape[-1]


def _make_task(options: SPAOptions, words: WordBackbone) -> Task:
    count, name = len(words.vocabulary.prototypes), options.spa_task or "count"  # a model may be older than the option
    if name != "count":
        return OTHER_TASKS[name](count, words.mean, words.std)
    grid, bins, pool = options.spa_grid, options.spa_bins, options.spa_pool
    assert grid is not None and bins is not None and pool is not None
    return Count(count, grid, bins, pool)


@contextmanager
def _keeping_statistics(module: nn.Module, keep: bool) -> Iterator[None]:
    """BatchNorm uses its batch's statistics as usual, but does not add them to the kept ones."""
    layers = [m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)] if keep else []
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.momentum = 0.0
    try:
        yield
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
