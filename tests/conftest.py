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
