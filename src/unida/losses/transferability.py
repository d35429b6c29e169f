"""How likely is an image of a class that both domains have? Weights and scores of UAN and I-UAN.

All are float32, also under autocast, and none has a gradient when a method uses it as a weight.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from unida.losses.adversarial import min_max, over_mean

EPSILON = 1e-10  # inside the logarithm of entropies (released codes of UAN and CMU), and in I-UAN's divisions
COUNT_EPSILON = 1e-6  # beside the number of images of a class (I-UAN's code)
SOURCE_TEMPERATURE = 10.0  # of the softmax whose entropy weighs source images (UAN's code); 1 for the target


def normalised_entropy(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """−Σ p log(p + 1e-10) / log C with p = softmax(logits / temperature): 0 certain, 1 no idea.

    Args:
        logits: (…, C), C at least 2.

    Returns:
        (…).
    """
    p = F.softmax(logits.float() / temperature, dim=-1)
    return -(p * torch.log(p + EPSILON)).sum(dim=-1) / math.log(logits.shape[-1])


def uan_source_weight(logits: Tensor, domain_logits: Tensor) -> Tensor:
    """w_s = H(softmax(logits / 10)) / log C − D′, in −1…1: high for images that look like the target's (UAN).

    Args:
        logits: (B, C) of the classifier.
        domain_logits: (B,) of D′, before the sigmoid; high for the source.
    """
    return normalised_entropy(logits, SOURCE_TEMPERATURE) - torch.sigmoid(domain_logits.float())


def uan_target_weight(logits: Tensor, domain_logits: Tensor) -> Tensor:
    """w_t = D′ − H(softmax(logits)) / log C, in −1…1: high for sure images that look like the source's (UAN).

    Arguments as in `uan_source_weight`.
    """
    return torch.sigmoid(domain_logits.float()) - normalised_entropy(logits)


def batch_weights(values: Tensor, epsilon: float = 0.0) -> Tensor:
    """(B,) → min-max over the batch, then over the mean: from 0, 1 on average; all 0 if all values are equal.

    UAN's code divides by zero in that case (epsilon 0); I-UAN's adds 1e-10 to both divisors.
    """
    return over_mean(min_max(values, epsilon), epsilon)


def prediction_margin(logits: Tensor) -> Tensor:
    """(…, C) → (…) difference of the two largest probabilities."""
    largest = F.softmax(logits.float(), dim=-1).topk(2, dim=-1).values
    return largest[..., 0] - largest[..., 1]


def class_margins(margins: Tensor, classes: Tensor, num_classes: int) -> Tensor:
    """(C,) mean margin of the images of each predicted class; 0 for a class that no image is predicted as (I-UAN).

    Args:
        margins: (B,) of target images.
        classes: (B,) int64, their predicted classes.
    """
    sums = margins.new_zeros(num_classes).index_add(0, classes, margins)
    counts = margins.new_zeros(num_classes).index_add(0, classes, torch.ones_like(margins))
    return sums / (counts + COUNT_EPSILON)


def rejection_threshold(limit: float, low: float = 0.0, high: float = 1.0) -> float:
    """The score of `rejection_score` above which an image is unknown; a number that float32 can hold."""
    return float(torch.tensor((high - limit) / (high - low), dtype=torch.float32))


def rejection_score(values: Tensor, limit: float, low: float = 0.0, high: float = 1.0) -> Tensor:
    """Unknown scores for the rule "unknown if value < limit": (high − value) / (high − low).

    Rounding does not decide: a score is above `rejection_threshold` exactly if its value is below the limit.

    Args:
        values: (B,) in low…high, high for known images.

    Returns:
        (B,) in 0…1.
    """
    threshold = torch.tensor(rejection_threshold(limit, low, high))
    above = float(torch.nextafter(threshold, torch.tensor(1.0)))
    scores = ((high - values.float()) / (high - low)).clamp(0, 1)
    return torch.where(values.float() < limit, scores.clamp(min=above), scores.clamp(max=float(threshold)))
