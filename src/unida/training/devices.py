"""Devices and processes of a run: what Fabric is given."""

import logging
import os
import subprocess
import sys
from datetime import timedelta
from functools import cache
from typing import Any

import torch
from torch import nn

from unida.errors import UserError
from unida.support.fabric import DDPStrategy, Fabric
from unida.training.options import TrainingOptions


def open_fabric(training: TrainingOptions) -> Fabric:
    """Fabric for a run, not yet launched; an accelerator or a precision that is not there is a UserError."""
    devices, nodes = training.devices, training.num_nodes
    if "TORCHELASTIC_RUN_ID" in os.environ:  # torchrun has started the processes: it says how many there are
        devices = int(os.environ["LOCAL_WORLD_SIZE"])
        nodes = int(os.environ["WORLD_SIZE"]) // devices
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # or every process would print a greeting
    try:
        fabric = Fabric(
            accelerator=training.accelerator,
            devices=devices,
            num_nodes=nodes,
            precision=training.precision,
            # While the main process decodes and computes features, which may take hours, the others wait for it.
            strategy=_Distributed(timeout=timedelta(days=7)) if devices * nodes > 1 else "auto",
        )
    except (ValueError, RuntimeError) as error:  # a name that does not exist, or a device that is not there
        reason = " ".join(str(error).split()).rstrip(".")
        raise UserError(f"--accelerator {training.accelerator} with --devices {training.devices}: {reason}") from error
    if fabric.device.type == "cpu" and training.precision != "32" and not _processor_has_bfloat16():
        raise UserError(
            f"--precision {training.precision}: this processor fails at 16-bit arithmetic; leave it out, or set the "
            "environment variable ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16"
        )
    return fabric


@cache
def _processor_has_bfloat16() -> bool:
    """Some virtual machines announce instructions that they do not have: the first product kills the process."""
    product = "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); torch.nn.functional.linear(a, a)"
    return subprocess.run([sys.executable, "-c", product], capture_output=True).returncode == 0


def calculates_fast_in_16_bits() -> bool:
    """Whether this machine trains on a processor with instructions for bfloat16: a step then takes about half as long.

    Others emulate them.
    """
    if torch.accelerator.is_available():
        return False  # measured on processors only
    has = (getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
    return any(found is not None and found() for found in has) and _processor_has_bfloat16()


class _Distributed(DDPStrategy):
    """DDP waits for the gradients of all parameters. If a turn leaves some without one, DDP must search for them."""

    parameters_unused = False

    def setup_module(self, module: nn.Module) -> Any:
        self._ddp_kwargs["find_unused_parameters"] = self.parameters_unused
        return super().setup_module(module)


def expect_unused_parameters(fabric: Fabric, some: bool) -> None:
    """Set, before a module is set up, whether some update leaves parameters without a gradient."""
    if isinstance(fabric.strategy, _Distributed):
        fabric.strategy.parameters_unused = some
