"""The memory on which signals are handled."""

import ctypes
import mmap
import sys

import pytest

from unida.support.signals import _Stack, keeping_signal_stack

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="stack_t is that of Linux")


def stack() -> tuple[int | None, int]:
    """Its place and size; no place if it is not in use."""
    now = _Stack()
    assert ctypes.CDLL(None).sigaltstack(None, ctypes.byref(now)) == 0
    return (None if now.flags & 2 else now.place), now.size


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_library_changes_is_put_back(fails: bool) -> None:
    before, size = stack(), 1 << 16
    memory = mmap.mmap(-1, size)
    place = ctypes.addressof(ctypes.c_char.from_buffer(memory))

    def change() -> None:
        with keeping_signal_stack():
            assert ctypes.CDLL(None).sigaltstack(ctypes.byref(_Stack(place, 0, size)), None) == 0
            assert stack() == (place, size)
            if fails:
                raise ValueError

    if fails:
        with pytest.raises(ValueError):  # noqa: PT011
            change()
    else:
        change()
    assert stack() == before
