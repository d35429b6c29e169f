"""Open-set metrics against slow references and against numbers worked out by hand."""

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from made_answers import Samples, random_samples
from sklearn.metrics import confusion_matrix as sklearn_confusion
from sklearn.metrics import roc_auc_score
from torch import Tensor

from unida.evaluation.metrics import (
    OpenSetResult,
    auroc,
    class_recalls,
    harmonic_mean,
    hos_ovanet_legacy,
    open_set_metrics,
    oscr,
)
from unida.evaluation.names import METRIC_NOTES


def recall(truth: list[int], answer: list[int], classes: list[int], wanted: int | None = None) -> float | None:
    """Share of images of `classes` whose answer is their class, or is `wanted`."""
    rights = [a == (t if wanted is None else wanted) for t, a in zip(truth, answer, strict=True) if t in classes]
    return sum(rights) / len(rights) if rights else None


def mean(values: list[float | None]) -> float | None:
    assert None not in values
    return sum(v for v in values if v is not None) / len(values) if values else None


def harmonic(a: float | None, b: float | None) -> float | None:
    if a is None or b is None:
        return None
    return 0.0 if min(a, b) == 0 else 1 / ((1 / a + 1 / b) / 2)


def curve_area(truth: list[int], closed: list[int], score: list[float], n_source: int) -> float | None:
    """OSCR by its curve: one point for each threshold, a pass over all images for each point."""
    known = [(c == t, s) for t, c, s in zip(truth, closed, score, strict=True) if t < n_source]
    unknown = [s for t, s in zip(truth, score, strict=True) if t >= n_source]
    if not known or not unknown:
        return None
    area, last_fpr, last_ccr = 0.0, 0.0, 0.0
    for threshold in sorted(set(score)):
        ccr = sum(right and s <= threshold for right, s in known) / len(known)
        fpr = sum(s <= threshold for s in unknown) / len(unknown)
        area += (fpr - last_fpr) * (ccr + last_ccr) / 2
        last_fpr, last_ccr = fpr, ccr
    return area


def reference(samples: Samples, n_source: int) -> dict[str, float | None]:
    truth, prediction, closed, score = (values.tolist() for values in samples)
    shared = [c for c in range(n_source) if c in truth]
    private = sorted({t for t in truth if t >= n_source})
    by_class = [recall(truth, prediction, [c]) for c in shared]
    known, known_sample = mean(by_class), recall(truth, prediction, shared)
    unknown = recall(truth, prediction, private, wanted=n_source)
    unk_classmean = mean([recall(truth, prediction, [p], wanted=n_source) for p in private])
    both = bool(shared and private)
    return {
        "known": known,
        "known_sample": known_sample,
        "unknown": unknown,
        "hos": harmonic(known, unknown),
        "hos_sample": harmonic(known_sample, unknown),
        "hos_ovanet_legacy": harmonic(mean([*by_class, unknown][: n_source - 1]), unknown) if both else None,
        "unk_classmean": unk_classmean,
        "hos_classmean": harmonic(known, unk_classmean),
        "os": mean([*by_class, unknown]) if both else None,
        "os_star": known,
        "closed_accuracy": recall(truth, closed, shared),
        "closed_classmean": mean([recall(truth, closed, [c]) for c in shared]),
        "auroc": roc_auc_score([t >= n_source for t in truth], score) if both else None,
        "oscr": curve_area(truth, closed, score, n_source),
        "accuracy": mean([float(p == min(t, n_source)) for t, p in zip(truth, prediction, strict=True)]),
    }


@pytest.mark.parametrize("n_scores", [None, 12, 1], ids=["no ties", "ties", "all tied"])
@pytest.mark.parametrize("seed", range(5))
def test_every_metric_equals_its_slow_reference(seed: int, n_scores: int | None) -> None:
    samples = random_samples(seed, n_scores=n_scores)
    expected = reference(samples, n_source=7)
    assert None not in expected.values()
    assert open_set_metrics(*samples, n_source_classes=7).scalars() == pytest.approx(expected, abs=1e-12)


def test_no_metric_is_only_another_name_on_unbalanced_data() -> None:
    """All but os_star differ here, so a mix-up of two definitions cannot hide in the comparison above."""
    values = open_set_metrics(*random_samples(0), n_source_classes=7).scalars()
    values.pop("os_star")
    assert len(set(values.values())) == len(values)


def test_tables_agree_with_loops_and_sklearn() -> None:
    n_source = 7
    samples = random_samples(3)
    truth, prediction = samples[0].tolist(), samples[1].tolist()
    names = [f"class {i}" for i in range(n_source + 2)]  # names for two of the four private classes
    result = open_set_metrics(*samples, n_source_classes=n_source, class_names=names)

    private = sorted({t for t in truth if t >= n_source})
    assert result.confusion.shape == (n_source + 1 + len(private), n_source + 1)
    merged = [min(t, n_source) for t in truth]
    np.testing.assert_array_equal(
        result.confusion[: n_source + 1], sklearn_confusion(merged, prediction, labels=range(n_source + 1))
    )
    for place, row in enumerate(result.per_class):
        if row.kind == "private":
            assert row.id == private[place - n_source - 1]
            assert row.precision is None
        images = [p for t, p in zip(merged if row.kind == "unknown" else truth, prediction, strict=True) if t == row.id]
        answer = min(row.id, n_source)
        assert row.n == len(images) == result.confusion[place].sum()
        assert row.recall == (images.count(answer) / len(images) if images else None)
        assert result.confusion[place].tolist() == [images.count(c) for c in range(n_source + 1)]
        if row.kind != "private":
            assert row.precision == images.count(answer) / prediction.count(answer)
    assert [row.kind for row in result.per_class] == ["source"] * 7 + ["unknown"] + ["private"] * 4
    assert [row.name for row in result.per_class] == [*names[:7], "unknown", *names[7:9], "9", "10"]


