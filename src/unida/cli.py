"""The command line: parses, calls, prints. No logic."""

import contextlib
import dataclasses
import errno
import io
import itertools
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tyro

from unida import __version__
from unida.errors import UserError, printable
from unida.support.options import flag
from unida.support.suggest import did_you_mean

OVERVIEW = """\
unida: universal domain adaptation of image classifiers

Every image of an unlabelled folder gets one of the classes of a labelled folder, or the answer "unknown".

  unida check --source DIR --target DIR              what is in the folders, how long will it take?
  unida adapt --source DIR --target DIR --out RUN    adapt a classifier to the target
  unida predict RUN DIR --csv FILE                   answers for other images
  unida evaluate RUN                                 every metric, where the target has labels
  unida demo                                         see it work on generated pictures, in minutes
  unida methods                                      the methods, their papers and options
  unida data list                                    the benchmarks, their domains and settings
  unida data verify NAME DIR                         is the copy of a benchmark complete?
  unida data show DIR --out FILE                     a contact sheet of a folder or a benchmark
  unida analyze layers … --out DIR                   at which layer to adapt? NTR, DIS and PAS of every one
  unida analyze complexity                           parameters and multiply-adds, without and with SPA's words

Add --help to any of them. `unida --version` tells the version.
"""

T = TypeVar("T")
Verb = Callable[[list[str]], None]  # called with the words behind it


def main(argv: Sequence[str] | None = None) -> None:
    """The console script.

    Exit codes: 0 done, 1 `data verify` found the copy incomplete, 2 the user can mend it, 130 interrupted (a run is
    saved and can be resumed), 141 nobody reads the output any more.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a file's name may hold what the terminal cannot show
    try:
        try:
            _run(list(sys.argv[1:] if argv is None else argv))
        finally:
            if sys.stdout is not None:  # closed by the caller
                sys.stdout.flush()  # here, and not when Python ends, where nothing could catch its error
    except BrokenPipeError:  # `unida … | head`
        _forget_output()
        sys.exit(128 + signal.SIGPIPE)


def _forget_output() -> None:
    """Python flushes the two streams when it ends, and would complain again that nobody reads."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


def _run(arguments: list[str]) -> None:
    verb = arguments[0] if arguments else "--help"
    if verb in ("-h", "--help", "help"):
        print(OVERVIEW, end="")
        return
    if verb in ("-V", "--version"):
        print(f"unida {__version__}")
        return
    try:
        _command(VERBS, verb, "unida")(arguments[1:])
    except UserError as error:
        _exit_with(f"error: {error}", 2)
    except KeyboardInterrupt:
        _exit_with("interrupted", 130)


def _command(verbs: dict[str, Verb], verb: str, program: str) -> Verb:
    if verb not in verbs:
        hint = did_you_mean(verb, verbs) or f"; there are {', '.join(verbs)}"
        raise UserError(f"there is no command '{program} {verb}'{hint}")
    return verbs[verb]


def _exit_with(message: str, code: int) -> None:
    if _speaks_for_all():
        print(message, file=sys.stderr)
    sys.exit(code)


def _speaks_for_all() -> bool:
    """Of several processes, one speaks. torchrun numbers all in RANK, SLURM in SLURM_PROCID, Fabric those it starts."""
    ranks = ("RANK",) if "RANK" in os.environ else ("SLURM_PROCID", "LOCAL_RANK")
    return all(os.environ.get(name, "0") == "0" for name in ranks)


