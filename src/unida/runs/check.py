"""`unida check`: what is in the folders, what a run will keep on disk, how long it will take here."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from unida.analysis.auto_frame import choose_frame, with_frame
from unida.analysis.auto_tap import choose_taps, has_open_tap, with_taps
from unida.config import Config, complete, method_name
from unida.data.domains import Source, Target, open_domains
from unida.data.pixels import Pixels
from unida.errors import printable
from unida.models.backbone import refuse_crop
from unida.models.options import AUTO
from unida.models.weights import weights_line
from unida.runs.modelfile import build_for_run
from unida.runs.pipeline import Domains, refuse_single_images, refuse_uneven_batches
from unida.runs.rehearsal import Rehearsal, rehearse
from unida.support.counting import counted
from unida.support.fabric import Fabric
from unida.support.memory import keep_freed_memory
from unida.support.progress import data_size, duration
from unida.training.devices import open_fabric

GRAIN = 2  # grey levels that count as equal: on a plain ground, compression decides what is brighter
NEAR = 4  # differing bits, of 64, up to which two pictures are nearly the same


def check_run(config: Config) -> Iterator[str]:
    """Lines to read before `unida adapt` with the same options, each as soon as it is known.

    That run finds the decoded images in the cache.
    """
    return map(printable, _lines(config))  # names of classes and files may be anything


def _lines(config: Config) -> Iterator[str]:
    keep_freed_memory()  # as the run will
    fabric, config = _completed(config)
    yield weights_line(config.model.backbone, config.model.weights)
    source, target = open_domains(config.data)
    yield from _describe(source, target)
    yield from _near_copies(source.pixels, target.pixels)
    config, cost, frozen_at = _rehearsed(fabric, config, source, target)
    yield ""
    yield from _tell_cost(cost, config, frozen_at)


def cost_of(config: Config) -> Rehearsal:
    """What a run with these options will cost here."""
    keep_freed_memory()
    fabric, config = _completed(config)
    return _rehearsed(fabric, config, *open_domains(config.data))[1]


def _completed(config: Config) -> tuple[Fabric, Config]:
    fabric = open_fabric(replace(config.training, devices=1, num_nodes=1))
    config = complete(config, has_gpu=fabric.device.type != "cpu")
    refuse_uneven_batches(config, config.training.devices * config.training.num_nodes)
    return fabric, config


def _rehearsed(fabric: Fabric, config: Config, source: Source, target: Target) -> tuple[Config, Rehearsal, str | None]:
    """The config with all choices made, the cost, and the tap up to which the backbone is frozen."""
    if has_open_tap(config):
        config = with_taps(config, *choose_taps(config, source, target, fabric.device))
    if config.model.frame == AUTO:
        config = with_frame(config, choose_frame(config, source, target, fabric.device))
    with torch.random.fork_rng():
        method = build_for_run(config, source, target)
        refuse_single_images(method, config, config.training.devices * config.training.num_nodes)
        refuse_crop(method.backbone, config.data.crop, method.eval().features)
        return config, rehearse(fabric, method, Domains(source, target), config), method.backbone.frozen_at


def _describe(source: Source, target: Target) -> list[str]:
    counts = np.bincount(source.labels, minlength=len(source.classes))
    order = np.argsort(counts, kind="stable")
    fewest, most = order[0], order[-1]
    lines = [
        f"source: {len(source.pixels)} images of {len(source.classes)} classes, from {counts[fewest]} "
        f"({source.classes[fewest]}) to {counts[most]} ({source.classes[most]}) a class",
        f"target: {counted(len(target.pixels), 'image')}",
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

    It stays the same with other sizes, formats and compression, and changes with the picture.
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
    for j, value in enumerate(theirs):  # a row at a time: memory use stays small
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
    return [f"near-duplicates between source and target: {len(pairs)}, please look at them:", *shown, *more]


def _tell_cost(cost: Rehearsal, config: Config, frozen_at: str | None) -> list[str]:
    whole = {"all": "all of it is trained", "head": "all of it is frozen"}
    how = whole.get(config.model.train, f"frozen up to {frozen_at}, what follows is trained")
    steps = f"{cost.steps} steps of {cost.images_per_step} images"
    steps = steps if cost.steps else "heads solved on all images, without steps"
    lines = [f"{method_name(config)} on {config.model.backbone}: {how}; {steps}"]
    if frozen_at is not None:
        lines.append(
            f"features to compute: {cost.views_missing} views, {data_size(cost.feature_bytes)} in "
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
