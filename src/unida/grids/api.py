"""`unida.grid`: a grid from Python, equal to the command line."""

import dataclasses
import os
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from unida.config import converted
from unida.errors import UserError
from unida.grids.options import GridOptions, TableOptions
from unida.grids.pages import table_text
from unida.grids.results import Record
from unida.grids.start import start_grid
from unida.support.suggest import did_you_mean

LISTS = (
    "rows",
    "pairs",
    "settings",
    "seeds",
    "set",
    "also",
    "by",
    "where",
    "against",
)  # options that take several values


@dataclasses.dataclass(frozen=True)
class GridResults:
    """The runs of a grid that are finished or have failed."""

    folder: Path
    records: list[Record]  # a dict for each run: what its line of results.csv says

    @property
    def failed(self) -> list[Record]:
        """The runs that failed, each with its `reason`."""
        return [record for record in self.records if record["status"] == "failed"]

    def table(self, **options: Any) -> str:
        """A table as text; the options are those of `unida table`: metric="auroc", format="latex"."""
        chosen = _build(TableOptions, {"results": self.folder, **options}, "unida table")
        chosen.check()
        return table_text(chosen)


def grid(
    spec: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    out: str | os.PathLike[str] | None = None,
    **options: Any,
) -> GridResults:
    """Run a grid, or the rest of one. The same as `unida grid`.

    Args:
        spec: a YAML file, or what it would hold: rows, pairs or folders, settings, seeds, options.
        out: the folder for the runs and results.csv.
        options: any option of `unida grid`, with underscores: `root=…, seeds=[0], workers=2, paper="unida-office31"`.

    A run that fails raises nothing: see `GridResults.failed`.
    """
    content = spec if isinstance(spec, Mapping) else None
    given = {"spec": Path("spec") if content is not None else spec, "out": out, **options}
    chosen = _build(GridOptions, given, "unida grid")
    chosen.check()
    assert chosen.out is not None  # or check() would have raised
    return GridResults(chosen.out, start_grid(chosen, print, content))


def _build(kind: type[Any], given: Mapping[str, Any], command: str) -> Any:
    """Options from plain values, checked: paths may be strings, and several values a list, or one alone."""
    hints = typing.get_type_hints(kind)
    values = {}
    for name, value in given.items():
        if name not in hints:
            raise UserError(f"there is no option {name!r}{did_you_mean(name, hints)}; see: {command} --help")
        if name == "set" and isinstance(value, Mapping):
            value = [f"{option}={setting}" for option, setting in value.items()]
        values[name] = _several(name, value) if name in LISTS else converted(name, value, hints[name])
    return kind(**values)


def _several(name: str, value: Any) -> tuple[Any, ...] | None:
    if value is None:
        return None
    each = int if name == "seeds" else str
    values = value if isinstance(value, Iterable) and not isinstance(value, str) else [value]
    return tuple(converted(name, one, each) for one in values)
