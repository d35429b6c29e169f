"""How the threshold that is found does at each share of unknown images: against the best threshold there is.

    python examples/unknown_share.py --runs runs/head/runs/*-unida-source-only-0 --csv share.csv --figure share.png

For each run, images are left out of its target until a given share of it is unknown. The rest is answered together, as
`unida adapt` does, and evaluated with three thresholds: the one that is found, the published one, and the best of all,
which needs the labels. The runs themselves are not trained again: use a method that does not train on the target, such
as source-only, or take the figures of others with care. At 0 % there is no HOS; the figure is the share of images that
are called unknown, and should be small.
"""

import argparse
import csv
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import torch

import unida
from unida.answering.alone import Scored, score_pixels
from unida.answering.options import AnsweringOptions
from unida.answering.target import TargetAnswers
from unida.answering.together import PUBLISHED
from unida.evaluation.metrics import open_set_metrics
from unida.evaluation.truth import Truth, read_truth_of_run
from unida.support.tables import markdown

SHARES = (0.0, 0.02, 0.05, 0.1, 0.25, 0.5, 0.75, 0.95)
KINDS = ("all known images", "half of the known images", "classes of unequal size, 1:20")
RULES = ("auto", "published", "best")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", nargs="+", type=Path, required=True)
    parser.add_argument("--csv", type=Path, default=Path("unknown_share.csv"))
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--seeds", type=int, default=3, help="draws of images for each share")
    options = parser.parse_args()
    rows = [row for folder in options.runs for row in measure(folder, options.seeds)]
    with options.csv.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(table(rows))
    if options.figure is not None:
        draw(rows, options.figure)


def measure(folder: Path, seeds: int) -> list[dict[str, Any]]:
    """A row for each kind, share and draw."""
    run = unida.load(folder)
    method, info = run._model
    truth = read_truth_of_run(run.config.data, info.classes, None, visible=False)
    scored = score_pixels(method, truth.pixels, run._preprocess, run._fabric, visible=False)
    rows = []
    for kind in KINDS:
        for share in SHARES:
            for seed in range(1 if share == 0 else seeds):
                index = draw_images(truth, len(info.classes), kind, share, seed)
                ways = answer(scored.rows(torch.from_numpy(index)), truth, index, method.unknown_threshold)
                numbers = {name: None if value is None else round(value, 4) for name, value in ways.items()}
                rows.append(
                    {"run": folder.name, "kind": kind, "share": share, "seed": seed, "images": len(index), **numbers}
                )
    return rows


def draw_images(truth: Truth, classes: int, kind: str, share: float, seed: int) -> np.ndarray:
    """Images of which `share` are unknown; as many of them as there are."""
    draw = np.random.default_rng([seed, round(1000 * share), KINDS.index(kind)])
    order = draw.permutation(len(truth.labels))
    if kind == KINDS[2]:  # the first class whole, the last one a twentieth of it, the others in between
        names = draw.permutation(np.unique(truth.labels))
        kept = {name: 20 ** (-place / (len(names) - 1)) for place, name in enumerate(names)}
        sizes = {name: max(1, round(part * int((truth.labels == name).sum()))) for name, part in kept.items()}
        order = np.concatenate([order[truth.labels[order] == name][:size] for name, size in sizes.items()])
        order = draw.permutation(order)
    known, unknown = (order[is_it] for is_it in (truth.labels[order] < classes, truth.labels[order] >= classes))
    if kind == KINDS[1]:
        known = known[: max(1, len(known) // 2)]
    wanted = round(share / (1 - share) * len(known))
    if wanted > len(unknown):
        known = known[: max(1, round(len(unknown) * (1 - share) / share))]
    return np.sort(np.concatenate([known, unknown[:wanted]]))


def answer(scored: Scored, truth: Truth, index: np.ndarray, published: float) -> dict[str, float | None]:
    """HOS with each threshold, or at 0 % the share that is called unknown; and the share that is believed."""
    found = TargetAnswers(scored, published, AnsweringOptions())
    labels, classes = torch.from_numpy(truth.labels[index]), scored.probabilities.shape[1]
    given, scores = found.answers, found.answers.unknown_score
    assert found.rule.found is not None
    thresholds = {"auto": found.rule.threshold, "published": PUBLISHED if found.neighbours else published}
    believed = {"believed": found.rule.found.share}
    if not bool((labels >= classes).any()):
        called = {name: float((scores > limit).float().mean()) for name, limit in thresholds.items()}
        return {**called, "best": None, **believed}

    def hos(threshold: float) -> float:
        prediction = torch.where(scores > threshold, classes, given.closed)
        return open_set_metrics(labels, prediction, given.closed, scores, classes, truth.names).hos or 0.0

    best = max(hos(float(place)) for place in np.quantile(scores.numpy(), np.linspace(0, 1, 201)))
    return {**{name: hos(limit) for name, limit in thresholds.items()}, "best": best, **believed}


def table(rows: list[dict[str, Any]]) -> str:
    parts = []
    for kind in KINDS:
        lines = []
        for rule in (*RULES, "believed"):
            cells = []
            for share in SHARES:
                numbers = [row[rule] for row in rows if (row["kind"], row["share"]) == (kind, share)]
                cells.append("–" if None in numbers else f"{100 * statistics.mean(numbers):.1f}")
            lines.append([{"believed": "share believed"}.get(rule, f"{rule} threshold"), *cells])
        parts.append(f"{kind}:\n\n{markdown(['unknown', *(f'{100 * share:.0f} %' for share in SHARES)], lines)}")
    return "\n\n".join(parts)


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(KINDS), figsize=(13, 4), sharey=True)
    places = range(1, len(SHARES))
    for axis, kind in zip(axes, KINDS, strict=True):
        for rule in RULES:
            of_share = [[row[rule] for row in rows if (row["kind"], row["share"]) == (kind, s)] for s in SHARES[1:]]
            axis.plot(places, [100 * statistics.mean(some) for some in of_share], "o-", label=f"{rule} threshold")
        axis.set(title=kind, xlabel="unknown images", xticks=list(places), ylim=(0, 100))
        axis.set_xticklabels([f"{100 * share:.0f} %" for share in SHARES[1:]])
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("HOS")
    axes[0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
