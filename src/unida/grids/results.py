"""What a grid's runs gave: a line of results.csv each, enough to draw every table again."""

import csv
import json
import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unida.config import load_config, method_name
from unida.errors import UserError
from unida.evaluation.names import METRIC_NOTES
from unida.grids.plan import Task
from unida.models.options import pinned_revision
from unida.support.files import write_csv, write_text

RESULTS, FAILED = "results.csv", "failed"
ALONE = "alone_"  # before a metric: of each image by itself with the method's own threshold, as in papers
NAMES = ("row", "benchmark", "pair", "setting", "seed", "status")
HOW = ("method", "backbone", "train", "regime", "steps")
METRICS = (*METRIC_NOTES, *(ALONE + name for name in METRIC_NOTES))
COST = ("seconds", "images_per_second", "peak_memory_bytes")  # they differ from machine to machine
FIELDS = (*NAMES, *HOW, *METRICS, "unknown_answers", *COST, "version", "command", "reason")

Record = dict[str, Any]  # of a run, by the names in FIELDS; a name may be missing


def collect(tasks: Sequence[Task], folder: Path) -> dict[str, Record]:
    """A record for every run that is finished or has failed, by the name of its folder, in the order of the plan."""
    found = {task.name: record_of(task, folder) for task in tasks}
    return {name: record for name, record in found.items() if record is not None}


def record_of(task: Task, folder: Path) -> Record | None:
    """What is known of a run; None if it is neither finished nor failed."""
    if task.is_finished:
        return _record_of_finished(task)
    reason = failure_of(task, folder)
    return (
        None
        if reason is None
        else {**_names(task), "status": "failed", "command": public_command(task), "reason": reason}
    )


def _record_of_finished(task: Task) -> Record:
    """What a finished run's folder says."""
    config = load_config(task.folder / "config.yaml")
    try:
        content = json.loads((task.folder / "metrics.json").read_bytes())
        given: dict[str, float | None] = content.get("last_step") or {}
        alone: dict[str, float | None] = content["alone"]["method"] if given else {}
        cost = content["cost"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UserError(f"{task.folder / 'metrics.json'} is damaged: remove {task.folder}, and run again") from error
    return {
        **_names(task),
        "status": "done",
        "method": method_name(config),
        "backbone": config.model.backbone,
        "train": config.model.train,
        "regime": config.training.regime,
        "steps": cost["steps"],
        **given,
        **{ALONE + name: value for name, value in alone.items()},
        "unknown_answers": _share_of_unknown(task.folder / "predictions.csv"),
        **{name: cost[name] for name in COST},
        "version": content.get("version"),
        "command": public_command(task),
    }


def _names(task: Task) -> Record:
    benchmark = task.options.get("benchmark") or ""
    return {
        "row": task.row,
        "benchmark": benchmark,
        "pair": task.pair,
        "setting": task.setting,
        "seed": task.seed,
    }


def public_command(task: Task) -> str:
    """The command without paths of this machine: DIR is the data, RUN the folder of the run."""
    words = task.words
    hidden = {"--root": "DIR", "--out": "RUN", "--source": "SOURCE", "--target": "TARGET"}
    for name, shown in hidden.items():
        if name in words:
            words[words.index(name) + 1] = shown
    if "--weights" in words:
        place = words.index("--weights") + 1
        words[place] = words[place] if pinned_revision(words[place]) else Path(words[place]).name
    if "--cache" in words:
        del words[words.index("--cache") : words.index("--cache") + 2]
    words.remove("--resume")
    return shlex.join(["unida", *words])


def _share_of_unknown(path: Path) -> float | None:
    """Of the target's answers; the one number that a target without labels gives."""
    try:
        with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
            labels = [line["label"] for line in csv.DictReader(file) if not line["skipped"]]
    except (OSError, KeyError):
        return None
    return labels.count("unknown") / len(labels) if labels else None


def note_failure(task: Task, folder: Path, reason: str) -> None:
    """Keep the reason; the run is tried again when the grid is started again."""
    path = _failure_file(task, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, reason + "\n")


def forget_failure(task: Task, folder: Path) -> None:
    _failure_file(task, folder).unlink(missing_ok=True)


def failure_of(task: Task, folder: Path) -> str | None:
    path = _failure_file(task, folder)
    return path.read_text(encoding="utf-8").strip() if path.exists() else None


def _failure_file(task: Task, folder: Path) -> Path:
    return folder / FAILED / f"{task.name}.txt"


def write_results(records: Sequence[Record], path: Path) -> None:
    write_csv(path, [FIELDS, *([_text(record.get(name)) for name in FIELDS] for record in records)])


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def read_results(path: Path) -> list[Record]:
    """The records of a results.csv; columns that it does not have are missing in the records."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:  # Excel puts a mark before the first name
            lines = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} cannot be read ({getattr(error, 'strerror', None) or error})") from error
    if not lines or not {"row", "pair", "seed"} <= lines[0].keys():
        raise UserError(f"{path} is no results.csv of a grid: it needs a line for each run, with row, pair and seed")
    return [_parsed(line, path) for line in lines]


def _parsed(line: dict[str, str], path: Path) -> Record:
    record: Record = {"status": "done", "setting": "", "benchmark": "", **{k: v for k, v in line.items() if v}}
    line_of = f"in the line of {record.get('row')} {record.get('pair')}"
    try:
        for name in (*METRICS, "unknown_answers", *COST):
            if name in record:
                record[name] = float(record[name])
                if not math.isfinite(record[name]):
                    raise ValueError(f"{name} is {record[name]}")
        record["seed"] = int(record["seed"])
        for name in ("row", "pair"):
            if name not in record:
                raise ValueError(f"{name} is empty")
    except KeyError as error:
        raise UserError(f"{path}: seed is empty, {line_of}") from error
    except ValueError as error:
        raise UserError(f"{path}: {error}, {line_of}") from error
    return record
