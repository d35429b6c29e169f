"""The true classes of the target's images. Only evaluation reads them; nothing in training imports this module."""

import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import numpy as np

from unida.data.benchmarks import Part, domain_files
from unida.data.domains import Target, open_benchmark_domain, open_domains, open_target
from unida.data.folders import Skipped
from unida.data.options import DataOptions, usable_cache
from unida.data.pairs import benchmark_pair
from unida.data.pixels import Pixels
from unida.errors import UserError, printable

WITHOUT_LABELS = "adapt without --target-labels"  # the way out if images lie in no class folder, and are to stay there

log = logging.getLogger("unida")


@dataclass(frozen=True)
class Truth:
    """The images to evaluate on and their true classes.

    Attributes:
        labels: (N,) int64; 0…C−1 are the source's classes, each class that only the target has follows as C, C+1, …
        names: name of each id.
    """

    pixels: Pixels
    labels: np.ndarray
    names: tuple[str, ...]
    skipped: tuple[Skipped, ...]


def read_truth(
    options: DataOptions,
    target: Target | None,
    classes: tuple[str, ...],
    visible: bool = True,
    part: Part = "evaluate",
    way_out: str = WITHOUT_LABELS,
) -> Truth | None:
    """The truth of a benchmark's target, of a labelled target folder if `--target-labels` is set, or None.

    Args:
        part: of a benchmark that evaluates on other images than it adapts on.
        way_out: what to tell instead of `WITHOUT_LABELS`.
    """
    pair = benchmark_pair(options)
    if pair is not None:
        wanted = pair.label_sets.target_classes
        pixels, names, skipped = open_benchmark_domain(pair, pair.target, part, wanted, options, visible)
    elif options.target_labels:
        assert target is not None
        pixels, skipped = target.pixels, target.skipped
        names = [_folder_of(file.relative, options, way_out) for file in pixels.files]
    else:
        return None
    if not set(names) & set(classes):
        log.warning(
            "no class of the target (%s, …) is named like one of the source (%s, …): all images count as unknown",
            printable(min(names)),
            printable(min(classes)),
        )
    private = sorted(set(names) - set(classes))
    all_names = (*classes, *private)
    ids = {name: i for i, name in enumerate(all_names)}
    return Truth(pixels, np.array([ids[name] for name in names], dtype=np.int64), all_names, skipped)


def read_truth_of_run(
    options: DataOptions, classes: tuple[str, ...], folder: str | os.PathLike[str] | None, visible: bool
) -> Truth:
    """The truth to evaluate a finished run on: its own target's, or that of another folder with class sub-folders."""
    options = _with_usable_cache(options)
    if folder is not None:
        options = replace(
            options,
            benchmark=None,
            root=None,
            pair=None,
            source=options.source or Path(),
            target=Path(folder),
            target_without=None,
        )
    if options.benchmark is not None:
        truth = read_truth(options, None, classes, visible)
    else:
        target = _own_target(options, visible) if folder is None else open_target(options, visible)
        way_out = "name a folder that has one sub-folder per class with --target DIR"
        truth = read_truth(replace(options, target_labels=True), target, classes, visible, way_out=way_out)
    assert truth is not None  # labels were asked for
    return truth


def read_truth_of_training(options: DataOptions, classes: tuple[str, ...], visible: bool) -> Truth | None:
    """The truth of the target images that a finished run learned from, in the order in which it numbers them.

    None if the target has no labels.
    """
    options = _with_usable_cache(options)
    has_own_labels = options.benchmark is None and options.target_labels
    target = _own_target(options, visible) if has_own_labels else None
    return read_truth(options, target, classes, visible, part="adapt")


def _own_target(options: DataOptions, visible: bool) -> Target:
    """The target folder of a run: only both folders together show which images were dropped as copies."""
    return open_domains(options, visible)[1] if options.duplicates == "drop" else open_target(options, visible)


def _with_usable_cache(options: DataOptions) -> DataOptions:
    return replace(options, cache=usable_cache(options.cache))


def read_class_names(options: DataOptions, paths: Iterable[str]) -> dict[str, str]:
    """The true class of each image of a finished run, by its path. Reads no image; paths without a class are left out.

    Args:
        options: of a run that has labels.
        paths: as in the run's predictions.csv.
    """
    pair = benchmark_pair(options)
    if pair is not None:
        listed = domain_files(pair.benchmark, pair.root, pair.target, "evaluate")
        class_of_path = {str(path): name for path, name in listed}
        return {path: class_of_path[path] for path in paths if path in class_of_path}
    assert options.target is not None
    inside = [path for path in paths if Path(path).is_relative_to(options.target)]
    return {path: _folder_of(Path(path).relative_to(options.target).as_posix(), options) for path in inside}


def _folder_of(relative: str, options: DataOptions, way_out: str = WITHOUT_LABELS) -> str:
    parts = PurePosixPath(relative).parts
    if len(parts) < 2:
        raise UserError(
            f"{relative} lies in no class folder of {options.target}, so it cannot be evaluated: move it into one, or "
            f"{way_out}"
        )
    return parts[0]
