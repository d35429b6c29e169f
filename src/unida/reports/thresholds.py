"""What another threshold would do, for the answers of a finished run."""

from dataclasses import dataclass

import numpy as np

from unida.reports.rundata import NOT_KNOWN, RunData

THRESHOLDS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


@dataclass(frozen=True)
class ThresholdRow:
    threshold: float
    is_own: bool  # the one that the run answered with
    unknown: int  # images
    known_accuracy: float | None
    unknown_accuracy: float | None
    hos: float | None


def threshold_rows(data: RunData) -> list[ThresholdRow]:
    """A row for some thresholds, and for the run's own."""
    own = data.threshold
    return [row_at(data, threshold, threshold == own) for threshold in sorted({*THRESHOLDS, own})]


def row_at(data: RunData, threshold: float, is_own: bool = False) -> ThresholdRow:
    """Counts with this threshold, and the accuracies as `unida.evaluation.metrics` has them, if labels are there.

    The page's script counts in the same way.
    """
    is_unknown = data.unknown_score > threshold
    known = unknown = hos = None
    if data.has_truth and bool((data.best != NOT_KNOWN).all()):
        num_classes = len(data.classes)
        shared = (data.truths >= 0) & (data.truths < num_classes)
        right = ~is_unknown & (data.best == data.truths)
        total = np.bincount(data.truths[shared], minlength=num_classes)
        hits = np.bincount(data.truths[shared & right], minlength=num_classes)
        if shared.any():
            known = float((hits[total > 0] / total[total > 0]).mean())
        private = data.truths >= num_classes
        if private.any():
            unknown = float(is_unknown[private].mean())
        if known is not None and unknown is not None:
            hos = 2 * known * unknown / (known + unknown) if known and unknown else 0.0
    return ThresholdRow(threshold, is_own, int(is_unknown.sum()), known, unknown, hos)
