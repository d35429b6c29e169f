"""The real loop for a few steps on a few images: how long will the whole run take?

Method, phases, batches and loop are those of the run. Only the images are fewer: each image is replaced by one of a
small sample, and a sweep computes the features of the sample and invents the rest. The run finds the sample's features
in the cache, so their cost is not lost.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from unida.answering.alone import Answering
from unida.config import Config
from unida.data.augment import Preprocess
from unida.data.pixels import Pixels
from unida.features.inputs import Inputs, PixelInputs
from unida.features.kept import TEST_VIEW, FeatureInputs, Job
from unida.features.stem import Stem, stem_of
from unida.methods.base import DomainName, Method, Phase, spans
from unida.recipes.base import ImageRecipe, Made, Recipe, SetRecipe, WaysRecipe
from unida.runs.pipeline import Domains, views_needed
from unida.support.fabric import Fabric
from unida.training.batches import AllImages, BatchStream
from unida.training.loop import Training

TIMED = 3  # steps or batches that are timed, after one to warm up
FEWEST_IMAGES = 16  # of each domain in the sample


@dataclass(frozen=True)
class Rehearsal:
    """What a run will cost here."""

    views_missing: int
    feature_bytes: int
    seconds_features: float
    steps: int
    rounds: int
    seconds_rounds: float
    images_per_step: int
    seconds_steps: float
    seconds_answers: float


def rehearse(fabric: Fabric, method: Method, domains: Domains, config: Config) -> Rehearsal:
    """Time a few steps of each phase, its start and its rounds, and multiply."""
    method.to(fabric.device)
    phases = method.phases()
    missing, kept, per_view = 0, 0, 0.0
    size = min(config.training.batch_size, 64)
    samples = {domain: _sample(pixels, size) for domain, pixels in domains.pixels.items()}
    sample_of = {id(pixels): samples[domain] for domain, pixels in domains.pixels.items()}
    backbone = method.backbone
    inputs: Inputs = PixelInputs(config.data.crop, backbone.mean, backbone.std, fabric.device)
    if backbone.frozen_at is not None:
        stem = stem_of(backbone, config.data.crop, config.model.feature_format, config.model.engine)
        views = config.model.views
        assert views is not None  # complete
        full = _open_features(fabric, method, config, stem, views)
        missing = full.count_missing(views_needed(method, phases, domains, config))
        missing += _views_drawn(full, method, phases, domains, config)
        missing += full.count_missing_in_pools(method.recipes, domains.pixels)
        kept = missing * 2 * int(np.prod(full.stem.shape))
        per_view = full.seconds_per_view(domains.target.pixels, np.arange(len(domains.target.pixels)))
        inputs = _prepare_sample(fabric, method, config, stem, samples)
    inputs = _SampledInputs(inputs, sample_of)
    stream = _RehearsalStream(domains.source, domains.target, inputs, config, fabric, method.recipes)
    with _quietly():
        per_answer = _time_answers(fabric, method, inputs, domains.target.pixels, size)
        training = Training(fabric, method, phases, stream, config)
        rounds, in_rounds, in_steps = 0, 0.0, 0.0
        for span in training.spans:
            training.done = span.start
            count, seconds, per_step = _time_phase(fabric, training, stream, per_answer)
            rounds, in_rounds, in_steps = rounds + count, in_rounds + seconds, in_steps + per_step * len(span)
    shown = training.images_here // max(1, training.steps_here)
    answers = len(domains.target.pixels) * per_answer
    return Rehearsal(missing, kept, missing * per_view, training.steps, rounds, in_rounds, shown, in_steps, answers)


def _views_drawn(
    inputs: FeatureInputs, method: Method, phases: Sequence[Phase], domains: Domains, config: Config
) -> int:
    """Views that steps will draw and that are not kept yet: about, as some are drawn twice."""
    steps, size = config.training.steps, config.training.batch_size
    assert steps is not None  # complete
    drawn: Counter[tuple[DomainName, str | None]] = Counter()
    for span, phase in zip(spans(phases, steps), phases, strict=True):
        if phase.turns and len(span):
            drawn["source", None] += size * len(span) * (phase.source is not None)
            drawn["target", None] += size * len(span) * phase.target
            looked_at = span[:: -(-len(span) // 50)]
            for want in (want for step in looked_at for want in method.wants(step)):
                drawn[want.domain, want.recipe] += size * len(span) // len(looked_at)
    total = 0.0
    for (domain, name), count in drawn.items():
        recipe = None if name is None else method.recipes[name]
        if isinstance(recipe, SetRecipe) or (recipe is None and not inputs.views):
            continue  # a pool, or the test view, which is counted
        assert recipe is None or isinstance(recipe, ImageRecipe)
        ways = recipe.ways if isinstance(recipe, WaysRecipe) else (recipe,)
        views, pixels = inputs.training_views or TEST_VIEW, domains.pixels[domain]
        every = len(pixels) * len(views) * len(ways)
        share = 1 - (1 - 1 / every) ** count
        jobs = [Job(pixels, views, way) for way in ways if way is not None or inputs.views]
        total += share * inputs.count_missing(jobs)
    return round(total)


def _time_phase(
    fabric: Fabric, training: Training, stream: "_RehearsalStream", per_image: float
) -> tuple[int, float, float]:
    """How many rounds a phase has, the seconds of its start and rounds, and those of a step."""
    seconds = _time_look(fabric, stream, per_image, training.enter_next_phase)
    phase, span, rounds = training.phase, training.span, 0
    if phase.round is not None:
        later = max(0, len(span) - 1) // phase.round.every + int(phase.round.at_end and len(span) > 0)
        rounds = 1 + later
        if later:
            last = len(span) if phase.round.at_end else (len(span) - 1) // phase.round.every * phase.round.every
            training.done = span.start + last
            seconds += later * _time_look(fabric, stream, per_image, training.take_round)
            training.done = span.start
    times = []
    for _ in range(min(TIMED + 1, len(span))):
        training.done = span.stop - 1  # after the last round: like most steps of the run
        start = time.perf_counter()
        training.take_step(with_round=False)
        _wait(fabric)
        times.append(time.perf_counter() - start)
    return rounds, seconds, float(np.median(times[1:] or times or [0.0]))


def _time_look(fabric: Fabric, stream: "_RehearsalStream", per_image: float, work: Callable[[], None]) -> float:
    """Seconds of work over all images, with an estimate for images that are not in the sample."""
    stream.left_out, start = 0, time.perf_counter()
    work()
    _wait(fabric)
    return time.perf_counter() - start + stream.left_out * per_image


def _time_answers(fabric: Fabric, method: Method, inputs: Inputs, pixels: Pixels, size: int) -> float:
    """Seconds per image."""
    answering, seconds = Answering(method).eval(), []
    for _ in range(TIMED + 1):
        start = time.perf_counter()
        with torch.inference_mode(), fabric.autocast():
            answering(inputs.test_view(pixels, np.arange(size)))
        _wait(fabric)
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds[1:])) / size


def _sample(pixels: Pixels, size: int) -> Pixels:
    """Files are ordered by digest, so the first ones are a random sample."""
    return pixels.subset(np.arange(min(len(pixels), max(size, FEWEST_IMAGES))))


def _open_features(fabric: Fabric, method: Method, config: Config, stem: Stem, views: int) -> FeatureInputs:
    backbone, data = method.backbone, config.data
    preprocess = Preprocess(data.crop, backbone.mean, backbone.std, fabric.device)
    return FeatureInputs(preprocess, stem, views, data.cache)


def _prepare_sample(
    fabric: Fabric, method: Method, config: Config, stem: Stem, samples: Mapping[str, Pixels]
) -> FeatureInputs:
    """One training view and the test view of the sample's images; the smallest pool for recipes of several images."""
    inputs = _open_features(fabric, method, config, stem, views=1)
    recipes = {name: _with_small_pool(recipe) for name, recipe in method.recipes.items()}
    with _quietly():
        inputs.prepare(
            inputs.jobs(recipes, [(pixels, inputs.every_view) for pixels in samples.values()]), visible=False
        )
        inputs.prepare_pools(recipes, samples, visible=False)
    method.backbone.starts_at_tap = True
    return inputs


