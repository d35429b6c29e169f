"""The commands. Each parses its arguments, calls the library and prints. Torch is imported only after all checks."""

import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args

import tyro

from unida.cli.output import check_writable, saying_how_to_continue, writing
from unida.cli.parsing import parse, value_of
from unida.errors import UserError
from unida.methods.spa.options import TaskName


def adapt(arguments: list[str]) -> None:
    from unida.config import TrainingOptions, check, config_class, config_to_resume, keep_saved
    from unida.runs.folder import refuse_folder

    saved = config_to_resume(value_of("--out", arguments), "--resume" in arguments)
    config_type = config_class(
        value_of("--method", arguments) or (saved.training.method if saved else TrainingOptions.method)
    )
    description = (
        "Adapt a classifier from a labelled source to an unlabelled target.\n\n"
        "  unida adapt --source photos/labelled --target photos/new --out runs/first\n\n"
        "The last group of options belongs to the method that --method names."
    )
    config: Any = parse(config_type, "unida adapt", arguments, description)
    if saved is not None:
        names = (word.partition("=")[0] for word in arguments if word.startswith("--"))  # the others are values
        given = {re.sub("[-.]", "_", name.removeprefix("--")) for name in names}
        config = keep_saved(config, saved, given)
    refuse_folder(check(config))
    out = config.output.out
    with saying_how_to_continue(shlex.join(["unida", "adapt", "--out", str(out), "--resume"]), out):
        from unida.reports.run_report import report_after_run  # imports torch: only after all checks
        from unida.runs.pipeline import execute

        report_after_run(execute(config))


def check(arguments: list[str]) -> None:
    from unida.config import TrainingOptions, check, config_class
    from unida.data.pairs import benchmark_pair

    config_type = config_class(value_of("--method", arguments) or TrainingOptions.method)
    description = "What is in the folders, and how long `unida adapt` will take with these options."
    config: Any = check(parse(config_type, "unida check", arguments, description))
    benchmark_pair(config.data)
    from unida.runs.check import check_run
    from unida.training.logging import logging_to

    with logging_to(None):
        for line in check_run(config):
            print(line, flush=True)


@dataclass(frozen=True)
class Evaluate:
    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """The folder of a finished run."""
    target: Annotated[
        Path | None, tyro.conf.arg(metavar="DIR", help_behavior_hint="(default: the run's own target)")
    ] = None
    """Labelled images, one sub-folder per class; a sub-folder that is no class of the source counts as unknown."""
    json: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = None
    """Also write the metrics to this file."""


def evaluate(arguments: list[str]) -> None:
    options = parse(Evaluate, "unida evaluate", arguments, "Every metric of a run, in one pass over its target.")
    from unida.api import load
    from unida.runs.summary import class_lines, metric_lines, result_json, summary_line
    from unida.support.files import write_text

    run = load(options.run)
    if options.json is not None:
        check_writable("--json", options.json)
    result, alone = run.evaluate_both(options.target, progress=True)
    lines = [*metric_lines(result.scalars()), "", *class_lines(result), "", run.answering]
    print("\n".join([*lines, f"each image alone, with the method's own threshold: {summary_line(alone)}"]))
    if options.json is not None:
        with writing("--json", options.json):
            options.json.parent.mkdir(parents=True, exist_ok=True)
            write_text(options.json, result_json(result, alone))


@dataclass(frozen=True)
class Demo:
    out: Path = Path("demo")
    """Write pictures and runs to this folder."""
    steps: int = 600
    """Training steps of each method."""
    seed: int = 0
    """Seed of the pictures and of the runs."""


def demo(arguments: list[str]) -> None:
    description = "Source-only, OVANet and OVANet+SPA, side by side, on generated pictures."
    options = parse(Demo, "unida demo", arguments, description)
    first_run = options.out / "source-only"
    with saying_how_to_continue(shlex.join(["unida", "demo", *arguments]), first_run):
        from unida.reports.run_report import report_after_run
        from unida.runs.demo import run_demo

        for folder in run_demo(options.out, options.steps, options.seed):
            report_after_run(folder)


@dataclass(frozen=True)
class NoOptions:
    pass


@dataclass(frozen=True)
class Methods:
    compare: bool = False
    """One table instead: what each needs and costs, and its HOS on Office-31."""


def methods(arguments: list[str]) -> None:
    options = parse(Methods, "unida methods", arguments, "The methods, their papers, settings and options.")
    if options.compare:
        from unida.methods.compare import compare_lines

        print("\n".join(compare_lines()))
        return
    from unida.methods.listing import method_lines

    print("\n".join(method_lines()))


@dataclass(frozen=True)
class Backbones:
    speed: bool = False
    """Also measure how many images a second each one takes on this machine."""


