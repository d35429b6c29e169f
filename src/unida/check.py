"""A look before the leap: what is in the folders, what a run will keep on disk, how long it will take here."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from lightning_fabric import Fabric

from unida.analysis.auto_tap import choose_taps, has_open_tap, with_taps
from unida.config import Config, tracked
from unida.data.augment import Preprocess
from unida.data.cache import Pixels
from unida.data.domains import Source, Target, benchmark_pair, open_domains
from unida.methods.base import Method, SourceBatch, TargetBatch
from unida.modelfile import build_method
from unida.models.backbone import refuse_crop
from unida.models.features import FeatureInputs
from unida.models.shelf import stem_of
from unida.pretext.instance_count import PretextBatch
from unida.processes import open_fabric
from unida.progress import duration
from unida.runfolder import complete
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
    seconds_training: float
    seconds_answers: float


def _measure(fabric: Fabric, method: Method, source: Source, target: Target, config: Config) -> Cost:
    """Time a few batches of what the run will do, and multiply."""
    backbone, size = method.backbone, config.training.batch_size
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
    optimisers = build_optimisers(method, config.training)
    labels = torch.from_numpy(source.labels[index]).to(fabric.device)
    # A mosaic takes the network as long as any image.
    mosaics = [PretextBatch(x, torch.zeros_like(labels)) if method.pretext else None for x in (images, target_images)]
    batches = (
        SourceBatch(images, labels, torch.from_numpy(index), mosaics[0]),
        TargetBatch(target_images, torch.from_numpy(target_index), mosaics[1]),
    )

    def step() -> None:
        for turn, optimiser in optimisers.items():
            with fabric.autocast():
                losses = method.train()(*batches, 0, turn)
            torch.stack(list(losses.values())).sum().backward()
            optimiser.step()
            method.zero_grad(set_to_none=True)

    per_step = _time(step, fabric)
    with torch.inference_mode():
        per_answer = _time(lambda: method.eval().score(method.features(target_images)), fabric) / size
    steps = config.training.steps
    assert steps is not None  # complete
    return Cost(missing, kept, missing * per_view, steps * per_step, len(target.pixels) * per_answer)


def _time(work: Callable[[], object], fabric: Fabric) -> float:
    """Seconds a call, the median of a few after one to warm up."""
    seconds = []
    for _ in range(TIMED + 1):
        start = time.perf_counter()
        work()
        if fabric.device.type == "cuda":
            torch.cuda.synchronize(fabric.device)
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds[1:]))


def _tell_cost(cost: Cost, config: Config, method: Method) -> list[str]:
    training, frozen_at = config.training, method.backbone.frozen_at
    how = "all of it is trained" if frozen_at is None else f"frozen up to {frozen_at}, what follows is trained"
    batches = f"{training.steps} steps of 2 × {training.batch_size} images"
    lines = [f"{training.method} on {config.model.backbone}: {how}; {batches}"]
    if frozen_at is not None:
        lines.append(
            f"features to compute: {cost.views_missing} views, {cost.feature_bytes / 2**30:.2f} GiB in "
            f"{config.data.cache / 'features'}, {duration(cost.seconds_features)}"
        )
    total = cost.seconds_features + cost.seconds_training + cost.seconds_answers
    return [*lines, f"training: {duration(cost.seconds_training)}", f"in all, on this machine: about {duration(total)}"]
