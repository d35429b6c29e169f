"""A look before the leap: what is in the folders, what a run will keep on disk, how long it will take here."""

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor

from unida.analysis.auto_tap import choose_taps, has_open_tap, with_taps
from unida.config import Config, method_name, tracked
from unida.data.augment import Preprocess
from unida.data.cache import Pixels
from unida.data.domains import Source, Target, benchmark_pair, open_domains
from unida.methods.base import Domain, Method, Requests, SourceBatch, TargetBatch
from unida.modelfile import build_method
from unida.models.backbone import refuse_crop
from unida.models.features import FeatureInputs
from unida.models.shelf import stem_of
from unida.pipeline import refuse_batches
from unida.pretext.instance_count import PretextBatch
from unida.processes import open_fabric
from unida.progress import duration
from unida.runfolder import complete
from unida.training.batches import images_shown
from unida.training.memory import keep_freed_memory
from unida.training.optim import build_optimisers

log = logging.getLogger("unida")

GRAIN = 2  # grey levels that count as equal: on a plain ground, compression decides what is brighter
NEAR = 4  # differing bits, of 64, up to which two pictures are nearly the same
TIMED = 3  # batches timed, after one to warm up


def check_run(config: Config) -> list[str]:
    """Lines to read before `unida adapt` is called with the same options. It finds the images decoded here."""
    keep_freed_memory()  # as the run will
    fabric = open_fabric(replace(config.training, devices=1, num_nodes=1))
    config = complete(config, has_gpu=fabric.device.type != "cpu")
    benchmark_pair(config.data)
    refuse_batches(config, config.training.devices * config.training.num_nodes)
    source, target = open_domains(config.data)
    lines = [*_describe(source, target), *_near_copies(source.pixels, target.pixels)]
    if has_open_tap(config):
        config = with_taps(config, *choose_taps(config, source, target, fabric.device))
    with torch.random.fork_rng():
        method = build_method(config, len(source.classes)).to(fabric.device)
        refuse_crop(method.backbone, config.data.crop, method.eval().features)
        cost = _measure(fabric, method, source, target, config)
    return [*lines, "", *_tell_cost(cost, config, method)]


def _describe(source: Source, target: Target) -> list[str]:
    counts = np.bincount(source.labels, minlength=len(source.classes))
    order = np.argsort(counts, kind="stable")
    fewest, most = order[0], order[-1]
    lines = [
        f"source: {len(source.pixels)} images of {len(source.classes)} classes, from {counts[fewest]} "
        f"({source.classes[fewest]}) to {counts[most]} ({source.classes[most]}) a class",
        f"target: {len(target.pixels)} images",
    ]
    for name, domain in (("source", source), ("target", target)):
        sizes = sorted(file.bytes for file in domain.pixels.files)
        lines.append(
            f"{name} files: {sizes[0] / 1024:.0f} to {sizes[-1] / 1024:.0f} KiB, {sum(sizes) / 2**20:.1f} MiB in all"
        )
        lines += [f"  skipped {item.path}: {item.reason}" for item in domain.skipped]
    return lines


def difference_hash(pixels: Pixels) -> np.ndarray:
    """(N,) uint64: for an 8×9 thumbnail in grey, is each cell brighter than its right neighbour?

    It survives other sizes, formats and compression, and changes with the picture.
    """
    bits = np.empty((len(pixels), 64), dtype=bool)
    for i in range(len(pixels)):
        grey = pixels.image(i).astype(np.float32).mean(axis=2)
        rows = np.array_split(grey, 8, axis=0)
        cells = np.array([[part.mean() for part in np.array_split(row, 9, axis=1)] for row in rows])
        bits[i] = (cells[:, :-1] > cells[:, 1:] + GRAIN).reshape(-1)
    return np.packbits(bits, axis=1).view(np.uint64).reshape(-1)


def near_copies(source: Pixels, target: Pixels) -> list[tuple[int, int]]:
    """(source index, target index) of pictures that look the same, the nearest source image for each target image."""
    ours, theirs = difference_hash(source), difference_hash(target)
    pairs = []
    for j, value in enumerate(theirs):  # a row at a time: memory stays flat
        distance = np.bitwise_count(ours ^ value)
        nearest = int(distance.argmin())
        if distance[nearest] <= NEAR:
            pairs.append((nearest, j))
    return pairs


