"""Rows of a grid beside each other: paired differences, and their order beside that of the paper."""

import statistics
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from unida.grids.cells import (
    SETTINGS,
    Cell,
    Table,
    averages,
    caption,
    if_timed,
    lines_of,
    mark_best,
    number,
    pairs_of,
    seconds,
    short,
    spread,
)
from unida.grids.options import TableOptions
from unida.grids.published import Published
from unida.grids.results import Record


def differences(records: list[Record], setting: str, way: str, options: TableOptions) -> Table:
    """Means of the differences to some rows, run by run on the same pair and seed, ± their standard errors."""
    metrics = (options.metric, *options.also)
    title = f"{SETTINGS.get(setting, setting)}, differences" if setting else "differences"
    table = Table(title, caption(records, "", way), ["difference", "runs", *map(short, metrics)])
    rows = [row for (row,), _ in lines_of(records, replace(options, by=("row",)))]
    for place, other in enumerate(options.against):
        theirs = {(r["pair"], r["seed"]): r for r in records if r["row"] == other}
        for row in rows:
            if row in options.against[: place + 1]:  # itself, and what was compared already
                continue
            mine = {(r["pair"], r["seed"]): r for r in records if r["row"] == row}
            both = [(mine[run], theirs[run]) for run in mine if run in theirs]
            if len(both) > 1:
                cells = [_difference([(number(a, m, way), number(b, m, way)) for a, b in both]) for m in metrics]
                table.lines.append([Cell(f"{row} − {other}"), Cell(str(len(both))), *cells])
    return table


def _difference(values: list[tuple[float | None, float | None]]) -> Cell:
    known = [100 * (a - b) for a, b in values if a is not None and b is not None]
    if len(known) < 2:
        return Cell("")
    return Cell(f"{statistics.mean(known):+.1f} ± {statistics.stdev(known) / len(known) ** 0.5:.1f}")


def ranks(records: list[Record], setting: str, options: TableOptions, paper: Published) -> Table:
    """Averages over pairs beside the paper's, the place of each row in both orders, and how alike these are.

    The paper's answers are each image alone, so ours are compared that way; those together stand beside them.
    """
    pairs, metric = pairs_of(records), short(options.metric)
    heading = ["row", f"{metric} alone", "place", f"{metric} (paper)", "place", f"{metric} together"]
    title = f"{SETTINGS.get(setting, setting)}, {metric} beside the paper"
    ours: dict[str, float] = {}
    theirs: dict[str, float] = {}
    lines = []
    for (row,), mine in lines_of(records, replace(options, by=("row",))):
        alone, together = (
            spread(averages(mine, pairs, partial(number, metric=options.metric, way=way)), options.metric)
            for way in ("alone", "given")
        )
        printed = paper.average(row, options.metric)
        if alone.mean is not None and printed is not None:
            ours[row], theirs[row] = alone.mean, printed
        lines.append((row, alone, printed, together, seconds(mine, records)))
    table = Table(title, "", [*heading, *if_timed(records)])
    for row, alone, printed, together, cost in lines:
        places = [Cell(str(_place(row, order)) if row in order else "") for order in (ours, theirs)]
        shown = Cell("–" if printed is None else f"{printed:.1f}")
        table.lines.append([Cell(row), alone, places[0], shown, places[1], together, *cost])
    mark_best(table)
    table.caption = (
        f"{caption(records, options.metric, '', ('row',))} {_alike(list(ours.values()), list(theirs.values()))}"
    )
    return table


def _place(row: str, order: dict[str, float]) -> int:
    return 1 + sum(value > order[row] for value in order.values())


def _alike(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Rank correlations, in words."""
    if len(ours) < 3 or len(set(ours)) == 1 or len(set(theirs)) == 1:
        return "Too few rows stand in both to compare their order."
    from scipy.stats import kendalltau, spearmanr

    rho, tau = spearmanr(ours, theirs).statistic, kendalltau(ours, theirs).statistic
    return f"Our order beside the paper's, {len(ours)} rows: Spearman's ρ {rho:+.2f}, Kendall's τ {tau:+.2f}."
