"""Tables of a grid's results: means over pairs and seeds, the best in bold, paired differences, the paper beside.

A seed counts in an average over pairs only if it has all of them. ± is the standard deviation between seeds; of
differences, it is the standard error.
"""

import csv
import io
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from unida.data.benchmarks import load_benchmark
from unida.errors import UserError
from unida.grids.options import COLUMNS, SHOWN, UNKNOWN_ANSWERS, TableOptions
from unida.grids.published import Published
from unida.grids.results import ALONE, Record
from unida.methods import METHODS
from unida.support import tables
from unida.support.suggest import did_you_mean

SHORT = {
    "hos": "HOS",
    "hos_sample": "HOS by image",
    "hos_classmean": "HOS, ROS's",
    "hos_ovanet_legacy": "HOS, OVANet's",
}
SHORT |= {"auroc": "AUROC", "oscr": "OSCR", "os": "OS", "os_star": "OS*", "closed_accuracy": "closed"}
SHORT |= {UNKNOWN_ANSWERS: "answered unknown"}
SETTINGS = {"unida": "UniDA", "osda": "OSDA", "pda": "PDA", "cda": "CDA"}
WAYS = {"given": "the runs' own answers", "alone": "each image alone, with the method's own threshold, as in papers"}


@dataclass(frozen=True)
class Cell:
    text: str
    mean: float | None = None  # to find the best of a column
    best: bool = False


@dataclass
class Table:
    title: str
    caption: str
    heading: list[str]
    lines: list[list[Cell]] = field(default_factory=list)
    below: list[list[Cell]] = field(default_factory=list)  # rows of a paper, under a rule


def draw(records: Sequence[Record], options: TableOptions, published: Sequence[Published] = ()) -> list[Table]:
    """All tables that the options ask for. Those of the paper stand under the setting that they are of."""
    chosen = choose(records, options)
    ways = _ways(options)
    _refuse_nothing(chosen, ways, options)
    settings = list(dict.fromkeys(record["setting"] for record in chosen))
    each = [(_of(chosen, setting), setting, way) for setting in settings for way in ways]
    drawn: list[Table] = []
    if options.layout != "differences":
        _refuse_mixed(chosen, options.by)
    if options.layout == "overview":
        drawn = [overview(chosen, options)]
    elif options.layout == "pairs":
        drawn = [by_pair(*one, options, published) for one in each]
    if options.against:
        _refuse_mixed(chosen, ("row",))
        drawn += [differences(*one, options) for one in each]
    if not any(table.lines for table in drawn):
        raise UserError(f"there is nothing to compare with {', '.join(options.against)}: it takes two runs of each row")
    return [table for table in drawn if table.lines]


def _ways(options: TableOptions) -> Sequence[str]:
    return ("alone", "given") if options.answers == "both" else (options.answers or "given",)


def _refuse_nothing(records: Sequence[Record], ways: Sequence[str], options: TableOptions) -> None:
    """Refuse to draw a table without a number in it."""

    def there(metric: str, ways: Sequence[str]) -> bool:
        return any(_value(record, metric, way) is not None for record in records for way in ways)

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
    pairs = _pairs(records)
    metrics = (options.metric, *options.also)
    heading = [", ".join(options.by), *(_short_pair(pair, records[0]) for pair in pairs)]
    heading += [f"average {_short(options.metric)}" if len(pairs) > 1 else "", *map(_short, options.also)]
    table = Table(
        title=f"{SETTINGS.get(setting, setting)}, {_short(options.metric)}" if setting else _short(options.metric),
        caption=_caption(records, options.metric, way, options.by),
        heading=[*filter(None, heading), "seeds", *_if_timed(records)],
    )
    for name, mine in _lines(records, options):
        of_pair = [[_value(r, options.metric, way) for r in mine if r["pair"] == pair] for pair in pairs]
        cells = [_spread(values, options.metric) for values in of_pair]
        for metric in metrics if len(pairs) > 1 else options.also:
            cells.append(_spread(_averages(mine, pairs, partial(_value, metric=metric, way=way)), metric))
        seeds = len({record["seed"] for record in mine})
        table.lines.append([Cell(", ".join(name)), *cells, Cell(str(seeds)), *_seconds(mine, records)])
    _mark_best(table)
    for paper in published if way == "alone" else ():  # beside other answers, a paper's numbers would mislead
        if (paper.setting, paper.benchmark) == (setting, records[0]["benchmark"]):
            rows = [row for row in dict.fromkeys(record["row"] for record in records) if row in paper.rows]
            printed = [_printed(paper, row, pairs, options.metric, len(table.heading)) for row in rows]
            table.below += [line for line in printed if any(cell.text for cell in line[1:])]
    return table


