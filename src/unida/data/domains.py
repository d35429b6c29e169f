"""From options to the two domains of a run: a labelled source, and a target that has no labels."""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from unida.data.benchmarks import Part, domain_files
from unida.data.folders import (
    ImageFile,
    Skipped,
    class_of,
    find_duplicates,
    labelled_by_folder,
    scan,
    scan_listed,
)
from unida.data.options import DataOptions
from unida.data.pairs import BenchmarkPair, benchmark_pair
from unida.data.pixels import Pixels, open_pixels
from unida.data.settings import UNKNOWN, names_left_out
from unida.errors import UserError
from unida.support.counting import counted
from unida.support.progress import progress

log = logging.getLogger("unida")


@dataclass(frozen=True)
class Source:
    pixels: Pixels
    labels: np.ndarray  # (N,) int64, ids 0…C−1
    classes: tuple[str, ...]  # name of each id
    skipped: tuple[Skipped, ...] = ()
    copies: tuple[Skipped, ...] = ()  # that --duplicates drop left out


@dataclass(frozen=True)
class Target:
    """Images only. Only `unida.evaluation.truth` knows what they show."""

    pixels: Pixels
    skipped: tuple[Skipped, ...] = ()
    copies: tuple[Skipped, ...] = ()  # as above


def open_domains(options: DataOptions, visible: bool = True) -> tuple[Source, Target]:
    """Scan and check both domains; decode them, or find them in the cache."""
    pair = benchmark_pair(options)
    if pair is not None:
        return _benchmark_source(pair, options, visible), _benchmark_target(pair, options, visible)
    assert options.source is not None and options.target is not None  # benchmark_pair made sure
    _refuse_same_folder(options.source, options.target)
    _refuse_cache(options.cache)
    source_files, source_skipped = scan(options.source, cache_dir=options.cache)
    _refuse_skipped(source_skipped, options)
    if not source_files:
        raise UserError(f"--source {options.source} holds no image: it needs one sub-folder of images per class")
    all_source, source_files = source_files, _without(source_files, options.source_without, "--source-without")
    labelled_by_folder(source_files)  # refuse images outside class folders before the long work of decoding
    target = open_target(options, visible)
    source_pixels = _only(source_files, _open(all_source, "source", options, visible))
    _refuse_lost_classes(source_files, source_pixels.files, options)
    copies = _copies(source_pixels, target.pixels, options)
    source_pixels, source_copies = _without_copies(source_pixels, copies)
    target_pixels, target_copies = _without_copies(target.pixels, copies)
    _refuse_dropped_whole(source_files, source_pixels, target_pixels, options)
    classes, labels = labelled_by_folder(source_pixels.files)
    _refuse_thin_classes(classes, labels, options)
    _warn_of_empty_classes(options.source, all_source)
    if copies:
        log.info("dropped %s", "1 copy of another file" if len(copies) == 1 else f"{len(copies)} copies of other files")
    return (
        Source(source_pixels, labels, tuple(classes), (*source_skipped, *source_pixels.skipped), source_copies),
        Target(target_pixels, target.skipped, target_copies),
    )


def open_target(options: DataOptions, visible: bool = True) -> Target:
    """The target folder alone."""
    assert options.target is not None
    _refuse_cache(options.cache)
    files, skipped = scan(options.target, cache_dir=options.cache)
    _refuse_skipped(skipped, options)
    if not files:
        raise UserError(f"{options.target} holds no image: point it at a folder of jpg, png, webp, bmp or tiff")
    kept = _without(files, options.target_without, "--target-without")
    pixels = _only(kept, _open(files, "target", options, visible))
    if len(pixels) == 0:
        raise UserError(
            f"{options.target} has {counted(len(files), 'image')}, but none can be read: fix or replace them"
        )
    return Target(pixels, (*skipped, *pixels.skipped))