def _parse(kind: type[T], program: str, arguments: Sequence[str], description: str) -> T:
    options = (tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff)
    said = io.StringIO()  # the parser explains errors in boxes of many lines; a user's error is one line here
    try:
        with contextlib.redirect_stderr(said):
            parsed, unknown = tyro.cli(
                kind,
                prog=program,
                args=list(arguments),
                description=description,
                config=options,
                return_unknown_args=True,
            )
    except SystemExit as stop:
        if not stop.code:  # --help
            raise
        raise UserError(f"{_gist(said.getvalue())}; see: {program} --help") from None
    if unknown:
        name = unknown[0].partition("=")[0]
        is_option = name.startswith("-")
        hint = did_you_mean(name, _option_names(kind)) if is_option else ""
        what = "there is no option" if is_option else "unexpected argument"
        raise UserError(f"{what} {name!r}{hint}; see: {program} --help")
    return parsed


def _gist(box: str) -> str:
    """The first statement in the parser's box, in one line, without the help on options that is set in deeper."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", box)
    below_title = itertools.dropwhile(lambda line: not re.search("─{3}|-{3}", line), plain.splitlines())
    content = (line[2:].rstrip("│ ") for line in itertools.islice(below_title, 1, None))  # border, space, text
    statement = itertools.takewhile(lambda line: line.strip(" ─-"), content)
    words = [line.strip() for line in statement if not line.startswith(" " * 8)]
    return " ".join(words or plain.split()).rstrip(".")


def _option_names(kind: Any) -> Iterator[str]:
    """Every --option of a dataclass and of the dataclasses in it."""
    for f in dataclasses.fields(kind):
        if dataclasses.is_dataclass(f.type):
            yield from _option_names(f.type)
        else:
            yield flag(f.name)


def _adapt(arguments: list[str]) -> None:
    from unida.config import TrainingOptions, check, config_class, config_to_resume, keep_saved
    from unida.runs.folder import refuse_folder

    saved = config_to_resume(_value_of("--out", arguments), "--resume" in arguments)
    config_type = config_class(
        _value_of("--method", arguments) or (saved.training.method if saved else TrainingOptions.method)
    )
    description = (
        "Adapt a classifier from a labelled source to an unlabelled target.\n\n"
        "  unida adapt --source photos/labelled --target photos/new --out runs/first\n\n"
        "The last group of options belongs to the method that --method names."
    )
    config: Any = _parse(config_type, "unida adapt", arguments, description)
    if saved is not None:
        names = (word.partition("=")[0] for word in arguments if word.startswith("--"))  # the others are values
        given = {re.sub("[-.]", "_", name.removeprefix("--")) for name in names}
        config = keep_saved(config, saved, given)
    refuse_folder(check(config))
    out = config.output.out
    with _saying_how_to_continue(f"unida adapt --out {out} --resume", out):
        from unida.runs.pipeline import execute  # torch: only when it is certain that there is something to do

        execute(config)


@contextlib.contextmanager
def _saying_how_to_continue(command: str, folder: Path) -> Iterator[None]:
    """From here on, Ctrl-C and SIGTERM end with a word on how to continue.

    Args:
        folder: of the run, which may not have begun.
    """
    from unida.support.signals import Interrupted, interruptible

    try:
        with interruptible():
            yield
    except (Interrupted, KeyboardInterrupt) as stop:
        if (folder / "config.yaml").exists():
            _exit_with(f"{str(stop) or 'interrupted'}. Continue with: {command}", 130)
        _exit_with("stopped before the run began: start it again", 130)


def _check(arguments: list[str]) -> None:
    from unida.config import TrainingOptions, check, config_class
    from unida.data.pairs import benchmark_pair

    config_type = config_class(_value_of("--method", arguments) or TrainingOptions.method)
    description = "What is in the folders, and how long `unida adapt` will take with these options."
    config: Any = check(_parse(config_type, "unida check", arguments, description))
    benchmark_pair(config.data)
    from unida.runs.check import check_run
    from unida.training.logging import logging_to

    with logging_to(None):
        print("\n".join(check_run(config)))


def _value_of(option: str, arguments: Sequence[str]) -> str | None:
    """The value of an option that must be known before the others can be parsed."""
    for i, argument in enumerate(arguments):
        if argument == option and i + 1 < len(arguments):
            return arguments[i + 1]
        if argument.startswith(f"{option}="):
            return argument.partition("=")[2]
    return None


@contextlib.contextmanager
def _writing(option: str, file: Path) -> Iterator[None]:
    """Tells the user which option names the file that cannot be written."""
    try:
        if file.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        yield
    except OSError as error:
        raise UserError(f"{option} {file} cannot be written ({error.strerror}): choose another file") from error


def _check_writable(option: str, file: Path) -> None:
    """The error of `_writing` before the long work, not after it. Leaves nothing on the disk."""
    with _writing(option, file):
        folder = next(path for path in file.absolute().parents if os.path.exists(path))
        if not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


@dataclass(frozen=True)
class Evaluate:
    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """The folder of a finished run."""
    target: Annotated[
        Path | None, tyro.conf.arg(metavar="DIR", help_behavior_hint="(default: the run's own target)")
    ] = None
    """Labelled images, one sub-folder per class; a name that is no class of the source counts as unknown."""
    json: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = None
    """Also write the metrics to this file."""


def _evaluate(arguments: list[str]) -> None:
    options = _parse(Evaluate, "unida evaluate", arguments, "Every metric of a run, in one pass over its target.")
    from unida.api import load
    from unida.runs.summary import class_lines, metric_lines, result_json
    from unida.support.files import write_text

    run = load(options.run)
    if options.json is not None:
        _check_writable("--json", options.json)
    result = run.evaluate(options.target, progress=True)
    print("\n".join([*metric_lines(result.scalars()), "", *class_lines(result)]))
    if options.json is not None:
        with _writing("--json", options.json):
            options.json.parent.mkdir(parents=True, exist_ok=True)
            write_text(options.json, result_json(result))


@dataclass(frozen=True)
class Predict:
    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """The folder of a finished run."""
    images: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="DIR")]
    """Images to answer for: a folder, searched through."""
    csv: Annotated[Path, tyro.conf.arg(metavar="FILE")]
    """Where the answers go: path, label or "unknown", probability, unknown score, and why a file was skipped."""


def _predict(arguments: list[str]) -> None:
    options = _parse(Predict, "unida predict", arguments, "A class or “unknown” for every image of a folder.")
    from unida.api import load

    run = load(options.run)
    _check_writable("--csv", options.csv)
    predictions = run.predict(options.images, progress=True)
    with _writing("--csv", options.csv):
        predictions.write_csv(options.csv)
    unknown = sum(p.label == "unknown" for p in predictions)
    print(f"{len(predictions)} images, {unknown} of them unknown; answers are in {options.csv}")
    for item in predictions.skipped:
        print(printable(f"skipped {item.path}: {item.reason}"), file=sys.stderr)


@dataclass(frozen=True)
class Demo:
    out: Path = Path("demo")
    """Where pictures and runs go."""
    steps: int = 600
    """Training steps of each method."""
    seed: int = 0
    """Of the pictures and of the runs."""


def _demo(arguments: list[str]) -> None:
    description = "Source-only, OVANet and OVANet+SPA, side by side, on generated pictures."
    options = _parse(Demo, "unida demo", arguments, description)
    first_run = options.out / "source-only"
    with _saying_how_to_continue(f"unida demo {' '.join(arguments)}".rstrip(), first_run):
        from unida.runs.demo import run_demo

        run_demo(options.out, options.steps, options.seed)


@dataclass(frozen=True)
class NoOptions:
    pass


def _methods(arguments: list[str]) -> None:
    _parse(NoOptions, "unida methods", arguments, "The methods, their papers, settings and options.")
    from unida.methods.listing import method_lines

    print("\n".join(method_lines()))


@dataclass(frozen=True)
class Verify:
    benchmark: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME")]
    """A benchmark that `unida data list` names."""
    root: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="DIR")]
    """The folder that holds it."""


def _data_verify(arguments: list[str]) -> None:
    options = _parse(Verify, "unida data verify", arguments, "Compare a copy of a benchmark with the published counts.")
    from unida.data.benchmarks import load_benchmark, verify

    report = verify(load_benchmark(options.benchmark), options.root)
    print(report)
    if not report.ok:
        sys.exit(1)


def _data_list(arguments: list[str]) -> None:
    description = "The benchmarks, their domains, and their label sets by setting."
    _parse(NoOptions, "unida data list", arguments, description)
    from unida.data.show import benchmark_lines

    print("\n".join(benchmark_lines()))


@dataclass(frozen=True)
class Show:
    folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="DIR")]
    """A folder with one sub-folder per class (or a benchmark's folder, with --benchmark)."""
    out: Annotated[Path, tyro.conf.arg(metavar="FILE")] = Path("sheet.png")
    """The picture to write."""
    target: Annotated[Path | None, tyro.conf.arg(metavar="DIR", help_behavior_hint="")] = None
    """A second folder, shown beside the first."""
    benchmark: Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="")] = None
    """DIR holds this benchmark."""
    pair: Annotated[str | None, tyro.conf.arg(metavar="A:B", help_behavior_hint="")] = None
    """Two domains of the benchmark, side by side."""
    per_class: int = 6
    """Pictures of each class."""


