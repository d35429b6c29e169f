"""`--tap auto` and `--spa.tap auto`: choose a tap by Definition 1 of the SPA paper, without target labels.

NTR is measured on the source, where some classes play the private ones; DIS needs no labels. Both are measured on the
pretrained backbone when a run starts, on a few images, in seconds. How far to trust the choice:
docs/studies/layers.md.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from unida.analysis.measures import choose_tap, domain_invariance_score, source_negative_transfer_risk
from unida.analysis.taps import digests, features_at_taps, some_images
from unida.config import Config
from unida.data.augment import Preprocess
from unida.data.domains import Source, Target
from unida.errors import UserError
from unida.methods.spa.options import SPAOptions
from unida.models.backbone import Backbone, open_backbone, refuse_crop
from unida.models.options import AUTO, ModelOptions
from unida.support.options import flag
from unida.support.progress import progress
from unida.support.random import generator

log = logging.getLogger("unida")

IMAGES = 300  # of each domain; SPA finds its words in the same number of images
CLASSES = 30  # of the source, for NTR: ten images of each; probes of hundreds of classes would take minutes


@dataclass(frozen=True)
class Curves:
    """The input of Definition 1: a value for every tap, shallow to deep."""

    source_ntr: list[float]
    dis: list[float]
    looked_at: str


def has_open_tap(config: Config) -> bool:
    return AUTO in (config.model.tap, config.spa.spa_tap)


def choose_taps(
    config: Config, source: Source, target: Target, device: torch.device, visible: bool = True
) -> tuple[str | None, str | None]:
    """--tap and --spa.tap, with a name instead of auto. The log reports each choice."""
    tap, word_tap = config.model.tap, config.spa.spa_tap
    backbone = seeded_backbone(config, device)
    places = _places_to_freeze(backbone, config.spa) if tap == AUTO else _places_for_words(backbone, config.model)
    preprocess = Preprocess(config.data.crop, backbone.mean, backbone.std, device)
    refuse_crop(backbone, config.data.crop)
    try:
        curves = measure_curves(backbone, preprocess, source, target, config.training.seed, visible)
    except UserError as error:
        raise UserError(f"{flag('tap' if tap == AUTO else 'spa_tap')} auto: {error}; name a tap instead") from error
    if tap == AUTO:
        tap = _choose("tap", backbone.taps, curves, places)
        places = _places_for_words(backbone, replace(config.model, tap=tap))
    if word_tap == AUTO:
        word_tap = _choose("spa.tap", backbone.taps, curves, places)
    return tap, word_tap


def with_taps(config: Config, tap: str | None, word_tap: str | None) -> Config:
    return replace(config, model=replace(config.model, tap=tap), spa=replace(config.spa, spa_tap=word_tap))


def measure_curves(
    backbone: Backbone, preprocess: Preprocess, source: Source, target: Target, seed: int, visible: bool = True
) -> Curves:
    """Source NTR and DIS at every tap, from one pass over a few images of each domain."""
    by_chance = some_images(len(source.pixels), IMAGES, "source", seed)
    of_few_classes = _images_of_few_classes(source.labels, by_chance, seed)
    looked_at = np.union1d(by_chance, of_few_classes)
    for_dis, for_ntr = (np.searchsorted(looked_at, rows) for rows in (by_chance, of_few_classes))
    source_pixels = source.pixels.subset(looked_at)
    target_pixels = target.pixels.subset(some_images(len(target.pixels), IMAGES, "target", seed))
    source_features = features_at_taps(backbone, source_pixels, preprocess, "source", seed, visible)
    target_features = features_at_taps(backbone, target_pixels, preprocess, "target", seed, visible)
    labels = torch.from_numpy(source.labels[of_few_classes])
    which = digests(source_pixels)[for_dis], digests(target_pixels)
    ntr, dis = [], []
    with progress("measures", len(backbone.taps), visible=visible) as report:
        for number, tap in enumerate(backbone.taps, start=1):
            ours, theirs = source_features[tap].pooled, target_features[tap].pooled
            ntr.append(source_negative_transfer_risk(ours[for_ntr], labels, seed))
            dis.append(domain_invariance_score(ours[for_dis], theirs, seed, *which))
            report(number, tap)
    return Curves(ntr, dis, f"{len(source_pixels)} + {len(target_pixels)} images")


def _images_of_few_classes(labels: np.ndarray, by_chance: np.ndarray, seed: int) -> np.ndarray:
    """`by_chance`, or images of a few classes if there are many: chance would draw each class once or never."""
    classes = np.unique(labels)
    if len(classes) <= CLASSES:
        return by_chance
    few = generator(seed, "classes to look at").permutation(classes)[:CLASSES]
    rows = np.flatnonzero(np.isin(labels, few))
    return rows[some_images(len(rows), IMAGES, "few classes'", seed)]


def seeded_backbone(config: Config, device: torch.device) -> Backbone:
    with torch.random.fork_rng():
        backbone = open_backbone(config.model.backbone, config.model.weights, config.training.seed)
    return backbone.to(device).to(memory_format=torch.channels_last)


def _places_to_freeze(backbone: Backbone, spa: SPAOptions) -> range:
    """Taps before the words, if their tap is set, and before the last tap: some layers must be left to train."""
    end = backbone.taps[-1] if spa.spa_tap in (None, AUTO) else spa.spa_tap
    if backbone.position(end) == 0:
        raise UserError(
            f"--tap auto: backbone {backbone.name!r} has no tap before {end!r} that could be chosen: "
            "use --train all or head, or move --spa.tap"
        )
    return range(backbone.position(end))


def _places_for_words(backbone: Backbone, model: ModelOptions) -> range:
    """Taps after the frozen part, if there is one."""
    if model.train != "tail":
        return range(len(backbone.taps))
    frozen = model.tap or backbone.default_tap
    start = backbone.position(frozen) + 1
    if start == len(backbone.taps):
        raise UserError(f"--spa.tap auto: there is no tap after --tap {frozen}: choose an earlier --tap")
    return range(start, len(backbone.taps))


def _choose(option: str, taps: Sequence[str], curves: Curves, places: range) -> str:
    place = choose_tap(curves.source_ntr, curves.dis, places)
    log.info(
        "%s: %s, chosen by source NTR (%.3f) and DIS (%.3f) of %s (SPA, Definition 1)",
        option,
        taps[place],
        curves.source_ntr[place],
        curves.dis[place],
        curves.looked_at,
    )
    return taps[place]
