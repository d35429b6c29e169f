"""What must hold for the open-set metrics whatever the predictions are."""

from dataclasses import dataclass, replace
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from unida.evaluation.metrics import OpenSetResult, harmonic_mean, open_set_metrics

fractions = st.integers(0, 50).map(lambda k: k / 50)


@dataclass(frozen=True)
class Case:
    n_source: int
    truth: Tensor
    prediction: Tensor
    closed: Tensor
    score: Tensor

    def result(self) -> OpenSetResult:
        return open_set_metrics(self.truth, self.prediction, self.closed, self.score, self.n_source)

    def take(self, index: Tensor) -> "Case":
        parts = (self.truth, self.prediction, self.closed, self.score)
        return Case(self.n_source, *(values[index] for values in parts))


@st.composite
def cases(draw: st.DrawFn, both_sides: bool = False) -> Case:
    """Up to 5 source and 4 private classes; few score values, so ties are common.

    Knowns or unknowns may be missing unless `both_sides`.
    """
    n_source = draw(st.integers(1, 5))
    answers = (st.integers(0, n_source), st.integers(0, n_source - 1), st.integers(-6, 6))
    any_class = st.integers(0, n_source + draw(st.integers(-1, 3)))
    images = draw(st.lists(st.tuples(any_class, *answers), min_size=1, max_size=40))
    if both_sides:
        images += [draw(st.tuples(st.just(truth), *answers)) for truth in (0, n_source)]
    columns = torch.tensor(images).T
    return Case(n_source, columns[0], columns[1], columns[2], columns[3].double() / 4)


def with_more_source_classes(case: Case, more: int) -> Case:
    """The same images and answers when `more` source classes without target images are known."""
    return replace(
        case,
        n_source=case.n_source + more,
        truth=case.truth + more * (case.truth >= case.n_source),
        prediction=case.prediction + more * (case.prediction == case.n_source),
    )


properties = settings(max_examples=80, deadline=None)


@properties
@given(cases())
def test_values_are_fractions_or_none_and_never_nan(case: Case) -> None:
    for name, value in case.result().scalars().items():
        assert value is None or (type(value) is float and 0 <= value <= 1), name


@properties
@given(cases())
def test_a_value_is_missing_exactly_when_its_images_are(case: Case) -> None:
    has_unknown = bool((case.truth >= case.n_source).any())
    has_known = bool((case.truth < case.n_source).any())
    needs_known = {"known", "known_sample", "os_star", "closed_accuracy", "closed_classmean"}
    needs_unknown = {"unknown", "unk_classmean"}
    for name, value in case.result().scalars().items():
        exists = (has_known or name in {*needs_unknown, "accuracy"}) and (
            has_unknown or name in {*needs_known, "accuracy"}
        )
        if name == "hos_ovanet_legacy":
            exists = exists and case.n_source > 1
        assert (value is not None) == exists, name


@properties
@given(cases(), st.randoms(use_true_random=False))
def test_order_of_images_does_not_matter(case: Case, random: Random) -> None:
    order = list(range(len(case.truth)))
    random.shuffle(order)
    shuffled = case.take(torch.tensor(order)).result()
    assert shuffled.scalars() == case.result().scalars()
    assert shuffled.per_class == case.result().per_class
    assert torch.equal(shuffled.confusion, case.result().confusion)


@properties
@given(cases(), st.lists(st.integers(0, 10**12), min_size=4, max_size=4, unique=True))
def test_private_classes_may_be_renamed(case: Case, new_ids: list[int]) -> None:
    renamed = case.truth.clone()
    for old, new in enumerate(new_ids, start=case.n_source):
        renamed[case.truth == old] = case.n_source + new
    result = replace(case, truth=renamed).result()
    assert result.scalars() == pytest.approx(case.result().scalars(), abs=1e-12)
    assert sorted(result.confusion.tolist()) == sorted(case.result().confusion.tolist())


@properties
@given(cases())
def test_merging_private_classes_changes_the_mean_over_them_alone(case: Case) -> None:
    merged = replace(case, truth=case.truth.clamp(max=case.n_source)).result()
    expected = case.result()
    expected = expected._replace(unk_classmean=expected.unknown, hos_classmean=expected.hos)
    assert merged.scalars() == pytest.approx(expected.scalars(), abs=1e-12)


@properties
@given(cases(), st.integers(1, 3))
def test_source_classes_without_target_images_change_the_legacy_value_alone(case: Case, more: int) -> None:
    wider = with_more_source_classes(case, more).result()
    expected = case.result()._replace(hos_ovanet_legacy=wider.hos_ovanet_legacy)
    assert wider.scalars() == expected.scalars()


