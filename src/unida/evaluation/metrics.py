"""How well known target images are named and unknown ones refused.

"HOS" is not one number: published tables average over classes, over samples or over private classes. Every
variant is computed from the same predictions, under its own name, so that the same variants are compared.

Ids, for a source of C classes: `truth` is 0…C−1 for the source classes and C or more for target-private
classes, each with an id of its own; all of these are "unknown". `prediction` is 0…C, where C means "unknown".
`closed` is the class 0…C−1 that would be named if "unknown" were not allowed. A higher `unknown_score` means
more unknown. A *shared* class is a source class with at least one target image.

Values are fractions in 0…1; one that does not exist (the recall of unknowns if there are none) is None.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from unida.evaluation.names import METRIC_NOTES

ClassKind = Literal["source", "unknown", "private"]


class ClassRow(NamedTuple):
    """One row of the table by class; without images there is no recall, without such answers no precision."""

    kind: ClassKind
    id: int
    name: str
    n: int
    recall: float | None
    precision: float | None  # never exists for a private class: no answer names it


class OpenSetResult(NamedTuple):
    """All metrics of one pass over the target; METRIC_NOTES defines each number.

    A named tuple and not a frozen dataclass, because torchmetrics refuses to return the latter.

    `per_class` and `confusion` have the same rows: the C source classes, unknown as a whole, then each of the
    P private classes that occur. `confusion` is (C+1+P, C+1) int64; its columns are the predictions.
    """

    known: float | None
    known_sample: float | None
    unknown: float | None
    hos: float | None
    hos_sample: float | None
    hos_ovanet_legacy: float | None
    unk_classmean: float | None
    hos_classmean: float | None
    os: float | None
    os_star: float | None
    closed_accuracy: float | None
    closed_classmean: float | None
    auroc: float | None
    oscr: float | None
    accuracy: float | None
    per_class: tuple[ClassRow, ...]
    confusion: Tensor

    def scalars(self) -> dict[str, float | None]:
        """The numbers without the tables, by name: ready for JSON or a logger."""
        return {name: getattr(self, name) for name in METRIC_NOTES}


def harmonic_mean(a: float | None, b: float | None) -> float | None:
    """2ab / (a + b); 0 if either is 0, None if either does not exist."""
    if a is None or b is None:
        return None
    if a == 0 or b == 0:
        return 0.0
    return 2 * a * b / (a + b)


def class_recalls(truth: Tensor, correct: Tensor) -> tuple[Tensor, Tensor]:
    """recall_c = #(truth = c and correct) / #(truth = c), for the K classes that occur.

    Args:
        truth: (N,) int64, any ids.
        correct: (N,) bool.

    Returns:
        (K,) int64 ids in rising order and (K,) float64 recalls; classes without images are left out.
    """
    classes, slot = torch.unique(truth, return_inverse=True)
    n = torch.bincount(slot, minlength=len(classes))
    hits = torch.bincount(slot[correct], minlength=len(classes))
    return classes, hits.double() / n


def hos_ovanet_legacy(shared_recalls: Tensor, unknown: float | None, n_source_classes: int) -> float | None:
    """H(mean(v[0 : C−1]), unknown) with v = [shared_recalls…, unknown], as in OVANet's code at publication.

    The slice fits neither setting: with two or more source-private classes the known term counts the unknown
    class, without any (open-set) it drops the last shared class. With exactly one it equals `hos`.

    Args:
        shared_recalls: (K,) recalls of the shared classes in order of class id.
        unknown: pooled recall of the unknowns.
        n_source_classes: C.
    """
    if unknown is None or len(shared_recalls) == 0:
        return None
    recalls = torch.cat([shared_recalls, shared_recalls.new_tensor([unknown])])
    return harmonic_mean(_mean(recalls[: n_source_classes - 1]), unknown)


def auroc(unknown_score: Tensor, is_unknown: Tensor) -> float | None:
    """P(score of an unknown > score of a known) + ½ P(equal), over all pairs; None if one side is empty.

    Args:
        unknown_score: (N,) float, higher = more unknown.
        is_unknown: (N,) bool.
    """
    _require_finite(unknown_score)
    known, unknown = unknown_score[~is_unknown], unknown_score[is_unknown]
    if len(known) == 0 or len(unknown) == 0:
        return None
    return _half_wins(known, unknown) / (2 * len(known) * len(unknown))


def oscr(unknown_score: Tensor, is_unknown: Tensor, closed_correct: Tensor) -> float | None:
    """∫ CCR dFPR, where a threshold t accepts the images with score ≤ t; None if one side is empty.

    CCR(t) = #(known, score ≤ t, closed class right) / #known, FPR(t) = #(unknown, score ≤ t) / #unknown.
    Images of equal score enter together and straight lines join the curve, so a tie counts half. The area is
    then AUROC's sum over pairs, but wrongly classified knowns win no pair, so it never exceeds AUROC.

    Args:
        unknown_score: (N,) float, higher = more unknown.
        is_unknown: (N,) bool.
        closed_correct: (N,) bool, the closed-set class is right; ignored if `is_unknown`.
    """
    _require_finite(unknown_score)
    n_unknown = int(is_unknown.sum())
    n_known = len(is_unknown) - n_unknown
    if n_known == 0 or n_unknown == 0:
        return None
    right = unknown_score[~is_unknown & closed_correct]
    return _half_wins(right, unknown_score[is_unknown]) / (2 * n_known * n_unknown)


def confusion_matrix(truth: Tensor, prediction: Tensor, n_source_classes: int) -> tuple[Tensor, Tensor]:
    """Counts of (truth, prediction): C source rows, one row of all unknowns, one row for each private class.

    Args:
        truth: (N,) int64, 0…C−1 or a private id ≥ C.
        prediction: (N,) int64 in 0…C.
        n_source_classes: C.

    Returns:
        (C+1+P, C+1) int64 counts and the (P,) private ids of the last P rows, in rising order.
    """
    C = n_source_classes
    is_unknown = truth >= C
    private_ids, slot = torch.unique(truth[is_unknown], return_inverse=True)
    row = truth.clone()
    row[is_unknown] = C + 1 + slot
    n_rows, n_columns = C + 1 + len(private_ids), C + 1
    cell = row * n_columns + prediction
    counts = torch.bincount(cell, minlength=n_rows * n_columns).view(n_rows, n_columns)
    counts[C] = counts[C + 1 :].sum(dim=0)
    return counts, private_ids


def open_set_metrics(
    truth: Tensor,
    prediction: Tensor,
    closed: Tensor,
    unknown_score: Tensor,
    n_source_classes: int,
    class_names: Sequence[str] | None = None,
) -> OpenSetResult:
    """Every metric of METRIC_NOTES and the two tables, on the CPU in float64.

    Args:
        truth: (N,) int64, 0…C−1 or a private id ≥ C.
        prediction: (N,) int64 in 0…C; C is "unknown".
        closed: (N,) int64 in 0…C−1.
        unknown_score: (N,) float, finite, higher = more unknown.
        n_source_classes: C.
        class_names: names by id for the table, of the source classes or of those and the private ones.
    """
    require_vectors(truth=truth, prediction=prediction, closed=closed, unknown_score=unknown_score)
    truth, prediction, closed = truth.cpu().long(), prediction.cpu().long(), closed.cpu().long()
    unknown_score = unknown_score.detach().cpu()
    _require_ids("truth", truth, highest=None)
    _require_ids("prediction", prediction, highest=n_source_classes)
    _require_ids("closed", closed, highest=n_source_classes - 1)

    is_unknown = truth >= n_source_classes
    is_known = ~is_unknown
    correct = prediction == truth.clamp(max=n_source_classes)
    closed_correct = closed == truth

    _, shared_recalls = class_recalls(truth[is_known], correct[is_known])
    _, private_recalls = class_recalls(truth[is_unknown], correct[is_unknown])
    _, closed_recalls = class_recalls(truth[is_known], closed_correct[is_known])
    known, known_sample = _mean(shared_recalls), _mean(correct[is_known])
    unknown, unk_classmean = _mean(correct[is_unknown]), _mean(private_recalls)
    confusion, private_ids = confusion_matrix(truth, prediction, n_source_classes)
    return OpenSetResult(
        known=known,
        known_sample=known_sample,
        unknown=unknown,
        hos=harmonic_mean(known, unknown),
        hos_sample=harmonic_mean(known_sample, unknown),
        hos_ovanet_legacy=hos_ovanet_legacy(shared_recalls, unknown, n_source_classes),
        unk_classmean=unk_classmean,
        hos_classmean=harmonic_mean(known, unk_classmean),
        os=_class_mean_with_unknown(shared_recalls, unknown),
        os_star=known,
        closed_accuracy=_mean(closed_correct[is_known]),
        closed_classmean=_mean(closed_recalls),
        auroc=auroc(unknown_score, is_unknown),
        oscr=oscr(unknown_score, is_unknown, closed_correct),
        accuracy=_mean(correct),
        per_class=_class_rows(confusion, private_ids.tolist(), class_names),
        confusion=confusion,
    )


def _mean(values: Tensor) -> float | None:
    return values.double().mean().item() if len(values) else None


def _class_mean_with_unknown(shared_recalls: Tensor, unknown: float | None) -> float | None:
    if unknown is None or len(shared_recalls) == 0:
        return None
    return (shared_recalls.sum().item() + unknown) / (len(shared_recalls) + 1)


def _half_wins(known: Tensor, unknown: Tensor) -> int:
    """2·#(pairs with known < unknown) + #(pairs with known = unknown), over all pairs, in whole numbers."""
    ranked = unknown.double().sort().values
    n_below = torch.searchsorted(ranked, known.double())
    n_not_above = torch.searchsorted(ranked, known.double(), right=True)
    return int((2 * len(ranked) - n_below - n_not_above).sum())


