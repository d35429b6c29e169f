"""The options that say how a run trains."""

from dataclasses import dataclass
from typing import Annotated, Literal

from unida.support.options import LARGEST_INTEGER, check_numbers, shown

LARGEST_BATCH = 1_000_000


@dataclass(frozen=True)
class TrainingOptions:
    method: str = "ovanet"
    """Train with this method; see: unida methods."""
    regime: Annotated[
        Literal["auto", "kept", "published"], shown("kept|published", "(default: kept, or published with --train all)")
    ] = "auto"
    """kept: keep what the pretrained network knows. Its BatchNorm statistics stay, and the heads are solved on the
    features of all images. With a frozen backbone there is nothing else to learn: no steps. published: as in the
    methods' papers, step by step from random heads."""
    steps: Annotated[int | None, shown("N", "(default: the method's own, see: unida methods)")] = None
    """Training steps (OVANet's paper: 10,000; DCC's code: 3,000)."""
    batch_size: int = 36
    """Images of each domain in a step, over all processes (OVANet, DCC, UAN: 36)."""
    lr: Annotated[float | None, shown("FLOAT", "(default: the method's own, see: unida methods)")] = None
    """Learning rate of new layers at the start."""
    backbone_lr: Annotated[float | None, shown("FLOAT", "(default: a tenth of --lr, or a thousandth if kept)")] = None
    """Learning rate of the pretrained backbone at the start (OVANet and DCC: a tenth). Kept regime: with a tenth, the
    accuracy on shared classes fell below that of frozen features (docs/studies/features.md)."""
    momentum: float = 0.9
    """Nesterov momentum of SGD (OVANet: 0.9)."""
    weight_decay: float = 5e-4
    """L2 penalty of SGD (OVANet: 5e-4)."""
    clip_norm: Annotated[float | None, shown("FLOAT", "(default: off)")] = None
    """Scale gradients down to this norm (the reference implementations do not clip)."""
    seed: int = 0
    """All randomness of the run comes from this number."""
    precision: Literal["32", "bf16-mixed", "16-mixed"] = "32"
    """Number format of the network's arithmetic."""
    compile: bool = False
    """Compile the backbone with torch.compile (docs/performance.md measures it)."""
    accelerator: str = "auto"
    """The device: cpu, cuda, mps, or auto for the best one there is."""
    devices: int = 1
    """Processes on each machine, one device each."""
    num_nodes: int = 1
    """Number of machines; torchrun and SLURM are detected."""

    def check(self) -> None:
        check_numbers(self, "steps", "devices", "num_nodes", least=1, most=LARGEST_INTEGER)
        check_numbers(self, "batch_size", least=1, most=LARGEST_BATCH)
        check_numbers(self, "lr", "backbone_lr", "clip_norm", above=0)
        check_numbers(self, "seed", least=0, most=LARGEST_INTEGER)
        check_numbers(self, "weight_decay", least=0)
        check_numbers(self, "momentum", least=0, below=1)
