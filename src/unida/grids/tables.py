"""Tables of a grid's results: means over pairs and seeds, the best in bold, paired differences, the paper beside.

A seed counts in an average over pairs only if it has all of them. ± is the standard deviation between seeds; of
differences, it is the standard error.
"""

from collections.abc import Sequence
from functools import partial

from unida.data.benchmarks import load_benchmark
from unida.errors import UserError
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
    plus_minus,
    seconds,
    short,
    short_pair,
    spread,
    under,
)
from unida.grids.comparisons import differences, ranks
from unida.grids.options import COLUMNS, UNKNOWN_ANSWERS, TableOptions
from unida.grids.published import Published
from unida.grids.results import Record
from unida.support.suggest import did_you_mean


def draw(records: Sequence[Record], options: TableOptions, published: Sequence[Published] = ()) -> list[Table]:
    """All tables that the options ask for. Those of the paper stand under the setting that they are of."""
    chosen = choose(records, options)
    ways = _ways(options)
    _refuse_nothing(chosen, ways, options)
    settings = list(dict.fromkeys(record["setting"] for record in chosen))
    each = [(under(chosen, setting), setting, way) for setting in settings for way in ways]
    drawn: list[Table] = []
    if options.layout != "differences":
        _refuse_mixed(chosen, options.by)
    if options.layout == "overview":
        drawn = [overview(chosen, options)]
    elif options.layout == "pairs":
        drawn = [by_pair(*one, options, published) for one in each]
    elif options.layout == "ranks":
        drawn = _beside_paper(chosen, settings, options, published)
    if options.against:
        _refuse_mixed(chosen, ("row",))
        drawn += [differences(*one, options) for one in each]
    if not any(table.lines for table in drawn):
        raise UserError(f"there is nothing to compare with {', '.join(options.against)}: it takes two runs of each row")
    return [table for table in drawn if table.lines]


def _beside_paper(
    records: list[Record], settings: Sequence[str], options: TableOptions, published: Sequence[Published]
) -> list[Table]:
    drawn = []
    for setting in settings:
        mine = under(records, setting)
        drawn += [ranks(mine, setting, options, paper) for paper in published if is_of(paper, mine[0])]
    if not drawn:
        raise UserError("the paper has no table of these runs: --layout ranks needs one (unida table --published list)")
    return drawn


def is_of(paper: Published, record: Record) -> bool:
    """Whether a table of the paper is of a run's benchmark and setting."""
    return (paper.setting, paper.benchmark) == (record["setting"], record["benchmark"])


def _ways(options: TableOptions) -> Sequence[str]:
    return ("alone", "given") if options.answers == "both" else (options.answers or "given",)


def _refuse_nothing(records: Sequence[Record], ways: Sequence[str], options: TableOptions) -> None:
    """Refuse to draw a table without a number in it."""

    def there(metric: str, ways: Sequence[str]) -> bool:
        return any(number(record, metric, way) is not None for record in records for way in ways)

    if any(there(metric, ways) for metric in (options.metric, *options.also)):
        return
    hint = ""
    if there(options.metric, ["alone"]):
        hint = ": give --answers alone"
    elif there(UNKNOWN_ANSWERS, ["given"]):
        hint = ": it needs labels of the target. Without them, --metric unknown_answers is all there is"
    raise UserError(f"no run has a number for --metric {options.metric} --answers {options.answers or 'given'}{hint}")


def _refuse_mixed(records: Sequence[Record], by: Sequence[str]) -> None:
    """Refuse two runs of one pair and seed in one line: their mean would stand for neither."""
    seen: dict[tuple[str, ...], Record] = {}
    for record in records:
        line = [str(record.get(name, "")) for name in by]
        run = [f"{record['pair']} {record['setting']}".strip(), f"seed {record['seed']}"]
        other = seen.setdefault((*line, *run), record)
        if other is not record:
            differ = [name for name in COLUMNS if record.get(name) != other.get(name)]
            told = f"; they differ in {', '.join(differ)}: tell them apart with --by" if differ else ""
            raise UserError(f"two runs of {', '.join([*line, *run])} would stand in one line{told}")


def choose(records: Sequence[Record], options: TableOptions) -> list[Record]:
    """Finished runs of the rows, pairs and settings that are asked for, in that order."""
    done = [record for record in records if record["status"] == "done"]
    for word in options.where:
        name, _, value = word.partition("=")
        done = [record for record in done if str(record.get(name, "")) == value]
    if not done:
        raise UserError(
            "there is no finished run to show" + (f" with {' '.join(options.where)}" if options.where else "")
        )
    pairs = options.pairs and tuple(_full_pair(pair, done) for pair in options.pairs)
    for key, names in (("row", options.rows), ("pair", pairs), ("setting", options.settings)):
        if names:
            _refuse_missing(key, names, done)
            done = [record for record in done if record[key] in names]
            done.sort(key=lambda record: names.index(record[key]))
    _refuse_missing("row", options.against, done)
    return done


