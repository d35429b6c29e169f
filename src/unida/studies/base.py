"""What a study is, and what all of them share: the grid of its runs, the table, the figure and the page."""

import importlib.util
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unida.errors import UserError
from unida.grids.folder import SPEC, saved_grid
from unida.grids.plan import Task, plan
from unida.grids.published import PAPER, load_published
from unida.grids.results import ALONE, Record, record_of
from unida.grids.start import Show, start_grid
from unida.methods import METHODS
from unida.studies.label_sets import refuse_unlabelled
from unida.studies.options import StudyOptions
from unida.support.files import write_csv, write_text, written_aside
from unida.support.progress import duration, progress
from unida.support.tables import markdown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Line = dict[str, Any]  # of results.csv, by column
FOLDERS = "folders"  # the name of one's own two folders among a benchmark's pairs
METRICS = ("hos", "known", "unknown", "auroc")
HOS_COLUMNS = (*METRICS, *(ALONE + name for name in METRICS))


@dataclass(frozen=True)
class Row:
    """Runs with the same options, for each pair and seed."""

    name: str
    options: Mapping[str, Any]  # of `unida adapt`
    about: Mapping[str, Any]  # columns of results.csv that say what the row is


@dataclass(frozen=True)
class Table:
    title: str
    heading: Sequence[str]
    lines: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Study:
    """One study: which rows, what is measured on each finished run, how it is drawn, what the paper says."""

    name: str
    about: str  # one line
    rows: Callable[[Any], list[Row]]
    measured: tuple[str, ...]  # columns of results.csv, after those of the row, pair, setting and seed
    measure: Callable[[Row, Task, Record, Any], list[Line]]
    tables: Callable[[list[Line], Any], list[Table]]
    draw: Callable[["Figure", list[Line], Any], None]
    paper: str  # what the paper says
    published: str | None = None  # its table
    how: str = ""  # what a reader must know of how it is measured
    shows_answers: bool = True  # whether its numbers are of answers, alone or as given
    Options: type[StudyOptions] = StudyOptions


def run_study(study: Study, options: StudyOptions, command: str, show: Show) -> list[Record]:
    """Run what is missing of a study; write its table, figure and page. Everything is checked before the first run.

    Returns:
        The runs that failed.
    """
    assert options.out is not None  # or check() would have raised
    refuse_unlabelled(options)
    rows = {row.name: row for row in study.rows(options)}
    grid_folder = options.out / "grid"
    _refuse_other_study(study, options.out)
    records = start_grid(options.for_grid(), show, content_of(study, rows.values(), options))
    if options.dry_run:
        return []
    if options.engine == "slurm-script":
        show("when its jobs have ended, give the same command with --engine local: it writes the table and the page")
        return []
    finished = []
    for task in plan(saved_grid(grid_folder), grid_folder):
        if task.is_finished and task.row in rows:
            record = record_of(task, grid_folder)
            assert record is not None  # it is finished
            finished.append((rows[task.row], task, record))
    write_study(study, options, finished, command, show)
    return [record for record in records if record["status"] == "failed"]


def content_of(study: Study, rows: Any, options: StudyOptions) -> dict[str, Any]:
    """The spec of the study's grid."""
    content: dict[str, Any] = {
        "title": _title(study),
        "rows": {row.name: dict(row.options) for row in rows},
        "seeds": list(options.seeds),
        "options": {"train": options.train, "regime": options.regime, **_precision(options)},
        "published": "none",
    }
    if options.benchmark is None:
        both = {"source": options.source, "target": options.target, "target_labels": True}
        return {**content, "folders": {FOLDERS: both}}
    content |= {"benchmark": options.benchmark, "root": options.root, "settings": [options.setting]}
    return content if options.pairs is None else {**content, "pairs": list(options.pairs)}


def _precision(options: StudyOptions) -> dict[str, str]:
    """16 bits where they halve the time: a study is many runs. A cluster's machines may differ from this one."""
    if options.engine == "slurm-script" or options.train == "head":
        return {}
    from unida.training.devices import calculates_fast_in_16_bits  # imports torch

    return {"precision": "bf16-mixed"} if calculates_fast_in_16_bits() else {}


def of_method(method: str, options: StudyOptions, **changes: Any) -> dict[str, Any]:
    """Options of a row of this method."""
    trains = METHODS[method].trains
    cannot = {} if options.train in trains else {"train": trains[-1], "regime": "auto"}
    return {"method": method, **cannot, **changes}


