"""How many images a second each known backbone takes on this machine."""

import statistics
import time
from collections.abc import Iterator

import torch

from unida.models.backbone import create_backbone
from unida.models.known import KNOWN
from unida.models.options import NO_WEIGHTS

CROP = 224
BATCH = 8
TIMED = 5  # batches


def speed_lines() -> Iterator[str]:
    """A line for each backbone, as soon as it is measured."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    where = "the GPU" if device.type == "cuda" else f"{torch.get_num_threads()} thread(s) of the processor"
    yield f"speed here, forward only, images of {CROP} × {CROP} pixels, on {where}:"
    for number, known in enumerate(KNOWN, start=1):
        speed = images_per_second(known.name, device)
        yield f"  {number} of {len(KNOWN)}: {known.name:34}{speed:8,.0f} images/s"


@torch.inference_mode()
def images_per_second(name: str, device: torch.device) -> float:
    """The median of a few batches, with random weights: they take as long as others."""
    with torch.random.fork_rng(devices=[]):
        backbone = create_backbone(name, NO_WEIGHTS).eval().to(device).to(memory_format=torch.channels_last)
    images = torch.zeros(BATCH, 3, CROP, CROP, device=device).contiguous(memory_format=torch.channels_last)
    seconds = []
    for _ in range(1 + TIMED):
        started = time.perf_counter()
        backbone(images).sum().item()  # a number on the CPU: the work is done
        seconds.append(time.perf_counter() - started)
    return BATCH / statistics.median(seconds[1:])  # the first one also prepares