def open_benchmark_domain(
    pair: BenchmarkPair, domain: str, part: Part, classes: Sequence[str], options: DataOptions, visible: bool
) -> tuple[Pixels, list[str], tuple[Skipped, ...]]:
    """A domain's images of the named classes, and each one's class name.

    The whole domain is decoded into one pack, so that other settings and pairs find it there.
    """
    _refuse_cache(options.cache)
    listed = domain_files(pair.benchmark, pair.root, domain, part)
    files, skipped = scan_listed([path for path, _ in listed], pair.root, cache_dir=options.cache)
    _refuse_skipped(skipped, options)
    pixels = _open(files, domain, options, visible)
    class_of_path = {str(path): name for path, name in listed}
    names = [class_of_path[str(file.path)] for file in pixels.files]
    keep = np.flatnonzero(np.isin(names, list(classes)))
    if len(keep) == 0:
        raise UserError(f"{pair.root}: domain {domain!r} has no readable image of the setting's classes")
    return pixels.subset(keep), [names[i] for i in keep], (*skipped, *pixels.skipped)


def _benchmark_source(pair: BenchmarkPair, options: DataOptions, visible: bool) -> Source:
    # In the benchmark's order: an id does not depend on which classes are shared. The published sets do take their
    # shared classes from the start of that order, but no method uses the order of ids.
    wanted = set(pair.label_sets.source_classes)
    classes = tuple(name for name in pair.benchmark.classes if name in wanted)
    pixels, names, skipped = open_benchmark_domain(pair, pair.source, "adapt", classes, options, visible)
    ids = {name: i for i, name in enumerate(classes)}
    labels = np.array([ids[name] for name in names], dtype=np.int64)
    missing = sorted(set(classes) - set(names))
    if missing:
        raise UserError(f"{pair.root}: domain {pair.source!r} has no image of {missing[0]!r}; see: unida data verify")
    return Source(pixels, labels, classes, skipped)


def _benchmark_target(pair: BenchmarkPair, options: DataOptions, visible: bool) -> Target:
    classes = pair.label_sets.target_classes
    pixels, _, skipped = open_benchmark_domain(pair, pair.target, "adapt", classes, options, visible)
    return Target(pixels, skipped)


def _open(files: Sequence[ImageFile], what: str, options: DataOptions, visible: bool) -> Pixels:
    with progress(f"reading {what}", len(files), visible=visible) as report:
        return open_pixels(
            files,
            resize=options.resize,
            size=options.image_size,
            cache_dir=options.cache,
            strict=options.strict,
            memory_limit=0,  # mapped: a run that needs pixels in every step reads them into memory
            progress=lambda done, total: report(done),
        )


def _without(files: list[ImageFile], names: str | None, option: str) -> list[ImageFile]:
    """The files that do not lie in the sub-folders that an option leaves out."""
    there = {class_of(file) or "" for file in files} - {""}
    left_out = names_left_out(names, there, option, "the folder")
    kept = [file for file in files if class_of(file) not in left_out]
    if not kept:
        raise UserError(f"{option} leaves out every image of the folder: keep at least one sub-folder")
    return kept


def _only(files: Sequence[ImageFile], pixels: Pixels) -> Pixels:
    """The decoded images of these files. The whole folder is decoded, so that runs that leave out others find it."""
    paths = {file.path for file in files}
    keep = np.array([file.path in paths for file in pixels.files], dtype=bool)
    return pixels if keep.all() else pixels.subset(keep)


def _refuse_cache(cache: Path) -> None:
    """Refuse a file where the cache needs a folder: now, not after all images were read."""
    inside = [cache / name for name in ("digests", "pixels", "features")]
    for path in (*inside, cache, *cache.parents):
        if os.path.lexists(path) and not os.path.isdir(path):
            raise UserError(
                f"{cache}: cannot be used as cache ({path} is not a folder); choose another folder with --cache"
            )


def _refuse_skipped(skipped: Sequence[Skipped], options: DataOptions) -> None:
    """--strict, for files that are not decoded: they are no images, or cannot be read."""
    if options.strict and skipped:
        first = skipped[0]
        raise UserError(f"{first.path}: {first.reason}; fix or remove the file, or run without --strict to skip it")


