"""How often one client may ask, and how much memory all uploads may hold."""

import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

BURST = 2.0  # seconds' worth of requests that a client may send at once
MOST_CLIENTS = 10_000  # that are remembered; then the one that asked least recently is forgotten
MOST_HELD = 512_000_000  # bytes of all requests that are being read or answered


class Rate:
    """A bucket of tokens for each client: a request takes one, and they come back at a fixed rate.

    Args:
        rate: tokens a second; 0 for no limit.
    """

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._clock = rate, clock
        self._most = max(1.0, BURST * rate)
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # client → tokens left, at this time

    def seconds_to_wait(self, client: str, cost: float = 1.0) -> int:
        """0 and the tokens are taken; or the whole seconds after which there are enough."""
        if self._rate == 0:
            return 0
        name, now = _network_of(client), self._clock()
        left, before = self._buckets.pop(name, (self._most, now))
        left = min(self._most, left + (now - before) * self._rate)
        enough = left >= cost
        self._buckets[name] = (left - cost if enough else left, now)
        while len(self._buckets) > MOST_CLIENTS:
            self._buckets.popitem(last=False)
        return 0 if enough else math.ceil((cost - left) / self._rate)


def _network_of(client: str) -> str:
    """An IPv6 client has 2⁶⁴ addresses of its own: all of them are one client."""
    try:
        address = ipaddress.ip_address(client.partition("%")[0])
    except ValueError:
        return client
    return client if address.version == 4 else str(ipaddress.ip_network((address, 64), strict=False))


class NoRoom(Exception):
    """All requests together hold as many bytes as they may."""


class Held:
    """Counts the bytes that requests hold."""

    def __init__(self, most: int = MOST_HELD) -> None:
        self.bytes, self._most = 0, most

    @contextmanager
    def for_request(self) -> Iterator[Callable[[int], None]]:
        """Yields `add(bytes)`. What was added is given back in the end."""
        mine = 0

        def add(count: int) -> None:
            nonlocal mine
            if self.bytes + count > self._most:
                raise NoRoom
            mine += count
            self.bytes += count

        try:
            yield add
        finally:
            self.bytes -= mine
