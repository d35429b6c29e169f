"""The report of a run: what was run, what it answered, how good that is, and pictures of it all."""

import base64
import logging
import shlex
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from unida.config import flat_options, load_config, method_name
from unida.data.settings import UNKNOWN
from unida.errors import UserError
from unida.evaluation.names import METRIC_NOTES
from unida.reports import charts
from unida.reports.gallery import choose_pictures
from unida.reports.looking import some_source
from unida.reports.mapping import MapSection, draw_map
from unida.reports.page import render, require_packages
from unida.reports.rundata import NOT_KNOWN, RunData, command_to_repeat, read_run
from unida.reports.thresholds import threshold_rows
from unida.reports.words import WordRow, word_rows
from unida.runs.folder import refuse_unfinished
from unida.runs.looking import Model, open_model
from unida.runs.summary import percent
from unida.support.files import write_text
from unida.support.options import flag
from unida.support.processes import is_main_process
from unida.support.progress import duration
from unida.training.logging import logging_to

log = logging.getLogger("unida")

REPORT = "report.html"
WATCHED = "watched"  # begins the names of charts of a method's own numbers
MOST_SKIPPED = 500  # rows of a table; skipped.csv has them all


def report_after_run(folder: Path) -> None:
    """Write report.html at the end of a run. A report that cannot be made is told in one line; nothing is raised."""
    if not is_main_process():
        return
    out, metrics = folder / REPORT, folder / "metrics.json"
    if out.exists() and metrics.exists() and out.stat().st_mtime >= metrics.stat().st_mtime:
        return
    with logging_to(folder):
        try:
            write_run_report(folder, out)
            log.info("report: %s", out)
        except Exception as error:  # the run is finished, whatever happens here
            reason = " ".join(str(error).split()) or type(error).__name__
            log.warning("there is no %s: %s", REPORT, reason)


def write_run_report(folder: Path, out: Path) -> None:
    """One HTML file from the folder of a finished run, and from its images where they still are."""
    refuse_unfinished(folder)
    require_packages()
    config = load_config(folder / "config.yaml")
    model, problem = None, ""
    try:
        model = open_model(folder, config)
    except (UserError, OSError) as error:
        problem = f"The model cannot be read: {error}."
    data = read_run(folder, model.info.classes if model else (), model.info.rule if model else None)
    write_text(out, render("run.html", run_context(data, model, problem)))


def run_context(data: RunData, model: Model | None, problem: str) -> dict[str, Any]:
    """All that the template shows."""
    gallery = choose_pictures(data)
    looked = _looked_at(data, model)
    confusion, curves = _confusion(data), _curves(data)
    counts = np.bincount(data.answers, minlength=len(data.classes) + 1)
    unknown = int(counts[-1])
    return {
        "title": f"{method_name(data.config)}: {_what(data)}",
        "version": version("unida"),
        "written": time.strftime("%Y-%m-%d %H:%M"),
        "sentence": _sentence(data, unknown, looked.num_source),
        "rule": None if data.rule is None else data.rule.note(),
        "tiles": _tiles(data, unknown),
        "answers": _answer_rows(data, counts),
        "threshold": data.threshold,
        "thresholds": threshold_rows(data),
        "slider": _slider_data(data),
        "has_truth": data.has_truth,
        "galleries": gallery.answers,
        "mistakes": gallery.mistakes,
        "groups": gallery.groups,
        "metrics": [(name, percent(value), METRIC_NOTES[name]) for name, value in _metrics(data).items()],
        "ways": _ways(data),
        "per_class": _per_class(data),
        "confusions": _largest_confusions(data),
        "map": looked.map,
        "words": looked.words,
        "charts": {
            "answers": charts.bars([*data.classes, UNKNOWN], counts.tolist(), last_is_unknown=True),
            "scores": _score_chart(data),
            **curves,
            **({"confusion": confusion} if confusion else {}),
            **({"map": looked.map.figure} if looked.map else {}),
        },
        "watched": [name for name in curves if name.startswith(WATCHED)],
        "skipped": data.skipped[:MOST_SKIPPED],
        "num_skipped": len(data.skipped),
        "options": [(flag(name), "" if value is None else value) for name, value in flat_options(data.config).items()],
        "command": command_to_repeat(data.config),
        "notes": [*filter(None, (problem, *data.notes, *looked.notes))],
        "folder": shlex.quote(str(data.folder)),
    }


