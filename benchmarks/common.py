"""What every benchmark needs: a clock, a table with the hardware in it, and pictures to work on."""

import csv
import datetime
import json
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import PIL
import torch

CPU = torch.device("cpu")


class Measure(NamedTuple):
    name: str
    value: float | str
    unit: str


def timed(work: Callable[[], Any], device: torch.device = CPU) -> tuple[float, Any]:
    """Seconds, and the result."""
    start = time.perf_counter()
    result = work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start, result


def in_own_process(script: str, *arguments: object) -> dict[str, Any]:
    """Run this script's other half in a fresh process; its last line is JSON."""
    command = [sys.executable, script, *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


class PeakMemory:
    """Samples /proc/self/status while it is entered: the most of own and mapped memory, in bytes, by `part()`.

    Linux only. *own*: anonymous pages; *mapped*: pages of files; *resident*: both.
    """

    def __init__(self, part: Callable[[], str] = lambda: "") -> None:
        self.part = part
        self.peaks: dict[str, dict[str, float]] = {}

    def __enter__(self) -> "PeakMemory":
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._stop.wait(0.05):
            lines = Path("/proc/self/status").read_text().splitlines()
            fields = {name: value for name, _, value in (line.partition(":") for line in lines)}
            own, files, shared = (1024 * int(fields[name].split()[0]) for name in ("RssAnon", "RssFile", "RssShmem"))
            peak = self.peaks.setdefault(self.part(), {"own": 0, "mapped": 0, "resident": 0, "looks": 0})
            peak["looks"] += 1  # each about a twentieth of a second after the last
            for name, value in (("own", own), ("mapped", files + shared), ("resident", own + files + shared)):
                peak[name] = max(peak[name], value)


def report(measures: Sequence[Measure], path: Path, **facts: object) -> None:
    """Print the table, and write it with the hardware beside every number."""
    machine = {
        **facts,
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "torch": torch.__version__,
        "pillow": PIL.__version__,
        "date": datetime.date.today().isoformat(),
    }
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*Measure._fields, *machine])
        writer.writerows([m.name, shown(m.value), m.unit, *machine.values()] for m in measures)
    print(", ".join(f"{name} {value}" for name, value in machine.items()) + "\n")
    width = max(len(m.name) for m in measures)
    for m in measures:
        print(f"{m.name:<{width}}  {shown(m.value):>9} {m.unit}")
    print(f"\nwritten to {path}")


def shown(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"


def cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