def test_a_class_without_images_or_answers_has_no_recall_or_precision() -> None:
    truth, closed = torch.tensor([0, 0, 3]), torch.tensor([0, 2, 0])
    rows = open_set_metrics(truth, closed, closed, torch.zeros(3), n_source_classes=3).per_class
    assert [(row.n, row.recall, row.precision) for row in rows] == [
        (2, 0.5, 0.5),  # class 0 was also answered for the unknown image
        (0, None, None),
        (0, None, 0.0),
        (1, 0.0, None),  # "unknown" was never answered
        (1, 0.0, None),
    ]


def test_legacy_hos_with_source_private_classes_counts_unknown_as_known() -> None:
    # C = 6 source classes, 3 shared: the first 5 of the 4 entries [0.9, 0.6, 0.3, 0.5] are all of them
    shared = torch.tensor([0.9, 0.6, 0.3], dtype=torch.float64)
    known_term = (0.9 + 0.6 + 0.3 + 0.5) / 4
    assert hos_ovanet_legacy(shared, 0.5, 6) == pytest.approx(2 * known_term * 0.5 / (known_term + 0.5))


def test_legacy_hos_in_open_set_drops_the_last_shared_class() -> None:
    # C = 3 source classes, all shared: the first 2 of [0.9, 0.6, 0.3, 0.5], known term 0.75
    shared = torch.tensor([0.9, 0.6, 0.3], dtype=torch.float64)
    assert hos_ovanet_legacy(shared, 0.5, 3) == pytest.approx(0.6)


def test_legacy_hos_is_hos_with_exactly_one_source_private_class() -> None:
    shared = torch.tensor([0.9, 0.6, 0.3], dtype=torch.float64)
    assert hos_ovanet_legacy(shared, 0.5, 4) == pytest.approx(harmonic_mean(0.6, 0.5))


def test_legacy_hos_from_samples_in_both_settings() -> None:
    # recalls: class 0 → 1, class 1 → ½, unknown → ½
    truth = torch.tensor([0, 0, 1, 1])
    answer = torch.tensor([0, 0, 1, 0])

    def legacy(n_source: int) -> float | None:
        private = torch.tensor([n_source, n_source + 1])
        prediction = torch.cat([answer, torch.tensor([n_source, 0])])
        closed = torch.cat([answer, torch.tensor([0, 0])])
        return open_set_metrics(
            torch.cat([truth, private]), prediction, closed, torch.zeros(6), n_source
        ).hos_ovanet_legacy

    assert legacy(n_source=2) == pytest.approx(2 * 1 * 0.5 / 1.5)  # open set: class 1 is dropped
    assert legacy(n_source=5) == pytest.approx(2 * (2 / 3) * 0.5 / (2 / 3 + 0.5))  # UniDA: mean of 1, ½ and ½


def test_oscr_by_hand() -> None:
    score = torch.tensor([0.1, 0.2, 0.3, 0.2, 0.4])
    is_unknown = torch.tensor([False, False, False, True, True])
    right = torch.tensor([True, True, False, False, False])
    # pairs won by the right knowns: 0.1 beats both unknowns, 0.2 ties one and beats one; 3.5 of 3·2
    assert oscr(score, is_unknown, right) == pytest.approx(3.5 / 6)
    assert auroc(score, is_unknown) == pytest.approx(4.5 / 6)


def test_oscr_pairs_each_score_with_its_own_image() -> None:
    """Sorting the scores but not the answers would swap the two values."""
    score = torch.tensor([9.0, 1.0, 5.0])
    is_unknown = torch.tensor([False, False, True])
    assert oscr(score, is_unknown, torch.tensor([False, True, False])) == 0.5
    assert oscr(score, is_unknown, torch.tensor([True, False, False])) == 0.0


def test_class_recalls_skips_absent_classes() -> None:
    classes, recalls = class_recalls(torch.tensor([5, 2, 5, 9]), torch.tensor([True, False, False, True]))
    assert classes.tolist() == [2, 5, 9]
    assert recalls.tolist() == [0.0, 0.5, 1.0]


def test_without_unknowns_only_their_metrics_are_missing() -> None:
    truth, closed = torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1])
    prediction = torch.tensor([0, 3, 1])
    values = open_set_metrics(truth, prediction, closed, torch.zeros(3), n_source_classes=3).scalars()
    present = {name: value for name, value in values.items() if value is not None}
    assert present == pytest.approx(
        {
            "known": 0.75,
            "known_sample": 2 / 3,
            "os_star": 0.75,
            "closed_accuracy": 2 / 3,
            "closed_classmean": 0.75,
            "accuracy": 2 / 3,
        }
    )