@dataclass
class Looked:
    """What the model says when it looks again; without images or model, why it says nothing."""

    num_source: int = 0  # images that the run learned from
    map: MapSection | None = None
    words: list[WordRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def _looked_at(data: RunData, model: Model | None) -> Looked:
    """The map and the word atlas."""
    looked = Looked()
    if model is None:
        return looked
    source = None
    try:
        source = some_source(model, [path for path, _ in data.skipped])
        looked.num_source = source.count
    except (UserError, OSError) as error:
        looked.notes.append(f"The source's images cannot be shown: {error}.")
    try:
        looked.map = draw_map(data, model, source)
        if data.config.spa.spa and source is not None:
            looked.words = word_rows(data, model, source.pixels)
    except (UserError, OSError) as error:
        looked.notes.append(f"The target's images cannot be looked at again: {error}.")
    return looked


def _what(data: RunData) -> str:
    options = data.config.data
    if options.benchmark is not None:
        return f"{options.benchmark}, {str(options.pair).replace(':', ' → ')} ({options.setting})"
    assert options.source is not None and options.target is not None
    return f"{options.source.name} → {options.target.name}"


def _sentence(data: RunData, unknown: int, num_source: int) -> str:
    config = data.config
    sources = f"{num_source:,} labelled images of " if num_source else ""
    steps = data.metrics["cost"].get("steps") or 0
    learned = f"in {steps:,} steps" if steps else "its heads were solved, without steps"
    return (
        f"{method_name(config)} on {config.model.backbone} (--train {config.model.train}) learned from "
        f"{sources}{len(data.classes)} classes ({learned}), and answered {len(data):,} target images: "
        f"{len(data) - unknown:,} with a class, {unknown:,} with “unknown” ({percent(unknown / len(data))} %). "
        f"It took {duration(data.metrics['cost']['seconds'])}."
    )


def _tiles(data: RunData, unknown: int) -> list[tuple[str, str, str]]:
    """(number, name, explanation) of what matters most."""
    tiles = [
        (f"{len(data):,}", "target images", "answered"),
        (f"{percent(unknown / len(data))} %", "unknown", f"{unknown:,} images"),
    ]
    metrics = _metrics(data)
    named = {"hos": "HOS", "known": "known", "unknown": "unknown, found", "auroc": "AUROC", "accuracy": "accuracy"}
    short = {
        "hos": "harmonic mean of the next two",
        "known": "right, mean of shared classes",
        "unknown": "of the truly unknown images",
        "auroc": "unknown above known",
        "accuracy": "of all images right",
    }
    tiles += [(percent(metrics[key]), name, short[key]) for key, name in named.items() if metrics.get(key) is not None]
    return tiles


def _metrics(data: RunData) -> dict[str, float | None]:
    found = data.metrics.get("last_step") or {}
    return {name: found[name] for name in METRIC_NOTES if name in found}


def _ways(data: RunData) -> list[tuple[str, str, str, str, str]]:
    """HOS, known and unknown for each way to answer."""
    named = {"alone": "each image alone", "together": "all images together"}
    by = {"method": "the method's own threshold", "auto": "threshold found on the target"}
    return [
        (named[way], by.get(rule, rule), *(percent(numbers.get(name)) for name in ("hos", "known", "unknown")))
        for way in named
        for rule, numbers in data.metrics.get(way, {}).items()
    ]


def _answer_rows(data: RunData, counts: np.ndarray) -> list[tuple[str, int, str, str, str]]:
    """Answer, images, their share, mean probability and mean unknown score; the most frequent first."""
    rows = []
    for answer in np.argsort(-counts, kind="stable").tolist():
        count = int(counts[answer])
        mine = data.answers == answer
        means = [f"{values[mine].mean():.3f}" if count else "" for values in (data.probability, data.unknown_score)]
        rows.append((data.answer_name(answer), count, percent(count / len(data)), means[0], means[1]))
    return rows


def _score_chart(data: RunData) -> charts.Figure:
    is_unknown = data.truths >= len(data.classes) if data.has_truth else None
    return charts.score_histogram(data.unknown_score, data.threshold, is_unknown)


def _slider_data(data: RunData) -> dict[str, Any]:
    """Numbers of every image, for the page to count again with another threshold. JSON would be twice as long."""

    def packed(values: np.ndarray, kind: str) -> str:
        return base64.b64encode(values.astype(kind).tobytes()).decode()

    best_known = data.has_truth and bool((data.best != NOT_KNOWN).all())
    return {
        "classes": len(data.classes),
        "threshold": data.threshold,
        "scores": packed(data.unknown_score, "<f8"),
        "truths": packed(data.truths, "<i2") if best_known else "",
        "best": packed(data.best, "<i2") if best_known else "",
    }


def _curves(data: RunData) -> dict[str, charts.Figure]:
    """Losses, learning rates, metrics and measures by step, as far as there are any."""
    left_out = {"step", "kind", "phase", "time", "seconds"}
    steps = [line for line in data.lines if line["kind"] != "evaluation"]
    evaluations = [line for line in data.lines if line["kind"] == "evaluation"]
    found = {}
    losses, rates, watched = _kinds_of_numbers(steps, left_out)
    if losses:
        found["losses"] = charts.curves(steps, losses, "loss", may_be_logarithmic=True)
    if rates:
        found["rates"] = charts.curves(steps, rates, "learning rate")
    for number, name in enumerate(watched):  # a chart each: one is a share, another counts to hundreds
        found[f"{WATCHED}{number}"] = charts.curves(steps, [name], name, height=240)
    measured = dict.fromkeys(name for line in evaluations for name in line if name not in left_out)
    shown = [name for name in ("hos", "known", "unknown", "auroc", "accuracy") if name in measured]
    if shown:
        found["evaluations"] = charts.curves(evaluations, shown, "per cent", in_percent=True)
    others = [name for name in measured if name not in METRIC_NOTES]
    if others:
        found["measures"] = charts.curves(evaluations, others, "measure")
    return found


def _kinds_of_numbers(
    lines: Sequence[Mapping[str, Any]], left_out: Collection[str]
) -> tuple[list[str], list[str], list[str]]:
    """The names of losses, of learning rates, and of all else: a line has its losses first, up to their total."""
    losses, rates, others = dict[str, None](), dict[str, None](), dict[str, None]()
    for line in lines:
        names = [name for name in line if name not in left_out]
        end = names.index("total") + 1 if "total" in names else 0
        losses |= dict.fromkeys(names[:end])
        rates |= dict.fromkeys(name for name in names[end:] if name.startswith("lr_"))
        others |= dict.fromkeys(name for name in names[end:] if not name.startswith("lr_"))
    return [*losses], [*rates], [*others]


def _confusion(data: RunData) -> charts.Figure | None:
    """From metrics.json: classes that have images, or that are answered."""
    rows, counts = data.metrics.get("per_class"), data.metrics.get("confusion")
    if not rows or not counts:
        return None
    matrix = np.array(counts)
    kinds = np.array([row["kind"] for row in rows])
    keep = (matrix.sum(axis=1) > 0) & (kinds != "unknown")  # its images stand below, by their true classes
    columns = (matrix.sum(axis=0) > 0) | (np.arange(matrix.shape[1]) == matrix.shape[1] - 1)
    names = [f"{row['name']} (unknown)" if row["kind"] == "private" else str(row["name"]) for row in rows]
    answers = [*names[: len(data.classes)], UNKNOWN]
    return charts.confusion(
        matrix[keep][:, columns],
        [name for name, kept in zip(names, keep, strict=True) if kept],
        [name for name, kept in zip(answers, columns, strict=True) if kept],
    )


def _largest_confusions(data: RunData, most: int = 15) -> list[tuple[str, str, int, str]]:
    """True class, answer, images, share of the class."""
    rows, counts = data.metrics.get("per_class") or [], data.metrics.get("confusion") or []
    found = []
    for row, of_row in zip(rows, counts, strict=False):
        if row["kind"] == "unknown":
            continue
        right = row["id"] if row["kind"] == "source" else len(data.classes)
        for answer, count in enumerate(of_row):
            if count and answer != right:
                share = percent(count / row["n"])
                found.append((str(row["name"]), data.answer_name(answer), count, share))
    return sorted(found, key=lambda entry: -entry[2])[:most]


def _per_class(data: RunData) -> list[tuple[str, str, int, str, str]]:
    kinds = {"source": "source", "unknown": "all\N{NO-BREAK SPACE}unknown", "private": "target\N{NO-BREAK SPACE}only"}
    return [
        (row["name"], kinds[row["kind"]], row["n"], percent(row["recall"]), percent(row["precision"]))
        for row in data.metrics.get("per_class", [])
        if row["n"] or row["precision"] is not None
    ]
