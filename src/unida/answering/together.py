"""Scores of all target images together: images of one class lie near each other, whether that class has a name or not.

    z: features at unit length, the target's mean taken away, at unit length again
    r(i, j): j is the r-th nearest image of i, or i the r-th nearest of j; the larger of the two ranks
    w(i, j) = 1 − (r − 1)/k up to r = k, else 0                  images have a say if each is near the other
    λ = 0.1 + 50 o²                                              o: the odds that two neighbours name different classes
    q(i) = (λ p(i) + Σ_j w(i, j) q(j)) / (λ + Σ_j w(i, j))       p: the image's class probabilities
    v(i), u(i): the same for its vote (1 for its best class, 0 for the others) and for its unknown score
    unknown score = ⅓ (u + entropy of q / log C + entropy of v / log C)

The last two are high where neighbours name different classes. Votes do not depend on how sure of itself a classifier
is, which differs from one method and one source to the next.

An image counts as λ neighbours in its own answer: few where neighbours agree, many where they do not, so the data say
how far to spread. Both ranks must be small: a lone image of a known class, with unknown ones around it, is near none of
them by their own measure, and answers alone. docs/studies/together.md tells how this was found.

Nothing here knows a method or a label. A new image joins by its neighbours among the images that are kept.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from unida.answering.alone import Scored
from unida.answering.neighbours import Nearest, nearest
from unida.losses.entropy import entropy
from unida.support.random import generator

PUBLISHED = 0.45  # where the method's own threshold, ½, comes to lie: votes agree more than probabilities do
LIMIT = 20_000  # images that are kept for new ones to join; above, a random sample of them
LEAST_OWN_WEIGHT, MOST_OWN_WEIGHT, DOUBT = 0.1, 20.0, 50.0  # of λ
STILL = 1e-5  # a change that is none
MOST_ROUNDS = 500
BLOCK = 2**23  # numbers at a time
SOME = 2**16  # images at a time
EDGE = 1e-4  # unknown scores this near 0 or 1 count as such: their logit is kept finite


@dataclass(frozen=True)
class Together:
    """Scores after all images had their say."""

    probabilities: Tensor  # (N, C) float32
    unknown: Tensor  # (N,) float32 in 0…1; PUBLISHED is the method's own threshold
    kept: Callable[[], "Kept"]  # for new images; called only if a run keeps it


@dataclass(frozen=True)
class Kept:
    """What a new image needs to join: the target's images, or a random sample of them."""

    centre: Tensor  # (d,) mean of the target's directions
    directions: Tensor  # (M, d) float16, centred
    spread: Tensor  # (M, 2C + 1) float16: q, v and u
    cosines: Tensor  # (M, k) float16, to its nearest images, falling
    own_weight: float  # λ
    threshold: float  # the method's own, for its unknown score

    def join(self, scored: Scored) -> tuple[Tensor, Tensor]:
        """Class probabilities (B, C) and unknown scores (B,) of new images. They do not change each other's."""
        k = self.cosines.shape[1]
        width = max(len(self.directions), k * k, k * self.spread.shape[1])  # numbers for each new image
        some = torch.arange(len(scored)).split(max(1, BLOCK // width))
        parts = [self.join_few(scored.rows(rows)) for rows in some]
        return torch.cat([q for q, _ in parts]), torch.cat([unknown for _, unknown in parts])

    def join_few(self, scored: Scored) -> tuple[Tensor, Tensor]:
        """As `join`, for so few images that memory does not matter. An exported model has this as its graph."""
        others, weight = self.who_has_a_say(scored.directions)
        theirs = (weight[:, :, None] * self.spread[others].float()).sum(dim=1)
        own = self.own_weight * _own_values(scored, self.threshold)
        return _finished((own + theirs) / (self.own_weight + weight.sum(dim=1, keepdim=True)))

    def who_has_a_say(self, directions: Tensor) -> tuple[Tensor, Tensor]:
        """The kept images that are near a few new ones, and their weights: (B, k) each, the nearest first.

        Args:
            directions: (B, d) of unit length, as in `Scored`.
        """
        k = self.cosines.shape[1]
        best = (centred(directions, self.centre) @ self.directions.float().T).topk(k, dim=1)
        back = 1 + (self.cosines[best.indices].float() > best.values[:, :, None]).sum(dim=2)  # our rank in their lists
        rank = torch.maximum(back, torch.arange(1, k + 1))
        return best.indices, ((k + 1 - rank) / k).clamp(min=0)


def default_neighbours(count: int) -> int:
    """k = 2 N^¼, and at most a tenth of the images: classes grow more slowly than data sets do. Below 10 images, 0."""
    return min(round(2 * count**0.25), count // 10)


@torch.inference_mode()
def spread_scores(scored: Scored, k: int, threshold: float) -> Together:
    """Spread the scores of N images over their neighbours.

    Args:
        k: neighbours, 1 ≤ k < N.
        threshold: the method's own, for its unknown score.
    """
    some = scored.directions.split(SOME)  # all at once, numbers of 32 bits would take more memory than the rest
    centre = torch.stack([part.float().sum(dim=0) for part in some]).sum(dim=0) / len(scored)
    directions = torch.cat([centred(part, centre).half() for part in some])
    found = nearest(directions, k)
    weight = mutual_weights(found.others)
    own_weight = how_much_alone(found.others, weight, scored.probabilities)
    own = _own_values(scored, threshold)
    spread = _solve(found.others, weight, own_weight, own)
    probabilities, unknown = _finished(spread)

    def kept() -> Kept:
        rows, near = _sample(directions, found)
        return Kept(centre, directions[rows], spread[rows].half(), near.cosine.half(), own_weight, threshold)

    return Together(probabilities, unknown, kept)


def centred(directions: Tensor, centre: Tensor) -> Tensor:
    return F.normalize(directions.float() - centre, dim=1)


def mutual_weights(index: Tensor) -> Tensor:
    """(N, k) nearest images, the nearest first → (N, k) weights w; 0 if the other image does not have this one too."""
    k = index.shape[1]
    parts = []
    for rows in torch.arange(len(index)).split(max(1, BLOCK // k**2)):
        theirs = index[index[rows].long()]  # (B, k, k): the nearest images of the nearest images
        same = theirs == rows[:, None, None].to(index.dtype)
        back = torch.where(same.any(dim=2), same.to(torch.uint8).argmax(dim=2) + 1, k + 1)
        rank = torch.maximum(back, torch.arange(1, k + 1))
        parts.append((k + 1 - rank) / k)
    return torch.cat(parts)


def how_much_alone(index: Tensor, weight: Tensor, probabilities: Tensor) -> float:
    """λ, from the odds that two neighbours name different classes. 1 if no image has a neighbour.

    A pair counts by its weight and by how sure both images are: unknown images name any class, and say little.
    The odds are squared: a wrong link spoils all links behind it.
    """
    sure, closed = probabilities.max(dim=1)
    agree, total = 0.0, 0.0
    for rows in torch.arange(len(index)).split(SOME):
        others = index[rows].long()
        says = weight[rows] * sure[rows, None] * sure[others]
        agree += float((says * (closed[others] == closed[rows, None])).sum())
        total += float(says.sum())
    if total == 0:
        return 1.0
    odds = (total - agree) / max(agree, EDGE * total)
    return min(LEAST_OWN_WEIGHT + DOUBT * odds**2, MOST_OWN_WEIGHT)


def _own_values(scored: Scored, threshold: float) -> Tensor:
    """(N, 2C + 1): class probabilities, the vote, and the unknown score, moved so that its threshold is at ½."""
    probabilities = scored.probabilities
    vote = F.one_hot(probabilities.argmax(dim=1), probabilities.shape[1]).to(probabilities.dtype)
    return torch.cat([probabilities, vote, around_half(scored.unknown, threshold)[:, None]], dim=1)


def around_half(unknown: Tensor, threshold: float) -> Tensor:
    """σ(logit u − logit t): the order stays, and the threshold comes to lie at ½."""
    limit = torch.tensor(threshold).clamp(EDGE, 1 - EDGE)
    return unknown if threshold == 0.5 else torch.sigmoid(unknown.logit(EDGE) - limit.logit())


def _solve(index: Tensor, weight: Tensor, own_weight: float, own: Tensor) -> Tensor:
    """q of the equation above, by conjugate gradients: (λ + Σ_j w) q − W q = λ p, a symmetric positive system."""
    diagonal = own_weight + weight.sum(dim=1, keepdim=True)
    has_say = weight > 0  # often fewer than half: the others need no look
    others, says, count = index[has_say], weight[has_say], has_say.sum(dim=1)
    start = (count.cumsum(0) - count).to(others.dtype)

    def times(x: Tensor) -> Tensor:
        return diagonal * x - F.embedding_bag(others, x, start, per_sample_weights=says, mode="sum")

    tiny = torch.finfo(own.dtype).tiny
    q = own.clone()
    rest = own_weight * own - times(q)
    step = rest / diagonal
    size = (rest * step).sum(dim=0)
    for _ in range(MOST_ROUNDS):
        if float((rest / diagonal).abs().max()) < STILL:
            break
        moved = times(step)
        length = size / (step * moved).sum(dim=0).clamp(min=tiny)
        q = q + length * step
        rest = rest - length * moved
        new_size = (rest * rest / diagonal).sum(dim=0)
        step = rest / diagonal + new_size / size.clamp(min=tiny) * step
        size = new_size
    return q.clamp(0, 1)


def _finished(spread: Tensor) -> tuple[Tensor, Tensor]:
    """(N, 2C + 1) → class probabilities (N, C), and the unknown score (N,), to which disagreement adds."""
    classes = spread.shape[1] // 2
    q, vote, unknown = (part.float() for part in spread.split([classes, classes, 1], dim=1))
    probabilities, shares = (part / part.sum(dim=1, keepdim=True).clamp(min=EDGE) for part in (q, vote))
    if classes == 1:  # nothing to disagree about
        return probabilities, unknown[:, 0].clamp(0, 1)  # rounding may carry it above 1
    disagreement = (entropy(probabilities) + entropy(shares)) / math.log(classes)
    return probabilities, ((unknown[:, 0] + disagreement) / 3).clamp(0, 1)


def _sample(directions: Tensor, found: Nearest) -> tuple[Tensor, Nearest]:
    """All images; above the limit, a random sample of them, with their nearest images among the sample."""
    count, k = found.others.shape
    rows = kept_rows(count)
    if len(rows) == count:
        return rows, found
    return rows, nearest(directions[rows], min(k, default_neighbours(LIMIT)))


def kept_rows(count: int) -> Tensor:
    """Which of a target's images are kept for new ones to join."""
    if count <= LIMIT:
        return torch.arange(count)
    return torch.from_numpy(generator(0, "kept images").choice(count, size=LIMIT, replace=False)).sort().values
