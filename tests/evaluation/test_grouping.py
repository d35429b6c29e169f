"""Measures of groups against other people's code, and where there is nothing to measure."""

import itertools

import pytest
import torch
from sklearn.metrics import normalized_mutual_info_score

from unida.evaluation.grouping import clustering_accuracy, measure_groups, mutual_information


@pytest.mark.parametrize("seed", range(5))
def test_nmi_is_that_of_scikit_learn(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    groups, truth = torch.randint(-1, 4, (60,), generator=draw), torch.randint(7, 12, (60,), generator=draw)
    assert mutual_information(groups, truth) == pytest.approx(normalized_mutual_info_score(truth, groups))


@pytest.mark.parametrize("seed", range(5))
def test_accuracy_is_the_best_of_all_pairings(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    groups, truth = torch.randint(-1, 3, (40,), generator=draw), torch.randint(0, 4, (40,), generator=draw)
    best = max(
        sum(int(((groups == g) & (truth == c)).sum()) for g, c in enumerate(order))
        for order in itertools.permutations(range(4), 3)
    )
    assert clustering_accuracy(groups, truth) == pytest.approx(best / 40)


def test_images_of_source_classes_are_left_out_and_counted() -> None:
    groups, truth = torch.tensor([0, 0, 1, 1, 0, -1]), torch.tensor([5, 5, 6, 6, 1, 2])
    result = measure_groups(groups, truth, num_classes=5, num_private=3, known=0.5, unknown=0.25)
    assert (result.accuracy, result.nmi, result.found, result.true) == (1, 1, 2, 3)
    assert (result.images, result.astray) == (4, 2)
    assert result.h3 == pytest.approx(3 / (1 / 0.5 + 1 / 0.25 + 1 / 1))


def test_nothing_to_measure_is_no_number() -> None:
    none = torch.empty(0, dtype=torch.int64)
    result = measure_groups(none, none, num_classes=5, num_private=0, known=0.5, unknown=None)
    assert (result.accuracy, result.nmi, result.h3, result.found, result.images) == (None, None, None, 0, 0)


def test_a_measure_of_zero_makes_h3_zero() -> None:
    groups, truth = torch.tensor([0, 1, 0, 1]), torch.tensor([5, 5, 6, 6])
    result = measure_groups(groups, truth, num_classes=5, num_private=2, known=0.5, unknown=0.5)
    assert result.nmi == pytest.approx(0, abs=1e-12) and result.h3 == pytest.approx(0, abs=1e-9)
    assert mutual_information(torch.zeros(3), torch.zeros(3)) == 1