def _with_small_pool(recipe: Recipe) -> Recipe:
    return replace(recipe, pool=1) if isinstance(recipe, SetRecipe) else recipe  # type: ignore[type-var]


class _SampledInputs:
    """Replaces any image by one of the sample."""

    def __init__(self, inputs: Inputs, sample_of: dict[int, Pixels]) -> None:
        self.inputs, self.sample_of, self.device = inputs, sample_of, inputs.device

    def training_view(self, pixels: Pixels, index: np.ndarray, draw: np.random.Generator, part: slice) -> Tensor:
        sample = self.sample_of[id(pixels)]
        return self.inputs.training_view(sample, index % len(sample), draw, part)

    def test_view(self, pixels: Pixels, index: np.ndarray) -> Tensor:
        sample = self.sample_of[id(pixels)]
        return self.inputs.test_view(sample, index % len(sample))

    def made(
        self, recipe: Recipe, pixels: Pixels, index: np.ndarray, draw: np.random.Generator, part: slice, views: Tensor
    ) -> Made:
        sample = self.sample_of[id(pixels)]
        return self.inputs.made(recipe, sample, index % len(sample), draw, part, views)

    def made_test_view(self, recipe: ImageRecipe, pixels: Pixels, index: np.ndarray) -> Tensor:
        sample = self.sample_of[id(pixels)]
        return self.inputs.made_test_view(recipe, sample, index % len(sample))