def _refuse_missing(key: str, names: Sequence[str], records: Sequence[Record]) -> None:
    there = dict.fromkeys(str(record[key]) for record in records)
    for name in names:
        if name not in there:
            raise UserError(f"there is no {key} {name!r}{did_you_mean(name, there)}; there are {', '.join(there)}")


def _full_pair(pair: str, records: Sequence[Record]) -> str:
    """A:D → amazon:dslr, if the runs are of a benchmark."""
    name = records[0]["benchmark"]
    return ":".join(load_benchmark(name).parse_pair(pair)) if name else pair


def by_pair(
    records: list[Record], setting: str, way: str, options: TableOptions, published: Sequence[Published]
) -> Table:
    """A metric by pair, and averages over pairs of it and others."""
    pairs = pairs_of(records)
    metrics = (options.metric, *options.also)
    heading = [", ".join(options.by), *(short_pair(pair, records[0]) for pair in pairs)]
    heading += [f"average {short(options.metric)}" if len(pairs) > 1 else "", *map(short, options.also)]
    table = Table(
        title=f"{SETTINGS.get(setting, setting)}, {short(options.metric)}" if setting else short(options.metric),
        caption=caption(records, options.metric, way, options.by),
        heading=[*filter(None, heading), "seeds", *if_timed(records)],
    )
    for name, mine in lines_of(records, options):
        of_pair = [[number(r, options.metric, way) for r in mine if r["pair"] == pair] for pair in pairs]
        cells = [spread(values, options.metric) for values in of_pair]
        for metric in metrics if len(pairs) > 1 else options.also:
            cells.append(spread(averages(mine, pairs, partial(number, metric=metric, way=way)), metric))
        seeds = len({record["seed"] for record in mine})
        table.lines.append([Cell(", ".join(name)), *cells, Cell(str(seeds)), *seconds(mine, records)])
    mark_best(table)
    for paper in published if way == "alone" else ():  # beside other answers, a paper's numbers would mislead
        if is_of(paper, records[0]):
            rows = [row for row in dict.fromkeys(record["row"] for record in records) if row in paper.rows]
            printed = [_printed(paper, row, pairs, options.metric, len(table.heading)) for row in rows]
            table.below += [line for line in printed if any(cell.text for cell in line[1:])]
    return table


def _printed(published: Published, row: str, pairs: Sequence[str], metric: str, width: int) -> list[Cell]:
    """A row as the paper prints it. Tables of several metrics have columns such as "amazon:dslr os"."""
    names = list(pairs)
    if len(pairs) > 1 and all(
        any(column.startswith(pair) for pair in pairs) for column in published.columns if ":" in column
    ):
        names.append("average")
    found = [published.value(row, name, metric) for name in names]
    cells = [Cell("" if value is None else plus_minus(value.value, value.std)) for value in found]
    return [Cell(f"{published.rows[row].label} (paper)"), *cells, *[Cell("")] * (width - 1 - len(cells))]


def overview(records: list[Record], options: TableOptions) -> Table:
    """A line for each kind of run: averages over pairs, settings and answers side by side."""
    settings = list(dict.fromkeys(record["setting"] for record in records))
    ways = _ways(options)
    columns = [(s, m, w) for s in settings for m in (options.metric, *options.also) for w in ways]
    names = {"alone": "alone", "given": "together"}

    def head(setting: str, metric: str, way: str) -> str:
        parts = [SETTINGS.get(setting, setting)] if len(settings) > 1 else []
        parts += [short(metric)] if options.also or not parts else []
        return ", ".join([*parts, *([names[way]] if len(ways) > 1 else [])])

    title = SETTINGS.get(settings[0], settings[0]) if len(settings) == 1 else short(options.metric)
    heading = [*options.by, *(head(*column) for column in columns), "pairs × seeds", *if_timed(records)]
    table = Table(title, caption(records, options.metric, ways[0] if len(ways) == 1 else "", options.by), heading)
    every = {setting: pairs_of(under(records, setting)) for setting in settings}
    for name, mine in lines_of(records, options):
        cells, counts = [], []
        for setting, metric, way in columns:
            of_setting = under(mine, setting)
            pairs = pairs_of(of_setting)
            cell = spread(averages(of_setting, pairs, partial(number, metric=metric, way=way)), metric)
            if set(pairs) != set(every[setting]):  # an average of fewer pairs is not the best of anything
                cell = Cell(cell.text)
            cells.append(cell if of_setting else Cell("–"))
            counts += [f"{len(pairs)} × {len(averages(of_setting, pairs, lambda _: 0.0))}"] if of_setting else []
        counted = Cell(", ".join(dict.fromkeys(counts)))
        table.lines.append([*map(Cell, name), *cells, counted, *seconds(mine, records)])
    mark_best(table)
    return table
