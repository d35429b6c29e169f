"""What tables of a grid are made of: cells, and the numbers in them.

A seed counts in an average over pairs only if it has all of them. ± is the standard deviation between seeds.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from unida.data.benchmarks import load_benchmark
from unida.grids.options import SHOWN, UNKNOWN_ANSWERS, TableOptions
from unida.grids.results import ALONE, Record
from unida.methods import METHODS

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


def pairs_of(records: Sequence[Record]) -> list[str]:
    return list(dict.fromkeys(record["pair"] for record in records))


def if_timed(records: Sequence[Record]) -> list[str]:
    """The heading of the seconds, if there are any."""
    return ["s a run"] if any("seconds" in record for record in records) else []


def seconds(mine: Sequence[Record], records: Sequence[Record]) -> list[Cell]:
    """The median: the first run of a row computes features, and those after it find them."""
    taken = [record["seconds"] for record in mine if "seconds" in record]
    return [Cell(f"{statistics.median(taken):.0f}" if taken else "") for _ in if_timed(records)]


def under(records: Sequence[Record], setting: str) -> list[Record]:
    return [record for record in records if record["setting"] == setting]


def lines_of(records: list[Record], options: TableOptions) -> list[tuple[tuple[str, ...], list[Record]]]:
    """Records by the line of the table that they belong to, in the order of --rows."""
    lines: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        lines.setdefault(tuple(str(record.get(name, "")) for name in options.by), []).append(record)
    rows = options.rows
    return sorted(lines.items(), key=lambda line: rows.index(line[1][0]["row"])) if rows else list(lines.items())


def number(record: Record, metric: str, way: str) -> float | None:
    found: float | None = record.get(ALONE + metric if way == "alone" else metric)
    return found


def averages(
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


def spread(values: Sequence[float | None], metric: str) -> Cell:
    """Mean ± standard deviation, in per cent. One value has no deviation, and none has no mean."""
    known = [100 * value for value in values if value is not None]
    if not known:
        return Cell("")
    mean = statistics.mean(known)
    text = plus_minus(mean, statistics.stdev(known) if len(known) > 1 else None)
    return Cell(text, None if metric == UNKNOWN_ANSWERS else mean)


def plus_minus(mean: float, deviation: float | None) -> str:
    return f"{mean:.1f}" if deviation is None else f"{mean:.1f} ± {deviation:.1f}"


def mark_best(table: Table) -> None:
    """The highest of each column, as it is printed; all of them if several are equal. One line needs no mark."""
    if len(table.lines) < 2:
        return
    for column in range(len(table.heading)):
        means = [line[column].mean for line in table.lines]
        highest = max((round(mean, 1) for mean in means if mean is not None), default=None)
        for line, mean in zip(table.lines, means, strict=True):
            if mean is not None and round(mean, 1) == highest:
                line[column] = Cell(line[column].text, mean, best=True)


def caption(records: Sequence[Record], metric: str, way: str, by: Sequence[str] = ()) -> str:
    """What a number needs to be believed, but for what its line says (`by`)."""
    parts = [f"{short(metric)}: {SHOWN[metric]}"] if metric else []
    parts += [f"Answers: {WAYS[way]}"] if way else []
    parts.append("In per cent, after the last step; ± between seeds" if metric else "Points, ± standard error")
    for name, shown in (("backbone", "backbone"), ("train", "--train"), ("regime", "regime"), ("steps", "steps")):
        values = dict.fromkeys(str(record[name]) for record in records if name in record)
        parts += [f"{shown} {', '.join(values)}"] if 0 < len(values) < 4 and name not in by else []
    methods = dict.fromkeys(str(record.get("method", record["row"])).partition("+")[0] for record in records)
    ours = [name for name in methods if name in METHODS and METHODS[name].from_abstract]
    parts += [f"Re-implemented here from the paper's abstract: {', '.join(ours)}"] if ours else []
    return ". ".join(parts) + "."


def short(metric: str) -> str:
    return SHORT.get(metric, metric)


def short_pair(pair: str, record: Record) -> str:
    """amazon:dslr → A→D."""
    if not record["benchmark"]:
        return pair
    benchmark = load_benchmark(record["benchmark"])
    return "→".join(benchmark.find_domain(name).letter for name in pair.split(":"))
