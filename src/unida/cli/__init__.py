"""The command line: parses, calls, prints. No logic."""

import io
import signal
import sys
from collections.abc import Callable, Sequence

from unida import __version__
from unida.cli import discover_verbs, export_verbs, grid_verbs, report_verbs, serve_verbs, study_verbs, verbs
from unida.cli.output import exit_with, forget_output
from unida.errors import UserError
from unida.support.suggest import did_you_mean

OVERVIEW = """\
unida: universal domain adaptation of image classifiers

Every image of an unlabelled folder gets one of the classes of a labelled folder, or the answer "unknown".

  unida check --source DIR --target DIR              what is in the folders, how long will it take?
  unida adapt --source DIR --target DIR --out RUN    adapt a classifier to the target
  unida predict RUN DIR --csv FILE                   answers for other images
  unida export RUN --onnx FILE                       the run as one file that answers without this package
  unida serve RUN                                    a page in the browser and a JSON API that answer images
  unida evaluate RUN                                 every metric, if the target has labels
  unida discover RUN                                 the unknown images, in groups that look like one class each
  unida grid SPEC.yaml --out DIR                     every run of a table, side by side; `unida grid status DIR`
  unida table DIR                                    tables of a grid: Markdown, LaTeX, CSV, the paper beside
  unida study NAME … --out DIR                       the studies of SPA's paper; `unida study` lists them
  unida report RUN|GRID                              one HTML file: answers, pictures, charts
  unida demo                                         see it work on generated pictures, in minutes
  unida methods                                      the methods, their papers and options
  unida backbones                                    the networks: size, weights, what each is good for
  unida data list                                    the benchmarks, their domains and settings
  unida data verify NAME DIR                         is the copy of a benchmark complete?
  unida data show DIR --out FILE                     a contact sheet of a folder or a benchmark
  unida analyze layers … --out DIR                   at which layer to adapt? NTR, DIS and PAS of every layer
  unida analyze complexity                           parameters and multiply-adds, without and with SPA's words
  unida analyze clusters RUN …                       what DCC's clusters hold, if the target has labels

Add --help to any of them. `unida --version` prints the version.
"""

Verb = Callable[[list[str]], None]  # called with the arguments after it


def main(argv: Sequence[str] | None = None) -> None:
    """The console script.

    Exit codes: 0 done, 1 `data verify` found the copy incomplete or runs of a grid have failed, 2 an error that the
    user can fix, 130 interrupted (a run is saved and can be resumed), 141 the reader of the output has gone.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # the terminal cannot show every letter of every file name
    try:
        try:
            _run(list(sys.argv[1:] if argv is None else argv))
        finally:
            if sys.stdout is not None:  # closed by the caller
                sys.stdout.flush()  # here: when Python ends, nothing could catch its error
    except BrokenPipeError:  # `unida … | head`
        forget_output()
        sys.exit(128 + signal.SIGPIPE)
    except OSError as error:  # a file's errors are UserErrors by now
        forget_output()
        exit_with(f"error: the output cannot be written ({error.strerror or error})", 2)


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
        exit_with(f"error: {error}", 2)
    except KeyboardInterrupt:
        exit_with("interrupted", 130)


def _command(commands: dict[str, Verb], verb: str, program: str) -> Verb:
    if verb not in commands:
        hint = did_you_mean(verb, commands) or f"; there are {', '.join(commands)}"
        raise UserError(f"there is no command '{program} {verb}'{hint}")
    return commands[verb]


def _group(name: str, commands: dict[str, Verb]) -> Verb:
    """A verb that needs a second one: `unida data list`."""

    def run(arguments: list[str]) -> None:
        verb = arguments[0] if arguments else "--help"
        if verb in ("-h", "--help"):
            print("\n".join(line for line in OVERVIEW.splitlines() if f"unida {name}" in line))
            return
        _command(commands, verb, f"unida {name}")(arguments[1:])

    return run


VERBS: dict[str, Verb] = {
    "check": verbs.check,
    "adapt": verbs.adapt,
    "predict": export_verbs.predict,
    "export": export_verbs.export,
    "serve": serve_verbs.serve,
    "evaluate": verbs.evaluate,
    "discover": discover_verbs.discover,
    "grid": grid_verbs.grid,
    "table": grid_verbs.table,
    "study": study_verbs.study,
    "report": report_verbs.report,
    "demo": verbs.demo,
    "methods": verbs.methods,
    "backbones": verbs.backbones,
    "data": _group("data", {"list": verbs.data_list, "verify": verbs.data_verify, "show": verbs.data_show}),
    "analyze": _group(
        "analyze",
        {
            "layers": verbs.analyze_layers,
            "complexity": verbs.analyze_complexity,
            "clusters": verbs.analyze_clusters,
        },
    ),
}
