"""The layer study as a picture. matplotlib is optional, so it is imported only when something is drawn."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from unida.analysis.taps import TapMeasures


def can_draw() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def draw_curves(rows: Sequence[TapMeasures], chosen: str | None, out: Path) -> None:
    """NTR and DIS against depth, with the chosen tap as a vertical line, as in the SPA paper's first figure."""
    from matplotlib.figure import Figure  # not pyplot, which looks for a screen

    figure = Figure(figsize=(6.4, 3.8), dpi=100, layout="constrained")
    axes = figure.add_subplot()
    taps = [row.tap for row in rows]
    curves = (
        ("NTR (with target labels)", [row.ntr for row in rows], "tab:blue", "-"),
        ("NTR of the source alone", [row.source_ntr for row in rows], "tab:blue", "--"),
        ("DIS", [row.dis for row in rows], "tab:pink", "-"),
    )
    for label, values, colour, style in curves:
        known = [value for value in values if value is not None]
        if len(known) == len(rows):
            axes.plot(range(len(rows)), known, style, color=colour, marker="o", markersize=4, label=label)
    if chosen is not None:
        axes.axvline(taps.index(chosen), color="tab:green", label=f"Definition 1: {chosen}")
    axes.set_xticks(range(len(rows)), taps, rotation=45, ha="right")
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("tap, shallow to deep")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(out)
