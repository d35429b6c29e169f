"""The commands that put a finished run to use: answers for other images, and the run as one file."""

import os
import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from unida.cli.output import check_writable, writing
from unida.cli.parsing import parse
from unida.errors import UserError, printable
from unida.support.counting import counted
from unida.support.options import check_numbers, shown

if TYPE_CHECKING:
    from unida.api import Run
    from unida.evaluation.predict import Predictions

STDOUT = Path("-")


@dataclass(frozen=True)
class Predict:
    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """The folder of a finished run."""
    images: Annotated[tyro.conf.Positional[tuple[Path, ...]], shown("FILE|DIR [FILE|DIR …]")] = ()
    """Answer for these pictures, and for all pictures in these folders and their sub-folders."""
    csv: Annotated[Path | None, shown("FILE")] = None
    """Write the answers here: path, label or "unknown", probability, unknown score, and why a file was skipped. "-"
    prints them."""
    json: Annotated[Path | None, shown("FILE")] = None
    """The same as JSON."""
    watch: Annotated[Path | None, shown("DIR")] = None
    """Wait for pictures in this folder, answer each new one once, and append it to --csv FILE. Ctrl-C ends it; started
    again, it goes on where it was."""
    every: Annotated[float, shown("SECONDS", "(default: 2)")] = 2.0
    """With --watch: look this often. A file is answered when it has not changed since the last look."""
    move_to: Annotated[Path | None, shown("DIR")] = None
    """Move each answered file to DIR/label/. Nothing is overwritten: a name that is taken gets a number. --csv FILE, a
    new file, says where each went."""
    copy_to: Annotated[Path | None, shown("DIR")] = None
    """The same, but the files stay where they are, and copies are sorted."""
    alone: bool = False
    """Answer each image by itself, with the method's own threshold. Without it, its neighbours among the run's target
    images have a say."""

    def check(self) -> None:
        check_numbers(self, "every", least=0.05, most=3600)
        see = "see: unida predict --help"
        if self.watch is None and not self.images:
            raise UserError(f"FILE or DIR is missing: name pictures or folders, and --csv FILE for the answers; {see}")
        if self.watch is None and (self.csv, self.json, self.move_to, self.copy_to) == (None,) * 4:
            raise UserError(f"--csv FILE is missing: where the answers go (or --json FILE, --copy-to DIR); {see}")
        if self.csv == STDOUT == self.json:
            raise UserError("--csv - and --json - cannot both be printed: give one of them a file")
        if self.move_to is not None and self.copy_to is not None:
            raise UserError("--move-to and --copy-to exclude each other: leave one out")
        is_record = self.move_to is not None and self.watch is None  # --watch appends
        for option, path in (("--csv", self.csv), ("--json", self.json)):
            if is_record and path not in (None, STDOUT) and os.path.lexists(path):
                raise UserError(f"{option} {path} is there, and may say where files were moved to: choose another name")
        for path in self.images:
            if not os.path.exists(path):
                raise UserError(f"{path}: no such folder or file; check the path")
        if self.watch is not None:
            self._check_watch(self.watch)
        self._refuse_nesting()

    def _check_watch(self, folder: Path) -> None:
        if self.images:
            raise UserError(f"--watch {folder} takes no other pictures ({self.images[0]}): leave one of them out")
        if self.csv is None or self.csv == STDOUT:
            raise UserError("--watch needs --csv FILE: it remembers there which files are answered")
        if self.json is not None:
            raise UserError("--json has no effect with --watch, which appends to --csv FILE: leave it out")

    def _refuse_nesting(self) -> None:
        """Sorted files must not be found again as new ones."""
        option, to = ("--move-to", self.move_to) if self.move_to is not None else ("--copy-to", self.copy_to)
        for place in (self.watch, *self.images):
            if to is not None and place is not None and place.is_dir() and to.resolve().is_relative_to(place.resolve()):
                raise UserError(f"{option} {to} lies inside {place}, which is read: choose a folder outside it")


def predict(arguments: list[str]) -> None:
    options = parse(Predict, "unida predict", arguments, "A class or “unknown” for every image of a folder.")
    from unida.runs.folder import refuse_unfinished

    refuse_unfinished(options.run)
    for option, path in (("--csv", options.csv), ("--json", options.json)):
        if path not in (None, STDOUT):
            check_writable(option, path)
    for option, path in (("--move-to", options.move_to), ("--copy-to", options.copy_to)):
        if path is not None:
            check_writable(option, path / "unknown" / "name")
    options.check()
    from unida.api import load

    run = load(options.run)
    if options.watch is not None:
        _watch(run, options)
        return
    _ = run.classes  # reads the model: that is no part of the speed
    start = time.monotonic()
    predictions = run.predict(_given(options.images), progress=True, alone=options.alone)
    seconds = time.monotonic() - start
    _write(predictions, options)
    _tell(predictions, options, run, seconds)


