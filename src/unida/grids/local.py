"""The engine of one machine: worker processes that stay alive, a core or a device each.

Each worker imports torch once. Decoded images and kept features are files that all of them map into memory, so they
are there once. A worker that dies takes one run with it: a new worker continues that run.
"""

import contextlib
import json
import os
import select
import selectors
import signal
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from unida.grids.engine import Ended, Event, Started, Waiting
from unida.grids.plan import Task
from unida.grids.worker import Outcome

SECONDS_BETWEEN_LOOKS = 1.0
SECONDS_TO_STOP = 30.0  # a run that is told to stop finishes its step and saves its state
LEAST_MEMORY = 2 * 2**30  # of a worker, by which the default number is limited (docs/performance.md)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def devices_of(worker: int, devices: int, gpus_per_run: float) -> list[str]:
    """Names of the GPUs of a worker, as CUDA_VISIBLE_DEVICES has them. If there are too few, workers share them."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = given.split(",") if given else [str(number) for number in range(devices)]
    each = max(1, round(gpus_per_run))
    return [names[(worker * each + i) % devices] for i in range(min(each, devices))]


def default_workers(cpus_per_run: int, devices: int, gpus_per_run: float = 1.0) -> int:
    """As many as the devices allow; without devices, as cores and memory allow."""
    if devices:
        return max(1, int(devices / gpus_per_run))
    allowed = max(1, cores() // cpus_per_run)
    with contextlib.suppress(ValueError, OSError, AttributeError):
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        allowed = min(allowed, max(1, memory // LEAST_MEMORY))
    return allowed


@dataclass
class _Worker:
    process: subprocess.Popen[str]
    number: int  # the device, if there are devices
    task: Task | None = None


class LocalEngine:
    """Args:
    devices: number of GPUs; 0: runs get none.
    gpus_per_run: below 1, runs share one.
    attempts: how often a run is tried whose worker dies.
    """

    def __init__(
        self,
        workers: int,
        logs: Path,
        methods: Sequence[str] = (),
        cpus_per_run: int = 1,
        devices: int = 0,
        gpus_per_run: float = 1.0,
        attempts: int = 3,
    ) -> None:
        self.workers, self.logs, self.methods = workers, logs, list(methods)
        self.cpus_per_run, self.attempts = cpus_per_run, attempts
        self.devices, self.gpus_per_run = devices, gpus_per_run

    def run(self, tasks: Sequence[Task]) -> Generator[Event, None, None]:
        waiting, deaths = deque(tasks), Counter[str]()
        numbers = deque(range(min(self.workers, len(tasks))))
        alive: list[_Worker] = []
        with selectors.DefaultSelector() as selector:
            try:
                while waiting or any(worker.task for worker in alive):
                    while waiting and numbers:
                        worker = self._start(numbers.popleft())
                        alive.append(worker)
                        selector.register(_answers(worker), selectors.EVENT_READ, worker)
                    for worker in alive:
                        if waiting and worker.task is None:
                            worker.task = waiting.popleft()
                            self._send(worker)
                            yield Started(worker.task, f"worker {worker.number}")
                    ready = selector.select(SECONDS_BETWEEN_LOOKS)
                    if not ready:
                        yield Waiting()
                    for key, _ in ready:
                        worker = key.data
                        task, worker.task = worker.task, None
                        outcome = _answer(worker)
                        if outcome is None:
                            selector.unregister(key.fileobj)
                            alive.remove(worker)
                            numbers.append(worker.number)
                        if task is not None and (outcome is None or outcome.status == "stopped"):
                            outcome = self._again(worker, task, waiting, deaths)
                        if task is not None and outcome is not None:
                            yield Ended(task, outcome)
            finally:
                _stop(alive)

    def _start(self, number: int) -> _Worker:
        threads = str(self.cpus_per_run)
        environment = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(devices_of(number, self.devices, self.gpus_per_run))
        process = subprocess.Popen(
            [sys.executable, "-m", "unida.grids.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the driver, which tells its workers
        )
        return _Worker(process, number)

    def _send(self, worker: _Worker) -> None:
        assert worker.task is not None and worker.process.stdin is not None
        log = self.logs / f"{worker.task.name}.txt"
        order = {"task": worker.task.plain(), "log": str(log), "methods": self.methods}
        with contextlib.suppress(BrokenPipeError):  # it has died: that is noticed when its answer is read
            worker.process.stdin.write(json.dumps(order) + "\n")
            worker.process.stdin.flush()

    def _again(self, worker: _Worker, task: Task, waiting: "deque[Task]", deaths: Counter[str]) -> Outcome | None:
        """A task whose worker has died, or was told to stop, goes on later, unless that happened too often."""
        deaths[task.name] += 1
        if deaths[task.name] < self.attempts:
            waiting.appendleft(task)
            return None
        code = worker.process.poll() or 0
        how = f" by {signal.Signals(-code).name}" if code < 0 else ""
        memory = "; perhaps the machine is short of memory: use fewer --workers" if code == -signal.SIGKILL else ""
        return Outcome("failed", f"its worker was stopped {deaths[task.name]} times{how}{memory}")


def _answers(worker: _Worker) -> IO[str]:
    assert worker.process.stdout is not None
    return worker.process.stdout


def _answer(worker: _Worker) -> Outcome | None:
    """What the worker says of its run; None if it has died."""
    line = _answers(worker).readline()
    if not line.endswith("\n"):
        worker.process.wait()
        return None
    return Outcome(**json.loads(line))


def _stop(workers: Sequence[_Worker]) -> None:
    """Runs that are going on finish their step and save their state; then the workers end."""
    busy = {_answers(worker): worker for worker in workers if worker.task is not None}
    try:
        for worker in busy.values():
            worker.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + SECONDS_TO_STOP
        while busy and time.monotonic() < deadline:
            for stream in select.select(list(busy), [], [], max(0.0, deadline - time.monotonic()))[0]:
                del busy[stream]  # it has answered, or ended
    finally:  # a second Ctrl-C does not wait
        for worker in workers:
            worker.process.kill()
            worker.process.wait()