class _RehearsalStream(BatchStream):
    """A stream whose sweeps use the sample, and count the images that they leave out."""

    left_out = 0
    inputs: _SampledInputs

    def sweep(self, method: Method, phase: Phase) -> AllImages:
        return _RehearsalSweep(method, self, phase)


class _RehearsalSweep(AllImages):
    stream: _RehearsalStream

    def __call__(
        self,
        domain: DomainName,
        compute: Callable[[Tensor], Tensor] | None = None,
        limit: int | None = None,
        recipe: str | None = None,
    ) -> Tensor:
        """As many rows as there are images. Features are invented, in a bunch for each class.

        So clustering takes about as long as in the run, and finds classes and clusters, whose images are then wanted.
        """
        pixels, count = self.stream.pixels(domain), len(self.stream.pixels(domain))
        sampled = len(self.stream.inputs.sample_of[id(pixels)])
        count = count if limit is None else min(limit, count)
        rows = super().__call__(domain, compute, min(sampled, count), recipe)
        self.stream.left_out += count - len(rows)
        if compute is not None:
            return rows[torch.arange(count, device=rows.device) % len(rows)]
        draw = torch.Generator(rows.device).manual_seed(0)  # both domains have the same bunches
        C, d = self.method.num_classes, rows.shape[1]
        labels = self.source_labels if domain == "source" else torch.arange(count, device=rows.device) % C
        bunches = torch.randn(C, d, generator=draw, device=rows.device)
        return bunches[labels[:count]] + 0.5 * torch.randn(count, d, generator=draw, device=rows.device)


@contextmanager
def _quietly() -> Iterator[None]:
    """Hide log lines: what a method finds in repeated images means nothing."""
    log = logging.getLogger("unida")
    level = log.level
    log.setLevel(logging.WARNING)
    try:
        yield
    finally:
        log.setLevel(level)


def _wait(fabric: Fabric) -> None:
    if fabric.device.type == "cuda":
        torch.cuda.synchronize(fabric.device)
