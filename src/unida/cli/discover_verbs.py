"""The command that groups the unknown images of a run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from unida.cli.output import check_writable, writing
from unida.cli.parsing import parse
from unida.errors import UserError, printable


@dataclass(frozen=True)
class Discover:
    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """The folder of a finished run."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="DIR", help_behavior_hint="(default: the run's folder)")] = None
    """Write groups.csv, groups.json and the sheets in groups/ to this folder."""
    space: Literal["features", "words", "both"] = "features"
    """What must be alike: the method's features, SPA's word histograms, or both with equal weight."""
    link: Annotated[Path | None, tyro.conf.arg(metavar="DIR", help_behavior_hint="")] = None
    """Also make this new folder, with a sub-folder of links to images for each group: rename the sub-folders, and they
    are new source classes."""
    copy: bool = False
    """With --link: copies of the images instead of links."""


def discover(arguments: list[str]) -> None:
    description = "The unknown images of a run, in groups that look like one class each."
    options = parse(Discover, "unida discover", arguments, description)
    if options.copy and options.link is None:
        raise UserError("--copy needs --link DIR: the folder for the copies")
    from unida.config import load_config
    from unida.runs.folder import refuse_inside_data, refuse_link, refuse_unfinished

    refuse_unfinished(options.run)
    data = load_config(options.run / "config.yaml").data
    out = options.run if options.out is None else options.out
    check_writable("--out", out / "groups.csv")
    if options.out is not None:
        refuse_inside_data("--out", options.out, data)
    if options.link is not None:
        check_writable("--link", options.link / "group-00")  # no group has this name: it is not there
        refuse_link(options.link)
        refuse_inside_data("--link", options.link, data)
    from unida.api import load
    from unida.runs.groupfiles import group_lines, link_groups, write_groups

    found = load(options.run).discover(options.space, progress=True)
    with writing("--out", out / "groups.csv"):
        write_groups(found, out)
    print(printable_lines(group_lines(found)))
    print(f"the table is {out / 'groups.csv'}, the sheets are in {out / 'groups'}")
    if options.link is not None:
        if not found.groups:
            print(f"there is no group to link: {options.link} was not made")
            return
        link_groups(found, options.link, options.copy)
        print(f"{options.link} has a folder for each group: rename those that are a class, and delete the others")


def printable_lines(lines: list[str]) -> str:
    return "\n".join(printable(line) for line in lines)