def _near_copies(source: Pixels, target: Pixels) -> list[str]:
    pairs = near_copies(source, target)
    if not pairs:
        return ["near-duplicates between source and target: none"]
    shown = [f"  {source.files[i].path} ~ {target.files[j].path}" for i, j in pairs[:10]]
    more = [f"  and {len(pairs) - len(shown)} more"] if len(pairs) > len(shown) else []
    return [f"near-duplicates between source and target: {len(pairs)}, to be looked at:", *shown, *more]


@dataclass(frozen=True)
class Cost:
    views_missing: int
    feature_bytes: int
    seconds_features: float
    rounds: int
    seconds_rounds: float
    images_per_step: int
    seconds_steps: float
    seconds_answers: float


def _measure(fabric: Fabric, method: Method, source: Source, target: Target, config: Config) -> Cost:
    """Time a few batches of what the run will do, and multiply."""
    backbone, size, steps = method.backbone, config.training.batch_size, config.training.steps
    assert steps is not None  # complete
    method.begin(steps, config.training.seed)
    preprocess = Preprocess(config.data.crop, backbone.mean, backbone.std, fabric.device)
    index = np.arange(size) % len(source.pixels)
    target_index = np.arange(size) % len(target.pixels)
    images, target_images = (
        preprocess.test_view(source.pixels, index),
        preprocess.test_view(target.pixels, target_index),
    )
    missing, kept, per_view = 0, 0, 0.0
    if backbone.frozen_at is not None:
        stem = stem_of(backbone, config.data.crop, config.model.feature_format)
        inputs = FeatureInputs(preprocess, stem, config.model.views, config.data.cache)
        of_source = inputs.every_view if method.looks_at_source or tracked(config.output) else inputs.training_views
        missing = inputs.count_missing([(source.pixels, of_source), (target.pixels, inputs.every_view)])
        if method.pretext is not None and config.spa.spa_pool is not None:
            both = (source.pixels, target.pixels)
            missing += inputs.count_missing_mosaics(method.pretext, both, config.spa.spa_pool)
        kept = missing * 2 * int(np.prod(stem.shape))
        with torch.inference_mode():
            per_view = _time(lambda: backbone.stem(images), fabric) / size
            images, target_images = backbone.stem(images), backbone.stem(target_images)
        images, target_images = images.clone(), target_images.clone()  # inference tensors cannot be trained on
        backbone.starts_at_tap = True
    with torch.inference_mode():
        per_answer = _time(lambda: method.eval().score(method.features(target_images)), fabric) / size
    sweep = _StandIns(method, {"source": images, "target": target_images}, source, target)
    rounds, seconds_rounds = _time_rounds(fabric, method, sweep, steps, per_answer)
    labels = torch.from_numpy(source.labels[index]).to(fabric.device)
    batches = (
        SourceBatch(images, labels, torch.from_numpy(index)),
        TargetBatch(target_images, torch.from_numpy(target_index)),
    )
    shown, per_step = _time_step(fabric, method, batches, sweep, steps, config)
    return Cost(
        missing,
        kept,
        missing * per_view,
        rounds,
        seconds_rounds,
        shown,
        steps * per_step,
        len(target.pixels) * per_answer,
    )


class _StandIns:
    """A `Sweep` that looks at one batch of each domain and makes up the rest.

    Made-up features are as many as the images, in a bunch for each class: so clustering takes about as long as it will,
    and finds classes and clusters to request images of.

    Attributes:
        images: how many it was asked to look at.
    """

    def __init__(self, method: Method, batches: dict[Domain, Tensor], source: Source, target: Target) -> None:
        self.method, self.batches, self.images = method, batches, 0
        device = batches["source"].device
        self.labels: dict[Domain, Tensor] = {
            "source": torch.from_numpy(source.labels).to(device),
            "target": torch.arange(len(target.pixels), device=device) % method.num_classes,
        }

    @property
    def source_labels(self) -> Tensor:
        return self.labels["source"]

    def __call__(
        self, domain: Domain, compute: Callable[[Tensor], Tensor] | None = None, limit: int | None = None
    ) -> Tensor:
        labels = self.labels[domain][:limit]
        self.images += len(labels)
        rows = (compute or self.method.features)(self.batches[domain]).float()
        if compute is not None:
            return _repeated(rows, len(labels))
        draw = torch.Generator(rows.device).manual_seed(0)  # both domains have the same bunches
        bunches = torch.randn(self.method.num_classes, rows.shape[1], generator=draw, device=rows.device)
        return bunches[labels] + 0.5 * torch.randn(len(labels), rows.shape[1], generator=draw, device=rows.device)

    def pretext(self, domain: Domain, batches: int) -> Iterator[PretextBatch]:
        for _ in range(batches):
            yield self.mosaics(domain)

    def mosaics(self, domain: Domain) -> PretextBatch:
        """A mosaic takes the network as long as any image."""
        images, task = self.batches[domain], self.method.pretext
        assert task is not None
        return PretextBatch(images, torch.arange(len(images), device=images.device) % task.cells)

    def requested(self, domain: Domain, requests: Requests) -> dict[str, Tensor]:
        asked = requests.get(domain, {})
        return {name: _repeated(self.batches[domain], len(index)) for name, index in asked.items()}