def _printed(published: Published, row: str, pairs: Sequence[str], metric: str, width: int) -> list[Cell]:
    """A row as the paper prints it. Tables of several metrics have columns such as "amazon:dslr os"."""
    values = published.rows[row].values
    names = list(pairs)
    if len(pairs) > 1 and all(
        any(column.startswith(pair) for pair in pairs) for column in published.columns if ":" in column
    ):
        names.append("average")
    found = [
        values.get(name if published.metric == "HOS" and metric == "hos" else f"{name} {metric}") for name in names
    ]
    cells = [Cell("" if value is None else _plus_minus(value.value, value.std)) for value in found]
    return [Cell(f"{published.rows[row].label} (paper)"), *cells, *[Cell("")] * (width - 1 - len(cells))]


def overview(records: list[Record], options: TableOptions) -> Table:
    """A line for each kind of run: averages over pairs, settings and answers side by side."""
    settings = list(dict.fromkeys(record["setting"] for record in records))
    ways = _ways(options)
    columns = [(s, m, w) for s in settings for m in (options.metric, *options.also) for w in ways]
    names = {"alone": "alone", "given": "together"}

    def head(setting: str, metric: str, way: str) -> str:
        parts = [SETTINGS.get(setting, setting)] if len(settings) > 1 else []
        parts += [_short(metric)] if options.also or not parts else []
        return ", ".join([*parts, *([names[way]] if len(ways) > 1 else [])])

    title = SETTINGS.get(settings[0], settings[0]) if len(settings) == 1 else _short(options.metric)
    heading = [*options.by, *(head(*column) for column in columns), "pairs × seeds", *_if_timed(records)]
    table = Table(title, _caption(records, options.metric, ways[0] if len(ways) == 1 else "", options.by), heading)
    every = {setting: _pairs(_of(records, setting)) for setting in settings}
    for name, mine in _lines(records, options):
        cells, counts = [], []
        for setting, metric, way in columns:
            of_setting = _of(mine, setting)
            pairs = _pairs(of_setting)
            cell = _spread(_averages(of_setting, pairs, partial(_value, metric=metric, way=way)), metric)
            if set(pairs) != set(every[setting]):  # an average of fewer pairs is not the best of anything
                cell = Cell(cell.text)
            cells.append(cell if of_setting else Cell("–"))
            counts += [f"{len(pairs)} × {len(_averages(of_setting, pairs, lambda _: 0.0))}"] if of_setting else []
        counted = Cell(", ".join(dict.fromkeys(counts)))
        table.lines.append([*map(Cell, name), *cells, counted, *_seconds(mine, records)])
    _mark_best(table)
    return table


def _pairs(records: Sequence[Record]) -> list[str]:
    return list(dict.fromkeys(record["pair"] for record in records))


def _if_timed(records: Sequence[Record]) -> list[str]:
    """The heading of the seconds, if there are any."""
    return ["s a run"] if any("seconds" in record for record in records) else []


def _seconds(mine: Sequence[Record], records: Sequence[Record]) -> list[Cell]:
    seconds = [record["seconds"] for record in mine if "seconds" in record]
    return [Cell(f"{statistics.mean(seconds):.0f}" if seconds else "") for _ in _if_timed(records)]


def differences(records: list[Record], setting: str, way: str, options: TableOptions) -> Table:
    """Means of the differences to some rows, run by run on the same pair and seed, ± their standard errors."""
    metrics = (options.metric, *options.also)
    title = f"{SETTINGS.get(setting, setting)}, differences" if setting else "differences"
    table = Table(title, _caption(records, "", way), ["difference", "runs", *map(_short, metrics)])
    rows = [row for (row,), _ in _lines(records, replace(options, by=("row",)))]
    for place, other in enumerate(options.against):
        theirs = {(r["pair"], r["seed"]): r for r in records if r["row"] == other}
        for row in rows:
            if row in options.against[: place + 1]:  # itself, and what was compared already
                continue
            mine = {(r["pair"], r["seed"]): r for r in records if r["row"] == row}
            both = [(mine[run], theirs[run]) for run in mine if run in theirs]
            if len(both) > 1:
                cells = [_difference([(_value(a, m, way), _value(b, m, way)) for a, b in both]) for m in metrics]
                table.lines.append([Cell(f"{row} − {other}"), Cell(str(len(both))), *cells])
    return table


def _difference(values: list[tuple[float | None, float | None]]) -> Cell:
    known = [100 * (a - b) for a, b in values if a is not None and b is not None]
    if len(known) < 2:
        return Cell("")
    return Cell(f"{statistics.mean(known):+.1f} ± {statistics.stdev(known) / len(known) ** 0.5:.1f}")


def _of(records: Sequence[Record], setting: str) -> list[Record]:
    return [record for record in records if record["setting"] == setting]


def _lines(records: list[Record], options: TableOptions) -> list[tuple[tuple[str, ...], list[Record]]]:
    """Records by the line of the table that they belong to, in the order of --rows."""
    lines: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        lines.setdefault(tuple(str(record.get(name, "")) for name in options.by), []).append(record)
    rows = options.rows
    return sorted(lines.items(), key=lambda line: rows.index(line[1][0]["row"])) if rows else list(lines.items())