def _class_rows(confusion: Tensor, private_ids: list[int], class_names: Sequence[str] | None) -> tuple[ClassRow, ...]:
    C, P = confusion.shape[1] - 1, len(private_ids)
    names = [] if class_names is None else class_names
    ids = [*range(C), C, *private_ids]
    n_images = confusion.sum(dim=1).tolist()
    n_right = confusion.diagonal().tolist() + confusion[C + 1 :, C].tolist()
    # private rows are part of the row of all unknowns, and no answer names them
    n_answers = confusion[: C + 1].sum(dim=0).tolist() + [0] * P
    rows = []
    for place, (class_id, n, right, answers) in enumerate(zip(ids, n_images, n_right, n_answers, strict=True)):
        kind: ClassKind = "source" if place < C else "unknown" if place == C else "private"
        name = names[class_id] if class_id < len(names) else str(class_id)
        rows.append(
            ClassRow(
                kind=kind,
                id=class_id,
                name="unknown" if kind == "unknown" else name,
                n=n,
                recall=right / n if n else None,
                precision=right / answers if answers else None,
            )
        )
    return tuple(rows)


def require_vectors(**vectors: Tensor) -> None:
    """Checks that do not read the values, so that nothing waits for the device."""
    shapes = {name: tuple(values.shape) for name, values in vectors.items()}
    if any(len(shape) != 1 for shape in shapes.values()) or len(set(shapes.values())) > 1:
        raise ValueError(f"expected vectors of one length, got {shapes}")
    for name, values in vectors.items():
        if name != "unknown_score" and (values.is_floating_point() or values.dtype == torch.bool):
            raise ValueError(f"{name} must hold integer class ids, not {values.dtype}")


def _require_ids(name: str, ids: Tensor, highest: int | None) -> None:
    wrong = ids < 0 if highest is None else (ids < 0) | (ids > highest)
    if wrong.any():
        allowed = "0 or more" if highest is None else f"0…{highest}"
        raise ValueError(f"{name} holds class id {ids[wrong][0].item()}; allowed: {allowed}")


def _require_finite(unknown_score: Tensor) -> None:
    n_bad = int((~torch.isfinite(unknown_score)).sum())
    if n_bad:
        raise ValueError(f"{n_bad} of {len(unknown_score)} unknown scores are not finite")
