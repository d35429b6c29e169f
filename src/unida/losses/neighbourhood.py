"""Neighbourhood clustering and entropy separation (Saito et al., DANCE, NeurIPS 2020). Float32, also under autocast.

Features have unit length; a similarity is a cosine over a temperature. `EPSILON` is inside the logs of DANCE's code.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

EPSILON = 1e-5


def softmax_entropy(logits: Tensor) -> Tensor:
    """−Σ p log(p + ε), p = softmax(logits), in nats; it may be below 0 by at most ε.

    Args:
        logits: (B, K).

    Returns:
        (B,).
    """
    p = F.softmax(logits, dim=1, dtype=torch.promote_types(logits.dtype, torch.float32))
    return -(p * (p + EPSILON).log()).sum(dim=1)


def similarities_to_others(
    features: Tensor, indices: Tensor, batch: Tensor, batch_indices: Tensor, memory: Tensor, temperature: float
) -> Tensor:
    """Similarities to the memory and to the batch. What shows the image itself gets a cosine of −1.

    Slots of the batch's images get −1 too: the batch holds these images as they are now. No gradient flows into the
    memory, but it does into the batch. A batch may show an image twice; the two are no neighbours.

    Args:
        features: (B, d) of this process's images, with indices (B,).
        batch: (B′, d) of the whole batch, with batch_indices (B′,).
        memory: (N, d), a row for each target image; rows of images that were not seen yet are zeros.

    Returns:
        (B, N + B′), divided by the temperature.
    """
    with torch.autocast(features.device.type, enabled=False):  # 16 bits are too few for a temperature of 0.05
        to_memory = (features @ memory.detach().T).index_fill(1, batch_indices, -1.0)
        to_batch = (features @ batch.T).masked_fill(indices[:, None] == batch_indices[None], -1.0)
    return torch.cat([to_memory, to_batch], dim=1) / temperature


def neighbourhood_clustering(logits: Tensor, similarities: Tensor) -> Tensor:
    """Mean entropy of one softmax over the classes and all other target images: each image is drawn to its nearest.

    Args:
        logits: (B, C), cosines to the classes over the temperature.
        similarities: (B, M), as of `similarities_to_others`.

    Returns:
        Scalar.
    """
    return softmax_entropy(torch.cat([logits, similarities.to(logits.dtype)], dim=1)).mean()


def entropy_separation(logits: Tensor, threshold: float, margin: float) -> Tensor:
    """−mean max(|H − ρ|, m): entropies that are further than m from ρ are pushed further away.

    Entropies nearer than m have no gradient: nothing is known about these images yet.

    Args:
        logits: (B, C).
        threshold: ρ, in nats.
        margin: m, in nats.

    Returns:
        Scalar.
    """
    return -(softmax_entropy(logits) - threshold).abs().clamp(min=margin).mean()