def test_without_knowns_only_unknown_recall_is_left() -> None:
    truth = torch.tensor([2, 2, 2, 7])
    prediction = torch.tensor([2, 2, 0, 2])
    values = open_set_metrics(truth, prediction, torch.zeros(4).long(), torch.zeros(4), 2).scalars()
    present = {name: value for name, value in values.items() if value is not None}
    assert present == pytest.approx({"unknown": 0.75, "unk_classmean": (2 / 3 + 1) / 2, "accuracy": 0.75})


def test_an_empty_target_has_no_metrics_at_all() -> None:
    none = torch.empty(0, dtype=torch.int64)
    result = open_set_metrics(none, none, none, torch.empty(0), n_source_classes=2)
    assert set(result.scalars().values()) == {None}
    assert result.confusion.tolist() == [[0] * 3] * 3


def test_one_source_class() -> None:
    truth = torch.tensor([0, 0, 1])
    prediction = torch.tensor([0, 1, 1])
    result = open_set_metrics(truth, prediction, torch.zeros(3).long(), torch.tensor([0.0, 2.0, 1.0]), 1)
    assert (result.known, result.unknown, result.auroc, result.closed_accuracy) == (0.5, 1.0, 0.5, 1.0)
    assert result.hos_ovanet_legacy is None  # its known term is a mean over no class


def test_hos_is_zero_when_one_term_is() -> None:
    truth = torch.tensor([0, 1, 2])
    always_unknown = torch.full((3,), 2)
    result = open_set_metrics(truth, always_unknown, torch.tensor([0, 1, 0]), torch.zeros(3), 2)
    assert (result.known, result.unknown) == (0.0, 1.0)
    assert (result.hos, result.hos_sample, result.hos_classmean) == (0.0, 0.0, 0.0)
    assert harmonic_mean(0.0, 0.0) == 0.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("n_source", [2, 9], ids=["with unknowns", "without"])
def test_scores_that_are_not_finite_are_counted_and_refused(bad: float, n_source: int) -> None:
    truth = torch.tensor([0, 1, 2])
    score = torch.tensor([bad, 0.0, bad])
    with pytest.raises(ValueError, match="2 of 3 unknown scores are not finite"):
        open_set_metrics(truth, truth, torch.zeros(3).long(), score, n_source_classes=n_source)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"truth": torch.tensor([0, -1, 2])}, "truth holds class id -1; allowed: 0 or more"),
        ({"prediction": torch.tensor([0, 1, 3])}, "prediction holds class id 3; allowed: 0…2"),
        ({"closed": torch.tensor([0, 1, 2])}, "closed holds class id 2; allowed: 0…1"),
        ({"closed": torch.zeros(3)}, "closed must hold integer class ids, not torch.float32"),
        ({"unknown_score": torch.zeros(2)}, "expected vectors of one length"),
        ({"unknown_score": torch.zeros(3, 1)}, "expected vectors of one length"),
    ],
)
def test_inputs_that_make_no_sense_are_named(change: dict[str, Tensor], message: str) -> None:
    truth = torch.tensor([0, 1, 2])
    inputs: dict[str, Any] = {
        "truth": truth,
        "prediction": truth,
        "closed": torch.zeros(3).long(),
        "unknown_score": torch.zeros(3),
    }
    open_set_metrics(**inputs, n_source_classes=2)
    with pytest.raises(ValueError, match=message):
        open_set_metrics(**(inputs | change), n_source_classes=2)


def test_half_precision_scores_and_small_integers_give_the_same_values() -> None:
    truth, prediction, closed, score = random_samples(1)
    small = (truth.to(torch.uint8), prediction.to(torch.int32), closed.to(torch.int16), score.bfloat16())
    assert torch.equal(small[3].double(), score)
    exact = open_set_metrics(truth, prediction, closed, score, 7)
    assert open_set_metrics(*small, n_source_classes=7).scalars() == exact.scalars()


def test_size_of_the_largest_benchmark() -> None:
    n_source, n_private, n = 200, 145, 15_000
    rng = np.random.default_rng(0)
    truth = rng.integers(0, n_source + n_private, n)
    result = open_set_metrics(
        torch.from_numpy(truth),
        torch.from_numpy(truth.clip(max=n_source)),
        torch.from_numpy(truth % n_source),
        torch.from_numpy((truth >= n_source) + rng.random(n)),
        n_source_classes=n_source,
    )
    assert set(result.scalars().values()) == {1.0}
    assert result.confusion.shape == (346, 201)
    assert len(result.per_class) == 346


def test_notes_explain_exactly_the_numbers_of_a_result() -> None:
    assert tuple(METRIC_NOTES) == OpenSetResult._fields[:-2]
    assert all(note and "\n" not in note for note in METRIC_NOTES.values())
    json.dumps(open_set_metrics(*random_samples(0), n_source_classes=7).scalars(), allow_nan=False)
