"""The engine of a Ray cluster: the same runs, wherever Ray finds room for them.

    RAY_ADDRESS=auto unida grid SPEC.yaml --out DIR --engine ray

Ray queues the runs, places them by the cores and GPUs that each asks for, and starts a run again whose worker or node
has died; the run then goes on where its last checkpoint is. So DIR, the images and the cache must be folders that all
nodes share, under the same paths, and unida must be installed on each. Without RAY_ADDRESS, Ray starts on this machine.
"""

import logging
import os
import signal
import threading
from collections.abc import Generator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from unida.errors import UserError
from unida.grids.engine import Ended, Event, Started, Waiting
from unida.grids.plan import Task
from unida.grids.worker import Outcome, carry_out

SECONDS_BETWEEN_LOOKS = 1.0


class RayEngine:
    """Args:
    gpus_per_run: None: 1 if the cluster has a GPU.
    attempts: how often a run is tried whose worker or node dies.
    """

    def __init__(
        self,
        logs: Path,
        methods: Sequence[str] = (),
        cpus_per_run: int = 1,
        gpus_per_run: float | None = None,
        attempts: int = 3,
        workers: int | None = None,
    ) -> None:
        try:
            import ray
        except ImportError as error:
            raise UserError('--engine ray needs Ray: pip install "unida[ray]"') from error
        self.ray: Any = ray
        self.logs, self.methods, self.attempts = logs, list(methods), attempts
        self.cpus_per_run = cpus_per_run
        self._connect(workers)
        room = ray.cluster_resources()
        self.gpus_per_run = gpus_per_run = gpus_per_run if gpus_per_run is not None else float("GPU" in room)
        largest = max((node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]), default=0)
        by_cores = room.get("CPU", 0) // cpus_per_run if largest >= cpus_per_run else 0
        by_devices = room.get("GPU", 0) // gpus_per_run if gpus_per_run else by_cores
        self.workers = int(min(by_cores, by_devices))
        if self.workers < 1:
            raise UserError(
                f"--engine ray: no node has {cpus_per_run} core(s) and {gpus_per_run:g} GPU(s); the cluster has "
                f"{room.get('CPU', 0):g} and {room.get('GPU', 0):g} in all. Lower --cpus-per-run or --gpus-per-run"
            )

    def _connect(self, workers: int | None) -> None:
        address = os.environ.get("RAY_ADDRESS")
        if address and workers is not None:
            raise UserError("--workers has no effect with RAY_ADDRESS: the cluster says how many runs it can take")
        on_sigterm = signal.getsignal(signal.SIGTERM)
        here = {} if address or workers is None else {"num_cpus": workers * self.cpus_per_run}
        try:
            self.ray.init(
                address=address or "local",
                logging_level=logging.ERROR,
                log_to_driver=False,
                include_dashboard=False if not address else None,
                **here,
            )
        except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
            reason = " ".join(str(error).split())
            raise UserError(f"--engine ray: Ray at {address or 'this machine'} does not answer ({reason})") from error
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, on_sigterm)  # Ray has put its own there, which ends without a word

    def run(self, tasks: Sequence[Task]) -> Generator[Event, None, None]:
        remote = self.ray.remote(_run).options(
            num_cpus=self.cpus_per_run,
            num_gpus=self.gpus_per_run,
            max_retries=self.attempts - 1,
            retry_exceptions=[Stopped],
        )
        logs = {task.name: self.logs / f"{task.name}.txt" for task in tasks}
        before = {name: _length(log) for name, log in logs.items()}
        futures = {
            remote.remote(task.plain(), str(logs[task.name]), self.methods, self.cpus_per_run): task for task in tasks
        }
        queued = {task.name: task for task in tasks}
        try:
            while futures:
                ready, _ = self.ray.wait(list(futures), timeout=SECONDS_BETWEEN_LOOKS)
                for task in [task for name, task in queued.items() if _length(logs[name]) != before[name]]:
                    del queued[task.name]
                    yield Started(task, "ray")
                for future in ready:
                    task = futures.pop(future)
                    queued.pop(task.name, None)
                    yield Ended(task, self._outcome(future))
                if not ready:
                    yield Waiting()
        finally:
            for future in futures:
                self.ray.cancel(future, force=True)
            self.ray.shutdown()

    def _outcome(self, future: Any) -> Outcome:
        try:
            return Outcome(**self.ray.get(future))
        except (self.ray.exceptions.RayError, Stopped) as error:
            reason = (str(error).strip().splitlines() or ["it was stopped"])[0]
            return Outcome("failed", f"Ray gave it up after {self.attempts} attempts: {reason}")


class Stopped(Exception):
    """The run was told to stop: its node is needed elsewhere. Ray starts it again."""


def _run(task: dict[str, Any], log: str, methods: list[str], threads: int) -> dict[str, Any]:
    """In a worker of Ray."""
    import torch

    torch.set_num_threads(threads)
    outcome = carry_out(Task(**task), Path(log), methods)
    if outcome.status == "stopped":
        raise Stopped
    return asdict(outcome)


def _length(log: Path) -> int:
    """Of a file that a run writes to as soon as it starts; −1 if it is not there."""
    try:
        return log.stat().st_size
    except OSError:
        return -1
