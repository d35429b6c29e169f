"""`unida table`: from results to text, and into pages that say themselves how their tables are drawn."""

import dataclasses
import re
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path

from unida.errors import UserError
from unida.grids.cells import Cell, Table, short
from unida.grids.folder import SPEC, saved_grid
from unida.grids.formats import as_csv, latex, markdown
from unida.grids.options import TableOptions
from unida.grids.plan import plan
from unida.grids.published import PAPER, Published, load_published, published_for, published_names, spec_names
from unida.grids.results import RESULTS, Record, collect, read_results
from unida.grids.spec import Grid
from unida.grids.tables import draw, is_of
from unida.support.files import write_text

BEGIN, END = "<!-- unida table ", "<!-- end of table -->"  # each at the start of a line
PLACE = re.compile(rf"^({BEGIN}((?:(?!-->).)*) -->\n)(?:(?!^{BEGIN}).)*?^{END}", re.DOTALL | re.MULTILINE)
PAGE = "results.md"
METRICS_OF = {"HOS": ("hos",), "OS and OS*": ("os", "os_star")}  # as a paper's table says, and by unida's names
FORMATS = {"markdown": markdown, "latex": latex, "csv": as_csv}

Parse = Callable[[list[str]], TableOptions]


def table_text(options: TableOptions) -> str:
    """All tables that the options ask for, as text."""
    if options.published == "list":
        return _listed()
    if options.results is None:
        assert options.published is not None  # or check() would have raised
        return _joined([_table_of(load_published(options.published))], options)
    records = records_of(options.results)
    published = _beside(options, options.results, records)
    answers = options.answers or ("alone" if published else "given")
    options = dataclasses.replace(options, answers=answers)
    return _joined(draw(records, options, published), options)


def write_page(grid: Grid, out: Path) -> Path | None:
    """The tables of a grid as a page to read, in its folder: None if no finished run has labels of the target.

    First the runs' own answers. Then, beside the paper's table, each image alone, as papers do.
    """
    done = [record for record in read_results(out / RESULTS) if record["status"] == "done"]
    if not any("hos" in record for record in done):
        return None
    drawn = partial(TableOptions, results=out)
    views = [("The runs' own answers", "--answers given --published none", drawn(answers="given", published="none"))]
    papers = [
        paper
        for paper in _beside(drawn(published=grid.published), out, done)
        if any(is_of(paper, record) for record in done)
    ]
    for metric in dict.fromkeys(metric for paper in papers for metric in METRICS_OF.get(paper.metric, ())):
        beside = partial(drawn, metric=metric, published=grid.published)
        name = f" --metric {metric}" if metric != "hos" else ""
        views += [
            (f"{short(metric)}, the order beside the paper's", f"--layout ranks{name}", beside(layout="ranks")),
            (f"{short(metric)}, each image alone, as in the paper", f"--answers alone{name}", beside(answers="alone")),
        ]
    parts = [f"# {grid.title or 'Results'}", f"Drawn from {RESULTS}. The command over each table draws it again."]
    for title, words, options in views:
        parts += [f"## {title}", f"    unida table DIR {words}", table_text(options)]
    write_text(out / PAGE, "\n\n".join(parts) + "\n")
    return out / PAGE


def records_of(place: Path) -> list[Record]:
    """The results of a grid's folder, as its runs are now, or those of a csv file."""
    if (place / SPEC).exists():
        return list(collect(plan(saved_grid(place), place), place).values())
    if place.is_dir():
        place = place / RESULTS
    if not place.exists():
        raise UserError(f"{place} is not there: give the folder of a grid, or a results.csv")
    return read_results(place)


def _beside(options: TableOptions, place: Path, records: list[Record]) -> list[Published]:
    """Tables of the paper that the results stand beside: named by the options, or by the grid."""
    name = options.published
    if name is None and (place / SPEC).exists():
        name = saved_grid(place).published
    if name is None and options.layout == "ranks":
        name = "auto"
    if name == "auto":
        kinds = dict.fromkeys((record["benchmark"], record["setting"]) for record in records)
        return [table for kind in kinds if (table := published_for(*kind)) is not None]
    return [] if name in (None, "none") else [load_published(name)]


def _joined(tables: list[Table], options: TableOptions) -> str:
    if options.format == "csv" and len(tables) > 1:
        raise UserError(f"--format csv writes one table, not {len(tables)}: choose one setting, and no --against")
    if options.format != "markdown":
        return "\n\n".join(FORMATS[options.format](table) for table in tables)
    drawn = []
    for table in tables:
        title = [f"**{table.title}**"] if table.title and len(tables) > 1 else []
        drawn += [*title, markdown(table), *([table.caption] if table.caption else [])]
    return "\n\n".join(drawn)


def _table_of(published: Published) -> Table:
    """A table of the paper, whole."""
    lines = [
        [Cell(row.label), *(_printed_cell(row.values.get(column)) for column in published.columns)]
        for row in published.rows.values()
    ]
    caption = f"{published.metric}. {PAPER}. {published.note}"
    return Table(published.title, caption, ["", *published.columns], lines)


def _printed_cell(value: tuple[float, float | None] | None) -> Cell:
    if value is None:
        return Cell("")
    return Cell(f"{value[0]:g}" if value[1] is None else f"{value[0]:g} ± {value[1]:g}")


def _listed() -> str:
    tables = [f"  {name}: {load_published(name).title}" for name in published_names()]
    return "\n".join(
        ["tables of the paper:", *tables, "grids, for `unida grid --paper`:", f"  {', '.join(spec_names())}"]
    )


def redraw(page: Path, parse: Parse) -> bool:
    """Draw all tables of a page again; whether something changed.

    Args:
        parse: from the words of a place to options, as the command line does.
    """
    try:
        before = page.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--into {page} cannot be read ({getattr(error, 'strerror', None) or error})") from error
    whole = {place.start() for place in PLACE.finditer(before)}
    begun = list(re.finditer(f"^{BEGIN}.*", before, re.MULTILINE))
    if not begun:
        raise UserError(f"--into {page} has no place for a table: a line {BEGIN}… -->, and a line {END}")
    for line in begun:
        if line.start() not in whole:  # what follows it would be overwritten
            raise UserError(f"--into {page}: no line {END} follows {line[0]}")
    after = PLACE.sub(lambda place: f"{place[1]}\n{_drawn(place[2], page, parse)}\n\n{END}", before)
    if after != before:
        write_text(page, after)
    return after != before


def _drawn(words: str, page: Path, parse: Parse) -> str:
    """The tables of a place."""
    try:
        options = parse(shlex.split(words))
        if options.into is not None or options.out is not None:
            raise UserError("a place cannot have --into or --out")
        if options.results is not None:
            options = dataclasses.replace(options, results=page.parent / options.results)
        return table_text(options)
    except (UserError, ValueError) as error:  # ValueError: a quotation mark is missing
        raise UserError(f"--into {page}: {BEGIN}{words} -->: {error}") from error
