"""The source's files of a finished run. It decodes no pixels."""

import csv
from collections.abc import Collection
from pathlib import Path

from unida.data.benchmarks import domain_files
from unida.data.folders import class_of, find_duplicates, scan
from unida.data.options import DataOptions
from unida.data.pairs import benchmark_pair
from unida.data.settings import UNKNOWN


def used_source(
    options: DataOptions, classes: Collection[str], skipped: Collection[str], cache: Path | None
) -> list[tuple[Path, str]]:
    """The files that the run learned from, and the class of each: no damaged ones, and no copies that it dropped.

    Args:
        skipped: the paths of files that the run left out.
    """
    pair, wanted, left_out = benchmark_pair(options), set(classes), set(skipped)
    if pair is not None:
        found, copies = domain_files(pair.benchmark, pair.root, pair.source, "adapt"), set()
    else:
        assert options.source is not None
        files = [file for file in scan(options.source, cache_dir=cache)[0] if (class_of(file) or UNKNOWN) in wanted]
        found = [(file.path, class_of(file) or UNKNOWN) for file in files]
        groups = find_duplicates(files) if options.duplicates == "drop" else []
        copies = {file.path for group in groups for file in group[1:]}
    used = [(path, name) for path, name in found if name in wanted and path not in copies]
    return [(path, name) for path, name in used if str(path) not in left_out]


def read_skipped(path: Path) -> list[tuple[str, str]]:
    """skipped.csv: path and reason of each file that a run left out; nothing if it is not there."""
    try:
        with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
            return [(row[0], row[1]) for row in list(csv.reader(file))[1:] if len(row) == 2]
    except (OSError, csv.Error):
        return []