@properties
@given(cases(both_sides=True), st.integers(2, 4))
def test_legacy_known_term_is_os_from_two_source_private_classes_on(case: Case, more: int) -> None:
    result = with_more_source_classes(case, more).result()
    assert result.hos_ovanet_legacy == pytest.approx(harmonic_mean(result.os, result.unknown), abs=1e-12)


@properties
@given(cases(), st.sampled_from(["cube", "scale", "exp"]))
def test_only_the_order_of_scores_matters(case: Case, transform: str) -> None:
    rising = {"cube": lambda s: s**3, "scale": lambda s: 8 * s - 3, "exp": torch.exp}[transform]
    assert replace(case, score=rising(case.score)).result().scalars() == case.result().scalars()


@properties
@given(cases())
def test_turning_the_scores_round_mirrors_auroc(case: Case) -> None:
    forward, backward = case.result().auroc, replace(case, score=-case.score).result().auroc
    if forward is None:
        assert backward is None
    else:
        assert backward == pytest.approx(1 - forward, abs=1e-12)


@properties
@given(cases(both_sides=True))
def test_oscr_is_bounded_by_auroc_and_closed_accuracy(case: Case) -> None:
    result = case.result()
    assert result.oscr <= min(result.auroc, result.closed_accuracy) + 1e-12  # type: ignore[type-var, operator]
    closed_set_solved = replace(case, closed=case.truth.clamp(max=case.n_source - 1)).result()
    assert closed_set_solved.oscr == closed_set_solved.auroc


@properties
@given(cases())
def test_perfect_answers_give_one(case: Case) -> None:
    perfect = Case(
        n_source=case.n_source,
        truth=case.truth,
        prediction=case.truth.clamp(max=case.n_source),
        closed=case.truth.clamp(max=case.n_source - 1),
        score=(case.truth >= case.n_source).double(),
    ).result()
    assert set(perfect.scalars().values()) <= {1.0, None}
    for row in perfect.per_class:
        assert row.recall == (1.0 if row.n else None)
        assert row.precision == (1.0 if row.n and row.kind != "private" else None)


@properties
@given(cases(both_sides=True))
def test_hos_lies_between_its_terms(case: Case) -> None:
    result = case.result()
    for hos, terms in {
        result.hos: (result.known, result.unknown),
        result.hos_sample: (result.known_sample, result.unknown),
        result.hos_classmean: (result.known, result.unk_classmean),
    }.items():
        assert min(terms) - 1e-12 <= hos <= max(terms) + 1e-12  # type: ignore[type-var, operator]
        assert (hos == 0) == (0 in terms)


@properties
@given(cases(), st.integers(1, 5))
def test_balanced_classes_make_class_means_equal_sample_means(case: Case, per_class: int) -> None:
    classes = case.truth.unique()
    positions = [torch.nonzero(case.truth == c).flatten() for c in classes]
    balanced = case.take(torch.cat([p[torch.arange(per_class) % len(p)] for p in positions])).result()
    pairs = [
        (balanced.known, balanced.known_sample),
        (balanced.hos, balanced.hos_sample),
        (balanced.unknown, balanced.unk_classmean),
        (balanced.hos, balanced.hos_classmean),
        (balanced.closed_accuracy, balanced.closed_classmean),
    ]
    for by_class, by_sample in pairs:
        assert by_class == (None if by_sample is None else pytest.approx(by_sample, abs=1e-12))


@properties
@given(cases(), st.integers(2, 4))
def test_repeating_every_image_changes_nothing(case: Case, times: int) -> None:
    repeated = case.take(torch.arange(len(case.truth)).repeat(times)).result()
    assert repeated.scalars() == pytest.approx(case.result().scalars(), abs=1e-12)


@properties
@given(cases())
def test_tables_and_numbers_tell_the_same(case: Case) -> None:
    result, C = case.result(), case.n_source
    assert int(result.confusion[: C + 1].sum()) == len(case.truth)
    assert torch.equal(result.confusion[C], result.confusion[C + 1 :].sum(dim=0))
    assert result.per_class[C].recall == result.unknown
    recalls = [row.recall for row in result.per_class[:C] if row.recall is not None]
    assert result.known == (pytest.approx(sum(recalls) / len(recalls), abs=1e-12) if recalls else None)
    right = int(result.confusion.diagonal().sum())
    assert result.accuracy == pytest.approx(right / len(case.truth), abs=1e-12)


@properties
@given(fractions, fractions)
def test_harmonic_mean_is_symmetric_and_below_the_arithmetic(a: float, b: float) -> None:
    mean = harmonic_mean(a, b)
    assert mean is not None
    assert mean == harmonic_mean(b, a)
    assert mean <= (a + b) / 2 + 1e-12
    assert harmonic_mean(a, a) == pytest.approx(a)
    assert harmonic_mean(a, None) is None
    assert harmonic_mean(None, b) is None
