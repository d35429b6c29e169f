"""`unida report`: one HTML file of a run or of a grid."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from unida.cli.output import check_writable, writing
from unida.cli.parsing import parse
from unida.errors import UserError
from unida.support.options import shown


@dataclass(frozen=True)
class Report:
    folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN|GRID")]
    """The folder of a finished run, or of a grid."""
    out: Annotated[Path | None, shown("FILE", "(default: report.html in the folder)")] = None
    """Write the report to this file."""
    against: Annotated[str | None, shown("ROW", "(default: source-only, or the first row)")] = None
    """Of a grid: compare the other rows with this one, run by run."""
    runs: bool = False
    """Of a grid: also write the report of every finished run that has none."""


def report(arguments: list[str]) -> None:
    description = (
        "One HTML file that shows what a run or a grid gave. It opens by a double click and needs no network.\n\n"
        "  unida report runs/first\n"
        "  unida report runs/office31 --out office31.html"
    )
    options = parse(Report, "unida report", arguments, description)
    from unida.grids.folder import SPEC
    from unida.reports.page import require_packages
    from unida.runs.folder import refuse_unfinished

    is_grid = (options.folder / SPEC).exists()
    if not is_grid:
        refuse_unfinished(options.folder)
        if options.runs or options.against is not None:
            name = "--runs" if options.runs else "--against"
            raise UserError(f"{name} is for a grid, but {options.folder} is a run: leave it out")
    require_packages()
    out = options.out or options.folder / "report.html"
    check_writable("--out", out)
    from unida.training.logging import logging_to

    with logging_to(None), writing("--out", out):
        out.parent.mkdir(parents=True, exist_ok=True)
        if is_grid:
            from unida.reports.grid_report import write_grid_report

            write_grid_report(options.folder, out, options.against, options.runs)
        else:
            from unida.reports.run_report import write_run_report

            write_run_report(options.folder, out)
    print(f"wrote {out} ({out.stat().st_size / 1e6:.1f} MB)")
