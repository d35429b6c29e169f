"""Cross-entropy as STA and ROS write it: weights by class or image, and a small number in the logarithm."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def weighted_cross_entropy(
    logits: Tensor,
    labels: Tensor,
    class_weights: Tensor | None = None,
    epsilon: float = 0.0,
    image_weights: Tensor | None = None,
) -> Tensor:
    """Σ_i v_i · w_{y_i} · (−log(p_{y_i} + ε)) / B: divided by the number of images, not by the sum of their weights.

    Float32, also under autocast. With ε, an image that is surely wrong costs at most −log ε, and teaches nothing.

    Args:
        logits: (B, C), before the softmax.
        labels: (B,) int64 in 0…C−1.
        class_weights: (C,); None: all 1.
        epsilon: ε ≥ 0.
        image_weights: (B,) v, without gradients; None: all 1.
    """
    log_p = F.log_softmax(logits.float(), dim=1).gather(1, labels[:, None]).squeeze(1)
    if epsilon > 0:
        log_p = torch.logaddexp(log_p, log_p.new_tensor(math.log(epsilon)))
    if class_weights is not None:
        log_p = class_weights[labels] * log_p
    if image_weights is not None:
        log_p = image_weights.detach() * log_p
    return -log_p.mean()
