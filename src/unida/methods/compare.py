"""`unida methods --compare`: all methods in one table."""

import csv
from importlib.resources import files
from typing import Any, NamedTuple

from unida.methods import METHODS
from unida.methods.base import Problem
from unida.methods.build import build_method
from unida.methods.spa.options import SPAOptions, resolve
from unida.models.backbone import Backbone, create_backbone
from unida.models.options import NO_WEIGHTS

MEASURED = {"UniDA": "measured.csv", "OSDA": "measured_osda.csv"}  # CONTRIBUTING.md says how they are made
WAYS, SECONDS = ("alone", "together"), "s a run"  # its columns
BACKBONE, CLASSES = "tiny_vit_5m_224.dist_in22k", 20  # as measured: Office-31 has 20 source classes under UniDA
IMAGES, STEPS = 100, 300
HEADING = ("method", "settings", "source at hand", "stages", "new parameters", "to answer")


class Facts(NamedTuple):
    """What a method's own code tells."""

    stages: int
    is_source_free: bool  # the last stage reads no image of the source
    parameters: int  # beside the backbone's
    to_answer: int  # those that the model file keeps


def compare_lines() -> list[str]:
    """A line for each method, and for SPA under those that were measured with it."""
    measured, backbone = read_measured(), create_backbone(BACKBONE, NO_WEIGHTS)
    columns = [*(f"{setting}, {way}" for setting in MEASURED for way in WAYS), SECONDS]
    lines = []
    for name in [*METHODS, *(row for row in measured if row not in METHODS)]:
        method, _, spa = name.partition("+")
        facts, card = facts_of(method, backbone, bool(spa)), METHODS[method]
        lines.append(
            [
                f"{name} *" if card.from_abstract else name,
                card.settings,
                "no" if facts.is_source_free else "yes",
                str(facts.stages),
                f"{facts.parameters / 1e3:,.0f} k",
                f"{facts.to_answer / 1e3:,.0f} k",
                *(measured.get(name, {}).get(column, "") for column in columns),
            ]
        )
    return [
        *_aligned([[*HEADING, *columns], *lines]),
        "",
        "source at hand: whether the last stage, which adapts to the target, reads images of the source.",
        f"new parameters: beside those of {BACKBONE}, with {CLASSES} source classes; and those needed to answer.",
        "HOS in per cent and median seconds: Office-31, the defaults of a machine without a GPU (docs/results.md).",
        "Empty: not measured in that setting, or the method is not made for it.",
        "CDA: both domains have the same classes. PDA: the source has more. OSDA: the target. UniDA: each may.",
        "* re-implemented from the paper's abstract: there is no released code.",
        "alone: each image by itself, as in papers. together: as `unida adapt` answers.",
    ]


def _aligned(lines: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    words, numbers = slice(0, 3), slice(3, None)
    return [
        "  ".join(
            [
                *(cell.ljust(width) for cell, width in zip(line[words], widths[words], strict=True)),
                *(cell.rjust(width) for cell, width in zip(line[numbers], widths[numbers], strict=True)),
            ]
        )
        for line in lines
    ]


def facts_of(name: str, backbone: Backbone, spa: bool = False) -> Facts:
    """Read off the method itself, built for a few images."""
    problem = Problem(CLASSES, num_source=IMAGES, num_target=IMAGES, steps=STEPS)
    words = resolve(SPAOptions(spa=True)) if spa else None
    method: Any = build_method(name, backbone, problem, METHODS[name].Options(), words)
    phases = method.phases()
    old = {id(parameter) for parameter in backbone.parameters()}
    new = {name: p.numel() for name, p in method.named_parameters() if id(p) not in old}
    kept = sum(count for name, count in new.items() if not name.startswith(tuple(method.run_only)))
    return Facts(len(phases), phases[-1].source is None, sum(new.values()), kept)


def read_measured() -> dict[str, dict[str, str]]:
    """What was measured, by row and column: HOS in each setting, and the seconds of a run."""
    rows: dict[str, dict[str, str]] = {}
    for setting, name in MEASURED.items():
        for line in csv.DictReader((files("unida.methods") / name).read_text("utf-8").splitlines()):
            method, _, variant = line["row"].partition(", ")
            if variant:  # an option of the method: not a method
                continue
            row = rows.setdefault(method, {})
            row |= {f"{setting}, {way}": line[f"HOS, {way}"] for way in WAYS}
            row.setdefault(SECONDS, line[SECONDS])
    return rows
