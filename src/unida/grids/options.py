"""The options of `unida grid` and `unida table`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
import yaml

from unida.errors import UserError
from unida.evaluation.names import METRIC_NOTES
from unida.support.options import check_numbers, shown
from unida.support.plainyaml import PlainYaml
from unida.support.suggest import did_you_mean

EngineName = Literal["local", "ray", "slurm-script"]
Answers = Literal["given", "alone", "both"]
COLUMNS = ("row", "method", "backbone", "train", "regime")  # that can name a line of a table
UNKNOWN_ANSWERS = "unknown_answers"  # not a metric: it needs no labels, and more of it is not better
SHOWN = {**METRIC_NOTES, UNKNOWN_ANSWERS: "share of the target's images that are answered 'unknown'"}


@dataclass(frozen=True)
class GridOptions:
    spec: Annotated[tyro.conf.Positional[Path | None], tyro.conf.arg(metavar="SPEC.yaml", help_behavior_hint="")] = None
    """The grid: rows, pairs or folders, settings, seeds and options (docs/grids.md)."""
    paper: Annotated[str | None, shown("NAME", "(for example unida-office31; see: unida table --published list)")] = (
        None
    )
    """Run a grid of SPA's paper instead of a spec. Rows of methods that do not exist here are named and left out."""
    out: Annotated[Path | None, shown("DIR")] = None
    """Keep the runs and results.csv in this folder. Given again, the grid goes on where it was."""
    root: Annotated[Path | None, shown("DIR")] = None
    """The benchmark's folder."""
    rows: Annotated[tuple[str, ...] | None, shown("NAME", "(default: all)")] = None
    """Run only these rows."""
    pairs: Annotated[tuple[str, ...] | None, shown("A:B", "(default: all)")] = None
    """Run only these pairs, or the folders of these names."""
    settings: Annotated[tuple[str, ...] | None, shown("NAME", "(default: all)")] = None
    """Run only these settings."""
    seeds: Annotated[tuple[int, ...] | None, shown("N", "(default: those of the spec)")] = None
    """Run these seeds."""
    set: Annotated[tuple[str, ...], shown("NAME=VALUE", "(for example backbone=tf_efficientnet_lite0 steps=50)")] = ()
    """Options of every run, over those of the spec; a row's own options still win."""
    engine: EngineName = "local"
    """local: worker processes on this machine. ray: a Ray cluster (RAY_ADDRESS), or Ray on this machine. slurm-script:
    write an array script for SLURM, and run nothing."""
    workers: Annotated[int | None, shown("N", "(default: as many as cores and memory, or GPUs, allow)")] = None
    """Runs side by side on this machine."""
    cpus_per_run: int = 1
    """Cores of each run."""
    gpus_per_run: Annotated[float | None, shown("N", "(default: 1 if there is a GPU, else 0; slurm-script: 0)")] = None
    """GPUs of each run; below 1, runs share one."""
    attempts: int = 3
    """Try a run this often if its worker process or its node dies."""
    reuse: Annotated[tuple[Path, ...], shown("DIR")] = ()
    """Copy finished runs with the same options and data from these grids or studies, instead of running them again."""
    dry_run: bool = False
    """Print the plan and how long it will take, and run nothing."""
    no_estimate: bool = False
    """Start at once, without measuring how long each row will take."""

    def check(self) -> None:
        check_numbers(self, "workers", "cpus_per_run", "attempts", least=1)
        check_numbers(self, "gpus_per_run", least=0)
        if (self.spec is None) == (self.paper is None):
            raise UserError("give a spec, as in `unida grid SPEC.yaml --out DIR`, or --paper NAME")
        if self.out is None:
            raise UserError("--out DIR is missing: the folder for the runs and results.csv")
        self.overrides()

    def overrides(self) -> dict[str, Any]:
        """What --set says."""
        values = {}
        for word in self.set:
            name, sign, value = word.partition("=")
            if not sign or not name:
                raise UserError(f"--set {word}: write NAME=VALUE, for example steps=50")
            try:
                values[name.removeprefix("--")] = yaml.load(value, Loader=PlainYaml)
            except yaml.YAMLError as error:
                raise UserError(f"--set {word}: {value!r} is not a plain value") from error
        return values


