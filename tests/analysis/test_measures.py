"""NTR, DIS and PAS against independent versions, and on data whose answer is known."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from unida.analysis import measures
from unida.analysis.measures import (
    choose_tap,
    domain_invariance_score,
    linear_probe,
    negative_transfer_risk,
    source_negative_transfer_risk,
    validated_l2,
    word_vocabulary,
)
from unida.errors import UserError
from unida.models.words import prototype_alignment_score

CLASSES, CHANNELS = 5, 12


def blobs(count: int, spread: float, seed: int, classes: int = CLASSES) -> tuple[torch.Tensor, torch.Tensor]:
    """Features around a centre per class, on channels of very different scale, one of them dead."""
    random = np.random.default_rng(seed)
    centres = np.random.default_rng(7).normal(size=(classes, CHANNELS))
    labels = np.arange(count) % classes
    features = centres[labels] + spread * random.normal(size=(count, CHANNELS))
    features = features * np.logspace(-3, 3, CHANNELS) + 5
    features[:, 4] = 1.1
    return torch.from_numpy(features).float(), torch.from_numpy(labels)


# ---- the probe -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("l2", [1e-3, 0.1])
def test_the_probe_is_scikit_learns_logistic_regression(l2: float) -> None:
    features, labels = blobs(200, spread=0.8, seed=0)
    scaler = StandardScaler().fit(features.double())
    oracle = LogisticRegression(C=1 / (l2 * len(features)), max_iter=5000, tol=1e-8)
    oracle.fit(scaler.transform(features.double()), labels)
    weight, bias = linear_probe(features, labels, CLASSES, l2)
    new = blobs(50, spread=0.8, seed=1)[0]
    ours = torch.nn.functional.linear(new.double(), weight, bias).softmax(dim=1)
    assert np.allclose(ours, oracle.predict_proba(scaler.transform(new.double())), atol=2e-3)


def test_the_default_strength_is_scikit_learns() -> None:
    features, labels = blobs(60, spread=1.0, seed=0)
    by_default, said = linear_probe(features, labels, CLASSES), linear_probe(features, labels, CLASSES, 1 / 60)
    assert torch.equal(by_default[0], said[0])


def test_a_probe_can_be_fitted_to_features_from_inference_mode() -> None:
    with torch.inference_mode():
        features = blobs(30, spread=0.5, seed=0)[0].double()
    weight, _ = linear_probe(features, blobs(30, 0.5, 0)[1], CLASSES)
    assert weight.abs().sum() > 0


def test_noisier_classes_want_a_stronger_penalty_and_the_choice_predicts_better_than_the_extremes() -> None:
    clear, noisy = blobs(150, spread=0.6, seed=0), blobs(150, spread=4.0, seed=0)
    chosen = validated_l2(*noisy, CLASSES)
    assert validated_l2(*clear, CLASSES) < chosen
    new, labels = blobs(400, spread=4.0, seed=5)

    def loss(l2: float) -> float:
        weight, bias = linear_probe(*noisy, CLASSES, l2)
        return float(torch.nn.functional.cross_entropy(torch.nn.functional.linear(new.double(), weight, bias), labels))

    assert loss(chosen) < min(loss(measures.L2_STRENGTHS[0]), loss(measures.L2_STRENGTHS[-1]))


def test_between_strengths_the_lowest_point_of_a_parabola_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def probe(rows: torch.Tensor, labels: torch.Tensor, classes: int, l2: float) -> tuple[torch.Tensor, torch.Tensor]:
        loss = 1 + (math.log10(l2) + 2.3) ** 2  # what the bias makes of label 0
        return torch.zeros(2, 1).double(), torch.tensor([0, math.log(math.expm1(loss))]).double()

    monkeypatch.setattr(measures, "linear_probe", probe)
    assert math.log10(validated_l2(torch.zeros(9, 1), torch.zeros(9, dtype=torch.int64), 2)) == pytest.approx(-2.3)


# ---- NTR -------------------------------------------------------------------------------------------------------------


def test_ntr_is_the_accuracy_of_the_entropy_rule_on_scikit_learns_probe() -> None:
    source, labels = blobs(300, spread=1.2, seed=0)
    known = labels < 4
    target, target_labels = blobs(250, spread=1.2, seed=2)
    is_private = target_labels == 4
    l2 = 0.02
    scaler = StandardScaler().fit(source[known].double())
    oracle = LogisticRegression(C=1 / (l2 * int(known.sum())), max_iter=5000, tol=1e-8)
    oracle.fit(scaler.transform(source[known].double()), labels[known])
    p = oracle.predict_proba(scaler.transform(target.double()))
    entropy = -(p * np.log(p)).sum(axis=1)
    assert (np.abs(entropy - math.log(4) / 2) > 2e-3).all()  # or rounding would decide
    expected = ((entropy > math.log(4) / 2) == is_private.numpy()).mean()
    assert 0.5 < expected < 0.95
    assert negative_transfer_risk(source[known], labels[known], target, is_private, 4, l2) == pytest.approx(expected)


def test_ntr_is_high_for_class_specific_features_and_at_chance_for_noise() -> None:
    random = torch.Generator().manual_seed(0)
    labels = torch.arange(400) % 8
    centres = 8 * torch.eye(8, 16)
    is_private = labels >= 4
    clear = centres[labels] + torch.randn(400, 16, generator=random)
    noise = torch.randn(400, 16, generator=random)
    known = ~is_private
    assert negative_transfer_risk(clear[known], labels[known], clear, is_private, 4) > 0.8
    assert negative_transfer_risk(noise[known], labels[known], noise, is_private, 4) == pytest.approx(0.5, abs=0.07)
    assert source_negative_transfer_risk(clear, labels) > 0.8
    assert source_negative_transfer_risk(noise, labels) == pytest.approx(0.5, abs=0.07)


def test_the_sources_ntr_depends_on_its_seed_alone_and_not_on_the_names_of_classes() -> None:
    features, labels = blobs(120, spread=2.0, seed=0, classes=6)
    first = source_negative_transfer_risk(features, labels, seed=3)
    assert first == source_negative_transfer_risk(features, labels, seed=3)
    assert first == source_negative_transfer_risk(features, 10 * labels + 4, seed=3)
    assert first != source_negative_transfer_risk(features, labels, seed=4)


def test_the_source_learns_from_no_image_that_it_is_measured_on(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def record(learned: torch.Tensor, labels: torch.Tensor, seen: torch.Tensor, *rest: object) -> float:
        calls.append((learned, labels, seen, *rest))
        return 0.0

    monkeypatch.setattr(measures, "negative_transfer_risk", record)
    features, labels = torch.arange(50.0)[:, None], torch.arange(50) % 5
    source_negative_transfer_risk(features, labels, splits=3, l2=1.0)
    assert len(calls) == 3
    for learned, known, seen, is_private, num_known, _ in calls:
        assert set(known.tolist()) == set(range(num_known)) == {0, 1}
        assert not set(learned[:, 0].tolist()) & set(seen[:, 0].tolist())
        assert len(learned) == 2 * 5 and len(seen) == 5 * 5 and int(is_private.sum()) == 3 * 5
        known_classes = {int(row) % 5 for row in learned[:, 0]}
        assert {int(row) % 5 for row in seen[is_private][:, 0]} == set(range(5)) - known_classes


def test_classes_of_one_image_leave_nothing_to_hold_out() -> None:
    with pytest.raises(UserError, match="no class of the source has two images"):
        source_negative_transfer_risk(torch.randn(6, 2), torch.arange(6))


def test_two_classes_cannot_play_private() -> None:
    with pytest.raises(UserError, match="its NTR needs three"):
        source_negative_transfer_risk(torch.randn(10, 3), torch.arange(10) % 2)


# ---- DIS -------------------------------------------------------------------------------------------------------------


def normal(rows: int, channels: int, seed: int) -> torch.Tensor:
    return torch.randn(rows, channels, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("channels", [4, 150])
def test_a_set_is_invariant_to_itself(channels: int) -> None:
    features = normal(120, channels, seed=0)
    assert domain_invariance_score(features, features) == pytest.approx(1, abs=0.05)
    order = torch.randperm(120, generator=torch.Generator().manual_seed(1))
    assert domain_invariance_score(features, features[order]) == pytest.approx(1, abs=0.05)


def test_two_samples_of_one_distribution_are_invariant() -> None:
    assert domain_invariance_score(normal(400, 20, seed=0), normal(300, 20, seed=1)) == pytest.approx(1, abs=0.1)


def test_separable_domains_are_not_invariant() -> None:
    assert domain_invariance_score(normal(80, 10, seed=0), normal(200, 10, seed=1) + 4) < 0.02


def test_dis_is_twice_the_error_of_scikit_learns_domain_classifier() -> None:
    source, target = normal(1500, 6, seed=0), normal(1500, 6, seed=1) + 0.45
    features, domain = torch.cat([source, target]).double().numpy(), np.arange(3000) >= 1500
    errors = []
    for seed in range(5):
        held_out = np.random.default_rng(seed).permutation(3000) < 600
        scaler = StandardScaler().fit(features[~held_out])
        # Two softmax rows share the penalty that one logistic row bears alone: C = 2 stands for ours of 1/N.
        oracle = LogisticRegression(C=2.0).fit(scaler.transform(features[~held_out]), domain[~held_out])
        errors.append(1 - oracle.score(scaler.transform(features[held_out]), domain[held_out]))
    expected = 2 * float(np.mean(errors))
    assert 0.4 < expected < 0.7
    assert domain_invariance_score(source, target) == pytest.approx(expected, abs=0.04)


def test_the_larger_domain_does_not_outvote_the_smaller() -> None:
    """Learned from ten times as many source images, the best linear rule would call almost everything source."""
    assert domain_invariance_score(normal(1000, 6, seed=0), normal(100, 6, seed=1)) > 0.85
    shifted = normal(100, 6, seed=1) + 0.45
    few = domain_invariance_score(normal(100, 6, seed=0), shifted)
    assert domain_invariance_score(normal(1000, 6, seed=0), shifted) == pytest.approx(few, abs=0.12)
    assert few < 0.7


def test_an_image_in_both_domains_is_learned_or_held_out_in_both() -> None:
    random = np.random.default_rng(0)
    images = np.array([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14])
    is_target = np.arange(20) >= 10
    for _ in range(20):
        held_out = measures._held_out(images, is_target, random)
        assert not set(images[held_out]) & set(images[~held_out])
        assert held_out[~is_target].sum() == held_out[is_target].sum() == 2


def test_told_images_count_where_their_features_differ_by_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    features = normal(40, 3, seed=0)
    seen = []
    original = measures._held_out

    def record(images: np.ndarray, is_target: np.ndarray, draw: np.random.Generator) -> np.ndarray:
        seen.append(len(np.unique(images)))
        return original(images, is_target, draw)

    monkeypatch.setattr(measures, "_held_out", record)
    names = np.array([f"digest {i}" for i in range(40)])
    assert domain_invariance_score(features, features * (1 + 1e-6), 0, names, names) == pytest.approx(1, abs=0.05)
    assert set(seen) == {40}


def test_dis_is_deterministic_for_a_seed() -> None:
    source, target = normal(90, 8, seed=0), normal(120, 8, seed=1) + 0.4
    assert domain_invariance_score(source, target, seed=1) == domain_invariance_score(source, target, seed=1)
    assert domain_invariance_score(source, target, seed=1) != domain_invariance_score(source, target, seed=2)


@pytest.mark.parametrize(("sizes", "culprit"), [((4, 9), "source has 4"), ((9, 3), "target has 3")])
def test_a_handful_of_images_is_too_few_to_tell_domains_apart(sizes: tuple[int, int], culprit: str) -> None:
    with pytest.raises(UserError, match=culprit):
        domain_invariance_score(*(normal(size, 3, seed=size) for size in sizes))


def test_copies_within_a_domain_count_once() -> None:
    source, target = normal(60, 4, seed=0), normal(60, 4, seed=1) + 0.5
    assert domain_invariance_score(source.repeat(3, 1), target) == domain_invariance_score(source, target)


@pytest.mark.parametrize("shared", range(6))
def test_five_images_a_domain_are_enough(shared: int) -> None:
    features = normal(10, 4, seed=0)
    score = domain_invariance_score(features[:5], features[5 - shared : 10 - shared])
    assert 0 <= score <= 1


# ---- words for PAS ---------------------------------------------------------------------------------------------------


def test_words_are_as_near_as_scikit_learns() -> None:
    centres = normal(6, 10, seed=0)
    points = centres.repeat(40, 1) * (1 + normal(240, 1, seed=2).abs()) + 0.2 * normal(240, 10, seed=1)
    words = word_vocabulary(points, 6)
    assert words.shape == (6, 10)
    assert torch.allclose(words.norm(dim=1), torch.ones(6))
    directions = torch.nn.functional.normalize(points, dim=1)
    oracle = KMeans(6, n_init=10, random_state=0).fit(directions).cluster_centers_
    best = prototype_alignment_score(points, torch.from_numpy(oracle)).mean()
    assert prototype_alignment_score(points, words).mean() > best - 0.005


def test_there_are_no_more_words_than_locations() -> None:
    points = normal(3, 4, seed=0)
    assert prototype_alignment_score(points, word_vocabulary(points, 256)).tolist() == pytest.approx([1, 1, 1])


# ---- Definition 1 ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ntr", "dis", "chosen"),
    [
        ([0.5, 0.55, 0.6, 0.8, 0.9], [0.9, 0.8, 0.7, 0.4, 0.2], 2),  # the paper's figure: the last before both turn
        ([0.5, 0.55, 0.6, 0.65, 0.9], [0.9, 0.8, 0.5, 0.4, 0.2], 1),  # DIS gives out first
        ([0.5, 0.8, 0.85, 0.9, 0.9], [0.9, 0.8, 0.7, 0.7, 0.2], 0),  # NTR gives out first
        ([0.5, 0.5, 0.5], [0.9, 0.8, 0.1], 1),  # a flat curve forbids nothing
        ([0.5, 0.5, 0.5], [0.3, 0.3, 0.3], 2),  # nothing forbids anything: the deepest
        ([0.9, 0.5, 0.8, 0.5], [0.1, 0.8, 0.2, 0.9], 3),  # not in order: the deepest that passes
        ([0.0, 0.6, 1.0], [0.0, 0.4, 1.0], 1),  # at odds: none passes, the mildest violation wins
        ([0.7], [0.2], 0),
    ],
)
def test_definition_1_chooses(ntr: list[float], dis: list[float], chosen: int) -> None:
    assert choose_tap(ntr, dis) == chosen
    assert choose_tap([100 * value - 3 for value in ntr], [7 * value for value in dis]) == chosen  # any scale


@pytest.mark.parametrize(("among", "chosen"), [(range(3), 2), (range(4), 2), ([0, 1], 1), ([3], 3), ([2, 0], 2)])
def test_a_choice_among_some_places_keeps_the_thresholds_of_all(among: Sequence[int], chosen: int) -> None:
    """Of the first three places alone, NTR's range would end at 0.45, and only the first would pass its middle."""
    assert choose_tap([0.0, 0.4, 0.45, 1.0], [1.0, 0.9, 0.8, 0.0], among) == chosen


def test_curves_of_different_length_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="there are 2 and 1"):
        choose_tap([0.1, 0.2], [0.1])
