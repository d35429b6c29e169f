"""The groups that `unida discover` finds, as files: a table, contact sheets, and folders to be used as new classes."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from unida.data.sheet import contact_sheet
from unida.errors import UserError
from unida.evaluation.grouping import GroupingResult
from unida.runs.discover import Discovery, Group
from unida.runs.folder import refuse_link
from unida.runs.summary import percent
from unida.support.counting import counted
from unida.support.files import write_csv, write_text

SUREST, LEAST_SURE = 16, 8  # pictures of a group that are shown


def write_groups(found: Discovery, out: Path) -> None:
    """groups/*.png, groups.json and groups.csv. The table is written last: where it is, all is there."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "groups.csv").unlink(missing_ok=True)
    for old in (out / "groups").glob("group-*.png"):
        old.unlink()
    for group in found.groups:
        _draw(found, group, out / "groups" / f"{group.name}.png")
    content = {
        "groups": [asdict(group) for group in found.groups],
        "in_no_group": len(found.images) - sum(group.size for group in found.groups),
        "measured": None if found.measured is None else asdict(found.measured),
    }
    write_text(out / "groups.json", json.dumps(content, indent=2) + "\n")
    rows = [(image.path, image.group, f"{image.sureness:.4f}") for image in found.images]
    write_csv(out / "groups.csv", [("path", "group", "sureness"), *rows])


def _draw(found: Discovery, group: Group, out: Path) -> None:
    paths = [Path(image.path) for image in found.of(group.name)]
    caption = f"{group.name}: {group.size} images, nearest to {group.nearest} ({100 * group.nearest_share:.0f} %)"
    blocks = [(f"{caption}; the surest", paths[:SUREST])]
    if rest := paths[SUREST:]:
        blocks.append(("the least sure", rest[-LEAST_SURE:]))
    contact_sheet(blocks, out)


def link_groups(found: Discovery, folder: Path, copy: bool) -> None:
    """A folder for each group, with links to its images or copies of them. The whole is there, or nothing."""
    refuse_link(folder)
    if not found.groups:
        raise UserError(f"--link {folder}: there is no group to link")
    aside = folder.with_name(f"{folder.name}.tmp")
    if aside.exists():
        shutil.rmtree(aside)  # left by a process that was killed
    try:
        for group in found.groups:
            (aside / group.name).mkdir(parents=True)
            for path, name in _names(found, group):
                source = Path(path).resolve()  # links must hold wherever the folder is moved
                if copy:
                    shutil.copyfile(source, aside / group.name / name)
                else:
                    (aside / group.name / name).symlink_to(source)
        if folder.exists():
            folder.rmdir()
        aside.rename(folder)
    except BaseException as error:
        shutil.rmtree(aside, ignore_errors=True)
        if isinstance(error, OSError):
            raise UserError(f"--link {folder} cannot be written ({error.strerror}): choose another folder") from error
        raise


def _names(found: Discovery, group: Group) -> Iterator[tuple[str, str]]:
    """(path, name in the folder) of a group's images; images of one name get a number."""
    taken: set[str] = set()
    for image in found.of(group.name):
        path = Path(image.path)
        name, number = path.name, 1
        while name.lower() in taken:  # some disks take A.jpg and a.jpg for one file
            number += 1
            name = f"{path.stem}-{number}{path.suffix}"
        taken.add(name.lower())
        yield image.path, name


def group_lines(found: Discovery) -> list[str]:
    """What was found, for people."""
    lines = []
    if found.groups:
        width = max(len(group.nearest) for group in found.groups)
        lines.append(f"  {'group':<10}  {'images':>6}  nearest source class")
        lines += [
            f"  {g.name:<10}  {g.size:>6}  {g.nearest:<{width}}  {100 * g.nearest_share:>3.0f} %" for g in found.groups
        ]
    loose = len(found.images) - sum(group.size for group in found.groups)
    lines.append(
        f"{counted(len(found.images), 'unknown image')}: {counted(len(found.groups), 'group')}, {loose} in no group"
    )
    return lines if found.measured is None else [*lines, measured_line(found.measured)]


def measured_line(measured: GroupingResult) -> str:
    return (
        f"against the target's labels: {measured.found} groups for {measured.true} classes that only the target has, "
        f"accuracy {percent(measured.accuracy)}, NMI {percent(measured.nmi)}, H³ {percent(measured.h3)} "
        f"(on {measured.images} images; {measured.astray} others are of a source class)"
    )
