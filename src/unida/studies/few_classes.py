"""`unida study few-classes`: what `--spa.bins auto` does when the source has few classes."""

from typing import TYPE_CHECKING

from unida.errors import UserError
from unida.grids.plan import Task
from unida.grids.results import Record
from unida.studies.base import (
    HOS_COLUMNS,
    Line,
    Row,
    Study,
    Table,
    grouped,
    hos_of,
    in_percent,
    of_method,
    of_spa,
    seed_means,
    shown_metric,
)
from unida.studies.curves import last_pretext_accuracy
from unida.studies.label_sets import drawn_order, label_sets_of, left_out
from unida.studies.options import FewClassesOptions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from unida.data.settings import LabelSets

BINS = {"without SPA": None, "none merged": "none", "auto": "auto"}
BINS_IN_CHECKPOINT = "method/task.bins"


def rows(options: FewClassesOptions) -> list[Row]:
    sets = label_sets_of(options)
    if not sets.shared:
        raise UserError("no class of the target is named like one of the source: a shared class has the same name")
    counts = [count for count in sorted(set(options.classes)) if count <= len(sets.source_classes)]
    if not counts:
        raise UserError(
            f"the source has {len(sets.source_classes)} classes, fewer than --classes {min(options.classes)}: "
            "give smaller numbers"
        )
    return [
        _row(options, sets, count, draw, name)
        for count in counts
        for draw in range(1 if count == len(sets.source_classes) else options.draws)
        for name in BINS
    ]


def _row(options: FewClassesOptions, sets: "LabelSets", count: int, draw: int, name: str) -> Row:
    kept = kept_classes(sets, count, draw)
    data = {
        "source_without": left_out(sets.source_classes, kept),
        "target_without": left_out(sets.shared, kept),  # or it would become an unknown class, one more than before
    }
    data = {option: value for option, value in data.items() if value is not None}
    bins, method = BINS[name], options.method
    own = of_method(method, options) if bins is None else of_spa(method, options, spa_task="count", spa_bins=bins)
    title = f"{method} {count} classes draw {draw} {name}"
    return Row(title, {**own, **data}, {"classes": count, "draw": draw, "bins": name})


def kept_classes(sets: "LabelSets", count: int, draw: int) -> list[str]:
    """So many source classes, with about the same share of shared ones as all have, and at least one."""
    share = len(sets.shared) / len(sets.source_classes)
    shared = min(max(1, round(share * count), count - len(sets.source_private)), len(sets.shared))
    own = drawn_order(sets.source_private, "few source-private classes", draw)[: count - shared]
    return [*drawn_order(sets.shared, "few shared classes", draw)[:shared], *own]


def measure(row: Row, task: Task, record: Record, options: FewClassesOptions) -> list[Line]:
    """HOS, and which numbers of images the pretext task takes as one class."""
    found = bins_of(task) if row.about["bins"] != "without SPA" else None
    bins = {
        "pretext_bins": None if found is None else " ".join(str(number + 1) for number in found),
        "pretext_classes": None if found is None else len(set(found)),
        "pretext_accuracy": last_pretext_accuracy(task.folder),
    }
    return [{**bins, **hos_of(row, task, record, options)[0]}]


def bins_of(task: Task) -> list[int] | None:
    """The pretext class of mosaics of 1, 2, … images, from the run's checkpoint; None if it took no step."""
    from unida.support.tensorfile import read_tensors  # imports torch

    path = task.folder / "checkpoint" / "resume.safetensors"
    tensors = read_tensors(path)[0] if path.exists() else {}
    found: list[int] | None = tensors[BINS_IN_CHECKPOINT].tolist() if BINS_IN_CHECKPOINT in tensors else None
    return found


def tables(lines: list[Line], options: FewClassesOptions) -> list[Table]:
    metric = shown_metric("hos", options)
    drawn = []
    for (classes, bins), mine in grouped(lines, "classes", "bins").items():
        merged = "; ".join(dict.fromkeys(line["pretext_bins"] for line in mine if line["pretext_bins"]))
        accuracy = seed_means(mine, "pretext_accuracy")
        drawn.append([str(classes), bins, in_percent(seed_means(mine, metric)), merged or "–", in_percent(accuracy)])
    heading = ("source classes", "bins", "HOS", "class of 1, 2, … images", "pretext accuracy")
    return [Table("Mean over pairs and draws, ± between seeds, in per cent.", heading, drawn)]


def draw(figure: "Figure", lines: list[Line], options: FewClassesOptions) -> None:
    from matplotlib.ticker import MaxNLocator

    metric = shown_metric("hos", options)
    axes = figure.add_subplot()
    for (bins,), mine in grouped(lines, "bins").items():
        of_counts = {count: seed_means(some, metric) for (count,), some in sorted(grouped(mine, "classes").items())}
        means = {count: 100 * sum(values) / len(values) for count, values in of_counts.items() if values}
        axes.plot(list(means), list(means.values()), "o-", label=bins)
    axes.set_xlabel("source classes")
    axes.set_ylabel("HOS, in per cent")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend()


FEW_CLASSES = Study(
    name="few-classes",
    about="What --spa.bins auto does when the source has few classes.",
    rows=rows,
    measured=("pretext_bins", "pretext_classes", "pretext_accuracy", *HOS_COLUMNS),
    measure=measure,
    tables=tables,
    draw=draw,
    paper="Mosaics of different numbers of images may have words of about the same entropy if there are few classes. "
    "The paper proposes to merge such numbers into one pretext class, and gives no figures.",
    how="Source classes are drawn, the same for all rows. Shared classes that are not drawn are left out of the "
    "target, too, so that the unknown classes stay the same.",
    Options=FewClassesOptions,
)
