"""`unida study openness`: HOS as the target has more classes that the source does not have."""

import statistics
from typing import TYPE_CHECKING

from unida.errors import UserError
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
    of_preset,
    seed_means,
    shown_metric,
)
from unida.studies.label_sets import drawn_order, label_sets_of, left_out
from unida.studies.options import OpennessOptions

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def rows(options: OpennessOptions) -> list[Row]:
    private = label_sets_of(options).target_private
    return [
        _row(options, method, spa, private, count, draw)
        for count in counts_of(options, len(private))
        for draw in range(1 if count == len(private) else options.draws)
        for method in dict.fromkeys(options.methods)
        for spa in (False, True)
    ]


def counts_of(options: OpennessOptions, there: int) -> list[int]:
    """How many private classes to keep."""
    if there == 0:
        raise UserError("the target has no class of its own, so there is nothing to vary: it needs unknown classes")
    if options.private is None:
        return sorted({max(1, round(there * share / 3)) for share in (1, 2, 3)})
    if max(options.private) > there:
        raise UserError(f"--private {max(options.private)}: the target has only {there} classes of its own")
    return sorted(set(options.private))


def _row(options: OpennessOptions, method: str, spa: bool, private: tuple[str, ...], count: int, draw: int) -> Row:
    """The draw says which classes are kept, whatever the row: all rows see the same images."""
    kept = drawn_order(private, "target-private classes", draw)[:count]
    without = left_out(private, kept)
    data = {} if without is None else {"target_without": without}
    name = f"{method}+spa" if spa else method
    own = of_preset(method, options) if spa else of_method(method, options)
    about = {"method": name, "private": count, "draw": draw, "private_classes": "/".join(sorted(kept))}
    return Row(f"{name} private {count} draw {draw}", {**own, **data}, about)


def by_draw(lines: list[Line], metric: str) -> list[float]:
    """The mean over pairs and seeds, for each draw."""
    means = [seed_means(mine, metric) for mine in grouped(lines, "draw").values()]
    return [statistics.fmean(values) for values in means if values]


def tables(lines: list[Line], options: OpennessOptions) -> list[Table]:
    metric = shown_metric("hos", options)
    counts = sorted({line["private"] for line in lines})
    drawn = []
    for (method,), mine in grouped(lines, "method").items():
        of_count = {count: [line for line in mine if line["private"] == count] for count in counts}
        drawn.append([method, *(in_percent(by_draw(of_count[count], metric)) for count in counts)])
    heading = ("method", *(f"{count} private" for count in counts))
    return [Table("HOS in per cent, by the number of target-private classes; ± between draws.", heading, drawn)]


def draw(figure: "Figure", lines: list[Line], options: OpennessOptions) -> None:
    from matplotlib.ticker import MaxNLocator

    metric = shown_metric("hos", options)
    axes = figure.add_subplot()
    methods = list(dict.fromkeys(line["method"].removesuffix("+spa") for line in lines))
    for (method,), mine in grouped(lines, "method").items():
        found = {count: by_draw(some, metric) for (count,), some in sorted(grouped(mine, "private").items())}
        means = {count: 100 * statistics.fmean(values) for count, values in found.items() if values}
        style = "o-" if method.endswith("+spa") else "o--"
        colour = f"C{methods.index(method.removesuffix('+spa'))}"
        axes.plot(list(means), list(means.values()), style, color=colour, label=method)
    axes.set_xlabel("target-private classes")
    axes.set_ylabel("HOS, in per cent")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")


OPENNESS = Study(
    name="openness",
    about="HOS as the number of target-private classes grows, for several methods without and with SPA.",
    rows=rows,
    measured=HOS_COLUMNS,
    measure=hos_of,
    tables=tables,
    draw=draw,
    paper="On Office-Home under UniDA, SPA depends little on the number of private classes and stays above the other "
    "methods. It is a figure without numbers, a mean over five pairs of domains.",
    how="Private classes are drawn, the same for all rows; a larger set of a draw contains its smaller ones. Images "
    "of the others are left out of the target before the runs begin. Training sees no label of the target.",
    Options=OpennessOptions,
)