def of_preset(method: str, options: StudyOptions, **changes: Any) -> dict[str, Any]:
    """Options of a row with SPA as the preset has it."""
    return of_method(method, options, spa=True, spa_preset=options.spa_preset, **changes)


def of_spa(method: str, options: StudyOptions, entropy: bool = True, pretext: bool = True, **changes: Any) -> Any:
    """Options of a row with SPA's words, and with its losses as they are asked for, whatever the preset says."""
    switches = {"spa_entropy": "on" if entropy else "off", "spa_pretext": "on" if pretext else "off"}
    return of_preset(method, options, spa_words="on", **switches, **changes)


def _title(study: Study) -> str:
    return f"study {study.name}"


def _refuse_other_study(study: Study, out: Path) -> None:
    """Refuse a folder that holds anything but this study."""
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out} is a file: choose a new folder")
    if (out / "grid" / SPEC).exists():
        title = saved_grid(out / "grid").title
        if title != _title(study):
            raise UserError(f"--out {out} holds the {title or 'runs of a grid'}: choose another folder")
    elif out.exists() and any(path.name != "grid" for path in out.iterdir()):
        raise UserError(f"--out {out} already holds other files: choose a new folder")


# ---- what is written -------------------------------------------------------------------------------------------------


def write_study(
    study: Study,
    options: StudyOptions,
    finished: Sequence[tuple[Row, Task, Record]],
    command: str,
    show: Show,
) -> None:
    """results.csv, the figure and study.md. Times are in the page only: the rest is the same on every machine."""
    assert options.out is not None
    if not finished:
        raise UserError(f"no run of the study has finished: see {options.out / 'grid' / 'logs'} for the reasons")
    lines: list[Line] = []
    with progress("measuring runs", len(finished)) as report:
        for done, (row, task, record) in enumerate(finished, start=1):
            named = {"row": row.name, **row.about, "pair": task.pair, "setting": task.setting, "seed": task.seed}
            lines += [{**named, **measured} for measured in study.measure(row, task, record, options)]
            report(done)
    about = dict.fromkeys(name for row, _, _ in finished for name in row.about)
    columns = ("row", *about, "pair", "setting", "seed", *study.measured)
    write_csv(options.out / "results.csv", [columns, *([text(line.get(name)) for name in columns] for line in lines)])
    has_figure = _write_figure(study, lines, options, show)
    write_text(options.out / "study.md", page(study, lines, finished, options, command, has_figure))
    show(f"the table is in {options.out / 'results.csv'}, and the page to read in {options.out / 'study.md'}")


def text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _write_figure(study: Study, lines: list[Line], options: StudyOptions, show: Show) -> bool:
    assert options.out is not None
    if importlib.util.find_spec("matplotlib") is None:
        show("there is no figure: matplotlib is not installed. Add it with: pip install 'unida[plot]'")
        return False
    from matplotlib import rc_context
    from matplotlib.figure import Figure  # not pyplot, which looks for a screen

    figure = Figure(figsize=(7.2, 4.2), dpi=120, layout="constrained")
    with rc_context({"svg.hashsalt": study.name}):  # or the svg of the same numbers would differ
        study.draw(figure, lines, options)
        for kind in ("png", "svg"):
            with written_aside(options.out / f"figure.{kind}") as aside:
                figure.savefig(aside, format=kind, metadata={"Date": None} if kind == "svg" else None)
    return True


def page(
    study: Study,
    lines: list[Line],
    finished: Sequence[tuple[Row, Task, Record]],
    options: StudyOptions,
    command: str,
    has_figure: bool,
) -> str:
    """study.md."""
    tasks = [task for _, task, _ in finished]
    names = list(dict.fromkeys(task.row for task in tasks))
    pairs = list(dict.fromkeys(" ".join(filter(None, (task.pair, task.setting))) for task in tasks))
    seeds = sorted({task.seed for task in tasks})
    seconds = [record["seconds"] for _, _, record in finished]
    versions = ", ".join(dict.fromkeys(str(record["version"]) for _, _, record in finished))
    how = " ".join(filter(None, (WAYS[options.answers] if study.shows_answers else "", study.how)))
    parts = [
        f"# Study: {study.name}",
        study.about,
        "## What was run",
        f"    {command}",
        f"{len(tasks)} runs of unida {versions}: {len(names)} rows, on {', '.join(pairs)}, "
        f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}. {how}",
        "## Results",
        *(f"{table.title}\n\n{markdown(table.heading, table.lines)}" for table in study.tables(lines, options)),
        *(["![figure](figure.png)"] if has_figure else []),
        "## What the paper says",
        f"{study.paper} ({PAPER})",
        *([_published(study.published)] if study.published is not None else []),
        "## Cost",
        f"{sum(seconds):.0f} seconds in all ({duration(sum(seconds))}), if runs are taken one after another.",
        markdown(("row", "runs", "seconds of a run, median"), _cost(finished)),
    ]
    return "\n\n".join(parts) + "\n"


