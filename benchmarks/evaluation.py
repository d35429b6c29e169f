"""All metrics of 15,000 images, against loops over samples, classes and thresholds as reference code has them.

# how to run
    python benchmarks/evaluation.py

The two sides must agree. Writes evaluation.csv.
"""

import argparse
from pathlib import Path
from statistics import median

import numpy as np
import torch
from common import Measure, report, timed

from unida.evaluation.metrics import harmonic_mean, open_set_metrics


def main() -> None:
    parser = argparse.ArgumentParser(description="Evaluation, side by side.")
    parser.add_argument("--images", type=int, default=15_000)
    parser.add_argument("--classes", type=int, default=200)
    parser.add_argument("--private", type=int, default=145)
    parser.add_argument("--csv", type=Path, default=Path(__file__).with_suffix(".csv"))
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    truth = rng.integers(0, options.classes + options.private, options.images)
    closed = np.where(rng.random(options.images) < 0.6, truth % options.classes, rng.integers(0, options.classes))
    score = np.where(truth >= options.classes, rng.beta(4, 2, options.images), rng.beta(2, 4, options.images))
    prediction = np.where(score > 0.5, options.classes, closed)
    tensors = [torch.from_numpy(values) for values in (truth, prediction, closed, score)]
    ours = [timed(lambda: open_set_metrics(*tensors, options.classes)) for _ in range(5)]
    looped, expected = timed(lambda: loops(truth, prediction, closed, score, options.classes))
    result = ours[0][1].scalars()
    for name, value in expected.items():
        assert abs(result[name] - value) < 1e-9, (name, result[name], value)
    fast = median(seconds for seconds, _ in ours)
    report(
        [
            Measure("all 15 metrics and both tables", fast, "s"),
            Measure("five of them, by loops", looped, "s"),
            Measure("faster by", looped / fast, "times"),
        ],
        options.csv,
        images=options.images,
        classes=options.classes,
    )


def loops(
    truth: np.ndarray, prediction: np.ndarray, closed: np.ndarray, score: np.ndarray, classes: int
) -> dict[str, float]:
    """Per-class accuracies sample by sample; AUROC and OSCR threshold by threshold, quadratic in the images."""
    C = classes
    right, count = np.zeros(C + 1), np.zeros(C + 1)
    for true, answer in zip(truth, prediction, strict=True):
        row = min(int(true), C)
        count[row] += 1
        right[row] += answer == row
    known = float(np.mean([right[c] / count[c] for c in range(C) if count[c]]))
    unknown = right[C] / count[C]
    hos = harmonic_mean(known, unknown)
    assert hos is not None
    is_unknown = truth >= C
    unknowns, wins, correct_wins = score[is_unknown], 0.0, 0.0
    for value, ok in zip(score[~is_unknown], (closed == truth)[~is_unknown], strict=True):
        win = np.sum(unknowns > value) + 0.5 * np.sum(unknowns == value)
        wins += win
        correct_wins += win if ok else 0.0
    pairs = len(unknowns) * int(np.sum(~is_unknown))
    return {"known": known, "unknown": unknown, "hos": hos, "auroc": wins / pairs, "oscr": correct_wins / pairs}


if __name__ == "__main__":
    main()
