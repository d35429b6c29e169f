"""`unida study pretext`: SPA's pretext task beside five others, and beside none."""

from unida.grids.plan import Task
from unida.grids.results import Record
from unida.studies.base import (
    HOS_COLUMNS,
    Line,
    Row,
    Study,
    Table,
    draw_bars,
    grouped,
    hos_of,
    hos_table,
    in_percent,
    of_spa,
    seed_means,
)
from unida.studies.curves import last_pretext_accuracy
from unida.studies.options import PretextOptions, StudyOptions


def rows(options: PretextOptions) -> list[Row]:
    method = options.method
    return [
        Row(f"{method}+words", of_spa(method, options, False, False), {"task": "none", "entropy": "no"}),
        Row(f"{method}+words+entropy", of_spa(method, options, True, False), {"task": "none", "entropy": "yes"}),
        *(
            Row(f"{method}+{task}", of_spa(method, options, spa_task=task), {"task": task, "entropy": "yes"})
            for task in dict.fromkeys(options.tasks)
        ),
    ]


def measure(row: Row, task: Task, record: Record, options: StudyOptions) -> list[Line]:
    return [{"pretext_accuracy": last_pretext_accuracy(task.folder), **hos_of(row, task, record, options)[0]}]


def tables(lines: list[Line], options: StudyOptions) -> list[Table]:
    (table,) = hos_table(lines, options)
    accuracies = [in_percent(seed_means(mine, "pretext_accuracy")) for mine in grouped(lines, "row").values()]
    drawn = [[*cells, accuracy] for cells, accuracy in zip(table.lines, accuracies, strict=True)]
    return [Table(table.title, (*table.heading, "pretext accuracy"), drawn)]


PRETEXT = Study(
    name="pretext",
    about="SPA's pretext task beside rotation, jigsaw, patch location, colorization and inpainting, and beside none.",
    rows=rows,
    measured=("pretext_accuracy", *HOS_COLUMNS),
    measure=measure,
    tables=tables,
    draw=draw_bars,
    paper="Counting is best. The other tasks that classify help a little, and those that paint pictures hardly at all.",
    published="pretext",
    how="The row with words only has no loss on its words; the one with words and entropy has no task; all tasks have "
    "the entropy loss, as in the paper. Pretext accuracy is that of the last training batches, of both domains; for "
    "colorization it is the share of places with the right colour, and for inpainting there is none.",
    Options=PretextOptions,
)
