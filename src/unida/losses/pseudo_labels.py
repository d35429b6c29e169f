"""Pseudo-labels for target images: how they are found, kept and learnt (GDA; the re-implementation of OSHT-SC).

A label is a class 0…C−1, or C for "unknown". NO_LABEL is none of them. Float32, also under autocast.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from unida.losses.entropy import entropy_of_logs
from unida.losses.source_free import log_masses

NO_LABEL = -1
UNKNOWN, NEITHER, KNOWN = -1, 0, 1
EPSILON = 1e-6  # in the logarithm of the entropy (GDA's code)

# ---- GDA: Mitsuzumi et al., Generalized Domain Adaptation, CVPR 2021 -------------------------------------------------


def early_votes(logits: Tensor, early_unknown: float) -> Tensor:
    """Labels of a batch before "unknown" was ever learnt: the images with the highest entropies are unknown.

    The entropy is that of the C known classes alone. Those above the ⌊share · B⌋-th highest (from 0) are unknown. The
    others have the largest of all C + 1 outputs, which may be "unknown" too.

    Args:
        logits: (B, C + 1) of the whole batch; the last output is "unknown".
        early_unknown: in 0…1, less than 1.

    Returns:
        (B,) int64 in 0…C.
    """
    p = F.softmax(logits[:, :-1].float(), dim=1)
    entropies = -(p * torch.log(p + EPSILON)).sum(dim=1)
    threshold = entropies.sort(descending=True).values[int(early_unknown * len(entropies))]
    return torch.where(entropies > threshold, logits.shape[1] - 1, logits.argmax(dim=1))


def with_votes(history: Tensor, indices: Tensor, votes: Tensor) -> Tensor:
    """The history after a batch: each of its images has one more vote, and loses its oldest one.

    An image that the batch shows twice votes once: its last vote counts.

    Args:
        history: (N, H) int64, the newest vote first; NO_LABEL where there is none yet.
        indices: (B,) which images these are.
        votes: (B,) int64.

    Returns:
        (N, H); the given history is not changed.
    """
    places = torch.arange(len(indices), device=indices.device)
    last = torch.where(indices[:, None] == indices[None], places, -1).amax(dim=1)
    moved = history.clone()
    moved[indices] = torch.cat([votes[last][:, None], history[indices, :-1]], dim=1)  # equal indices, equal rows
    return moved


def most_frequent(history: Tensor) -> Tensor:
    """(N, H) votes, the newest first → (N,) the most frequent one; of several, the one that was given last.

    NO_LABEL is no vote. An image without votes has NO_LABEL.
    """
    H = history.shape[1]
    same = (history[:, :, None] == history[:, None, :]).sum(dim=2)  # (N, H) how often each vote was given
    newness = torch.arange(H, 0, -1, device=history.device)
    ranks = torch.where(history == NO_LABEL, 0, same * (H + 1) + newness)
    return history.gather(1, ranks.argmax(dim=1, keepdim=True)).squeeze(1)


def prior_loss(logits: Tensor, prior: Tensor) -> Tensor:
    """−Σ_c prior_c · log(mean over images of p_c): answers as a whole should have the shares of the prior.

    The logarithm is taken of logits: a class that no image is given has a large loss, and not an infinite one.

    Args:
        logits: (B, K) of the whole batch.
        prior: (K,) shares.

    Returns:
        Scalar.
    """
    log_p = F.log_softmax(logits.float(), dim=1)
    return -(prior * (log_p.logsumexp(dim=0) - math.log(len(logits)))).sum()


def labelled_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Σ −log p_label / B. Images with NO_LABEL count as 0, so several processes have the mean of their losses.

    Args:
        logits: (B, K).
        labels: (B,) int64 in 0…K−1, or NO_LABEL.
    """
    return F.cross_entropy(logits.float(), labels, ignore_index=NO_LABEL, reduction="sum") / len(labels)


# ---- OSHT-SC, re-implemented from its abstract: formulas are ours ----------------------------------------------------


