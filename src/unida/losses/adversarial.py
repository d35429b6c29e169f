"""What adversarial methods share: reversed gradients, their ramp, and weighted domain losses.

A discriminator tells the source (1) from the target (0). Behind `reverse_gradient` it learns to tell them apart, and
the features below it learn that it cannot (Ganin & Lempitsky, DANN). Float32, also under autocast.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


class _Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, coefficient: float) -> Tensor:
        ctx.coefficient = coefficient
        return inputs.view_as(inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return -ctx.coefficient * gradients[0], None


def reverse_gradient(inputs: Tensor, coefficient: float = 1.0) -> Tensor:
    """The same values; the gradient that comes back through them is multiplied by −coefficient."""
    result: Tensor = _Reversed.apply(inputs, coefficient)
    return result


def reversal_ramp(progress: float, steepness: float = 10.0) -> float:
    """2 / (1 + exp(−steepness · progress)) − 1: from 0 at the start up to 1 (DANN: 10)."""
    return 2 / (1 + math.exp(-steepness * progress)) - 1


def ramp_by_calls(step: int, steps: int, published_steps: int) -> tuple[float, float]:
    """The reversal's coefficients in a step, of the source and of the target, as UAN's family has them.

    Their released codes count calls of the discriminator, on a scale of 10,000: at step t, the source's is call 2t and
    the target's 2t + 1. There is no cap. Here the ramp is stretched from the published number of steps to the run's.
    """
    calls = (2 * step, 2 * step + 1)
    source, target = (reversal_ramp(call * published_steps / steps / 10_000) for call in calls)
    return source, target


def domain_loss(
    source_logits: Tensor,
    target_logits: Tensor,
    source_weights: Tensor | None = None,
    target_weights: Tensor | None = None,
) -> Tensor:
    """mean w_s · BCE(D(source), 1) + mean w_t · BCE(D(target), 0). Means are over images, not over weights.

    From logits, so it is exact for a sure discriminator too. The released codes take the BCE of a sigmoid. In float32
    that is 1 for logits above 17, and the BCE of a target image is then 100.

    Args:
        source_logits: (B,) of the discriminator, before the sigmoid; so are target_logits, (B′,).
        source_weights: (B,) without gradients; None: all 1. So are target_weights, (B′,).
    """
    losses = (F.softplus(-source_logits.float()), F.softplus(target_logits.float()))  # −log σ(x), −log(1 − σ(x))
    weighted = (
        loss if weights is None else weights.detach() * loss
        for loss, weights in zip(losses, (source_weights, target_weights), strict=True)
    )
    total: Tensor = sum(loss.mean() for loss in weighted)  # type: ignore[assignment]
    return total


def min_max(values: Tensor, epsilon: float = 0.0) -> Tensor:
    """(N,) → 0…1 over the batch. If all values are equal, all are 0: the released codes divide by zero there."""
    low, high = values.min(), values.max()
    return (values - low) / (high - low + epsilon).clamp_min(torch.finfo(values.dtype).tiny)


def over_mean(values: Tensor, epsilon: float = 0.0) -> Tensor:
    """(N,) divided by their mean; if all are 0, they stay 0."""
    return values / (values.mean() + epsilon).clamp_min(torch.finfo(values.dtype).tiny)
