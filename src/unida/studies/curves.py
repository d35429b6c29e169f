"""What a run's metrics.jsonl says: measures over the steps."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LAST_LINES = 5  # of losses: a batch is small, and one alone says little


def pretext_accuracy(lines: Sequence[dict[str, Any]]) -> float | None:
    """The mean of both domains over these lines; None if the task has no accuracy, or there is no task."""
    found = [
        value
        for line in lines
        for name, value in line.items()
        if name.endswith(("_accuracy_source", "_accuracy_target")) and value is not None
    ]
    return statistics.fmean(found) if found else None


def last_pretext_accuracy(folder: Path) -> float | None:
    from unida.training.logging import read_lines  # imports torch

    lines = read_lines(folder / "metrics.jsonl")
    return pretext_accuracy([line for line in lines if line["kind"] == "train"][-LAST_LINES:])
