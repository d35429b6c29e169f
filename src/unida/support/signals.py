"""Ctrl-C and SIGTERM: a run saves its state and reports how to continue."""

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger("unida")


class Interrupted(Exception):
    """The user pressed Ctrl-C, or a scheduler sent SIGTERM. The run can be resumed."""


@contextmanager
def stop_requested() -> Iterator[threading.Event]:
    """Turns Ctrl-C and SIGTERM into a flag, so that a step is never cut in half. A second Ctrl-C stops at once."""
    stop = threading.Event()

    def ask(number: int, frame: object) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        log.info("stopping after this step; press Ctrl-C again to stop at once")
        stop.set()

    with _handling(ask):
        yield stop


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM ends the work inside as Ctrl-C does. Half-written files have other names, so nothing is lost."""

    def end(number: int, frame: object) -> None:
        raise Interrupted("stopped")

    with _handling(end, signal.SIGTERM):
        yield


@contextmanager
def _handling(handler: Callable[[int, object], None], *numbers: int) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # only the main thread may catch signals
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers or (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