def _value(record: Record, metric: str, way: str) -> float | None:
    value: float | None = record.get(ALONE + metric if way == "alone" else metric)
    return value


def _averages(
    records: Sequence[Record], pairs: Sequence[str], value: Callable[[Record], float | None]
) -> list[float | None]:
    """The average over pairs for each seed that has them all."""
    of_run = {(record["pair"], record["seed"]): value(record) for record in records}
    averages: list[float | None] = []
    for seed in dict.fromkeys(record["seed"] for record in records):
        values = [of_run.get((pair, seed)) for pair in pairs]
        known = [value for value in values if value is not None]
        if len(known) == len(pairs):
            averages.append(statistics.mean(known))
    return averages


def _spread(values: Sequence[float | None], metric: str) -> Cell:
    """Mean ± standard deviation, in per cent. One value has no deviation, and none has no mean."""
    known = [100 * value for value in values if value is not None]
    if not known:
        return Cell("")
    mean = statistics.mean(known)
    text = _plus_minus(mean, statistics.stdev(known) if len(known) > 1 else None)
    return Cell(text, None if metric == UNKNOWN_ANSWERS else mean)


def _plus_minus(mean: float, deviation: float | None) -> str:
    return f"{mean:.1f}" if deviation is None else f"{mean:.1f} ± {deviation:.1f}"


def _mark_best(table: Table) -> None:
    """The highest of each column, as it is printed; all of them if several are equal. One line needs no mark."""
    if len(table.lines) < 2:
        return
    for column in range(len(table.heading)):
        means = [line[column].mean for line in table.lines]
        highest = max((round(mean, 1) for mean in means if mean is not None), default=None)
        for line, mean in zip(table.lines, means, strict=True):
            if mean is not None and round(mean, 1) == highest:
                line[column] = Cell(line[column].text, mean, best=True)


def _caption(records: Sequence[Record], metric: str, way: str, by: Sequence[str] = ()) -> str:
    """What a number needs to be believed, but for what its line says (`by`)."""
    parts = [f"{_short(metric)}: {SHOWN[metric]}"] if metric else []
    parts += [f"Answers: {WAYS[way]}"] if way else []
    parts.append("In per cent, after the last step; ± between seeds" if metric else "Points, ± standard error")
    for name, shown in (("backbone", "backbone"), ("train", "--train"), ("regime", "regime"), ("steps", "steps")):
        values = dict.fromkeys(str(record[name]) for record in records if name in record)
        parts += [f"{shown} {', '.join(values)}"] if 0 < len(values) < 4 and name not in by else []
    methods = dict.fromkeys(str(record.get("method", record["row"])).partition("+")[0] for record in records)
    ours = [name for name in methods if name in METHODS and METHODS[name].from_abstract]
    parts += [f"Re-implemented here from the paper's abstract: {', '.join(ours)}"] if ours else []
    return ". ".join(parts) + "."


def _short(metric: str) -> str:
    return SHORT.get(metric, metric)


def _short_pair(pair: str, record: Record) -> str:
    """amazon:dslr → A→D."""
    if not record["benchmark"]:
        return pair
    benchmark = load_benchmark(record["benchmark"])
    return "→".join(benchmark.find_domain(name).letter for name in pair.split(":"))


def markdown(table: Table) -> str:
    lines = [[f"**{cell.text}**" if cell.best else cell.text for cell in line] for line in (*table.lines, *table.below)]
    return tables.markdown(table.heading, lines)


def latex(table: Table) -> str:
    """A booktabs table."""
    ours, theirs = ([[_tex(cell) for cell in line] for line in lines] for lines in (table.lines, table.below))
    body = [" & ".join(cells) + r" \\" for cells in ours]
    if theirs:
        body += [r"\midrule", *(" & ".join(cells) + r" \\" for cells in theirs)]
    return "\n".join(
        [
            r"\begin{table}[t]",
            r"\centering",
            rf"\caption{{{_tex(Cell(table.title))}. {_tex(Cell(table.caption))}}}",
            rf"\begin{{tabular}}{{l{'c' * (len(table.heading) - 1)}}}",
            r"\toprule",
            " & ".join(_tex(Cell(name)) for name in table.heading) + r" \\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
    )


TEX = {"\\": r"\textbackslash{}", "→": r"$\rightarrow$", "±": r"$\pm$", "−": "$-$", "×": r"$\times$"}
TEX |= {"λ": r"$\lambda$", "φ": r"$\phi$"}
TEX |= {letter: f"\\{letter}" for letter in "&%$#_{}"} | {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
TEX |= {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "–": r"\textendash{}", "…": r"\dots{}"}


def _tex(cell: Cell) -> str:
    text = "".join(TEX.get(letter, letter) for letter in cell.text).replace("--", "-{}-")  # or they become one dash
    return rf"\textbf{{{text}}}" if cell.best else text


def as_csv(table: Table) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table.heading)
    writer.writerows([cell.text for cell in line] for line in (*table.lines, *table.below))
    return text.getvalue().removesuffix("\n")
