"""The three-line API: `adapt` makes a run, `load` opens one, `Run` answers."""

import os
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unida.answering.alone import Answers, Scored, decide, score_pixels
from unida.answering.later import Answered
from unida.config import Config, config_from_options, load_config
from unida.data.augment import Preprocess
from unida.data.folders import ImageFile, Skipped, scan, scan_listed
from unida.evaluation.metrics import OpenSetResult
from unida.evaluation.predict import Predictions, predict_files
from unida.evaluation.truth import Truth, read_truth_of_run
from unida.export.options import ExportOptions
from unida.methods.base import Method
from unida.reports.run_report import report_after_run
from unida.runs.discover import Discovery, FinishedRun, Space, discover
from unida.runs.folder import refuse_folder, refuse_unfinished
from unida.runs.modelfile import ModelInfo, load_model
from unida.runs.pipeline import execute, measure_answers
from unida.runs.summary import read_metrics
from unida.runs.targetfile import load_target
from unida.support.fabric import Fabric
from unida.support.memory import keep_freed_memory
from unida.support.processes import open_fabric_for_answers

if TYPE_CHECKING:
    from unida.export.files import Written


def adapt(
    source: str | os.PathLike[str] | None = None,
    target: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    **options: Any,
) -> "Run":
    """Adapt a classifier from a labelled source to an unlabelled target. The same as `unida adapt`.

    Args:
        source: folder of labelled images, one sub-folder per class.
        target: folder of unlabelled images.
        out: the run's new folder.
        options: any option of `unida adapt`, with underscores: `steps=500, method="ovanet", seed=1`.
    """
    paths = {"source": source, "target": target, "out": out}
    config = config_from_options({**{k: v for k, v in paths.items() if v is not None}, **options})
    refuse_folder(config)
    folder = execute(config)
    report_after_run(folder)
    return Run(folder)


def load(folder: str | os.PathLike[str]) -> "Run":
    """Open a finished run."""
    path = Path(folder)
    refuse_unfinished(path)
    return Run(path)


