"""The commands on many runs: `unida grid`, `unida grid status` and `unida table`."""

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from unida.cli.output import check_writable, exit_with, writing
from unida.cli.parsing import parse
from unida.errors import printable
from unida.grids.options import GridOptions, TableOptions


def grid(arguments: list[str]) -> None:
    if arguments[:1] == ["status"]:
        grid_status(arguments[1:])
        return
    if arguments[:1] == ["task"]:
        grid_task(arguments[1:])
        return
    description = (
        "Run a grid: rows × pairs × settings × seeds, side by side. Given again, it goes on where it was.\n\n"
        "  unida grid SPEC.yaml --out DIR --dry-run           the plan, and how long it will take\n"
        "  unida grid --paper unida-office31 --root DIR --out DIR\n"
        "  unida grid status DIR                              how far it is, from another terminal"
    )
    options = parse(GridOptions, "unida grid", arguments, description)
    options.check()
    from unida.grids.start import start_grid
    from unida.support.signals import Interrupted, interruptible

    def show(line: str) -> None:
        print(printable(line), flush=True)

    try:
        with interruptible():
            records = start_grid(options, show)
    except (Interrupted, KeyboardInterrupt):
        exit_with(f"interrupted. Continue with the same command: {shlex.join(['unida', 'grid', *arguments])}", 130)
    failed = [record for record in records if record["status"] == "failed"]
    if options.dry_run or options.engine == "slurm-script":
        return
    table_command = shlex.join(["unida", "table", str(options.out)])
    show(f"results are in {options.out}/results.csv; draw the table with: {table_command}")
    if failed:
        print(f"{len(failed)} run(s) failed; give the same command to try them again:", file=sys.stderr)
        for record in failed:
            name = " ".join(filter(None, (record["row"], record["pair"], record["setting"], f"seed {record['seed']}")))
            print(printable(f"  {name}: {record['reason']}"), file=sys.stderr)
        sys.exit(1)


@dataclass(frozen=True)
class Status:
    folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="DIR")]
    """The folder of a grid."""


def grid_status(arguments: list[str]) -> None:
    options = parse(Status, "unida grid status", arguments, "How far a grid is: done, running, failed, time left.")
    from unida.grids.status import status_lines

    print("\n".join(map(printable, status_lines(options.folder))))


@dataclass(frozen=True)
class GridTask:
    folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="DIR")]
    """The folder of a grid."""
    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME")]
    """Name of the run: of its folder in DIR/runs."""


def grid_task(arguments: list[str]) -> None:
    description = "One run of a grid, in this process: what a job of a SLURM array does."
    options = parse(GridTask, "unida grid task", arguments, description)
    from unida.grids.start import run_task

    outcome = run_task(options.folder, options.name)
    if outcome.status == "stopped":
        exit_with("stopped: hand the script in again to go on", 130)
    if outcome.status != "done":
        exit_with(f"error: {outcome.reason}", 1)


def table(arguments: list[str]) -> None:
    options = _table_options(arguments)
    from unida.grids.pages import redraw, table_text
    from unida.support.files import write_text

    if options.into is not None:
        with writing("--into", options.into):
            changed = redraw(options.into, _table_options)
        print("changed:" if changed else "as it was:", options.into)
        return
    if options.out is not None:
        check_writable("--out", options.out)
    text = table_text(options)
    if options.out is None:
        print(text)
        return
    with writing("--out", options.out):
        options.out.parent.mkdir(parents=True, exist_ok=True)
        write_text(options.out, text + "\n")
    print(f"wrote {options.out}")


def _table_options(arguments: list[str]) -> TableOptions:
    description = (
        "Tables of a grid's results: mean ± standard deviation over seeds, the best in bold.\n\n"
        "  unida table DIR --against ovanet\n"
        "  unida table DIR --format latex --metric hos_sample --out table.tex\n"
        "  unida table --published unida-office31             a table of SPA's paper"
    )
    options = parse(TableOptions, "unida table", arguments, description)
    options.check()
    return options
