"""What an engine is: it carries out tasks somewhere, and says when one starts and how it ends."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

from unida.grids.plan import Task
from unida.grids.worker import Outcome


@dataclass(frozen=True)
class Started:
    task: Task
    where: str  # for people: which worker


@dataclass(frozen=True)
class Ended:
    task: Task
    outcome: Outcome


@dataclass(frozen=True)
class Waiting:
    """Nothing has happened for a while. The driver can show that time goes on."""


Event = Started | Ended | Waiting


class Engine(Protocol):
    workers: int  # how many runs it does side by side, as far as it knows

    def run(self, tasks: Sequence[Task]) -> Generator[Event, None, None]:
        """Carry out the tasks, in about this order. Closing the iterator stops what is running."""
        ...