def backbones(arguments: list[str]) -> None:
    description = "The backbones that unida knows well: size, weights, and what each is good for."
    options = parse(Backbones, "unida backbones", arguments, description)
    from unida.models.listing import backbone_lines

    print("\n".join(backbone_lines()), flush=True)
    if options.speed:
        from unida.models.speed import speed_lines

        print()
        for line in speed_lines():
            print(line, flush=True)


@dataclass(frozen=True)
class Verify:
    benchmark: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME")]
    """A benchmark that `unida data list` names."""
    root: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="DIR")]
    """The folder that holds it."""


def data_verify(arguments: list[str]) -> None:
    options = parse(Verify, "unida data verify", arguments, "Compare a copy of a benchmark with the published counts.")
    from unida.data.benchmarks import load_benchmark, verify

    report = verify(load_benchmark(options.benchmark), options.root)
    print(report)
    if not report.ok:
        sys.exit(1)


def data_list(arguments: list[str]) -> None:
    description = "The benchmarks, their domains, and their label sets by setting."
    parse(NoOptions, "unida data list", arguments, description)
    from unida.data.show import benchmark_lines

    print("\n".join(benchmark_lines()))


@dataclass(frozen=True)
class Show:
    folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="DIR")]
    """A folder with one sub-folder per class (or a benchmark's folder, with --benchmark)."""
    out: Annotated[Path, tyro.conf.arg(metavar="FILE")] = Path("sheet.png")
    """Write the sheet to this .png file."""
    target: Annotated[Path | None, tyro.conf.arg(metavar="DIR", help_behavior_hint="")] = None
    """Show this folder beside the first one."""
    benchmark: Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="")] = None
    """DIR holds this benchmark."""
    pair: Annotated[str | None, tyro.conf.arg(metavar="A:B", help_behavior_hint="")] = None
    """Show these two domains of the benchmark side by side."""
    per_class: int = 6
    """Show this many pictures of each class."""
    task: Annotated[TaskName | None, tyro.conf.arg(metavar="|".join(get_args(TaskName)), help_behavior_hint="")] = None
    """Show what this pretext task of SPA makes of the folder's pictures instead."""


def data_show(arguments: list[str]) -> None:
    options = parse(Show, "unida data show", arguments, "A contact sheet: some pictures of every class.")
    from unida.data.show import show_benchmark, show_folders

    if options.benchmark is not None and options.pair is None:
        raise UserError("--benchmark needs --pair A:B: the two domains to show")
    if options.task is not None:
        _show_task(options, options.task)
        return
    with writing("--out", options.out):
        if options.benchmark is not None and options.pair is not None:
            sheet = show_benchmark(options.benchmark, options.folder, options.pair, options.out, options.per_class)
        else:
            sheet = show_folders(options.folder, options.target, options.out, options.per_class)
    print(f"wrote {sheet}")


def _show_task(options: Show, task: TaskName) -> None:
    if options.target is not None or options.benchmark is not None:
        raise UserError("--task shows the pictures of one folder: leave --target and --benchmark out")
    from unida.pretext.show import show_task  # imports torch

    with writing("--out", options.out):
        print(f"wrote {show_task(options.folder, task, options.out, options.per_class)}")


def analyze_layers(arguments: list[str]) -> None:
    from unida.analysis.options import LayerOptions
    from unida.data.pairs import benchmark_pair

    description = "How class-specific (NTR) and how domain-invariant (DIS) are features at each layer of a backbone?"
    options = parse(LayerOptions, "unida analyze layers", arguments, description)
    options.check()
    benchmark_pair(options.data)
    from unida.analysis.layers import study_layers, study_lines, write_study
    from unida.training.logging import logging_to

    for name in ("layers.json", "layers.png"):
        check_writable("--out", options.out / name)
    with logging_to(None):
        study = study_layers(options)
        print("\n".join(study_lines(study)))
        with writing("--out", options.out / "layers.json"):
            write_study(study, options)


def analyze_complexity(arguments: list[str]) -> None:
    from unida.analysis.options import ComplexityOptions

    description = "Parameters and multiply-adds of a method, without and with SPA's words."
    options = parse(ComplexityOptions, "unida analyze complexity", arguments, description)
    options.check()
    from unida.analysis.complexity import comparison_lines

    print("\n".join(comparison_lines(options)))


def analyze_clusters(arguments: list[str]) -> None:
    from unida.analysis.options import ClusterOptions
    from unida.runs.folder import find_runs

    description = "What DCC's clusters hold, beside the target's true classes: how many, matched to which, how pure?"
    options = parse(ClusterOptions, "unida analyze clusters", arguments, description)
    options.check()
    runs = find_runs(options.runs)
    if options.csv is not None:
        check_writable("--csv", options.csv)
    from unida.analysis.clusters import read_clusterings, report, write_clusters
    from unida.training.logging import logging_to

    with logging_to(None):
        clusterings = read_clusterings(runs)
    if options.csv is not None:
        with writing("--csv", options.csv):
            write_clusters(clusterings, options.csv)
    print(report(clusterings))
