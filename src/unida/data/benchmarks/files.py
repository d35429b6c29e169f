"""Where a benchmark's images lie on disk: the usual folder layouts, spellings and official list files.

Accepted: `root/<domain>/<class>/…`, `root/<domain>/images/<class>/…` and either below a folder named like
the benchmark (`root/office31/amazon/…`). Case, spaces, '-' and '_' in folder names do not matter.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from unida.data.benchmarks.spec import Benchmark, Domain, Part, spelling_key
from unida.data.images import IMAGE_SUFFIXES
from unida.errors import UserError

_LIST_FOLDERS = (
    "lists",
    "txt",
    "splits",
)  # where copies of DomainNet keep the official lists, besides its top folder

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DomainScan:
    """The folder of a domain, the folder of each class found in it, and the folders that are no class."""

    folder: Path
    class_folders: dict[str, Path]
    unknown_folders: tuple[Path, ...]


class Listing(NamedTuple):
    """(path, class name) of every image, and a note if that is not the official selection."""

    files: list[tuple[Path, str]]
    note: str


class ListFile(NamedTuple):
    """What an official list file names: images that are there, and images that are not."""

    files: list[tuple[Path, str]]
    missing: list[Path]


def locate(benchmark: Benchmark, root: str | Path, domain: str) -> dict[str, Path]:
    """The folder of each class of a domain, in class order; classes without a folder are left out."""
    return scan_domain(benchmark, root, domain).class_folders


def listed_files(benchmark: Benchmark, root: str | Path, domain: str, part: Part) -> Listing:
    """The images of a part: those of the official list if there is one, else all of the domain."""
    scan = scan_domain(benchmark, root, domain)
    list_file = find_list(benchmark, root, scan, domain, benchmark.protocol.part(part))
    if list_file is not None:
        listed = read_list(benchmark, scan, list_file)
        if listed.missing:
            count = len(listed.missing) + len(listed.files)
            raise UserError(
                f"{list_file}: {len(listed.missing)} of its {count} images are not there "
                f"(the first is {listed.missing[0]}): complete the folder, or remove the list to use the rest"
            )
        return Listing(listed.files, note="")
    files = [(path, name) for name, folder in scan.class_folders.items() for path in image_paths(folder)]
    return Listing(files, _missing_list_note(benchmark, scan, domain, part, len(files)))


def domain_files(benchmark: Benchmark, root: str | Path, domain: str, part: Part = "adapt") -> list[tuple[Path, str]]:
    """(path, class name) of every image in a part of a domain; all classes, for any setting."""
    listing = listed_files(benchmark, root, domain, part)
    if listing.note:
        log.warning(listing.note)
    if not listing.files:
        raise UserError(f"no image in the class folders of {benchmark.domain(domain)} under {root}")
    return listing.files


def scan_domain(benchmark: Benchmark, root: str | Path, domain: str) -> DomainScan:
    """Find a domain's folder below root and the class folders in it."""
    folder = _domain_folder(benchmark, Path(root), benchmark.find_domain(domain))
    scan = _scan_classes(benchmark, folder, folder)
    images = folder / "images"
    if not scan.class_folders and images.is_dir():
        scan = _scan_classes(benchmark, folder, images)
    if not scan.class_folders:
        example = benchmark.classes[0]
        raise UserError(f"{folder} has no class folder of {benchmark.title}: expected a folder such as '{example}'")
    return scan


def domains_found(benchmark: Benchmark, root: str | Path) -> list[str]:
    """Canonical names of the domains that have a folder below root."""
    return [domain.name for domain in benchmark.domains if _domain_matches(benchmark, Path(root), domain)]


def image_paths(folder: Path) -> list[Path]:
    """Image files directly in a folder, recognised by suffix alone, sorted by name, without hidden files."""
    return sorted(
        path for path in folder.iterdir() if path.suffix.lower() in IMAGE_SUFFIXES and not path.name.startswith(".")
    )


def find_list(benchmark: Benchmark, root: str | Path, scan: DomainScan, domain: str, own_part: str) -> Path | None:
    """The official list file of a domain's part ('train', 'test' or 'all'), if there is one."""
    if benchmark.lists is None:
        return None
    name = benchmark.lists.file.format(domain=benchmark.domain(domain), part=own_part)
    places = [scan.folder]
    # Only a file name with the domain in it may lie outside the domain's folder.
    if "{domain}" in benchmark.lists.file:
        top = scan.folder.parent
        places += [top, *(top / sub for sub in _LIST_FOLDERS), Path(root)]
    return next((place / name for place in places if (place / name).is_file()), None)


