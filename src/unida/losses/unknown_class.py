"""A classifier with one output more than there are classes. The last one is "unknown" (OSBP, ROS)."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

EPSILON = 1e-6  # inside both logarithms of the boundary loss (OSBP in TLlib)


def boundary_loss(answers: Tensor, boundary: float = 0.5) -> Tensor:
    """mean −t log(p + ε) − (1 − t) log(1 − p + ε), where p is the probability of "unknown" and t the boundary (OSBP).

    The least value is at p = t. Float32, also under autocast. Logs of small numbers are exact, so a classifier that is
    far too sure gives finite gradients.

    Args:
        answers: (B, C + 1), before the softmax.
        boundary: t, in 0…1.
    """
    log_p = F.log_softmax(answers.float(), dim=1)
    log_unknown, log_known = log_p[:, -1], log_p[:, :-1].logsumexp(dim=1)
    log_epsilon = log_p.new_tensor(math.log(EPSILON))
    of_unknown, of_known = (torch.logaddexp(log, log_epsilon) for log in (log_unknown, log_known))
    return -(boundary * of_unknown + (1 - boundary) * of_known).mean()


def unknown_class_score(answers: Tensor) -> Tensor:
    """p(unknown) / (p(unknown) + p(best class)): above ½ exactly if "unknown" is the largest output.

    Args:
        answers: (B, C + 1), before the softmax.

    Returns:
        (B,) in 0…1.
    """
    margin = answers[:, -1] - answers[:, :-1].amax(dim=1)
    score = torch.sigmoid(margin)
    just_above = 0.5 + torch.finfo(torch.float32).eps  # rounding must not decide
    return torch.where(margin > 0, score.clamp(min=just_above), score)
