"""Several processes that work together. With one process, everything here does nothing."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from unida.errors import UserError
from unida.support.fabric import Fabric

T = TypeVar("T")


def open_fabric_for_answers() -> Fabric:
    """Fabric for answering with a model, wherever it was trained: one device of this machine, 32 bits."""
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
    """The main process works alone and sends its plain result to the others; a user's error stops them all."""
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


def is_main_process() -> bool:
    """Whether this process speaks for all: also true where there is only one."""
    return not _are_several() or torch.distributed.get_rank() == 0


def share_buffers(fabric: Fabric, module: nn.Module) -> None:
    """Give every process the main one's buffers: after a step, each has BatchNorm statistics of its own share.

    A checkpoint holds the main process's buffers, so all processes then answer with the saved model.
    """
    if fabric.world_size > 1:
        for buffer in module.buffers():
            torch.distributed.broadcast(buffer, src=0)


def share_parameters(fabric: Fabric, module: nn.Module) -> None:
    """Give every process the main one's parameters, if they were not set by a shared update."""
    if fabric.world_size > 1:
        for parameter in module.parameters():
            torch.distributed.broadcast(parameter.data, src=0)


def gather(values: Tensor) -> Tensor:
    """(B, …) of this process → (B_all, …) of all processes, in the order of the whole batch. No gradient flows back.

    For what a training step writes into a buffer, such as a memory of all target images: a distributed wrapper gives
    every process the main one's buffers, so values that only another process wrote would be lost.
    """
    return torch.cat(_parts(values.detach())) if _are_several() else values.detach()


def gather_with_gradients(values: Tensor) -> Tensor:
    """`gather`, through which gradients flow back: a process gets those that all processes have for its rows.

    For a loss that compares the images of a batch with each other. If each process takes the mean over its own images,
    compared with all, then the mean over processes is the loss of the whole batch, and so are its gradients.
    """
    if not _are_several():
        return values
    everyone: Tensor = _Gathered.apply(values)
    return everyone


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        parts = _parts(values)
        ctx.counts = [len(part) for part in parts]
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        total = gradients[0].clone(memory_format=torch.contiguous_format)
        torch.distributed.all_reduce(total)
        return total.split(ctx.counts)[torch.distributed.get_rank()]


def _are_several() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _parts(values: Tensor) -> list[Tensor]:
    """The rows of each process, which may have different numbers of them."""
    processes = torch.distributed.get_world_size()
    count = torch.tensor([len(values)], device=values.device)
    counts = [torch.zeros_like(count) for _ in range(processes)]
    torch.distributed.all_gather(counts, count)
    longest = int(torch.stack(counts).max())
    mine = values.contiguous()
    padded = torch.cat([mine, mine.new_zeros(longest - len(mine), *mine.shape[1:])])
    parts = [torch.empty_like(padded) for _ in range(processes)]
    torch.distributed.all_gather(parts, padded)
    return [part[: int(n)] for part, n in zip(parts, counts, strict=True)]


def of_whole_batch(compute: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
    """`compute` on the values of all processes' images; this process's rows of the result. No gradient flows back.

    For weights that depend on the batch, such as a minimum over it: each process sees only its share, and all shares
    have one size.

    Args:
        compute: (B_all, …) → (B_all, …), a row for each image.
        values: (B, …) of this process.
    """
    whole = compute(gather(values))
    if len(whole) == len(values):
        return whole
    first = torch.distributed.get_rank() * len(values)
    return whole[first : first + len(values)]
