"""What a finished run's folder says, put together for its report. Files that are damaged or gone leave gaps."""

import csv
import json
import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from unida.answering.later import Answered
from unida.answering.target import Rule
from unida.config import Config, config_class, flat_options, load_config
from unida.data.folders import scan_listed
from unida.data.listed import read_skipped
from unida.data.options import usable_cache
from unida.data.settings import UNKNOWN
from unida.errors import UserError
from unida.evaluation.truth import read_class_names
from unida.runs.targetfile import load_target
from unida.support.options import flag
from unida.training.logging import read_lines

NOT_KNOWN = -1


@dataclass(frozen=True)
class RunData:
    """A finished run. The N images of the target have one order everywhere: that of predictions.csv.

    Attributes:
        classes: names of the source's classes; the answer C is "unknown".
        answers: (N,) 0…C.
        best: (N,) the best class of each image, unknown or not; −1 if the images are gone.
        truths: (N,) true class, C and more for classes that the source does not have; −1 if not known.
        truth_names: names of all ids in `truths`.
        row_of_kept: (N,) each image's row in `kept`; −1 if it has none.
        notes: what could not be found, for the reader.
    """

    folder: Path
    config: Config
    metrics: dict[str, Any]  # the content of metrics.json
    lines: list[dict[str, Any]]  # of metrics.jsonl
    rule: Rule | None
    classes: tuple[str, ...]
    paths: list[str]
    answers: np.ndarray
    probability: np.ndarray
    unknown_score: np.ndarray
    best: np.ndarray
    truths: np.ndarray
    truth_names: tuple[str, ...]
    skipped: list[tuple[str, str]]  # path, reason
    groups: dict[str, tuple[int, float]]  # path → group, sureness
    answered: Answered | None
    row_of_kept: np.ndarray
    notes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def threshold(self) -> float:
        return 0.5 if self.rule is None else self.rule.threshold

    @property
    def has_truth(self) -> bool:
        return bool((self.truths != NOT_KNOWN).any())

    def answer_name(self, answer: int) -> str:
        return self.classes[answer] if answer < len(self.classes) else UNKNOWN

    @property
    def is_right(self) -> np.ndarray:
        """(N,) whether the answer is right; only where the truth is known."""
        return self.answers == np.minimum(self.truths, len(self.classes))


def read_run(folder: Path, classes: Sequence[str], rule: Rule | None) -> RunData:
    """Everything that the folder holds, and the true classes if the run was evaluated.

    Args:
        classes: the names of the source's classes, by id, from the model; empty if it cannot be read.
        rule: how the run answers, from the model.
    """
    config = load_config(folder / "config.yaml")
    metrics = _read_metrics(folder / "metrics.json")
    if rule is None and "answering" in metrics:
        rule = Rule.from_plain(metrics["answering"])
    paths, labels, probability, score = _read_predictions(folder / "predictions.csv")
    names = tuple(classes) or _classes_of(metrics, labels)
    ids = {name: i for i, name in enumerate((*names, UNKNOWN))}
    unnamed = sorted(set(labels) - set(ids))
    if unnamed:
        raise UserError(f"{folder / 'predictions.csv'} names {unnamed[0]!r}, which the run's model does not know")
    answers = np.array([ids[label] for label in labels], dtype=np.int64)
    nothing = np.full(len(paths), NOT_KNOWN)
    data = RunData(
        folder=folder,
        config=config,
        metrics=metrics,
        lines=read_lines(folder / "metrics.jsonl"),
        rule=rule,
        classes=names,
        paths=paths,
        answers=answers,
        probability=probability,
        unknown_score=score,
        best=np.where(answers < len(names), answers, NOT_KNOWN),
        truths=nothing,
        truth_names=names,
        skipped=read_skipped(folder / "skipped.csv"),
        groups=read_groups(folder / "groups.csv"),
        answered=None,
        row_of_kept=nothing,
        notes=(),
    )
    data = _with_truth(_with_best_classes(data))
    return replace(data, unknown_score=_on_their_side(data))


def _on_their_side(data: RunData) -> np.ndarray:
    """Scores in the file are rounded: no image may come to the other side of the threshold by that."""
    is_unknown, threshold = data.answers == len(data.classes), data.threshold
    above = math.nextafter(threshold, math.inf)
    score = data.unknown_score
    return np.where(is_unknown, np.maximum(score, above), np.minimum(score, threshold))