@dataclass(frozen=True)
class TableOptions:
    results: Annotated[
        tyro.conf.Positional[Path | None], tyro.conf.arg(metavar="DIR", help_behavior_hint="(or a results.csv)")
    ] = None
    """The folder of a grid, or its results.csv."""
    metric: str = "hos"
    """The number that is shown by pair: any metric that `unida evaluate` prints, or unknown_answers, the share of
    images that are answered unknown."""
    also: Annotated[tuple[str, ...], shown("NAME", "(default: none)")] = ()
    """Show the averages of these metrics, too."""
    answers: Annotated[
        Answers | None, shown("given|alone|both", "(default: given, or alone beside a published table)")
    ] = None
    """given: the runs' own answers. alone: each image by itself with the method's own threshold, as in papers."""
    layout: Literal["pairs", "overview", "ranks", "differences"] = "pairs"
    """pairs: a column for each pair. overview: averages only, settings and answers side by side. ranks: averages beside
    the paper's, and how alike the order of the rows is. differences: only those of --against."""
    by: Annotated[tuple[str, ...], shown("NAME", "(default: row)")] = ("row",)
    """Columns of results.csv that name a line of the table: row, method, backbone, train, regime."""
    rows: Annotated[tuple[str, ...] | None, shown("NAME", "(default: all)")] = None
    """Show these rows, in this order."""
    pairs: Annotated[tuple[str, ...] | None, shown("A:B", "(default: all)")] = None
    """Show these pairs, in this order."""
    settings: Annotated[tuple[str, ...] | None, shown("NAME", "(default: all)")] = None
    """Show these settings."""
    where: Annotated[tuple[str, ...], shown("NAME=VALUE", "(for example train=head)")] = ()
    """Show only runs whose columns of results.csv have these values."""
    against: Annotated[tuple[str, ...], shown("ROW", "(default: none)")] = ()
    """Add the differences to these rows, run by run on the same pair and seed, with standard errors."""
    published: Annotated[str | None, shown("NAME", "(default: the grid's own; `list` lists them)")] = None
    """Add the rows of a table of SPA's paper: those that the grid has, too. auto: of the table of the same benchmark
    and setting; none: of none. Without results, print that table."""
    format: Literal["markdown", "latex", "csv"] = "markdown"
    """latex needs the package booktabs."""
    out: Annotated[Path | None, shown("FILE", "(default: print)")] = None
    """Write the tables to this file."""
    into: Annotated[Path | None, shown("PAGE")] = None
    """Draw all tables of a Markdown page again. Each stands between `<!-- unida table … -->` and `<!-- end of table
    -->`; the first line says how it is drawn, with paths relative to the page."""

    def check(self) -> None:
        for name in (self.metric, *self.also):
            if name not in SHOWN:
                raise UserError(f"there is no metric {name!r}{did_you_mean(name, SHOWN)}; there are {', '.join(SHOWN)}")
        if self.layout == "overview" and self.published not in (None, "none") and self.results is not None:
            raise UserError("--published needs a column for each pair: leave out --layout overview")
        for word in self.where:
            name = word.partition("=")[0]
            if "=" not in word or name not in COLUMNS:
                raise UserError(f"--where {word}: write NAME=VALUE; it knows {', '.join(COLUMNS)}")
        for name in self.by:
            if name not in COLUMNS:
                raise UserError(f"--by has {name!r}{did_you_mean(name, COLUMNS)}; it takes {', '.join(COLUMNS)}")
        if self.layout == "differences" and not self.against:
            raise UserError("--layout differences needs --against ROW: the rows to compare with")
        if self.into is not None and (self.results is not None or self.out is not None):
            raise UserError("--into PAGE stands alone: the page says itself what is drawn")
        if self.results is None and self.into is None and self.published is None:
            raise UserError("give the folder of a grid or its results.csv, as in `unida table DIR`")
