"""The tables of SPA's paper as data, and the specs of its grids. Without torch.

Numbers are copied once, as printed, so that no page or script holds figures of its own. `published/tables.yaml` says
what each table is and what is wrong with it in the paper; `published/NAME.csv` has its numbers.
"""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import yaml

from unida.errors import UserError
from unida.support.suggest import did_you_mean

PAPER = "Kundu et al., Subsidiary Prototype Alignment for Universal Domain Adaptation, NeurIPS 2022"
TABLES = files("unida.grids") / "published"
SPECS = files("unida.grids") / "specs"


class Value(NamedTuple):
    """A number as printed, in per cent unless the table says otherwise, and what follows ± (None if nothing does)."""

    value: float
    std: float | None


@dataclass(frozen=True)
class PublishedRow:
    """A method as the paper names it, and its numbers by column.

    The paper indents "+ SPA" below a method; the label here starts with that method.
    """

    label: str
    values: Mapping[str, Value]


@dataclass(frozen=True)
class Published:
    """A table of the paper. Rows are named as in a grid: `ovanet+spa`.

    A column is a pair of domains ("amazon:dslr") or "average"; a pair and a metric of unida ("amazon:dslr os_star");
    or, where the table is not by pair, a setting or a cost. Every row has every column.
    """

    name: str
    title: str
    benchmark: str
    setting: str | None
    metric: str
    columns: tuple[str, ...]
    note: str
    rows: Mapping[str, PublishedRow]

    def value(self, row: str, column: str, metric: str) -> Value | None:
        """A number of a row: of a pair or "average", and of a metric by unida's name."""
        plain = self.metric == "HOS" and metric == "hos"
        return self.rows[row].values.get(column if plain else f"{column} {metric}") if row in self.rows else None

    def average(self, row: str, metric: str) -> float | None:
        found = self.value(row, "average", metric)
        return None if found is None else found.value


def published_names() -> list[str]:
    """Names of the tables, in the paper's order."""
    return list(_tables())


def load_published(name: str) -> Published:
    """A table by its name."""
    _refuse_unknown("published table", name, published_names())
    labels: dict[str, str] = {}
    values: dict[str, dict[str, Value]] = {}
    for line in csv.DictReader((TABLES / f"{name}.csv").read_text("utf-8").splitlines()):
        row, std = line["row"], line["std"]
        labels[row] = line["label"]
        values.setdefault(row, {})[line["column"]] = Value(float(line["value"]), float(std) if std else None)
    columns = dict.fromkeys(column for numbers in values.values() for column in numbers)
    rows = {row: PublishedRow(labels[row], numbers) for row, numbers in values.items()}
    return Published(name=name, columns=tuple(columns), rows=rows, **_tables()[name])


def published_for(benchmark: str, setting: str) -> Published | None:
    """The table of HOS by pair of a benchmark and setting, by unida's names; None if the paper has none."""
    for name, table in _tables().items():
        if (table["benchmark"], table["setting"], table["metric"]) == (benchmark, setting, "HOS"):
            return load_published(name)
    return None


def spec_names() -> list[str]:
    """Names of the specs that come with unida."""
    return sorted(entry.name.removesuffix(".yaml") for entry in SPECS.iterdir() if entry.name.endswith(".yaml"))


def spec_text(name: str) -> str:
    """A spec as it is written, with its comments: to be read, or copied and changed."""
    _refuse_unknown("spec", name, spec_names())
    return (SPECS / f"{name}.yaml").read_text("utf-8")


@cache
def _tables() -> dict[str, dict[str, Any]]:
    tables: dict[str, dict[str, Any]] = yaml.safe_load((TABLES / "tables.yaml").read_text("utf-8"))
    return tables


def _refuse_unknown(kind: str, name: str, known: list[str]) -> None:
    if name not in known:
        raise UserError(f"there is no {kind} {name!r}{did_you_mean(name, known)}; there are {', '.join(known)}")