def two_sides(values: Tensor) -> float | None:
    """The cut that divides numbers best: the largest variance between the two sides (Otsu, 1979).

    Args:
        values: (N,).

    Returns:
        The middle between the two numbers beside the cut; None if all are equal.
    """
    ordered = values.double().sort().values
    n, N = torch.arange(1, len(ordered), device=values.device), len(ordered)
    sums = ordered.cumsum(0)
    means = sums[:-1] / n, (sums[-1] - sums[:-1]) / (N - n)
    between = torch.where(ordered[1:] > ordered[:-1], n * (N - n) * (means[1] - means[0]).square(), -1)
    if not len(between) or between.max() <= 0:
        return None
    at = int(between.argmax())
    return float((ordered[at] + ordered[at + 1]) / 2)


def confident_sides(entropies: Tensor) -> Tensor:
    """Which images are surely known, and which surely unknown: as many of each.

    On each side of the cut, those beyond the side's mean are sure; of the larger group, only the surest ones are taken.

    Args:
        entropies: (N,) of all target images; low for known ones.

    Returns:
        (N,) int64: KNOWN, UNKNOWN or NEITHER. If all entropies are equal, all are NEITHER.
    """
    found = torch.full_like(entropies, NEITHER, dtype=torch.int64)
    cut = two_sides(entropies)
    if cut is not None:
        numbers = entropies.double()
        low, high = numbers[numbers < cut], numbers[numbers >= cut]
        count = min(int((low <= low.mean()).sum()), int((high >= high.mean()).sum()))
        order = numbers.argsort(stable=True)
        found[order[:count]] = KNOWN
        found[order[len(order) - count :]] = UNKNOWN
    return found


def confident_labels(logits: Tensor) -> Tensor:
    """Labels for the surest images of each class, and "unknown" for as many of the least sure ones.

    Images that have the same best class are compared with each other: a class that is hard to be sure of has its
    labels too, and no class takes all.

    Args:
        logits: (N, C) of the known classes, of all target images.

    Returns:
        (N,) int64 in 0…C, or NO_LABEL.
    """
    entropies, best = entropy_of_logs(F.log_softmax(logits.float(), dim=1), dim=1), logits.argmax(dim=1)
    labels = torch.full_like(best, NO_LABEL)
    for of_class in (best == k for k in best.unique()):
        sides = confident_sides(entropies[of_class])
        known = torch.where(sides == KNOWN, best[of_class], NO_LABEL)
        labels[of_class] = torch.where(sides == UNKNOWN, logits.shape[1], known)
    return labels


def open_cross_entropy(known: Tensor, unknown: Tensor, labels: Tensor) -> Tensor:
    """−log p of the label, in one softmax over C known and K unknown outputs; for "unknown", of all K together.

    Args:
        known: (B, C) logits.
        unknown: (B, K) logits.
        labels: (B,) int64 in 0…C, or NO_LABEL.

    Returns:
        (B,); 0 for an image without a label.
    """
    C = known.shape[1]
    log_p = F.log_softmax(torch.cat([known, unknown], dim=1).float(), dim=1)
    of_class = log_p.gather(1, labels.clamp(0, C - 1)[:, None]).squeeze(1)
    of_label = torch.where(labels == C, log_masses(known, unknown)[1], of_class)
    return torch.where(labels == NO_LABEL, 0, -of_label)


def mutual_information(logits: Tensor, other_logits: Tensor) -> Tensor:
    """I(z; z′), in nats, for the answers z and z′ to two views of an image (Ji et al., IIC, ICCV 2019).

    P = mean over images of p p′ᵀ, made symmetric; I = Σ P_ij log(P_ij / (P_i P_j)). It is largest if the two answers
    are equal and certain, and all outputs are used equally often.

    Args:
        logits: (B, K) of the whole batch.
        other_logits: (B, K).

    Returns:
        Scalar, in 0…log K.
    """
    p, q = (F.softmax(given.float(), dim=1) for given in (logits, other_logits))
    with torch.autocast(p.device.type, enabled=False):  # or the product would have 16 bits
        joint = p.T @ q / len(p)
    joint = ((joint + joint.T) / 2).clamp_min(torch.finfo(torch.float32).tiny)  # 0 log 0 has no gradient
    each = joint.sum(dim=1)
    return (joint * (joint.log() - each.log()[:, None] - each.log()[None])).sum()
