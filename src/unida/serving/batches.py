"""One thread does all the work of the network. Images of several requests are answered in one forward pass."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from unida.serving.model import Answer, Picture

log = logging.getLogger("unida")

WAIT_SECONDS = 0.005  # that the first image of a batch waits for others
MOST_WAITING = 256  # images; more are refused until some are answered
REST_SECONDS = 0.2  # between two looks for other work, if there is none


class TooBusy(Exception):
    """So many images wait that another would wait too long."""


@dataclass
class _Job:
    picture: Picture
    explain: bool
    result: Future[Answer] = field(default_factory=Future)


class Batches:
    """A queue of pictures and the thread that answers them.

    Args:
        answer: for some pictures, and whether to explain; called by one thread only.
        size: pictures of a batch, at most.
        other_work: a small piece of other work for the thread while nothing waits; False if there is none now.
    """

    def __init__(
        self,
        answer: Callable[[Sequence[Picture], bool], list[Answer]],
        size: int,
        other_work: Callable[[], bool] = lambda: False,
    ) -> None:
        self._answer, self._size, self._other_work = answer, size, other_work
        self._jobs: queue.Queue[_Job | None] = queue.Queue()  # None: wake up, there is an end
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="answers", daemon=True)
        self.passes = 0  # forward passes for requests
        self.answered = 0  # images

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End after the batch that is being answered."""
        self._stop.set()
        self._jobs.put(None)
        if self._thread.ident is not None:
            self._thread.join()

    @property
    def waiting(self) -> int:
        return self._jobs.qsize()

    def submit(self, pictures: Sequence[Picture], explain: bool) -> list[Future[Answer]]:
        """A future for each picture. One that is cancelled before its turn costs nothing."""
        if self.waiting + len(pictures) > MOST_WAITING:
            raise TooBusy
        jobs = [_Job(picture, explain) for picture in pictures]
        for job in jobs:
            self._jobs.put(job)
        return [job.result for job in jobs]

    def _work(self) -> None:
        while not self._stop.is_set():
            batch = [job for job in self._next_batch() if job and job.result.set_running_or_notify_cancel()]
            if batch:
                self._finish(batch)

    def _next_batch(self) -> list[_Job | None]:
        try:
            batch = [self._jobs.get(timeout=0 if self._did_other_work() else REST_SECONDS)]
        except queue.Empty:
            return []
        until = time.monotonic() + WAIT_SECONDS
        while batch[-1] is not None and len(batch) < self._size:
            try:
                batch.append(self._jobs.get(timeout=max(0.0, until - time.monotonic())))
            except queue.Empty:
                break
        return batch

    def _did_other_work(self) -> bool:
        if not self._jobs.empty():
            return False
        try:
            return self._other_work()
        except Exception:  # it must not end the thread that answers
            log.exception("work in the background failed")
            return False

    def _finish(self, batch: list[_Job]) -> None:
        try:
            answers = self._answer([job.picture for job in batch], any(job.explain for job in batch))
        except Exception as error:
            if len(batch) == 1:
                batch[0].result.set_exception(error)
            else:  # one image must not spoil the answers of other people's
                for job in batch:
                    self._finish([job])
            return
        self.passes += 1
        self.answered += len(batch)
        for job, answer in zip(batch, answers, strict=True):
            job.result.set_result(answer)
