"""`unida study grid-size`: mosaics of 2 × 2 to 6 × 6 cells for the pretext task that counts images."""

from typing import TYPE_CHECKING

from unida.studies.base import (
    HOS_COLUMNS,
    Line,
    Row,
    Study,
    grouped,
    hos_of,
    hos_table,
    of_method,
    of_spa,
    seed_means,
    shown_metric,
)
from unida.studies.options import GridSizeOptions

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def rows(options: GridSizeOptions) -> list[Row]:
    method = options.method
    return [
        Row(method, of_method(method, options), {"grid": 0}),
        *(
            Row(f"{method}+spa {n}x{n}", of_spa(method, options, spa_task="count", spa_grid=n), {"grid": n})
            for n in sorted(set(options.grids))
        ),
    ]


def draw(figure: "Figure", lines: list[Line], options: GridSizeOptions) -> None:
    metric = shown_metric("hos", options)
    by_grid = {grid: [100 * it for it in seed_means(mine, metric)] for (grid,), mine in grouped(lines, "grid").items()}
    axes = figure.add_subplot()
    without = by_grid.pop(0, [])
    if without:
        axes.axhline(sum(without) / len(without), color="grey", linestyle="--", label=f"{options.method} without SPA")
    means = {grid: sum(values) / len(values) for grid, values in sorted(by_grid.items()) if values}
    axes.plot(list(means), list(means.values()), "o-", label=f"{options.method}+spa")
    for grid in means:
        axes.plot([grid] * len(by_grid[grid]), by_grid[grid], "k.", markersize=4)
    axes.set_xticks(list(means), [f"{grid} × {grid}" for grid in means])
    axes.set_xlabel("cells of a mosaic")
    axes.set_ylabel("HOS, in per cent")
    axes.grid(alpha=0.3)
    axes.legend()


GRID_SIZE = Study(
    name="grid-size",
    about="HOS with mosaics of few to many cells in SPA's pretext task.",
    rows=rows,
    measured=HOS_COLUMNS,
    measure=hos_of,
    tables=hos_table,
    draw=draw,
    paper="On Office-Home under UniDA, HOS falls slowly as mosaics get more cells, and stays above OVANet without SPA "
    "from 2 × 2 to 6 × 6. It is a figure without numbers. The paper chooses 2 × 2.",
    how="The row without SPA has grid 0.",
    Options=GridSizeOptions,
)
