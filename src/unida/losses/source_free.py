"""What the source-free methods of Kundu et al. share (USFDA, InheriTune; CVPR 2020): known or not, without the source.

A softmax covers the source's C classes and N negative classes, which stand for everything else. Logits are given in
two parts, known (B, C) and negative (B, N). All is float32, also under autocast. Logarithms of sums are taken from the
logits: the released codes take log ŷ and log(1 − ŷ) of probabilities, which are −∞ if the network is certain.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from unida.losses.entropy import entropy_of_logs


def known_confidence(known: Tensor, negative: Tensor) -> Tensor:
    """(B,) the largest probability of a known class, in the softmax over all."""
    log_p = F.log_softmax(torch.cat([known, negative], dim=1).float(), dim=1)
    return log_p[:, : known.shape[1]].amax(dim=1).exp()


def log_masses(known: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
    """log ŷ_s and log(1 − ŷ_s), (B,) each, where ŷ_s is the sum of the known classes' probabilities."""
    parts = torch.stack([known.float().logsumexp(dim=1), negative.float().logsumexp(dim=1)])
    log_known, log_negative = F.log_softmax(parts, dim=0)
    return log_known, log_negative


def exponential_weights(confidence: Tensor, among: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """w = exp(c) and w′ = exp(1 − c), each brought to 0…1 over the batch. If all c are equal, both are 0.

    Args:
        confidence: (B,) in 0…1.
        among: confidences of the whole batch, if `confidence` is a share of it.
    """
    whole = confidence if among is None else among

    def scaled(values: Tensor, all_values: Tensor) -> Tensor:
        low, high = all_values.min(), all_values.max()
        return (values - low) / (high - low).clamp_min(torch.finfo(torch.float32).tiny)

    return scaled(confidence.exp(), whole.exp()), scaled((1 - confidence).exp(), (1 - whole).exp())


def relative_weights(confidence: Tensor, among: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """W = c over the largest c of the batch, and W′ = 1 − W (InheriTune's code). If all c are 0, W is 0.

    Args:
        confidence: (B,) in 0…1.
        among: confidences of the whole batch, if `confidence` is a share of it.
    """
    whole = confidence if among is None else among
    weight = confidence / whole.max().clamp_min(torch.finfo(torch.float32).tiny)
    return weight, 1 - weight


def mass_weights(known: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
    """w = ŷ_s and w′ = 1 − ŷ_s, (B,) each."""
    log_known, log_negative = log_masses(known, negative)
    return log_known.exp(), log_negative.exp()


def separation_loss(known: Tensor, negative: Tensor, weights: tuple[Tensor, Tensor]) -> Tensor:
    """Mean of w · −log ŷ_s + w′ · −log(1 − ŷ_s).

    Args:
        weights: w and w′, (B,) each, without gradients.
    """
    log_known, log_negative = log_masses(known, negative)
    w_known, w_negative = (weight.detach() for weight in weights)
    return (w_known * -log_known + w_negative * -log_negative).mean()


def split_entropy(known: Tensor, negative: Tensor, weights: tuple[Tensor, Tensor]) -> Tensor:
    """Mean of w · H(softmax of the known logits alone) + w′ · H(softmax of the negative logits alone).

    Args:
        weights: w and w′, (B,) each, without gradients.
    """
    entropies = [entropy_of_logs(F.log_softmax(logits.float(), dim=1)) for logits in (known, negative)]
    w_known, w_negative = (weight.detach() for weight in weights)
    return (w_known * entropies[0] + w_negative * entropies[1]).mean()


def negative_score(known: Tensor, negative: Tensor) -> Tensor:
    """(B,) in 0…1: the softmax between the best negative class and the best known one.

    Above ½ exactly if the largest of all C + N logits is a negative one; a tie is known, as argmax takes the first.
    """
    margin = negative.float().amax(dim=1) - known.float().amax(dim=1)
    score = torch.sigmoid(margin)
    just_above = 0.5 + torch.finfo(torch.float32).eps  # rounding must not decide
    return torch.where(margin > 0, score.clamp(min=just_above), score)


def pair_classes(labels: Tensor, num_classes: int) -> Tensor:
    """(B, 2) labels of two images → (B,) int64, the number of their unordered pair: 0…C(C−1)/2 − 1.

    Pairs are numbered (0, 1), (0, 2), …, (1, 2), …; two equal labels are no pair, and give −1.
    """
    low, high = labels.amin(dim=1), labels.amax(dim=1)
    number = low * (2 * num_classes - low - 1) // 2 + high - low - 1
    return torch.where(low == high, -1, number)
