"""The options of `unida study`: which data, which method, and how the runs are carried out."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

from unida.errors import UserError
from unida.grids.options import EngineName, GridOptions
from unida.methods import METHODS
from unida.methods.spa.options import TaskName
from unida.support.options import LARGEST_INTEGER, check_numbers, shown
from unida.support.suggest import did_you_mean


@dataclass(frozen=True)
class StudyOptions:
    out: Annotated[Path | None, shown("DIR")] = None
    """Write results.csv, the figure and study.md to this folder; its runs lie in DIR/grid. Given again, the study goes
    on where it was."""
    source: Annotated[Path | None, shown("DIR")] = None
    """Labelled images: one sub-folder per class."""
    target: Annotated[Path | None, shown("DIR")] = None
    """Images to adapt to, one sub-folder per class."""
    target_labels: bool = False
    """The target's sub-folders are its true classes. They are used to measure, never in training."""
    benchmark: Annotated[str | None, shown("NAME", "(see: unida data list)")] = None
    """Use a benchmark instead of two folders."""
    root: Annotated[Path | None, shown("DIR")] = None
    """The benchmark's folder."""
    pairs: Annotated[tuple[str, ...] | None, shown("A:B", "(default: all)")] = None
    """The benchmark's pairs of domains."""
    setting: str = "unida"
    """The benchmark's label sets: osda, unida, or a named variant."""
    method: str = "ovanet"
    """The method that SPA is added to; see: unida methods."""
    spa_preset: Annotated[Literal["best", "paper"], shown("best|paper", "(default: best)", name="spa.preset")] = "best"
    """best: what helped in our tests (docs/spa.md); paper: SPA as published."""
    seeds: tuple[int, ...] = (0,)
    """Seeds of the runs. The paper has three."""
    train: Literal["tail", "all", "head"] = "tail"
    """Train the last part of the backbone, all of it (as the paper does; better with a GPU), or the heads alone. With
    head, SPA's losses have nothing to change. A method that cannot do this takes the next best."""
    regime: Literal["published", "kept"] = "published"
    """Train as in the papers, or keep what the pretrained network knows. With kept, the last part of the backbone
    hardly moves, and SPA's losses change next to nothing."""
    set: Annotated[tuple[str, ...], shown("NAME=VALUE", "(for example backbone=resnet50.tv_in1k steps=50)")] = ()
    """Other options of `unida adapt`, for every run."""
    answers: Literal["alone", "given"] = "alone"
    """What the figure and the page show. alone: each image by itself with the method's own threshold, as in papers.
    given: the runs' own answers. results.csv has both."""
    engine: EngineName = "local"
    """local, ray or slurm-script, as for `unida grid`."""
    workers: Annotated[int | None, shown("N", "(default: as many as cores and memory, or GPUs, allow)")] = None
    """Runs side by side on this machine."""
    cpus_per_run: int = 1
    """Cores of each run."""
    gpus_per_run: Annotated[float | None, shown("N", "(default: 1 if there is a GPU, else 0; slurm-script: 0)")] = None
    """GPUs of each run; below 1, runs share one."""
    reuse: Annotated[tuple[Path, ...], shown("DIR")] = ()
    """Copy finished runs that this study shares with the studies in these folders, instead of running them again."""
    dry_run: bool = False
    """Print the plan and how long it will take, and run nothing."""
    no_estimate: bool = False
    """Start at once, without measuring how long each row will take."""

    def check(self) -> None:
        if self.out is None:
            raise UserError("--out DIR is missing: the folder for the study's table, figure and page")
        refuse_unknown_method(self.method)
        check_numbers(self, "workers", "cpus_per_run", least=1)
        if not self.seeds or min(self.seeds) < 0:
            raise UserError(f"--seeds {' '.join(map(str, self.seeds))}: give at least one whole number, 0 or more")
        if self.benchmark is None:
            self._check_folders()
        elif self.source is not None or self.target is not None:
            raise UserError("--source, --target and --benchmark exclude each other: give two folders, or a benchmark")
        elif self.root is None:
            raise UserError(f"--root DIR is missing: the folder that holds {self.benchmark}")
        self.for_grid().check()

    def _check_folders(self) -> None:
        for name in ("root", "pairs"):
            if getattr(self, name) is not None:
                raise UserError(f"--{name} needs --benchmark NAME: add it, or leave --{name} out")
        for name in ("source", "target"):
            if getattr(self, name) is None:
                raise UserError(f"--{name} DIR is missing: give two folders, or --benchmark NAME --root DIR")
        if not self.target_labels:
            raise UserError(
                "a study measures answers, so it needs the true classes of the target: put its images into one "
                "sub-folder per class, and add --target-labels (training never sees them)"
            )

    def for_grid(self) -> GridOptions:
        """How the runs are carried out."""
        assert self.out is not None
        return GridOptions(
            spec=Path("study"),  # its content comes from the study
            out=self.out / "grid",
            set=self.set,
            engine=self.engine,
            workers=self.workers,
            cpus_per_run=self.cpus_per_run,
            gpus_per_run=self.gpus_per_run,
            reuse=self.reuse,
            dry_run=self.dry_run,
            no_estimate=self.no_estimate,
        )


