"""The memory of target prototypes (Li et al., DCC, CVPR 2021). Float32, also under autocast.

A step first updates the memory with its batch (`update_memory`), then pulls each image to its own prototype and away
from the others (`memory_loss`), with a weight that grows over the run (`ramp`).
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor


@torch.no_grad()
def update_memory(memory: Tensor, features: Tensor, clusters: Tensor) -> Tensor:
    """The memory after a batch: M_k ← normalise(w M_k + (1 − w) c_k), with w = ⟨M_k, c_k⟩.

    c_k is the normalised mean of the batch's normalised features of cluster k. The weight is their similarity, not a
    constant momentum: a prototype moves further if the batch is further from it. Clusters that the batch does not
    show stay as they are, and so does a cluster whose features sum to zero.

    Args:
        memory: (K, d) unit rows.
        features: (B, d), of any length.
        clusters: (B,) ids 0…K−1.

    Returns:
        (K, d) unit rows; the given memory is not changed.
    """
    directions = F.normalize(features.to(memory.dtype), dim=1)
    sums = torch.zeros_like(memory).index_add_(0, clusters, directions)
    batch = F.normalize(sums, dim=1)
    similarity = (memory * batch).sum(dim=1, keepdim=True)
    moved = F.normalize(similarity * memory + (1 - similarity) * batch, dim=1)
    return torch.where(sums.any(dim=1, keepdim=True), moved, memory)


def memory_loss(memory: Tensor, features: Tensor, clusters: Tensor, temperature: float = 0.1) -> Tensor:
    """Mean cross-entropy of each image's cluster under a softmax over cosine similarities / temperature.

    Args:
        memory: (K, d) unit rows; no gradient flows into them.
        features: (B, d), of any length.
        clusters: (B,) ids 0…K−1.
        temperature: 0.1 in DCC (paper and code).

    Returns:
        Scalar.
    """
    with torch.autocast(features.device.type, enabled=False):  # the product would be rounded to 16 bits
        cosines = F.normalize(features.to(memory.dtype), dim=1) @ memory.detach().T
    return F.cross_entropy(cosines / temperature, clusters)


def ramp(step: int, steps: int) -> float:
    """Weight of the memory loss at a step of a run: exp(−3 (1 − 0.6 · step / steps)), from 0.05 up to 0.30.

    DCC's code has exp(−3 (5000 − step) / 5000) and stops after 3,000 steps, so the ramp ends after three fifths of
    its length. Here it is stretched to the run's length, like the schedule of the learning rate.
    """
    return math.exp(-3 * (1 - 0.6 * step / steps))