def _with_best_classes(data: RunData) -> RunData:
    """With what target.safetensors adds: its rows are found by the content of the files, so these must be there."""
    file = data.folder / "checkpoint" / "target.safetensors"
    try:
        if data.rule is None:
            raise UserError(f"{data.folder / 'metrics.json'} does not say how the run answered")
        answered = load_target(file, data.rule, data.config)
        root = Path(data.paths[0]).parent if data.config.data.target is None else data.config.data.target
        root = root if data.config.data.root is None else data.config.data.root
        files, _ = scan_listed(
            [Path(path) for path in data.paths], root, cache_dir=usable_cache(data.config.data.cache)
        )
    except (UserError, OSError) as error:
        return replace(data, notes=(*data.notes, f"The images' best classes are not known: {error}."))
    digest_of = {str(file.path): bytes.fromhex(file.digest) for file in files}
    row_of = {row.tobytes(): place for place, row in enumerate(answered.digests.numpy())}
    rows = np.array([row_of.get(digest_of.get(path, b""), NOT_KNOWN) for path in data.paths], dtype=np.int64)
    best = np.where(rows >= 0, answered.answers.closed.numpy()[rows], data.best)
    gone = int((rows < 0).sum())
    told = (f"{gone} of {len(rows)} target images are gone, or have changed since the run.",) if gone else ()
    return replace(data, answered=answered, row_of_kept=rows, best=best, notes=(*data.notes, *told))


def _with_truth(data: RunData) -> RunData:
    if "last_step" not in data.metrics:
        return data
    try:
        names = read_class_names(data.config.data, data.paths)
    except (UserError, OSError) as error:
        return replace(data, notes=(*data.notes, f"The images' true classes are not known: {error}."))
    private = sorted(set(names.values()) - set(data.classes))
    every = (*data.classes, *private)
    ids = {name: i for i, name in enumerate(every)}
    truths = np.array([ids.get(names.get(path, ""), NOT_KNOWN) for path in data.paths], dtype=np.int64)
    return replace(data, truths=truths, truth_names=every)


def _read_metrics(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
        if not isinstance(content, dict) or "cost" not in content:
            raise ValueError("it does not say what the run cost")
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is damaged ({error}): there is no report without it") from error
    return content


def _read_predictions(path: Path) -> tuple[list[str], list[str], np.ndarray, np.ndarray]:
    """Paths, labels, probabilities and unknown scores; skipped files are left out."""
    try:
        with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
            rows = [row for row in csv.DictReader(file) if not row["skipped"]]
        probability = np.array([float(row["probability"]) for row in rows])
        score = np.array([float(row["unknown_score"]) for row in rows])
        paths, labels = [row["path"] for row in rows], [row["label"] for row in rows]
    except (OSError, KeyError, TypeError, ValueError, csv.Error) as error:
        raise UserError(f"{path} is damaged ({error!r}): there is no report without it") from error
    if not paths:
        raise UserError(f"{path} holds no answer: there is nothing to report")
    return paths, labels, probability, score


def read_groups(path: Path) -> dict[str, tuple[int, float]]:
    """groups.csv: path → number of its group, and how surely it belongs there. Images without a group are left out."""
    try:
        with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
            rows = [(row["path"], int(row["group"]), float(row["sureness"])) for row in csv.DictReader(file)]
    except (OSError, KeyError, TypeError, ValueError, csv.Error):
        return {}
    return {path: (group, sureness) for path, group, sureness in rows if group >= 0 and math.isfinite(sureness)}


def _classes_of(metrics: dict[str, Any], labels: Sequence[str]) -> tuple[str, ...]:
    """Without the model: from the table by class, or those that were answered."""
    listed = tuple(row["name"] for row in metrics.get("per_class", []) if row["kind"] == "source")
    return listed or tuple(sorted(set(labels) - {UNKNOWN}))


def command_to_repeat(config: Config) -> str:
    """The command that makes the same run in a new folder: every option that is not at its default."""
    by_default: Any = config_class(config.training.method)
    usual = flat_options(by_default())
    words = ["unida", "adapt"]
    for name, value in {**flat_options(config), "out": "NEW-FOLDER", "resume": False}.items():
        if (value == usual.get(name) and name != "method") or value is None or value is False:
            continue
        words += [flag(name)] if value is True else [flag(name), str(value)]
    return shlex.join(words)