WAYS = {
    "alone": "Each image is answered alone, with the method's own threshold, as in papers.",
    "given": "The answers are those that the runs give.",
}


def _cost(finished: Sequence[tuple[Row, Task, Record]]) -> list[tuple[str, ...]]:
    by_row: dict[str, list[float]] = {}
    for row, _, record in finished:
        by_row.setdefault(row.name, []).append(record["seconds"])
    return [(name, str(len(taken)), f"{statistics.median(taken):.1f}") for name, taken in by_row.items()]


def _published(name: str) -> str:
    table = load_published(name)
    lines = []
    for row in table.rows.values():
        found = [row.values.get(column) for column in table.columns]
        lines.append([row.label, *("" if it is None else plus_minus(it.value, it.std) for it in found)])
    drawn = markdown(("", *table.columns), lines)
    return f"Its table, {table.title} ({table.metric}):\n\n{drawn}\n\n{' '.join(table.note.split())}"


def plus_minus(value: float, std: float | None) -> str:
    return f"{value:.1f}" if std is None else f"{value:.1f} ± {std:.1f}"


# ---- means and pictures that several studies share -------------------------------------------------------------------


def hos_of(row: Row, task: Task, record: Record, options: StudyOptions) -> list[Line]:
    """HOS and its parts, of the run's answers and of each image alone."""
    return [{name: record.get(name) for name in HOS_COLUMNS}]


def shown_metric(name: str, options: StudyOptions) -> str:
    return ALONE + name if options.answers == "alone" else name


def seed_means(lines: Sequence[Line], metric: str) -> list[float]:
    """The mean over pairs, for each seed that has all pairs; of several draws, their mean."""
    pairs = {line["pair"] for line in lines}
    means = []
    for seed in sorted({line["seed"] for line in lines}):
        mine = [line for line in lines if line["seed"] == seed and line.get(metric) is not None]
        if {line["pair"] for line in mine} == pairs:
            means.append(statistics.fmean(line[metric] for line in mine))
    return means


def in_percent(values: Sequence[float]) -> str:
    """Mean ± standard deviation; the latter if there are two values or more."""
    if not values:
        return "–"
    std = statistics.stdev(values) if len(values) > 1 else None
    return plus_minus(100 * statistics.fmean(values), None if std is None else 100 * std)


def grouped(lines: Sequence[Line], *names: str) -> dict[tuple[Any, ...], list[Line]]:
    """The lines by their values in some columns, in the order in which these first appear."""
    groups: dict[tuple[Any, ...], list[Line]] = {}
    for line in lines:
        groups.setdefault(tuple(line.get(name) for name in names), []).append(line)
    return groups


def hos_table(lines: list[Line], options: StudyOptions) -> list[Table]:
    """HOS, known, unknown and AUROC of each row: mean ± standard deviation between seeds."""
    metrics = [shown_metric(name, options) for name in METRICS]
    drawn = [
        [row, *(in_percent(seed_means(mine, metric)) for metric in metrics)]
        for (row,), mine in grouped(lines, "row").items()
    ]
    return [Table("Mean over pairs, ± between seeds, in per cent.", ("row", "HOS", "known", "unknown", "AUROC"), drawn)]


def draw_bars(figure: "Figure", lines: list[Line], options: StudyOptions) -> None:
    """HOS of each row, with the single seeds as dots."""
    metric = shown_metric("hos", options)
    axes = figure.add_subplot()
    rows = {row: [100 * it for it in seed_means(mine, metric)] for (row,), mine in grouped(lines, "row").items()}
    for place, values in enumerate(rows.values()):
        if values:
            axes.barh(place, statistics.fmean(values), color="tab:blue", alpha=0.6)
            axes.plot(values, [place] * len(values), "k.", markersize=5)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.invert_yaxis()
    axes.set_xlabel("HOS, in per cent")
    axes.grid(axis="x", alpha=0.3)
