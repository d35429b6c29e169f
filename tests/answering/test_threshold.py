"""The threshold that is found on the target: its fit against a slow version, and what it finds in drawn scores."""

import json
import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from unida.answering import threshold as module
from unida.answering.threshold import MEANS, WIDTHS, Found, believed_shares, find_threshold
from unida.support.two_groups import equal_densities, fit

Array = NDArray[np.float64]


def slow_fit(x: list[float]) -> tuple[list[float], list[float], float]:
    """EM, image by image. The prior is `n` more images of each kind."""
    n = 30 + len(x) / 20
    before = [(-1.1, 1.0), (0.9, 0.6)]
    groups, shares = list(before), [0.5, 0.5]
    for _ in range(100):
        belongs = []
        for value in x:
            heights = [
                share / width * math.exp(-(((value - mean) / width) ** 2) / 2)
                for share, (mean, width) in zip(shares, groups, strict=True)
            ]
            belongs.append([height / sum(heights) for height in heights])
        shares = [(sum(b[kind] for b in belongs) + 1) / (len(x) + 2) for kind in (0, 1)]
        new = []
        for kind, (mean, width) in enumerate(before):
            count = n + sum(b[kind] for b in belongs)
            middle = (n * mean + sum(b[kind] * value for b, value in zip(belongs, x, strict=True))) / count
            around = sum(b[kind] * (value - middle) ** 2 for b, value in zip(belongs, x, strict=True))
            new.append((middle, math.sqrt((n * width**2 + around) / count)))
        groups = new
    return [mean for mean, _ in groups], [width for _, width in groups], shares[1]


def slow_log_likelihood(x: list[float], means: list[float], widths: list[float], share: float) -> float:
    total = 0.0
    for value in x:
        known, unknown = (
            math.exp(-(((value - mean) / width) ** 2) / 2) / width for mean, width in zip(means, widths, strict=True)
        )
        total += math.log((1 - share) * known + share * unknown)
    return total


def drawn(share: float, count: int = 2000, means: tuple[float, float] = (-2.5, 1.8), seed: int = 0) -> Array:
    """Logits of unknown scores: known images around the first mean, unknown ones around the second."""
    rng = np.random.default_rng(seed)
    unknown = round(share * count)
    known = rng.normal(means[0], 1.0, size=count - unknown)
    return np.concatenate([known, rng.normal(means[1], 0.7, size=unknown)])


def found_in(logits: Array, published: float = 0.5, alike: float = 1.0) -> Found:
    return find_threshold(torch.from_numpy(1 / (1 + np.exp(-logits))).float(), published, alike)


def logit(score: float) -> float:
    return math.log(score / (1 - score))


@pytest.mark.parametrize(("share", "count"), [(0.0, 40), (0.3, 7), (0.5, 150), (1.0, 40)])
def test_the_fit_is_em_with_a_prior(share: float, count: int) -> None:
    x = drawn(share, count)
    means, widths, found_share = fit(torch.from_numpy(x), MEANS, WIDTHS)
    slow_means, slow_widths, slow_share = slow_fit(x.tolist())
    np.testing.assert_allclose(means, slow_means, atol=1e-9)
    np.testing.assert_allclose(widths, slow_widths, atol=1e-9)
    assert found_share == pytest.approx(slow_share)


