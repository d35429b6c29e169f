"""Devices and processes: what Fabric is told, and how several processes keep in step."""

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies import DDPStrategy
from torch import nn

from unida.config import TrainingOptions
from unida.errors import UserError

T = TypeVar("T")


def open_fabric(training: TrainingOptions, parameters_unused: bool = False) -> Fabric:
    """Fabric for a run, not yet launched; an accelerator or a precision that is not there is a UserError.

    Args:
        parameters_unused: some update leaves parameters without a gradient. Processes then look for them every time,
            in place of waiting for their gradients.
    """
    devices, nodes = training.devices, training.num_nodes
    if "TORCHELASTIC_RUN_ID" in os.environ:  # torchrun has started the processes: it says how many there are
        devices = int(os.environ["LOCAL_WORLD_SIZE"])
        nodes = int(os.environ["WORLD_SIZE"]) // devices
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # or every process would say hello
    try:
        fabric = Fabric(
            accelerator=training.accelerator,
            devices=devices,
            num_nodes=nodes,
            precision=training.precision,
            # While the main process decodes and computes features, which may take hours, the others wait for it.
            strategy=DDPStrategy(timeout=timedelta(days=7), find_unused_parameters=parameters_unused)
            if devices * nodes > 1
            else "auto",
        )
    except (ValueError, RuntimeError) as error:  # a name that does not exist, or a device that is not there
        reason = " ".join(str(error).split()).rstrip(".")
        raise UserError(f"--accelerator {training.accelerator} with --devices {training.devices}: {reason}") from error
    if fabric.device.type == "cpu" and training.precision != "32":
        _refuse_missing_bfloat16(training.precision)
    return fabric


def _refuse_missing_bfloat16(precision: str) -> None:
    """Some virtual machines announce instructions that they do not have: the first product kills the process."""
    product = "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); torch.nn.functional.linear(a, a)"
    if subprocess.run([sys.executable, "-c", product], capture_output=True).returncode != 0:
        raise UserError(
            f"--precision {precision}: this processor fails at 16-bit arithmetic; leave it out, or set the environment "
            "variable ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16"
        )


def open_fabric_for_answers() -> Fabric:
    """Fabric for answering with a model wherever it may have been trained: one device of this machine, 32 bits."""
    return Fabric(accelerator="auto", devices=1)


def main_process_first(fabric: Fabric, work: Callable[[], T]) -> T:
    """The main process works first (it fills the caches), the others after it; a user's error stops them all."""
    if fabric.world_size == 1:
        return work()
    error = None
    if fabric.is_global_zero:
        try:
            result = work()
        except UserError as exception:
            error = str(exception)
    error = fabric.broadcast(error)
    if error is not None:
        raise UserError(error)
    return result if fabric.is_global_zero else work()


def told_by_main_process(fabric: Fabric, work: Callable[[], T]) -> T:
    """The main process works alone, the others are told its plain result; a user's error stops them all."""
    if fabric.world_size == 1:
        return work()
    result, error = None, None
    if fabric.is_global_zero:
        try:
            result = work()
        except UserError as exception:
            error = str(exception)
    result, error = fabric.broadcast((result, error))
    if error is not None:
        raise UserError(error)
    return result  # type: ignore[return-value]


def share_buffers(fabric: Fabric, module: nn.Module) -> None:
    """Give every process the main one's buffers: each has BatchNorm statistics of its own share after a step.

    The main process's are those that a checkpoint holds, so all processes then answer with the model that is saved.
    """
    if fabric.world_size > 1:
        for buffer in module.buffers():
            torch.distributed.broadcast(buffer, src=0)


def share_parameters(fabric: Fabric, module: nn.Module) -> None:
    """Give every process the main one's parameters, where they were set by other means than a shared update."""
    if fabric.world_size > 1:
        for parameter in module.parameters():
            torch.distributed.broadcast(parameter.data, src=0)
