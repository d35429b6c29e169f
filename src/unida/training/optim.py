"""Optimisers and their schedule."""

from typing import Any

import torch
from torch.optim import SGD, Adam, Optimizer

from unida.methods.base import Turn
from unida.training.options import TrainingOptions


def build_optimiser(turn: Turn, options: TrainingOptions) -> Optimizer:
    """The turn's optimiser, with a parameter group for each of its groups.

    SGD has Nesterov momentum and weight decay (OVANet). Adam has torch's defaults and no decay (USFDA). The references
    make a group of each tensor; here a group has many, so that the fused kernel updates them at once.
    """
    # With a gradient scaler, a fused step would unscale by itself, which forbids clipping: use foreach there.
    implementation: dict[str, Any] = {"foreach": True} if options.precision == "16-mixed" else {"fused": True}
    groups = []
    for group in turn.groups:
        rate = (options.backbone_lr if group.pretrained else options.lr) or 0.0
        assert rate > 0  # complete
        rate *= group.scale
        groups.append(
            {"params": list(group.parameters), "lr": rate, "initial_lr": rate, "pretrained": group.pretrained}
        )
    if turn.optimiser == "adam":
        return Adam(groups, **implementation)
    return SGD(
        groups,
        momentum=options.momentum,
        nesterov=options.momentum > 0,
        weight_decay=options.weight_decay,
        **implementation,
    )


def inverse_decay(step: int, steps: int, decay: float = 10.0) -> float:
    """(1 + a t/T)^−0.75, the schedule of OVANet, DCC and their ancestors (DANN), as a factor of the initial rate.

    The references fix T = 10,000; here T is the length of the phase, which is the same at 10,000 steps.

    Args:
        decay: a; 10, less for a method that stops earlier on the curve, 0 for a constant rate.
    """
    return float((1 + decay * step / steps) ** -0.75)


def set_learning_rate(optimiser: Optimizer, step: int, steps: int, decay: float = 10.0) -> None:
    for group in optimiser.param_groups:
        group["lr"] = group["initial_lr"] * inverse_decay(step, steps, decay)


def learning_rates(optimiser: Optimizer) -> dict[str, float]:
    """The rate of the backbone and of new layers, for the log."""
    rates: dict[str, float] = {}
    for group in optimiser.param_groups:
        rates.setdefault("lr_backbone" if group["pretrained"] else "lr_new", group["lr"])
    return rates


def covers_all(turn: Turn, module: torch.nn.Module) -> bool:
    """Whether the turn updates every parameter that can learn."""
    updated = {id(p) for group in turn.groups for p in group.parameters}
    return all(id(p) in updated for p in module.parameters() if p.requires_grad)