class Run:
    """A finished run. It needs only its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config: Config = load_config(folder / "config.yaml")

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    @property
    def metrics(self) -> dict[str, float | None] | None:
        """The last step's metrics as fractions, or None if the target had no labels."""
        return read_metrics(self.folder)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the source's classes, by id."""
        return self._model[1].classes

    @cached_property
    def _fabric(self) -> Fabric:
        keep_freed_memory()
        return open_fabric_for_answers()

    @cached_property
    def _model(self) -> tuple[Method, ModelInfo]:
        method, info = load_model(self.folder / "checkpoint" / "model.safetensors", self.config)
        return method.to(self._fabric.device), info

    @cached_property
    def _answered(self) -> Answered:
        return load_target(self.folder / "checkpoint" / "target.safetensors", self._model[1].rule, self.config)

    @cached_property
    def _preprocess(self) -> Preprocess:
        info = self._model[1]
        return Preprocess(info.crop, info.mean, info.std, self._fabric.device)

    def predict(
        self,
        images: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        progress: bool = False,
        alone: bool = False,
    ) -> Predictions:
        """A class of the source or "unknown" for every image of a folder, or for every path of a list.

        An image of the run's own target has the answer that it had there. A new image joins: its neighbours among the
        target's images have a say. New images do not change each other's answers.

        Args:
            images: a folder, with its sub-folders, or a list of paths of image files and folders.
            progress: show progress on the terminal.
            alone: answer each image by itself, with the method's own threshold.

        Returns:
            One prediction per readable image of a folder, sorted by path; for a list, one per given path, in the given
            order and under the given name, and for a folder in it all of its images. Files that cannot be read are in
            its `skipped`.
        """
        if isinstance(images, str | os.PathLike):
            found = self._answer(*scan(images), progress, alone)
            return Predictions(sorted(found, key=lambda prediction: prediction.path), found.skipped)
        paths: list[str] = []
        for path in images:
            paths += _inside(os.fspath(path)) if os.path.isdir(path) else [os.fspath(path)]
        return self._answer(*scan_listed([Path(path) for path in paths], root=Path()), progress, alone).of(paths)

    def _answer(
        self, files: Sequence[ImageFile], skipped: Sequence[Skipped], progress: bool, alone: bool
    ) -> Predictions:
        method, info = self._model
        predictions = predict_files(
            method,
            info.classes,
            files,
            info.resize,
            info.image_size,
            self._preprocess,
            self._fabric,
            self._alone if alone else self._by_rule,
            progress,
        )
        return Predictions(predictions, [*predictions.skipped, *skipped])

    def _alone(self, scored: Scored, digests: Sequence[str]) -> Answers:
        return decide(scored.probabilities, scored.unknown, self._model[0].unknown_threshold)

    def _by_rule(self, scored: Scored, digests: Sequence[str]) -> Answers:
        return self._answered.answer(scored, digests, self._model[1].rule)

    @property
    def answering(self) -> str:
        """How the run answers, for people: neighbours, threshold, and the share of unknown images it believes in."""
        return self._model[1].rule.note()

    def export(
        self,
        onnx: str | os.PathLike[str] | None = None,
        torch_export: str | os.PathLike[str] | None = None,
        alone: bool = False,
    ) -> list["Written"]:
        """Write the run to one file that answers without this package: the same as `unida export`.

        Args:
            onnx: a name that ends in .onnx; a script that runs it is written beside it.
            torch_export: a name that ends in .pt2, for `torch.export.load`.
            alone: leave the target out; each image answers by itself, with the method's own threshold.
        """
        from unida.export.files import export_run  # torch's exporters are slow to import

        asked = ExportOptions(self.folder, _path(onnx), _path(torch_export), alone)
        asked.check()
        method, info = load_model(self.folder / "checkpoint" / "model.safetensors", self.config)  # on the CPU
        return export_run(self.folder, method, info, self._answered, asked.onnx, asked.torch_export, alone)

    def evaluate(self, target: str | os.PathLike[str] | None = None, progress: bool = False) -> OpenSetResult:
        """Every metric, on the run's own target or on another folder with one sub-folder per class.

        Args:
            target: folder of labelled images; a sub-folder that is no class of the source counts as unknown.
        """
        return self.evaluate_both(target, progress)[0]

    def evaluate_both(
        self, target: str | os.PathLike[str] | None = None, progress: bool = False
    ) -> tuple[OpenSetResult, OpenSetResult]:
        """As `evaluate`: the metrics of the run's answers, and those of each image alone by the method's threshold.

        Compare the second with papers.
        """
        method, info = self._model
        truth: Truth = read_truth_of_run(self.config.data, info.classes, target, progress)
        scored = score_pixels(method, truth.pixels, self._preprocess, self._fabric, visible=progress)
        digests = [file.digest for file in truth.pixels.files]
        ways = (self._by_rule(scored, digests), self._alone(scored, digests))
        given, alone = (measure_answers(answers, truth, method.num_classes) for answers in ways)
        return given, alone

    def discover(self, space: Space = "features", progress: bool = False) -> Discovery:
        """The unknown images of the run's target, in groups that look like one class each. Writes nothing.

        Args:
            space: what must be alike: "features", SPA's "words", or "both" with equal weight.
        """
        return discover(self._finished, space, progress)

    @property
    def _finished(self) -> FinishedRun:
        return FinishedRun(self.folder, self.config, *self._model, self._answered, self._preprocess)


def _inside(folder: str) -> list[str]:
    """Every file of a folder, by path: those that are no images will be skipped with a reason."""
    files, skipped = scan(folder)
    return sorted([*(str(file.path) for file in files), *(item.path for item in skipped)])


def _path(path: str | os.PathLike[str] | None) -> Path | None:
    return None if path is None else Path(path)