def _given(images: tuple[Path, ...]) -> "Path | list[str]":
    """A folder alone, or all paths, each once."""
    return images[0] if len(images) == 1 and images[0].is_dir() else list(dict.fromkeys(map(str, images)))


def _write(predictions: "Predictions", options: Predict) -> None:
    """Answers, then sorted files. If files are moved, the answers are there before, and then say where each went."""
    is_move = options.move_to is not None
    _write_files(predictions, options, {} if is_move else None)
    went: dict[str, str] = {}
    try:
        for prediction in predictions if options.move_to or options.copy_to else ():
            went[prediction.path] = str(_sort(Path(prediction.path), prediction.label, options))
    finally:
        if is_move:  # also if one could not be moved: others were
            _write_files(predictions, options, went)
        _print(predictions, options, went if is_move else None)


def _write_files(predictions: "Predictions", options: Predict, moved: dict[str, str] | None) -> None:
    from unida.support.files import write_text

    if options.csv not in (None, STDOUT):
        with writing("--csv", options.csv):
            predictions.write_csv(options.csv, moved)
    if options.json not in (None, STDOUT):
        with writing("--json", options.json):
            options.json.parent.mkdir(parents=True, exist_ok=True)
            write_text(options.json, predictions.as_json(moved))


def _print(predictions: "Predictions", options: Predict, moved: dict[str, str] | None) -> None:
    if options.csv == STDOUT:
        print(predictions.as_csv(moved), end="")
    if options.json == STDOUT:
        print(predictions.as_json(moved), end="")


def _sort(file: Path, label: str, options: Predict) -> Path:
    from unida.runs.sorting import sort_file

    is_move = options.move_to is not None
    folder = options.move_to or options.copy_to
    assert folder is not None
    with writing("--move-to" if is_move else "--copy-to", folder / label / file.name):
        return sort_file(file, label, folder, is_move)


def _tell(predictions: "Predictions", options: Predict, run: "Run", seconds: float) -> None:
    out = sys.stderr if STDOUT in (options.csv, options.json) else sys.stdout
    unknown = sum(p.label == "unknown" for p in predictions)
    places = [str(path) for path in (options.csv, options.json) if path not in (None, STDOUT)]
    where = f"; answers are in {' and '.join(places)}" if places else ""
    print(f"{counted(len(predictions), 'image')}, {unknown} of them unknown{where}", file=out)
    if sorted_into := options.move_to or options.copy_to:
        print(f"{'moved' if options.move_to else 'copied'} to {sorted_into}, a folder for each answer", file=out)
    if not options.alone:
        print(run.answering, file=out)
    if predictions:
        print(f"{len(predictions) / max(seconds, 1e-9):.1f} images/s", file=out)
    for item in predictions.skipped:
        print(printable(f"skipped {item.path}: {item.reason}"), file=sys.stderr)


def _watch(run: "Run", options: Predict) -> None:
    from unida.runs.watch import watch
    from unida.support.signals import Interrupted, interruptible

    assert options.watch is not None and options.csv is not None
    _ = run.classes
    answered, seconds = 0, 0.0

    def answer(paths: Sequence[Path]) -> "Predictions":
        nonlocal answered, seconds
        start = time.monotonic()
        found = run.predict(paths, alone=options.alone)
        answered, seconds = answered + len(found), seconds + time.monotonic() - start
        return found

    def sort(file: Path, label: str) -> None:
        _sort(file, label, options)

    move, copy = (None if folder is None else sort for folder in (options.move_to, options.copy_to))
    looks = watch(options.watch, options.csv, answer, options.every, move, copy)
    print(f"watching {options.watch}; answers go to {options.csv}; Ctrl-C ends it", flush=True)
    with suppress(KeyboardInterrupt, Interrupted), interruptible(), writing("--csv", options.csv):
        for found in looks:
            for prediction in found:
                print(printable(f"{prediction.path}: {prediction.label}"), flush=True)
            for item in found.skipped:
                print(printable(f"skipped {item.path}: {item.reason}"), file=sys.stderr, flush=True)
    looks.close()
    speed = f", {answered / seconds:.1f} images/s" if answered else ""
    print(f"ended: {counted(answered, 'image')} answered{speed}; the same command goes on")


def export(arguments: list[str]) -> None:
    from unida.export.options import ExportOptions
    from unida.runs.folder import refuse_unfinished

    description = "A run as one file that answers without this package: ONNX, or torch's own format."
    options = parse(ExportOptions, "unida export", arguments, description)
    options.check()
    refuse_unfinished(options.run)
    for option, path in (("--onnx", options.onnx), ("--torch-export", options.torch_export)):
        if path is not None:
            check_writable(option, path)
    from unida.api import load

    for written in load(options.run).export(options.onnx, options.torch_export, options.alone):
        print(written.note())
    if options.onnx is not None:
        print(f"run it: python {shlex.quote(str(options.onnx.with_suffix('.py')))} PICTURES > answers.csv")