def read_list(benchmark: Benchmark, scan: DomainScan, list_file: Path) -> ListFile:
    """Read lines 'path label', checking each label against the class folder in the path."""
    present = {name: set(image_paths(folder)) for name, folder in scan.class_folders.items()}
    files: list[tuple[Path, str]] = []
    missing: list[Path] = []
    for number, line in enumerate(list_file.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        relative, class_name = _parse_line(benchmark, line, f"{list_file}, line {number}")
        path = scan.class_folders.get(class_name, scan.folder / class_name) / relative.name
        if path in present.get(class_name, ()):
            files.append((path, class_name))
        else:
            missing.append(path)
    return ListFile(files, missing)


def _parse_line(benchmark: Benchmark, line: str, where: str) -> tuple[Path, str]:
    """'painting/axe/1.jpg 11' → (path, 'axe'). The label gives the class; the folder must agree."""
    text, label = [*line.rsplit(maxsplit=1), ""][:2]
    if not label.isdecimal() or int(label) >= len(benchmark.classes):
        last = len(benchmark.classes) - 1
        raise UserError(f"{where}: expected 'path label' with a label from 0 to {last}, found '{line.strip()}'")
    path, class_name = Path(text.strip()), benchmark.classes[int(label)]
    if spelling_key(path.parent.name) != spelling_key(class_name):
        raise UserError(
            f"{where}: label {label} is '{class_name}' but the folder is '{path.parent.name}': "
            "this list has another class order, use the official one"
        )
    return path, class_name


def _missing_list_note(benchmark: Benchmark, scan: DomainScan, domain: str, part: Part, count: int) -> str:
    if benchmark.lists is None or not benchmark.lists.expected:
        return ""
    own_part = benchmark.protocol.part(part)
    name = benchmark.lists.file.format(domain=benchmark.domain(domain), part=own_part)
    return (
        f"{benchmark.title} {benchmark.domain(domain)}: no list file {name} in {scan.folder.parent}, "
        f"so all {count} images of the folder are used to {part}; "
        f"results do not compare with those on the official {own_part} list"
    )


def _scan_classes(benchmark: Benchmark, domain_folder: Path, parent: Path) -> DomainScan:
    by_key = {spelling_key(name): name for name in benchmark.classes}
    found: dict[str, Path] = {}
    unknown: list[Path] = []
    for child in _subfolders(parent):
        name = by_key.get(spelling_key(child.name))
        if name is None:
            unknown.append(child)
        elif name in found:
            raise UserError(f"{found[name]} and {child} are both class '{name}': keep one of the two folders")
        else:
            found[name] = child
    ordered = {name: found[name] for name in benchmark.classes if name in found}
    return DomainScan(domain_folder, ordered, tuple(unknown))


def _domain_folder(benchmark: Benchmark, root: Path, domain: Domain) -> Path:
    matches = _domain_matches(benchmark, root, domain)
    if len(matches) > 1:
        raise UserError(f"{matches[0]} and {matches[1]} are both domain '{domain.name}': keep one of the two folders")
    if not matches:
        found = ", ".join(domains_found(benchmark, root)) or "none"
        raise UserError(
            f"no folder of domain '{domain.name}' in {root}: expected {root / domain.name} "
            f"(domains of {benchmark.title} found there: {found})"
        )
    return matches[0]


def _domain_matches(benchmark: Benchmark, root: Path, domain: Domain) -> list[Path]:
    """Folders that are named like the domain, in root or else in a folder named like the benchmark."""
    if not root.is_dir():
        raise UserError(f"{root} is not a folder: give the folder that holds {benchmark.title}")
    inside = [child for child in _subfolders(root) if _named_like(child, benchmark.folder_names)]
    for base in (root, *inside):
        matches = [child for child in _subfolders(base) if _named_like(child, (domain.name, *domain.aliases))]
        if matches:
            return matches
    return []


def _named_like(folder: Path, names: Sequence[str]) -> bool:
    return spelling_key(folder.name) in map(spelling_key, names)


def _subfolders(folder: Path) -> list[Path]:
    return sorted(child for child in folder.iterdir() if child.is_dir() and not child.name.startswith("."))
