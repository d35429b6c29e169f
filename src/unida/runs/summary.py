"""What a run reports: lines for people, metrics.json for programs."""

import json
import logging
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from shlex import quote
from types import MappingProxyType
from typing import Any

from unida.answering.target import Rule, TargetAnswers
from unida.config import Config, method_name
from unida.data.domains import Source, Target
from unida.data.folders import Skipped
from unida.errors import UserError, printable
from unida.evaluation.metrics import OpenSetResult
from unida.evaluation.names import METRIC_NOTES
from unida.support.counting import counted
from unida.support.files import write_csv, write_text
from unida.support.progress import data_size, duration
from unida.training.logging import read_lines

log = logging.getLogger("unida")


FEWEST_IMAGES = 20  # that do not all show one class by chance
Compared = Mapping[str, Mapping[str, OpenSetResult]]  # alone, together → method, auto → metrics


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"


def summary_line(result: OpenSetResult) -> str:
    return f"HOS {percent(result.hos)}  known {percent(result.known)}  unknown {percent(result.unknown)}"


def comparison_line(compared: Compared) -> str:
    """HOS of each way to answer. Papers answer alone, by the method's own threshold."""
    named = [
        f"{name} with threshold {threshold} {percent(result.hos)}"
        for name, rules in compared.items()
        for threshold, result in rules.items()
    ]
    return f"HOS by way of answering: {', '.join(named)} (compare the first with papers)"


def metric_lines(numbers: Mapping[str, float | None]) -> list[str]:
    """A line per metric: its value in per cent, and what exactly it is."""
    width = max(map(len, METRIC_NOTES))
    return [f"  {name:<{width}}  {percent(numbers[name]):>5}  {note}" for name, note in METRIC_NOTES.items()]


def describe_start(config: Config, source: Source, target: Target, device: str, steps: int) -> None:
    training = config.training
    log.info(
        "source: %d images of %d classes; target: %s",
        len(source.pixels),
        len(source.classes),
        counted(len(target.pixels), "image"),
    )
    for name, skipped in (("source", source.skipped), ("target", target.skipped)):
        if skipped:
            log.warning("skipped %d file(s) of the %s:", len(skipped), name)
        for item in skipped:
            log.warning("  %s: %s", printable(item.path), item.reason)
    size = training.batch_size
    how = f"{steps} steps of {size} + {size} images" if steps else "heads solved on all images, without steps"
    what = f"{method_name(config)} on {config.model.backbone} (--train {config.model.train}, {training.regime} regime)"
    log.info("%s, %s, seed %d, on %s", what, how, training.seed, device)


def describe_end(
    folder: Path,
    result: OpenSetResult | None,
    answered: TargetAnswers,
    compared: Compared,
    facts: Mapping[str, Any],
) -> None:
    prediction = answered.answers.prediction
    refused = int((prediction == answered.scored.probabilities.shape[1]).sum())
    log.info("%s", answered.rule.note())
    log.info("%d of %d target images are unknown", refused, len(prediction))
    likely, classes = answered.scored.probabilities.argmax(dim=1), answered.scored.probabilities.shape[1]
    if classes > 1 and len(likely) >= FEWEST_IMAGES and bool((likely == likely[0]).all()):
        log.warning(
            "to this model, every target image is most like one and the same class: training broke down. Start again "
            "with a lower --lr, other options or another --method"
        )
    if result is not None:
        log.info("after the last step, in per cent:\n%s", "\n".join(metric_lines(result.scalars())))
        log.info("%s", comparison_line(compared))
    speed = f"{facts['images_per_second']:.0f} images/s, " if facts["steps"] else ""
    memory, seconds = data_size(facts["peak_memory_bytes"]), duration(facts["seconds"])
    log.info("%speak memory %s, %s; results are in %s", speed, memory, seconds, folder)


def write_metrics(
    folder: Path,
    result: OpenSetResult | None,
    facts: Mapping[str, Any],
    config: Config,
    measures: Mapping[str, float] = MappingProxyType({}),
    compared: Compared = MappingProxyType({}),
    rule: Rule | None = None,
) -> None:
    """metrics.json: the last step's metrics, separately the oracle's if asked for, and what the run cost.

    Args:
        result: of the run's answers, as its options ask for them.
        measures: of the last step's features, if --track asked for any.
        compared: the metrics of images that answer alone and together, by threshold.
        rule: how the run's answers were given.
    """
    content: dict[str, Any] = {"version": version("unida"), "cost": dict(facts)}
    if rule is not None:
        content["answering"] = rule.plain()
    for name, rules in compared.items():
        content[name] = {threshold: of_rule.scalars() for threshold, of_rule in rules.items()}
    if result is not None:
        content["last_step"] = result.scalars()
        content["per_class"] = [row._asdict() for row in result.per_class]
        content["confusion"] = result.confusion.tolist()
        if config.output.oracle_best:
            content["oracle_best"] = oracle_best(folder, result, config)
    if measures:
        content["measures"] = dict(measures)
    write_text(folder / "metrics.json", json.dumps(content, indent=2) + "\n")


def read_metrics(folder: Path, alone: bool = False) -> dict[str, float | None] | None:
    """The last step's metrics of a finished run, or None if the target had no labels.

    Args:
        alone: of each image alone with the method's own threshold, as in papers, instead of the run's answers.
    """
    path = folder / "metrics.json"
    try:
        content = json.loads(path.read_bytes())
        metrics: dict[str, float | None] | None = content.get("last_step")
        if alone and metrics is not None:
            metrics = content["alone"]["method"]
    except (OSError, ValueError, AttributeError, LookupError) as error:
        raise UserError(f"{path} is damaged: measure again with unida evaluate {quote(str(folder))}") from error
    return metrics


def oracle_best(folder: Path, last: OpenSetResult, config: Config) -> dict[str, Any]:
    """The evaluation with the highest HOS, chosen with target labels: an upper bound, not a result."""
    evaluations = [line for line in read_lines(folder / "metrics.jsonl") if line["kind"] == "evaluation"]
    took_steps = bool(read_lines(folder / "metrics.jsonl"))  # solved heads take none
    evaluations.append({"step": config.training.steps if took_steps else 0, "kind": "evaluation", **last.scalars()})
    best = max(evaluations, key=lambda line: -1.0 if line.get("hos") is None else line["hos"])
    log.info(
        "oracle (chosen with target labels, not a result): HOS %s at step %d",
        percent(best["hos"]),
        best["step"],
    )
    return {"note": "chosen with target labels: an oracle, not comparable with a last step", **best}


def write_skipped(path: Path, skipped: Iterable[Skipped]) -> None:
    write_csv(path, [("path", "reason"), *sorted((item.path, item.reason) for item in skipped)])


def class_lines(result: OpenSetResult) -> list[str]:
    """A table with a line per class: number of images, recall and precision."""
    names = {row.name: printable(row.name) for row in result.per_class}
    width = max(map(len, names.values())) + 2
    header = f"  {'class':<{width}}{'images':>7}{'recall':>8}{'precision':>11}"
    rows = [
        f"  {('  ' if row.kind == 'private' else '') + names[row.name]:<{width}}{row.n:>7}"
        f"{percent(row.recall):>8}{percent(row.precision):>11}"
        for row in result.per_class
        if row.n or row.precision is not None
    ]
    return [header, *rows]


def result_json(result: OpenSetResult, alone: OpenSetResult) -> str:
    content = {
        "metrics": result.scalars(),
        "alone": alone.scalars(),
        "per_class": [row._asdict() for row in result.per_class],
        "confusion": result.confusion.tolist(),
    }
    return json.dumps(content, indent=2) + "\n"
