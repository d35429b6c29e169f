"""Compare a copy of a benchmark with its published numbers, class by class. Counts files, decodes nothing."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from unida.data.benchmarks.files import (
    DomainScan,
    domains_found,
    find_list,
    image_paths,
    read_list,
    scan_domain,
)
from unida.data.benchmarks.spec import Benchmark, Part, Role, RoleCounts, count_role
from unida.data.settings import LabelSets
from unida.support.counting import counted

_SHOWN = 8  # problems of one kind and domain that are listed before "… and N more"


@dataclass(frozen=True)
class PartCount:
    """Images of one part of a domain ('all', 'train', 'test'), found and published, by class and in all."""

    domain: str
    part: str
    found: dict[str, int]
    published: dict[str, int] | None
    published_total: int

    @property
    def found_total(self) -> int:
        return sum(self.found.values())

    @property
    def found_classes(self) -> int:
        return sum(count > 0 for count in self.found.values())

    def problems(self) -> list[str]:
        """A line per class with too few or too many images, or one for the total if only that is published."""
        place = self.domain if self.part == "all" else f"{self.domain} {self.part}"
        if self.published is None:
            return _difference(place, self.found_total, self.published_total)
        lines = []
        for name, published in self.published.items():
            lines += _difference(f"{place} / {name}", self.found.get(name, 0), published)
        return _shortened(lines, place)


@dataclass(frozen=True)
class SettingCount:
    """What a domain holds in one setting as source and as target; published numbers if there are any."""

    setting: str
    domain: str
    source: RoleCounts
    target: RoleCounts
    published_source: RoleCounts | None
    published_target: RoleCounts | None


@dataclass(frozen=True)
class VerifyReport:
    """The outcome of `verify`. `ok` when every domain is there and agrees with the published numbers."""

    title: str
    root: Path
    parts: tuple[PartCount, ...]
    settings: tuple[SettingCount, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.problems

    def lines(self) -> list[str]:
        """The report as text: a table of domains, a table of settings, then problems and notes."""
        verdict = "agrees with the published numbers" if self.ok else f"{len(self.problems)} problem(s)"
        domains = [
            (row.domain, row.part, row.found_classes, row.found_total, row.published_total) for row in self.parts
        ]
        settings = [
            (
                row.setting,
                row.domain,
                row.source.total,
                row.target.shared,
                row.target.private,
                f"{row.target.private_fraction:.3f}",
                _agreement(row),
            )
            for row in self.settings
        ]
        return [
            f"{self.title} in {self.root}: {verdict}",
            "",
            *_table(("domain", "part", "classes", "images", "published"), domains),
            "",
            *_table(
                ("setting", "domain", "source", "target shared", "target private", "unknown", "published"),
                settings,
            ),
            *_section("Problems", self.problems),
            *_section("Notes", self.notes),
        ]

    def __str__(self) -> str:
        return "\n".join(self.lines())


def verify(benchmark: Benchmark, root: str | Path) -> VerifyReport:
    """Count every domain found below root and compare with the published numbers."""
    root = Path(root)
    there = domains_found(benchmark, root)
    parts: list[PartCount] = []
    problems = [f"{d.name}: no folder in {root}" for d in benchmark.domains if d.name not in there]
    notes: list[str] = []
    for domain in there:
        scan = scan_domain(benchmark, root, domain)
        problems += _folder_problems(benchmark, scan, domain)
        counted, list_problems, list_notes = _count_parts(benchmark, root, scan, domain)
        parts += counted
        problems += [line for part in counted for line in part.problems()] + list_problems
        notes += list_notes
    settings = _count_settings(benchmark, parts)
    return VerifyReport(benchmark.title, root, tuple(parts), tuple(settings), tuple(problems), tuple(notes))


def _folder_problems(benchmark: Benchmark, scan: DomainScan, domain: str) -> list[str]:
    """Class folders missing, and folders that are no class."""
    missing = []
    if benchmark.published(domain, "all") is None:  # else the count of the class shows it
        absent = [name for name in benchmark.classes if name not in scan.class_folders]
        missing = [f"{domain} / {name}: class folder missing" for name in absent]
    unknown = [f"{domain} / {folder.name}: extra folder, no class of the benchmark" for folder in scan.unknown_folders]
    return _shortened(missing, domain) + _shortened(unknown, domain)


def _count_parts(
    benchmark: Benchmark, root: Path, scan: DomainScan, domain: str
) -> tuple[list[PartCount], list[str], list[str]]:
    """Count by the official lists if all are there, else by folder. Returns counts, problems and notes."""
    own_parts = list(dict.fromkeys((benchmark.protocol.adapt, benchmark.protocol.evaluate)))
    lists = [find_list(benchmark, root, scan, domain, part) for part in own_parts]
    in_folders = {name: len(image_paths(folder)) for name, folder in scan.class_folders.items()}
    counts: list[PartCount] = []
    problems: list[str] = []
    for part, list_file in zip(own_parts, lists, strict=True):
        if list_file is None:
            continue
        listed = read_list(benchmark, scan, list_file)
        lost = [
            f"{domain} / {path.parent.name}/{path.name}: named in {list_file.name}, not there"
            for path in listed.missing
        ]
        problems += _shortened(lost, domain)
        if part != "all":  # a list of everything adds nothing to the count by folder
            counts.append(_part_count(benchmark, domain, part, dict(Counter(name for _, name in listed.files))))
    if len(counts) == len(own_parts):
        unlisted = sum(in_folders.values()) - sum(row.found_total for row in counts)
        notes = [f"{domain}: {counted(unlisted, 'image')} in no official list, not used"] if unlisted else []
        return counts, problems, notes
    notes = []
    if benchmark.lists is not None and benchmark.lists.expected:
        wanted = [benchmark.lists.file.format(domain=domain, part=part) for part in own_parts]
        absent = [name for name, list_file in zip(wanted, lists, strict=True) if list_file is None]
        notes = [f"{domain}: no {' and no '.join(absent)}, so the whole folder is counted, not the official parts"]
    return [_part_count(benchmark, domain, "all", in_folders)], problems, notes


def _part_count(benchmark: Benchmark, domain: str, part: str, found: dict[str, int]) -> PartCount:
    return PartCount(domain, part, found, benchmark.published(domain, part), benchmark.published_total(domain, part))


def _count_settings(benchmark: Benchmark, parts: list[PartCount]) -> list[SettingCount]:
    """Every setting for every domain: as source in the part adapted on, as target in the part evaluated."""
    by_part = {(row.domain, row.part): row for row in parts}

    def pick(domain: str, part: Part) -> PartCount:
        return by_part.get((domain, benchmark.protocol.part(part))) or by_part[domain, "all"]

    rows = []
    for setting in benchmark.settings:
        sets = benchmark.label_sets(setting)
        for domain in dict.fromkeys(row.domain for row in parts):
            source, target = pick(domain, "adapt"), pick(domain, "evaluate")
            rows.append(
                SettingCount(
                    setting,
                    domain,
                    source=count_role(source.found, sets, "source"),
                    target=count_role(target.found, sets, "target"),
                    published_source=_published_role(source, sets, "source"),
                    published_target=_published_role(target, sets, "target"),
                )
            )
    return rows


def _published_role(row: PartCount, label_sets: LabelSets, role: Role) -> RoleCounts | None:
    return None if row.published is None else count_role(row.published, label_sets, role)


def _agreement(row: SettingCount) -> str:
    """'agrees', 'not known' if nothing is published per class, or the published numbers."""
    known = [(row.source, row.published_source), (row.target, row.published_target)]
    if all(published is None or found == published for found, published in known):
        return "agrees" if any(published for _, published in known) else "not known"
    source = "?" if row.published_source is None else row.published_source.total
    target = row.published_target
    return f"{source}, ?" if target is None else f"{source}, {target.shared} + {target.private}"


def _difference(place: str, found: int, published: int) -> list[str]:
    if found == published:
        return []
    kind = f"{published - found} missing" if found < published else f"{found - published} extra"
    return [f"{place}: {found} images, {published} published ({kind})"]


def _shortened(lines: list[str], place: str) -> list[str]:
    if len(lines) <= _SHOWN:
        return lines
    return [*lines[:_SHOWN], f"{place}: … and {len(lines) - _SHOWN} more of the same kind"]


def _section(title: str, lines: Sequence[str]) -> list[str]:
    return ["", f"{title}:", *(f"  {line}" for line in lines)] if lines else []


def _table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Columns aligned by width: text to the left, numbers to the right."""
    cells = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    numeric = [all(isinstance(row[i], int) for row in rows) for i in range(len(header))]
    return [
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in cells
    ]
