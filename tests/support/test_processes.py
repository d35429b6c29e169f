"""What two processes gather, and the gradients that come back."""

import multiprocessing
from pathlib import Path

import torch
from torch import Tensor

from unida.support.processes import gather, gather_with_gradients

ROWS = 5  # of two processes: 2 and 3


def whole() -> Tensor:
    return torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def loss(mine: Tensor, everyone: Tensor) -> Tensor:
    """A mean over this process's rows, each compared with all."""
    return (mine @ everyone.T).exp().sum(dim=1).mean()


def work(rank: int, folder: Path) -> None:
    store = f"file://{folder / 'store'}"
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    mine = whole()[:2] if rank == 0 else whole()[2:]
    mine.requires_grad_()
    everyone = gather_with_gradients(mine)
    (len(mine) * loss(mine, everyone)).backward()
    torch.save((everyone.detach(), gather(mine), mine.grad), folder / f"{rank}.pt")
    torch.distributed.destroy_process_group()


def test_gradients_of_all_processes_come_back_to_their_rows(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=work, args=(rank, tmp_path)) for rank in (0, 1)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=600)
        assert process.exitcode == 0
    alone = whole().requires_grad_()
    (ROWS * loss(alone, alone)).backward()
    found = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1)]
    for everyone, plain, _ in found:
        assert torch.equal(everyone, whole()) and torch.equal(plain, whole())
    assert alone.grad is not None
    torch.testing.assert_close(torch.cat([grad for _, _, grad in found]), alone.grad)


def test_alone_it_is_the_tensor_itself() -> None:
    values = whole().requires_grad_()
    assert gather_with_gradients(values) is values
    assert torch.equal(gather(values), values) and not gather(values).requires_grad
