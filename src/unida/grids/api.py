"""`unida.grid`: a grid from Python, equal to the command line."""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
    """Options from plain values: paths may be strings, tuples may be lists."""
    names = [field.name for field in dataclasses.fields(kind)]
    values = {}
    for name, value in given.items():
        if name not in names:
            raise UserError(f"there is no option {name!r}{did_you_mean(name, names)}; see: {command} --help")
        if name in ("spec", "out", "root", "results", "into") and value is not None:
            value = Path(value)
        if name == "set" and isinstance(value, Mapping):
            value = tuple(f"{option}={setting}" for option, setting in value.items())
        if name in LISTS and isinstance(value, str | int):
            value = [value]
        values[name] = tuple(value) if name in LISTS and value is not None else value
    return kind(**values)