def _repeated(rows: Tensor, count: int) -> Tensor:
    return rows[torch.arange(count, device=rows.device) % len(rows)]


def _last_round(method: Method, steps: int) -> int:
    """The step before which the last one is that training goes by; 0 too where there is none."""
    return (steps - 1) // method.round_every * method.round_every if method.round_every else 0


@torch.no_grad()
def _time_rounds(fabric: Fabric, method: Method, sweep: _StandIns, steps: int, per_image: float) -> tuple[int, float]:
    """How many rounds a run has, and their seconds: of the first, and of the last for all that follow it."""
    if not method.round_every:
        return 0, 0.0
    last, seconds, level = _last_round(method, steps), 0.0, log.level
    later = last // method.round_every + int(method.round_at_end)
    log.setLevel(logging.WARNING)  # what it finds in made-up features is nobody's business
    try:
        for step, times in ((0, 1), (steps if method.round_at_end else last, later)) if later else ((0, 1),):
            sweep.images, start = 0, time.perf_counter()
            with fabric.autocast():
                method.eval().on_round(step, sweep)
            _wait(fabric)
            seconds += times * (time.perf_counter() - start + sweep.images * per_image)
    finally:
        log.setLevel(level)
    return 1 + later, seconds


def _time_step(
    fabric: Fabric,
    method: Method,
    batches: tuple[SourceBatch, TargetBatch],
    sweep: _StandIns,
    steps: int,
    config: Config,
) -> tuple[int, float]:
    """The images that a step shows to the network, and its seconds, after the last round."""
    step = _last_round(method, steps)
    asked = method.requests(step)
    source = batches[0]._replace(extra=sweep.requested("source", asked))
    target = batches[1]._replace(extra=sweep.requested("target", asked))
    if method.pretext is not None:
        source = source._replace(pretext=sweep.mosaics("source"))
        target = target._replace(pretext=sweep.mosaics("target"))
    optimisers = build_optimisers(method, config.training)

    def take() -> None:
        for turn, optimiser in optimisers.items():
            with fabric.autocast():
                losses = method.train()(source, target, step, turn)
            torch.stack(list(losses.values())).sum().backward()
            optimiser.step()
            method.zero_grad(set_to_none=True)

    return images_shown(method, source, target), _time(take, fabric)


def _time(work: Callable[[], object], fabric: Fabric) -> float:
    """Seconds a call, the median of a few after one to warm up."""
    seconds = []
    for _ in range(TIMED + 1):
        start = time.perf_counter()
        work()
        _wait(fabric)
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds[1:]))


def _wait(fabric: Fabric) -> None:
    if fabric.device.type == "cuda":
        torch.cuda.synchronize(fabric.device)


def _tell_cost(cost: Cost, config: Config, method: Method) -> list[str]:
    training, frozen_at = config.training, method.backbone.frozen_at
    how = "all of it is trained" if frozen_at is None else f"frozen up to {frozen_at}, what follows is trained"
    batches = f"{training.steps} steps of {cost.images_per_step} images"
    lines = [f"{method_name(config)} on {config.model.backbone}: {how}; {batches}"]
    if frozen_at is not None:
        lines.append(
            f"features to compute: {cost.views_missing} views, {cost.feature_bytes / 2**30:.2f} GiB in "
            f"{config.data.cache / 'features'}, {duration(cost.seconds_features)}"
        )
    seconds = cost.seconds_steps + cost.seconds_rounds
    of_rounds = f", {duration(cost.seconds_rounds)} of it in {cost.rounds} round(s) over the images"
    total = cost.seconds_features + seconds + cost.seconds_answers
    return [
        *lines,
        f"training: {duration(seconds)}{of_rounds if cost.rounds else ''}",
        f"in all, on this machine: about {duration(total)}",
    ]