@pytest.mark.parametrize("alike", [1.0, 6.0])
def test_shares_are_believed_if_they_are_nearly_as_likely_as_the_best(
    alike: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SOME", 64)  # scores at a time
    x = drawn(0.3, 150)
    means, widths = [-2.0, 1.5], [1.1, 0.8]
    likely = {i: slow_log_likelihood(x.tolist(), means, widths, i / 100) / alike for i in range(1, 100)}
    believed = [i / 100 for i, value in likely.items() if value >= max(likely.values()) - 1.92]
    found = believed_shares(torch.from_numpy(x), torch.tensor(means).double(), torch.tensor(widths).double(), alike)
    assert found == pytest.approx((believed[0], believed[-1]))
    assert 0.05 < believed[-1] - believed[0] < 0.5


@pytest.mark.parametrize(
    ("means", "widths"),
    [((-1.0, 1.0), (1.0, 1.0)), ((-3.0, 1.0), (0.5, 0.5)), ((-2.0, 1.0), (1.0, 0.5)), ((-1.0, 1.0), (0.01, 5.0))],
)
def test_the_threshold_is_where_densities_are_equal(means: tuple[float, float], widths: tuple[float, float]) -> None:
    low, high = means
    for _ in range(50):  # halve the range in which the second density overtakes the first
        middle = (low + high) / 2
        first, second = (math.exp(-(((middle - m) / w) ** 2) / 2) / w for m, w in zip(means, widths, strict=True))
        low, high = (low, middle) if second > first else (middle, high)
    place = equal_densities(torch.tensor(means).double(), torch.tensor(widths).double())
    assert place == pytest.approx(low, abs=0.003)


def test_a_group_that_covers_the_other_has_all_between_the_means() -> None:
    narrow, wide = torch.tensor([0.1, 3.0]).double(), torch.tensor([3.0, 0.1]).double()
    means = torch.tensor([0.0, 0.1]).double()
    assert equal_densities(means, narrow) == pytest.approx(0.1)  # all known
    assert equal_densities(means, wide) == pytest.approx(0.0)  # all unknown


@pytest.mark.parametrize("published", [0.5, 0.2, 0.9])
def test_very_few_images_keep_the_published_rule(published: float) -> None:
    for logits in ([-3.0], [3.0], [-2.0, 1.0], [0.0, 0.0, 0.0]):
        moved = np.array(logits) + logit(published)
        assert found_in(moved, published).threshold == pytest.approx(published, abs=0.05)
    nothing = find_threshold(torch.tensor([]), published)
    assert nothing.threshold == pytest.approx(published, abs=0.01)
    assert (nothing.lowest, nothing.highest, nothing.is_clear) == (0.0, 1.0, False)


@pytest.mark.parametrize("share", [0.05, 0.25, 0.5, 0.75, 0.95])
def test_two_clear_groups_are_told_apart_at_any_share(share: float) -> None:
    logits = drawn(share)
    found = found_in(logits)
    assert found.lowest <= share <= found.highest
    assert found.lowest <= found.share <= found.highest
    assert found.share == pytest.approx(share, abs=0.03)
    assert found.is_clear
    # The two densities are equal at −0.03. Of a group with few images, the prior has a say.
    assert logit(found.threshold) == pytest.approx(-0.03, abs=0.2 if 0.2 < share < 0.8 else 0.5)
    unknown = logits > logit(found.threshold)
    known_count = round((1 - share) * 2000)
    assert unknown[:known_count].mean() < 0.04 and unknown[known_count:].mean() > 0.96


def test_a_rare_image_is_worth_as_much_as_a_common_one() -> None:
    """Weighed by shares, the threshold would fall as the unknown share grows, by 0.35 here."""
    places = [logit(found_in(drawn(share)).threshold) for share in (0.25, 0.5, 0.75)]
    assert places == sorted(places)


def test_without_unknown_images_few_are_called_so() -> None:
    logits = drawn(0.0)
    found = found_in(logits)
    assert (logits > logit(found.threshold)).mean() < 0.05
    assert found.highest < 0.05
    assert not found.is_clear


def test_without_known_images_few_are_called_so() -> None:
    logits = drawn(1.0)
    found = found_in(logits)
    assert (logits <= logit(found.threshold)).mean() < 0.05
    assert found.lowest > 0.95
    assert not found.is_clear


def test_another_published_rule_moves_the_threshold_with_the_scores() -> None:
    """Scores that are moved on the logit's scale, with the rule, have a threshold that moves as far."""
    logits = drawn(0.4, means=(-1.5, 1.0))
    plain, moved = found_in(logits), found_in(logits + logit(0.1), published=0.1)
    assert logit(moved.threshold) == pytest.approx(logit(plain.threshold) + logit(0.1), abs=1e-3)
    assert (moved.share, moved.lowest, moved.highest) == pytest.approx((plain.share, plain.lowest, plain.highest))
    strict = found_in(logits, published=0.9)  # the same scores under another rule
    assert strict.threshold > plain.threshold + 0.02


@pytest.mark.parametrize("published", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("score", [0.0, 0.5, 1.0])
def test_scores_and_rules_at_the_edge_give_a_number(score: float, published: float) -> None:
    found = find_threshold(torch.full((50,), score), published)
    assert 0 <= found.threshold <= 1
    assert 0 <= found.lowest <= found.highest <= 1 and 0 < found.share < 1


def test_images_that_speak_with_one_voice_leave_more_doubt() -> None:
    one, six = found_in(drawn(0.3, 300)), found_in(drawn(0.3, 300), alike=6.0)
    assert one.threshold == six.threshold
    assert six.lowest < one.lowest < one.highest < six.highest


def test_what_is_told_about_it() -> None:
    clear, unclear = Found(0.4, 0.254, 0.21, 0.3, True), Found(0.5, 0.1, 0.0, 0.34, False)
    assert clear.note() == "two clear groups: about 25 % of the target is unknown (21 to 30 %)"
    assert unclear.note() == "no clear groups: 0 to 34 % of the target may be unknown"
    assert Found(**json.loads(json.dumps(clear.plain()))) == clear
