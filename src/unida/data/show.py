"""The data for people: contact sheets of folders and benchmarks, and the list of benchmarks."""

from collections.abc import Sequence
from pathlib import Path

from unida.data.benchmarks import available, domain_files, load_benchmark
from unida.data.folders import class_of, scan
from unida.data.settings import UNKNOWN
from unida.data.sheet import contact_sheet, side_by_side
from unida.errors import UserError, printable

LONGEST_NAME = 60  # letters of a class's name that are shown
MOST_ANSWERS = 40  # classes on a sheet of answers: a longer one is too much to look at
Groups = dict[str, list[Path]]  # class → pictures


def show_folders(folder: Path, other: Path | None, out: Path, per_class: int) -> Path:
    """A sheet of a folder's classes; with `other`, of both folders side by side."""
    groups = _groups_of_folder(folder)
    if other is None:
        return contact_sheet(
            [(_caption(n, p), p[:per_class]) for n, p in sorted(groups.items())], out, per_row=per_class
        )
    return _pair_sheet(groups, _groups_of_folder(other), (str(folder), str(other)), out, per_class)


def show_benchmark(name: str, root: Path, pair: str, out: Path, per_class: int) -> Path:
    """A sheet of two domains of a benchmark, side by side, in the benchmark's class order."""
    benchmark = load_benchmark(name)
    domains = benchmark.parse_pair(pair)
    sides: list[Groups] = []
    for domain in domains:
        groups: Groups = {label: [] for label in benchmark.classes}
        for path, label in domain_files(benchmark, root, domain):
            groups[label].append(path)
        sides.append(groups)
    return _pair_sheet(sides[0], sides[1], domains, out, per_class)


def benchmark_lines() -> list[str]:
    """Every benchmark: domains with published sizes, and by setting the numbers of shared and private classes."""
    lines: list[str] = []
    for name in available():
        benchmark = load_benchmark(name)
        domains = ", ".join(f"{d.name} ({d.letter}, {sum(d.totals.values())})" for d in benchmark.domains)
        lines += [f"{name}: {benchmark.title}, {len(benchmark.classes)} classes", f"  domains: {domains}"]
        for setting, split in benchmark.splits.items():
            sets = split.label_sets
            sizes = f"{len(sets.shared)}/{len(sets.source_private)}/{len(sets.target_private)}"
            lines.append(f"  {setting:<13} {sizes:<12} {split.note}")
        lines.append("")
    return [*lines, "Label sets are counts of shared/source-private/target-private classes."]


def _groups_of_folder(folder: Path) -> Groups:
    files, _ = scan(folder)
    if not files:
        raise UserError(f"{folder} holds no image: nothing to show")
    groups: Groups = {}
    for file in sorted(files, key=lambda f: f.relative):
        groups.setdefault(class_of(file) or "(no class folder)", []).append(file.path)
    return groups


def _pair_sheet(left: Groups, right: Groups, titles: tuple[str, str], out: Path, per_class: int) -> Path:
    names = [*left, *sorted(set(right) - set(left))]
    rows = [(name, left.get(name, []), right.get(name, [])) for name in names]
    captioned = [(f"{_shortened(name)} ({len(a)} | {len(b)})", a, b) for name, a, b in rows]
    return side_by_side(captioned, out, titles=titles, per_side=per_class)


def _caption(name: str, paths: list[Path]) -> str:
    return f"{_shortened(name)} ({len(paths)})"


def _shortened(name: str) -> str:
    """Cut a long name, so that the count after it stays visible."""
    shown = printable(name)
    return shown if len(shown) <= LONGEST_NAME else f"{shown[: LONGEST_NAME - 1]}…"


def show_answers(predictions: Sequence[tuple[str, str]], out: Path, per_class: int = 8) -> Path:
    """A sheet of (path, answer) pairs, some pictures per answer, "unknown" last: what a person checks first."""
    groups: Groups = {}
    for path, label in sorted(predictions):
        groups.setdefault(label, []).append(Path(path))
    unknown = groups.pop(UNKNOWN, [])
    largest = sorted(groups, key=lambda name: -len(groups[name]))[:MOST_ANSWERS]
    ordered = [(name, groups[name]) for name in sorted(largest)] + ([(UNKNOWN, unknown)] if unknown else [])
    return contact_sheet(
        [(_caption(name, paths), _spread(paths, per_class)) for name, paths in ordered], out, per_class
    )


def _spread(paths: list[Path], count: int) -> list[Path]:
    """A few paths, spread over the list: neighbours in a folder often look alike."""
    step = max(len(paths) / count, 1)
    return [paths[int(i * step)] for i in range(min(count, len(paths)))]