def refuse_unknown_method(name: str) -> None:
    if name not in METHODS:
        raise UserError(f"there is no method {name!r}{did_you_mean(name, METHODS)}; see: unida methods")


@dataclass(frozen=True)
class SeedsOptions(StudyOptions):
    setting: str = "osda"
    """The benchmark's label sets: osda, as in the paper's table, or another."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds of the runs, as many as the paper has."""


@dataclass(frozen=True)
class PretextOptions(StudyOptions):
    tasks: Annotated[tuple[TaskName, ...], shown("NAME", "(default: all six)")] = get_args(TaskName)
    """The pretext tasks. colorization and inpainting paint pictures: their runs take several times as long."""


@dataclass(frozen=True)
class GridSizeOptions(StudyOptions):
    grids: Annotated[tuple[int, ...], shown("N", "(default: 2 3 4 5 6)")] = (2, 3, 4, 5, 6)
    """Sides of the mosaics: N makes mosaics of N × N cells."""

    def check(self) -> None:
        super().check()
        if not self.grids or min(self.grids) < 2 or max(self.grids) > 6:
            raise UserError(f"--grids {' '.join(map(str, self.grids))}: give numbers from 2 to 6")


@dataclass(frozen=True)
class FewClassesOptions(StudyOptions):
    classes: Annotated[tuple[int, ...], shown("N", "(default: 3 5 10 20)")] = (3, 5, 10, 20)
    """Numbers of source classes; those that the source does not have are left out."""
    draws: int = 1
    """Draw the classes this often."""

    def check(self) -> None:
        super().check()
        check_numbers(self, "draws", least=1, most=LARGEST_INTEGER)
        if not self.classes or min(self.classes) < 2:
            raise UserError(f"--classes {' '.join(map(str, self.classes))}: give numbers of 2 or more")


@dataclass(frozen=True)
class OpennessOptions(StudyOptions):
    methods: Annotated[tuple[str, ...], shown("NAME", "(default: source-only ovanet dcc)")] = (
        *("source-only", "ovanet", "dcc"),
    )
    """The methods, each without and with SPA (here, --method has no effect)."""
    private: Annotated[tuple[int, ...] | None, shown("N", "(default: a third, two thirds, all of them)")] = None
    """Numbers of target-private classes."""
    draws: int = 2
    """Draw the private classes this often; all rows get the same ones. All of them can be drawn in one way only."""

    def check(self) -> None:
        super().check()
        check_numbers(self, "draws", least=1, most=LARGEST_INTEGER)
        for name in self.methods:
            refuse_unknown_method(name)
        if not self.methods:
            raise UserError("--methods is empty: give at least one")
        if self.private is not None and (not self.private or min(self.private) < 1):
            raise UserError(f"--private {' '.join(map(str, self.private))}: give numbers of 1 or more")


@dataclass(frozen=True)
class CorrelationOptions(StudyOptions):
    every: int = 20
    """Measure after every so many steps."""
    answers: Literal["given"] = "given"
    """The runs' own answers: others are not measured during training."""

    def check(self) -> None:
        super().check()
        check_numbers(self, "every", least=1, most=LARGEST_INTEGER)


@dataclass(frozen=True)
class ProbeOptions(StudyOptions):
    splits: int = 5
    """Split the private images this often into halves, to train and to test the linear classifier."""

    def check(self) -> None:
        super().check()
        check_numbers(self, "splits", least=1, most=1000)
