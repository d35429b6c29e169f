"""Linear heads on features that do not change: solved at once, by L-BFGS on all images, instead of step by step."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unida.support.progress import progress

ITERATIONS, AT_A_TIME = 150, 10
L2 = 7.5e-5  # for a loss that is a mean over images and features of unit length


@torch.no_grad()
def minimise(objective: Callable[[], Tensor], parameters: Sequence[Tensor], title: str, visible: bool = True) -> float:
    """Move the parameters to a minimum of the objective, and return its value. They need not ask for gradients."""
    asked = [p.requires_grad for p in parameters]
    for parameter in parameters:
        parameter.requires_grad_(True)
    optimiser = torch.optim.LBFGS(
        parameters, max_iter=AT_A_TIME, history_size=10, tolerance_change=1e-7, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        with torch.enable_grad():
            loss = objective()
            for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                parameter.grad = gradient
        return loss

    loss = float("nan")
    with progress(title, ITERATIONS, visible=visible) as report:
        for done in range(0, ITERATIONS, AT_A_TIME):
            before, loss = loss, float(optimiser.step(closure))
            report(done + AT_A_TIME, f"loss {loss:.4f}")
            if before - loss < 1e-5 * before:  # of the loss before these iterations
                break
    for parameter, value in zip(parameters, asked, strict=True):
        parameter.grad = None
        parameter.requires_grad_(value)
    return loss


def solve_classifier(head: nn.Linear, features: Tensor, labels: Tensor) -> float:
    """The bias-free softmax classifier with the least cross-entropy, plus a penalty that keeps its answers soft.

    The penalty is for unit-length features: those of another length need smaller weights. Without it, features that
    separate the classes have no best classifier, and its entropy, which tells unknown images, would be near 0
    everywhere. docs/studies/features.md says how L2 was chosen.

    Args:
        features: (N, d).
        labels: (N,) int64.
    """
    strength = L2 / 2 * features.float().norm(dim=1).square().mean()
    features = features.float()
    head.weight.data.zero_()

    def objective() -> Tensor:
        return F.cross_entropy(F.linear(features, head.weight), labels) + strength * head.weight.square().sum()

    return minimise(objective, [head.weight], "classifier")
