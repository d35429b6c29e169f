"""How class-specific, how domain-invariant, how near to words are features? The measures of the SPA paper.

Kundu et al., "Subsidiary Prototype Alignment for Universal Domain Adaptation", NeurIPS 2022:

    NTR   negative-transfer risk: how well a source classifier's entropy separates private and shared target images
    DIS   domain-invariance score: 1 − d_A/2, how badly a linear classifier separates the domains
    PAS   prototype-alignment score: cosine between a feature and the nearest word

All are pure functions of features. Only `negative_transfer_risk` needs target labels.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from unida.clustering.kmeans import kmeans
from unida.errors import UserError
from unida.losses.entropy import entropy_of_logs
from unida.support.random import generator

L2_STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # for standardised features and a loss that is a mean over rows


def linear_probe(features: Tensor, labels: Tensor, num_classes: int, l2: float | None = None) -> tuple[Tensor, Tensor]:
    """Multinomial logistic regression, by L-BFGS on all rows at once: argmin of mean CE + l2/2 · ‖W‖².

    Features are standardised for the fit. The result is folded back, so that it applies to the given features.

    Args:
        features: (N, D).
        labels: (N,) int64 in 0…C−1.
        l2: by default 1/N, as in scikit-learn (its C = 1). Without it, features that separate the classes have no
            best classifier.

    Returns:
        weight (C, D) and bias (C,), float64: logits are ``F.linear(features.double(), weight, bias)``.
    """
    rows = features.double()
    mean, std = rows.mean(dim=0), rows.std(dim=0, correction=0)
    std = torch.where(std > 1e-6 * mean.abs(), std, 1.0)  # dead channels vary by float32's rounding alone
    rows = (rows - mean) / std
    strength = 1 / len(rows) if l2 is None else l2
    weight = torch.zeros(num_classes, rows.shape[1], dtype=torch.float64, device=rows.device, requires_grad=True)
    bias = torch.zeros(num_classes, dtype=torch.float64, device=rows.device, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [weight, bias],
        max_iter=500,
        tolerance_grad=1e-5,
        tolerance_change=1e-9,
        line_search_fn="strong_wolfe",
    )

    def objective() -> Tensor:
        optimiser.zero_grad()
        loss = F.cross_entropy(F.linear(rows, weight, bias), labels) + strength / 2 * weight.square().sum()
        loss.backward()
        return loss

    with torch.enable_grad():
        optimiser.step(objective)
    folded = weight.detach() / std
    return folded, bias.detach() - folded @ mean


def validated_l2(features: Tensor, labels: Tensor, num_classes: int) -> float:
    """The strength of `linear_probe` that makes held-out rows most likely (three folds).

    Linear evaluation also chooses it by held-out rows (Kornblith et al., 2019), but by accuracy; here the entropies
    matter. A parabola finds the best between the strengths tried. Without it, NTR would jump from one to the next.

    Args:
        features: (N, D).
        labels: (N,) int64 in 0…C−1.
    """
    fold = torch.from_numpy(generator(0, "validation").permutation(len(features)) % 3)

    def surprise(l2: float) -> float:
        losses = []
        for held_out in (fold == number for number in fold.unique()):
            weight, bias = linear_probe(features[~held_out], labels[~held_out], num_classes, l2)
            logits = F.linear(features[held_out].double(), weight, bias)
            losses.append(float(F.cross_entropy(logits, labels[held_out])))
        return float(np.mean(losses))

    losses = [surprise(l2) for l2 in L2_STRENGTHS]
    best = int(np.argmin(losses))
    if best in (0, len(losses) - 1):
        return L2_STRENGTHS[best]
    before, lowest, after = losses[best - 1 : best + 2]
    step = (before - after) / (2 * (before - 2 * lowest + after))  # −½…½: vertex of the parabola, in decades
    return L2_STRENGTHS[best] * 10**step


def negative_transfer_risk(
    source_features: Tensor,
    source_labels: Tensor,
    target_features: Tensor,
    target_is_private: Tensor,
    num_classes: int,
    l2: float | None = None,
) -> float:
    """NTR (SPA, supplementary): accuracy of "private if the source probe's entropy exceeds log(C)/2" on the target.

    The paper calls it a risk if private images are easy to recognise: adaptation then tends to merge all private
    classes. As in the paper, this is the plain accuracy over images, however many of them are private.

    Args:
        source_features: (N, D), with labels (N,) in 0…C−1.
        target_features: (M, D).
        target_is_private: (M,) bool, from the target's labels: for analysis, never for training.
        l2: of the probe. The paper gives none, and NTR depends on it: a probe that is too sure calls nothing private,
            one that is too weak calls everything private. By default, held-out source images decide (`validated_l2`).
    """
    strength = validated_l2(source_features, source_labels, num_classes) if l2 is None else l2
    weight, bias = linear_probe(source_features, source_labels, num_classes, strength)
    log_p = F.log_softmax(F.linear(target_features.double(), weight, bias), dim=1)
    said_private = entropy_of_logs(log_p) > math.log(num_classes) / 2
    return float((said_private == target_is_private).double().mean())


def source_negative_transfer_risk(
    features: Tensor, labels: Tensor, seed: int = 0, splits: int = 5, l2: float | None = None
) -> float:
    """A replacement for NTR that needs no target labels: some classes of the source play the private ones.

    In each split a random half of the classes is known and the others are private; a random half of every class is
    held out. The probe learns the known classes from the rest, and NTR is measured on the held-out images. Like NTR, it
    measures how class-specific features are, but not how the shift between the domains changes that.

    Args:
        features: (N, D).
        labels: (N,) int64; three classes or more (two known, one private).
        l2: of the probes; by default, the best for a probe of all classes (`validated_l2`).
    """
    _, labels = torch.unique(labels, return_inverse=True)
    num_classes = int(labels.max()) + 1
    if num_classes < 3:
        raise UserError(f"the source has {num_classes} classes: its NTR needs three, so that one can play private")
    if len(labels) == num_classes:
        raise UserError("no class of the source has two images: its NTR needs two, to hold one out")
    strength = validated_l2(features, labels, num_classes) if l2 is None else l2
    num_known = max(2, num_classes // 2)
    risks = []
    for split in range(splits):
        draw = generator(seed, "classes that play private", split)
        order = torch.from_numpy(draw.permutation(num_classes)).to(labels.device)
        shuffled = torch.argsort(order)[labels]  # every class gets a random number; the first are known
        held_out = torch.zeros_like(labels, dtype=torch.bool)
        for label in range(num_classes):
            rows = torch.from_numpy(draw.permutation(int((labels == label).sum()))).to(labels.device)
            held_out[(labels == label).nonzero()[:, 0][rows[: len(rows) // 2]]] = True
        learned = ~held_out & (shuffled < num_known)
        is_private = shuffled[held_out] >= num_known
        risks.append(
            negative_transfer_risk(
                features[learned], shuffled[learned], features[held_out], is_private, num_known, strength
            )
        )
    return float(np.mean(risks))


def domain_invariance_score(
    source_features: Tensor,
    target_features: Tensor,
    seed: int = 0,
    source_images: np.ndarray | None = None,
    target_images: np.ndarray | None = None,
    splits: int = 10,
) -> float:
    """DIS = 1 − d_A/2 with d_A = 2(1 − 2ε): twice the error ε of a linear classifier that separates the domains.

    0: it is always right. 1: it is at chance, as with two samples of one distribution. ε is the error on held-out
    images (a fifth), averaged over random splits. In each split, the larger domain is cut to the size of the smaller
    one, so that chance is ½. An image that is in both domains is on the same side of a split in both. If it were
    learned in one and held out in the other, a classifier that remembers it would have an error above chance.

    Args:
        source_features, target_features: (N, D), (M, D).
        source_images, target_images: (N,), (M,) which image each row shows: equal values mean one image. By default,
            equal rows show the same image.
    """
    features = torch.cat([source_features, target_features])
    if source_images is None or target_images is None:
        images = torch.unique(features, dim=0, return_inverse=True)[1].cpu().numpy()
    else:
        images = np.unique(np.concatenate([source_images, target_images]), return_inverse=True)[1]
    is_target = np.arange(len(features)) >= len(source_features)
    domains = [np.flatnonzero(is_target == side) for side in (False, True)]
    domains = [rows[np.unique(images[rows], return_index=True)[1]] for rows in domains]  # every image once
    refuse_few_images(*(images[rows] for rows in domains))
    size = min(len(rows) for rows in domains)
    errors = []
    for split in range(splits):
        draw = generator(seed, "domain split", split)
        rows = np.concatenate([draw.permutation(rows)[:size] for rows in domains])
        held_out = _held_out(images[rows], is_target[rows], draw)
        errors.append(_domain_error(features, is_target, rows[~held_out], rows[held_out]))
    return min(1.0, max(0.0, 2 * float(np.mean(errors))))


def refuse_few_images(source_images: np.ndarray, target_images: np.ndarray) -> None:
    """DIS holds out a fifth of each domain's different images: there must be five."""
    for name, images in (("source", source_images), ("target", target_images)):
        count = len(np.unique(images))
        if count < 5:
            raise UserError(f"the {name} has {count} different images: to hold out a fifth for DIS, five are needed")


