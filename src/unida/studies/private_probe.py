"""`unida study private-probe`: are target-private classes apart in the words, though no label of theirs was seen?"""

import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unida.errors import UserError
from unida.grids.plan import Task
from unida.grids.results import Record
from unida.studies.base import Line, Row, Study, Table, grouped, in_percent, of_method, of_spa, seed_means
from unida.studies.label_sets import label_sets_of
from unida.studies.options import ProbeOptions
from unida.support.random import generator

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

MEASURED = ("space", "linear", "linear_std", "clustering", "nmi", "private_classes", "private_images")
SHOWN = {"linear": "linear accuracy", "clustering": "clustering accuracy", "nmi": "NMI"}


def rows(options: ProbeOptions) -> list[Row]:
    if len(label_sets_of(options).target_private) < 2:
        raise UserError("the target has fewer than two classes of its own: there is nothing to tell apart")
    method = options.method
    return [
        Row(method, of_method(method, options), {"spa": "no"}),
        Row(f"{method}+words", of_spa(method, options, False, False), {"spa": "words only"}),
        Row(f"{method}+spa", of_spa(method, options), {"spa": "yes"}),
    ]


def measure(row: Row, task: Task, record: Record, options: ProbeOptions) -> list[Line]:
    """A line for each space: the method's feature, and SPA's words if there are any."""
    spaces, labels = private_images(task.folder)
    return [{"space": name, **probe(features, labels, options.splits)} for name, features in spaces.items()]


def private_images(folder: Path) -> tuple[dict[str, "Tensor"], "Tensor"]:
    """Features and true classes of the target's images of private classes. The truth is used to measure only."""
    import torch

    from unida.config import load_config
    from unida.evaluation.truth import read_truth_of_run
    from unida.methods.spa.method import SPA
    from unida.models.words import histogram
    from unida.runs.looking import open_model

    config = load_config(folder / "config.yaml")
    model = open_model(folder, config)
    method, classes = model.method, model.info.classes
    truth = read_truth_of_run(config.data, classes, None, visible=False)
    is_private = truth.labels >= len(classes)
    parts: dict[str, list[Tensor]] = {}
    with torch.inference_mode():
        for images in model.views(truth.pixels.subset(is_private)):
            parts.setdefault("feature", []).append(method.features(images).float().cpu())
            if isinstance(method, SPA):
                shares = histogram(method.words.log_words(method.words.map(images)))
                parts.setdefault("words", []).append(shares.float().cpu())
    spaces = {name: torch.cat(part).clone() for name, part in parts.items()}
    return spaces, torch.from_numpy(truth.labels[is_private])


def probe(features: "Tensor", labels: "Tensor", splits: int) -> dict[str, Any]:
    """Linear accuracy, mean over splits into halves; clustering accuracy and NMI of k-means with the true number.

    Args:
        features: (N, d) of images of private classes.
        labels: (N,) any numbers.
    """
    import torch
    import torch.nn.functional as F

    from unida.analysis.measures import linear_probe
    from unida.clustering.kmeans import kmeans
    from unida.evaluation.grouping import clustering_accuracy, mutual_information

    names, ids = torch.unique(labels, return_inverse=True)
    accuracies = []
    for split in range(splits):
        train = halves(ids, split)
        tested = ~train & torch.isin(ids, ids[train])
        if tested.any():
            weight, bias = linear_probe(features[train], ids[train], len(names))
            said = F.linear(features[tested].double(), weight, bias).argmax(dim=1)
            accuracies.append(float((said == ids[tested]).double().mean()))
    groups = kmeans(F.normalize(features.float(), dim=1), len(names), seed=0).assignment.cpu()
    return {
        "linear": statistics.fmean(accuracies) if accuracies else None,
        "linear_std": statistics.stdev(accuracies) if len(accuracies) > 1 else None,
        "clustering": clustering_accuracy(groups, ids),
        "nmi": mutual_information(groups, ids),
        "private_classes": len(names),
        "private_images": len(ids),
    }


def halves(ids: "Tensor", split: int) -> "Tensor":
    """(N,) bool: half of each class, the larger one if it is odd, to train on; the rest is to test on."""
    import torch

    train = torch.zeros(len(ids), dtype=torch.bool)
    for number in ids.unique().tolist():
        mine = (ids == number).nonzero()[:, 0]
        order = torch.from_numpy(generator(split, "private probe", number).permutation(len(mine)))
        train[mine[order[: (len(mine) + 1) // 2]]] = True
    return train


def tables(lines: list[Line], options: ProbeOptions) -> list[Table]:
    drawn = [
        [row, space, *(in_percent(seed_means(mine, name)) for name in SHOWN)]
        for (row, space), mine in grouped(lines, "row", "space").items()
    ]
    return [Table("Mean over pairs, ± between seeds, in per cent.", ("row", "space", *SHOWN.values()), drawn)]


def draw(figure: "Figure", lines: list[Line], options: ProbeOptions) -> None:
    found = grouped(lines, "row", "space")
    for place, (name, title) in enumerate(SHOWN.items()):
        axes = figure.add_subplot(1, len(SHOWN), place + 1)
        for number, mine in enumerate(found.values()):
            values = [100 * it for it in seed_means(mine, name)]
            if values:
                axes.barh(number, statistics.fmean(values), color="tab:blue", alpha=0.6)
                axes.plot(values, [number] * len(values), "k.", markersize=4)
        axes.set_yticks(range(len(found)), [f"{row}: {space}" for row, space in found] if place == 0 else [])
        axes.invert_yaxis()
        axes.set_title(f"{title}, %", fontsize="medium")
        axes.grid(axis="x", alpha=0.3)


PRIVATE_PROBE = Study(
    name="private-probe",
    about="How well a linear classifier and k-means tell target-private classes apart, in words and in features.",
    rows=rows,
    measured=MEASURED,
    measure=measure,
    tables=tables,
    draw=draw,
    paper="With SPA, a linear classifier on the frozen words tells private classes apart better than with words that "
    "had no pretext task.",
    published="private-probe",
    how="The linear classifier (logistic regression, with the strength 1/N as in scikit-learn) learns from half of the "
    "images of each private class and is tested on the other half, over several seeded splits. k-means gets the true "
    "number of classes and features of length 1. The space 'words' is the word histogram, 'feature' is what the "
    "method's heads see. The row with words only is the null control: no loss on its words.",
    shows_answers=False,
    Options=ProbeOptions,
)