def _refuse_same_folder(source: Path, target: Path) -> None:
    if not source.is_dir() or not target.is_dir():
        return  # scan reports which is missing
    first, second = source.resolve(), target.resolve()
    if first == second:
        raise UserError(f"--source and --target are the same folder, {source}: give two")
    if first in second.parents or second in first.parents:
        raise UserError(f"--source {source} and --target {target} lie one inside the other: move them apart")


def _warn_of_empty_classes(source: Path, files: Sequence[ImageFile]) -> None:
    """A folder that was made and forgotten looks like a class, and is none."""
    folders = {name for name in os.listdir(source) if not name.startswith(".") and os.path.isdir(source / name)}
    for name in sorted(folders - {class_of(file) for file in files}):
        log.warning("source: folder %r holds no image that is read, so it is no class", name)


def _copies(source: Pixels, target: Pixels, options: DataOptions) -> dict[Path, ImageFile]:
    """The files to drop, and what each is a copy of. The first one is kept: the source's before the target's.

    Done after decoding: files without a picture (all empty files are equal) are no duplicates.
    """
    groups = find_duplicates([*source.files, *target.files])
    if not groups or options.duplicates == "keep":
        return {}
    if options.duplicates == "error":
        first, second = groups[0][0], groups[0][1]
        more = f" (and {counted(len(groups) - 1, 'more such picture')})" if len(groups) > 1 else ""
        raise UserError(
            f"{first.path} and {second.path} are the same picture{more}: "
            "delete the copies, or pass --duplicates drop or --duplicates keep"
        )
    return {file.path: group[0] for group in groups for file in group[1:]}


def _without_copies(pixels: Pixels, copies: Mapping[Path, ImageFile]) -> tuple[Pixels, tuple[Skipped, ...]]:
    dropped = [file.path for file in pixels.files if file.path in copies]
    if not dropped:
        return pixels, ()
    kept = pixels.subset(np.array([file.path not in copies for file in pixels.files], dtype=bool))
    return kept, tuple(Skipped(str(path), f"copy of {copies[path].path}") for path in dropped)


def _refuse_lost_classes(scanned: Sequence[ImageFile], readable: Sequence[ImageFile], options: DataOptions) -> None:
    lost = sorted({class_of(file) or "" for file in scanned} - {class_of(file) or "" for file in readable})
    if lost:
        raise UserError(f"--source {options.source}: no image of class {lost[0]!r} can be read: fix or remove it")


def _refuse_dropped_whole(scanned: Sequence[ImageFile], source: Pixels, target: Pixels, options: DataOptions) -> None:
    """--duplicates drop must not remove a whole class, or the target, without an error."""
    lost = sorted({class_of(file) or "" for file in scanned} - {class_of(file) or "" for file in source.files})
    if lost:
        raise UserError(
            f"--source {options.source}: every image of class {lost[0]!r} is a copy of another class's: remove the "
            "folder, or pass --duplicates keep"
        )
    if len(target) == 0:
        raise UserError(
            f"--target {options.target}: every image is a copy of a source image: pass --duplicates keep, "
            "or choose another folder"
        )


def _refuse_thin_classes(classes: Sequence[str], labels: np.ndarray, options: DataOptions) -> None:
    if len(classes) < 2:
        raise UserError(f"--source {options.source} has one class, {classes[0]!r}: it needs two or more")
    if UNKNOWN in classes:
        raise UserError(
            f"--source {options.source} has a class {UNKNOWN!r}, which is the answer for no class: rename the folder"
        )
    counts = np.bincount(labels, minlength=len(classes))
    thin = int(counts.argmin())
    if counts[thin] < options.min_images_per_class:
        raise UserError(
            f"--source {options.source}: class {classes[thin]!r} has {counts[thin]} readable image(s): add some, "
            f"remove the folder, or pass --min-images-per-class {counts[thin]}"
        )