def _held_out(images: np.ndarray, is_target: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """(N,) bool: all rows of a fifth of the images, drawn separately from images of the source, the target and both."""
    ids, image_of_row = np.unique(images, return_inverse=True)
    in_source, in_target = (np.bincount(image_of_row, is_target == side, len(ids)) > 0 for side in (False, True))
    chosen = np.zeros(len(ids), dtype=bool)
    for kind in (in_source & in_target, in_source & ~in_target, ~in_source & in_target):
        members = draw.permutation(np.flatnonzero(kind))
        count = max(1, round(len(members) / 5)) if len(members) > 1 else 0
        chosen[members[:count]] = True
    return chosen[image_of_row]


def _domain_error(features: Tensor, is_target: np.ndarray, learned: np.ndarray, held_out: np.ndarray) -> float:
    """Mean of the two domains' errors on the held-out rows, for a linear classifier trained on the learned rows."""
    domain = torch.from_numpy(is_target.astype(np.int64)).to(features.device)
    weight, bias = linear_probe(features[learned], domain[learned], 2)
    said = F.linear(features[held_out].double(), weight, bias).argmax(dim=1)
    wrong = (said != domain[held_out]).double()
    return float(wrong[domain[held_out] == 0].mean() + wrong[domain[held_out] == 1].mean()) / 2


def word_vocabulary(locations: Tensor, count: int, seed: int = 0) -> Tensor:
    """Words for features that have none of their own: k-means of their directions.

    For unit vectors, the nearest by distance is also the nearest by cosine. So these words reach nearly the highest
    mean PAS that `count` words can have.

    Args:
        locations: (N, D) features at single locations.
        count: K; fewer words come back if there are fewer different locations.

    Returns:
        (K, D) of unit length.
    """
    centres = kmeans(F.normalize(locations.float(), dim=1), count, seed).centres
    return F.normalize(centres, dim=1)


def choose_tap(ntr: Sequence[float], dis: Sequence[float], among: Sequence[int] | None = None) -> int:
    """Where to adapt, by Definition 1 of the SPA paper: a position in the two curves, shallow to deep.

    The definition asks for NTR ≤ ζ_n and DIS ≥ ζ_d (up to slacks ε and a probability 1 − δ, all zero here) and gives
    no numbers. Here each threshold is the middle of its measure's range over the taps: no number to choose, and none
    that depends on the data's scale. As NTR tends to grow with depth and DIS to shrink, shallow taps pass both; the
    paper wants features "at a sufficiently high semantic level", so the deepest tap that passes is taken. If none
    passes both, violations are measured as shares of each range, and the tap whose larger violation is smallest is
    taken; again the deepest of equals.

    Args:
        among: positions that may be chosen, by default all. The thresholds always come from the whole curves.
    """
    if not ntr or len(ntr) != len(dis):
        raise ValueError(f"one NTR and one DIS for every tap: there are {len(ntr)} and {len(dis)}")
    too_class_specific = _place_in_range(ntr) - 0.5
    too_domain_specific = 0.5 - _place_in_range(dis)
    violation = np.maximum(0, np.maximum(too_class_specific, too_domain_specific))
    allowed = np.sort(np.arange(len(ntr)) if among is None else np.asarray(among))
    return int(allowed[violation[allowed] == violation[allowed].min()][-1])


def _place_in_range(curve: Sequence[float]) -> np.ndarray:
    """Values from 0, the curve's lowest, to 1, its highest; a flat curve is in the middle everywhere."""
    values = np.asarray(curve, dtype=np.float64)
    span = values.max() - values.min()
    return (values - values.min()) / span if span > 0 else np.full(len(values), 0.5)
