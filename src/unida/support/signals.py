"""Ctrl-C and SIGTERM: a run saves its state and reports how to continue."""

import ctypes
import logging
import signal
import sys
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


class _Stack(ctypes.Structure):
    """stack_t of Linux."""

    _fields_ = (("place", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


@contextmanager
def keeping_signal_stack() -> Iterator[None]:
    """Puts back the memory on which this thread handles signals.

    A library that changes it (OpenVINO, when it makes a network ready) gives its own memory back later, while handlers
    still use it: the next Ctrl-C would then end the process with a segmentation fault.
    """
    if sys.platform != "linux":
        yield
        return
    change, before = ctypes.CDLL(None).sigaltstack, _Stack()
    change(None, ctypes.byref(before))
    try:
        yield
    finally:
        change(ctypes.byref(before), None)
