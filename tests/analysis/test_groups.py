"""Groups of features: how many there are, who is in them, and what happens where there is nothing to group."""

import pytest
import torch
from sklearn.metrics import normalized_mutual_info_score
from torch import Tensor

from unida.analysis import groups
from unida.analysis.groups import find_groups
from unida.clustering.kmeans import ward_merges


def classes(sizes: list[int], spread: float = 0.6, seed: int = 0, dimensions: int = 64) -> tuple[Tensor, Tensor]:
    """Points around directions of their own, in random order, and the class of each."""
    draw = torch.Generator().manual_seed(seed)
    centres = torch.randn(len(sizes), dimensions, generator=draw)
    truth = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    truth = truth[torch.randperm(len(truth), generator=draw)]
    return centres[truth] + spread * torch.randn(len(truth), dimensions, generator=draw), truth


@pytest.mark.parametrize("sizes", [[30], [40, 40], [8, 80, 15], [20] * 12])
@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_classes_are_found_whatever_their_number_and_size(sizes: list[int], scale: float) -> None:
    features, truth = classes(sizes)
    found = find_groups(scale * features)
    assert found.count == len(sizes)
    assert normalized_mutual_info_score(truth, found.of) == 1
    assert torch.bincount(found.of).tolist() == sorted(sizes, reverse=True)  # the largest is the first
    assert found.sureness.min() > 0.2 and found.sureness.max() <= 1


def test_many_images_are_grouped_as_few_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above a number of images, small clusters are the leaves of the tree."""
    features, truth = classes([60] * 5)
    monkeypatch.setattr(groups, "MOST_SINGLE", 100)
    monkeypatch.setattr(groups, "LEAVES", 40)
    monkeypatch.setattr(groups, "SAMPLE", 200)
    monkeypatch.setattr(groups, "SOME", 70)
    found = find_groups(features)
    assert found.count == 5 and normalized_mutual_info_score(truth, found.of) == 1
    assert torch.equal(found.of, find_groups(features).of)


def test_a_lone_image_is_in_no_group_and_one_between_groups_is_unsure() -> None:
    features, truth = classes([20, 20])
    alone = torch.zeros(1, 64)
    alone[0, 0] = 1
    alone = alone - (alone @ features.T) @ torch.linalg.pinv(features.T)  # at a right angle to all
    between = features[truth == 0][:1] + features[truth == 1][:1]
    found = find_groups(torch.cat([features, alone, between]))
    assert found.count == 2
    assert found.of[40] == -1 and found.sureness[40] == 0
    assert found.of[41] >= 0 and found.sureness[41] < found.sureness[:40].min()


def test_sureness_is_the_slow_formula() -> None:
    features, _ = classes([12, 9, 7], spread=1.2)
    found = find_groups(features)
    z = torch.nn.functional.normalize(features, dim=1)
    cosine = z @ z.T
    for i, group in enumerate(found.of.tolist()):
        if group < 0:
            assert found.sureness[i] == 0
            continue
        mine = [j for j in range(len(z)) if found.of[j] == group]
        own = torch.stack([cosine[i, j] for j in mine if j != i]).mean()
        within = torch.stack([cosine[a, b] for a in mine for b in mine if a != b]).mean()
        others = [cosine[i, found.of == other].mean() for other in range(found.count) if other != group]
        expected = (own - max([*others, torch.tensor(0.0)])) / within
        assert float(found.sureness[i]) == pytest.approx(float(expected.clamp(0, 1)), abs=1e-4)
    assert found.count == 3 and not bool((found.of == -1).any())  # or the formula would be another


@pytest.mark.parametrize("count", [0, 1, 2])
def test_two_images_are_no_group(count: int) -> None:
    found = find_groups(torch.ones(count, 4))
    assert found.count == 0 and found.of.tolist() == [-1] * count and found.sureness.tolist() == [0] * count


@pytest.mark.parametrize("value", [0.0, 3.0])
@pytest.mark.parametrize("count", [3, 5, 50])
def test_copies_are_one_group(count: int, value: float) -> None:
    found = find_groups(torch.full((count, 4), value))
    assert found.of.tolist() == [0] * count
    assert found.sureness.min() > 0.99


@pytest.mark.parametrize("count", [5, 300])
def test_images_with_nothing_in_common_are_in_no_group(count: int) -> None:
    features = torch.randn(count, 512, generator=torch.Generator().manual_seed(1))
    assert find_groups(features).of.tolist() == [-1] * count


def test_a_small_class_needs_a_lower_limit() -> None:
    features, _ = classes([200, 3])
    assert find_groups(features).count == 1
    assert find_groups(features, least=3).count == 2


def test_merges_leave_one_cluster() -> None:
    points = torch.randn(9, 3, generator=torch.Generator().manual_seed(0)).double().numpy()
    merges = list(ward_merges(points, torch.ones(9).numpy()))
    gone = [j for _, j in merges]
    assert len(merges) == 8 and len(set(gone)) == 8
    assert all(i not in gone[:step] for step, (i, _) in enumerate(merges))
