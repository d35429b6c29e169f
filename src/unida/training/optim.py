"""The optimiser and its schedule."""

import torch
from torch.optim import SGD

from unida.config import TrainingOptions
from unida.methods.base import Method


def build_optimisers(method: Method, options: TrainingOptions) -> dict[str, SGD]:
    """One for each of the method's turns, with a momentum of its own."""
    return {turn: build_optimiser(method, options, turn) for turn in method.turns}


def build_optimiser(method: Method, options: TrainingOptions, turn: str = "goal") -> SGD:
    """Nesterov SGD with two parameter groups: the backbone at a tenth of the new layers' rate (OVANet).

    Two groups, not one per tensor as in the references, so that the fused kernel updates each in one go.
    """
    groups = method.parameter_groups(turn)
    lr = options.lr if options.lr is not None else method.default_lr
    backbone_lr = options.backbone_lr if options.backbone_lr is not None else 0.1 * lr
    # With a gradient scaler, a fused step would unscale by itself, which forbids clipping: use foreach there.
    implementation = {"foreach": True} if options.precision == "16-mixed" else {"fused": True}
    return SGD(
        [
            {"params": list(groups.backbone), "lr": backbone_lr, "initial_lr": backbone_lr},
            {"params": list(groups.new), "lr": lr, "initial_lr": lr},
        ],
        momentum=options.momentum,
        nesterov=options.momentum > 0,
        weight_decay=options.weight_decay,
        **implementation,
    )


def inverse_decay(step: int, steps: int, decay: float = 10.0) -> float:
    """(1 + 10 t/T)^−0.75, the schedule of OVANet, DCC and their ancestors (DANN), as a factor of the initial rate.

    The references fix T = 10,000; here T is the run's own length, which is the same at 10,000 steps.

    Args:
        decay: 10, or less for a method that stops on its way down.
    """
    return float((1 + decay * step / steps) ** -0.75)


def set_learning_rate(optimiser: torch.optim.Optimizer, step: int, steps: int, decay: float = 10.0) -> None:
    for group in optimiser.param_groups:
        group["lr"] = group["initial_lr"] * inverse_decay(step, steps, decay)
