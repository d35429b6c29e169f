"""Memory of a training process: how much it took, and how to avoid allocating it again and again."""

import contextlib
import ctypes
import gc
import resource
import sys
from pathlib import Path

import torch

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4  # of glibc's <malloc.h>


def keep_freed_memory() -> None:
    """Let the C library keep freed memory instead of returning it to the system. Linux with glibc only.

    Every step allocates and frees the same large activations. By default each goes back to the system at once, and the
    next step pays for fresh, zeroed pages: on a CPU that can be as much time as the network itself
    (`benchmarks/freed_memory.py`). Peak memory grows a little: by 7 % there.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # musl has none
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(_M_TOP_PAD, 64 * 2**20)


def peak_memory_bytes(device: torch.device) -> int:
    """Peak memory of this process: on the GPU if there is one, else resident."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def forget_peak_memory() -> None:
    """Free what an earlier run left, and measure the peak from here on. On a CPU: Linux only; elsewhere it stays."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    if not sys.platform.startswith("linux"):
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # musl has none
        trim(0)
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