def _data_show(arguments: list[str]) -> None:
    options = _parse(Show, "unida data show", arguments, "A contact sheet: some pictures of every class.")
    from unida.data.show import show_benchmark, show_folders

    if options.benchmark is not None and options.pair is None:
        raise UserError("--benchmark needs --pair A:B: the two domains to show")
    with _writing("--out", options.out):
        if options.benchmark is not None and options.pair is not None:
            sheet = show_benchmark(options.benchmark, options.folder, options.pair, options.out, options.per_class)
        else:
            sheet = show_folders(options.folder, options.target, options.out, options.per_class)
    print(f"wrote {sheet}")


def _analyze_layers(arguments: list[str]) -> None:
    from unida.analysis.options import LayerOptions
    from unida.data.pairs import benchmark_pair

    description = "How class-specific (NTR) and how domain-invariant (DIS) are features at each layer of a backbone?"
    options = _parse(LayerOptions, "unida analyze layers", arguments, description)
    options.check()
    benchmark_pair(options.data)
    from unida.analysis.layers import study_layers, study_lines, write_study
    from unida.training.logging import logging_to

    for name in ("layers.json", "layers.png"):
        _check_writable("--out", options.out / name)
    with logging_to(None):
        study = study_layers(options)
        print("\n".join(study_lines(study)))
        with _writing("--out", options.out / "layers.json"):
            write_study(study, options)


def _analyze_complexity(arguments: list[str]) -> None:
    from unida.analysis.options import ComplexityOptions

    description = "Parameters and multiply-adds of a method, without and with SPA's words."
    options = _parse(ComplexityOptions, "unida analyze complexity", arguments, description)
    options.check()
    from unida.analysis.complexity import comparison_lines

    print("\n".join(comparison_lines(options)))


def _group(name: str, verbs: dict[str, Verb]) -> Verb:
    """A verb that wants a second one: `unida data list`."""

    def run(arguments: list[str]) -> None:
        verb = arguments[0] if arguments else "--help"
        if verb in ("-h", "--help"):
            print("\n".join(line for line in OVERVIEW.splitlines() if f"unida {name}" in line))
            return
        _command(verbs, verb, f"unida {name}")(arguments[1:])

    return run


VERBS: dict[str, Verb] = {
    "check": _check,
    "adapt": _adapt,
    "predict": _predict,
    "evaluate": _evaluate,
    "demo": _demo,
    "methods": _methods,
    "data": _group("data", {"list": _data_list, "verify": _data_verify, "show": _data_show}),
    "analyze": _group("analyze", {"layers": _analyze_layers, "complexity": _analyze_complexity}),
}
