"""Settings of the whole suite."""

import os
from collections.abc import Iterator

import pytest
import torch

# Some virtual machines announce AMX and then trap on it, which ends the process at the first bfloat16 product. Without
# AMX, the products are the same and the tests run everywhere. Read once by oneDNN, so it must stand before the first.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Sums in another order give other bits, and the machine may be shared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="session")
def no_waiting_for_the_disk() -> Iterator[None]:
    """A tenth of a tiny run. No test cuts the power; those of what is synced and when put a function of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def no_reports() -> Iterator[None]:
    """A report takes as long as a tiny run. Tests of reports write their own (tests/reports)."""
    with pytest.MonkeyPatch.context() as patch:
        for place in ("unida.reports.run_report", "unida.api"):
            patch.setattr(f"{place}.report_after_run", lambda folder: None)
        yield
