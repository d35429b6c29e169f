"""How well groups of images agree with the images' true classes."""

from dataclasses import dataclass

import torch
from torch import Tensor

NO_GROUP = -1


@dataclass(frozen=True)
class GroupingResult:
    """All of it is about images of classes that only the target has, and that the run called unknown.

    Attributes:
        accuracy: share of them that lie in the group of their class. Each class has one group at most, each group one
            class: the pairs that give most images (Hungarian method).
        nmi: normalised mutual information of groups and classes, by the mean of both entropies. Images in no group
            count as one more group.
        h3: harmonic mean of the run's known accuracy, its unknown accuracy, and nmi (UniOT).
        found: groups.
        true: classes that only the target has.
        images: how many were compared.
        astray: images of a source class that were called unknown. They are left out above.
    """

    accuracy: float | None
    nmi: float | None
    h3: float | None
    found: int
    true: int
    images: int
    astray: int


def measure_groups(
    groups: Tensor, truth: Tensor, num_classes: int, num_private: int, known: float | None, unknown: float | None
) -> GroupingResult:
    """Compare groups with the truth.

    Args:
        groups: (N,) of the images that a run called unknown; −1: in no group.
        truth: (N,) their true classes; those from `num_classes` on are the target's alone.
        num_private: classes that only the target has.
        known: the run's accuracy on shared classes.
        unknown: the share of private images that the run called unknown.
    """
    is_private = truth >= num_classes
    accuracy = clustering_accuracy(groups[is_private], truth[is_private])
    nmi = mutual_information(groups[is_private], truth[is_private])
    found = len(groups[groups != NO_GROUP].unique())
    h3 = harmonic_mean_of(known, unknown, nmi)
    return GroupingResult(accuracy, nmi, h3, found, num_private, int(is_private.sum()), int((~is_private).sum()))


def harmonic_mean_of(*values: float | None) -> float | None:
    """0 if any is 0, None if any does not exist."""
    there = [value for value in values if value is not None]
    if len(there) < len(values):
        return None
    return len(there) / sum(1 / value for value in there) if min(there) > 0 else 0.0


def clustering_accuracy(groups: Tensor, truth: Tensor) -> float | None:
    """The share of images in the group of their class, with the best pairs of groups and classes."""
    from scipy.optimize import linear_sum_assignment  # few need it, and it loads slowly

    if not len(truth):
        return None
    grouped = groups != NO_GROUP
    counts = _counts(groups[grouped], truth[grouped]).numpy()
    rows, columns = linear_sum_assignment(counts, maximize=True)
    return float(counts[rows, columns].sum()) / len(truth)


def mutual_information(groups: Tensor, truth: Tensor) -> float | None:
    """NMI = I / ½ (H(groups) + H(truth)), in 0…1; 1 if both are a single group."""
    if not len(truth):
        return None
    joint = _counts(groups, truth) / len(truth)
    own, other = joint.sum(dim=1), joint.sum(dim=0)
    entropies = [float(-torch.special.xlogy(part, part).sum()) for part in (own, other)]
    if sum(entropies) == 0:
        return 1.0
    information = sum(entropies) + float(torch.special.xlogy(joint, joint).sum())
    return min(max(2 * information / sum(entropies), 0.0), 1.0)


def _counts(groups: Tensor, truth: Tensor) -> Tensor:
    """(G, C) float64: images of each group and class, of those that there are."""
    rows, columns = (ids.unique(return_inverse=True) for ids in (groups, truth))
    counts = torch.zeros(len(rows[0]), len(columns[0]), dtype=torch.float64)
    return counts.index_put_((rows[1], columns[1]), torch.ones(len(truth), dtype=torch.float64), accumulate=True)
