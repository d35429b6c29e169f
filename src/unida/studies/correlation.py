"""`unida study correlation`: do HOS, the pretext task, PAS and NTR rise and fall together over the steps?"""

import json
import statistics
from typing import TYPE_CHECKING, Any

from unida.grids.plan import Task
from unida.grids.results import Record
from unida.studies.base import Line, Row, Study, Table, grouped, in_percent, of_method, of_spa
from unida.studies.curves import pretext_accuracy
from unida.studies.options import CorrelationOptions
from unida.studies.ranks import rank_correlation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MEASURED = ("step", "hos", "pretext_accuracy", "pas", "ntr")
TITLES = {"hos": "HOS", "pretext_accuracy": "pretext accuracy", "pas": "PAS", "ntr": "NTR"}


def rows(options: CorrelationOptions) -> list[Row]:
    method, every = options.method, options.every
    return [
        Row(method, of_method(method, options, eval_every=every, track="ntr"), {"spa": "no"}),
        *(
            Row(
                method + name,
                of_spa(method, options, losses, losses, spa_task="count", eval_every=every, track="pas,ntr"),
                {"spa": told},
            )
            for name, losses, told in (("+words", False, "words only"), ("+spa", True, "yes"))
        ),
    ]


def measure(row: Row, task: Task, record: Record, options: CorrelationOptions) -> list[Line]:
    """A line for each evaluation, and one for the end of the run."""
    from unida.training.logging import read_lines  # imports torch

    content = json.loads((task.folder / "metrics.json").read_bytes())
    last = {"kind": "evaluation", "step": content["cost"]["steps"], **content["last_step"]}
    return curve([*read_lines(task.folder / "metrics.jsonl"), {**last, **content.get("measures", {})}])


def curve(lines: list[dict[str, Any]]) -> list[Line]:
    """The evaluations of a run; each with the pretext accuracy of the batches since the one before."""
    found: list[Line] = []
    batches: list[dict[str, Any]] = []
    for line in lines:
        if line["kind"] == "train":
            batches.append(line)
        elif not found or line["step"] > found[-1]["step"]:
            found.append({**{name: line.get(name) for name in MEASURED}, "pretext_accuracy": pretext_accuracy(batches)})
            batches = []
    return found


def tables(lines: list[Line], options: CorrelationOptions) -> list[Table]:
    correlated, ended = [], []
    for (row,), mine in grouped(lines, "row").items():
        runs = list(grouped(mine, "pair", "setting", "seed").values())
        for other in ("pretext_accuracy", "pas", "ntr"):
            if any(line[other] is not None for line in mine):
                correlated.append([row, f"HOS and {TITLES[other]}", *_correlated(runs, other)])
        last = [[run[-1][name] for run in runs if run[-1][name] is not None] for name in TITLES]
        ended.append([row, *map(in_percent, last)])
    return [
        Table(
            "Rank correlation (Spearman) over the steps, with a bootstrap interval of 95 %. Points of one run follow "
            "each other, so the interval is rather too narrow.",
            ("row", "of", "correlation", "interval", "points"),
            correlated,
        ),
        Table("After the last step, ± between runs, in per cent.", ("row", *TITLES.values()), ended),
    ]


def _correlated(runs: list[list[Line]], other: str) -> list[str]:
    both = [[line for line in run if line["hos"] is not None and line[other] is not None] for run in runs]
    found = rank_correlation([([line["hos"] for line in run], [line[other] for line in run]) for run in both])
    if found is None:
        return ["–", "too few points that differ", str(sum(map(len, both)))]
    return [f"{found.value:+.2f}", f"{found.low:+.2f} … {found.high:+.2f}", str(found.points)]


def draw(figure: "Figure", lines: list[Line], options: CorrelationOptions) -> None:
    styles = {"no": "C0:", "words only": "C1--", "yes": "C2-"}
    for place, (name, title) in enumerate(TITLES.items()):
        axes = figure.add_subplot(2, 2, place + 1)
        for (row, spa), mine in grouped(lines, "row", "spa").items():
            points = {step: [it[name] for it in some if it[name] is not None] for (step,), some in _by_step(mine)}
            means = {step: statistics.fmean(values) for step, values in points.items() if values}
            if means:
                axes.plot(list(means), list(means.values()), styles[spa], marker=".", label=row)
        axes.set_title(title, fontsize="medium")
        axes.grid(alpha=0.3)
        if place == 0:
            axes.legend(fontsize="x-small")
        if place > 1:
            axes.set_xlabel("step")


def _by_step(lines: list[Line]) -> list[tuple[tuple[Any, ...], list[Line]]]:
    return sorted(grouped(lines, "step").items())


CORRELATION = Study(
    name="correlation",
    about="HOS, pretext accuracy, PAS and NTR over the steps: do they rise and fall together?",
    rows=rows,
    measured=MEASURED,
    measure=measure,
    tables=tables,
    draw=draw,
    paper="On Office-Home under UniDA, HOS goes along with the accuracy of the pretext task and with PAS, and against "
    "NTR. With SPA, training converges after about 100 steps, without it after about 300. PAS hardly changes without "
    "the pretext task. It is a figure without numbers.",
    how="Pretext accuracy is that of the training batches since the measurement before. PAS and NTR are of at most "
    "300 images of a domain. NTR uses labels of the target, to measure only. The row with words only has no loss "
    "on its words.",
    Options=CorrelationOptions,
)
