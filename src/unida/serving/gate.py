"""What every request passes first: is the host right, may this client ask now, does it have the token?"""

import hmac
import ipaddress
import json
import time
from collections.abc import Mapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from unida.serving.counts import Counts
from unida.serving.limits import Rate

# Pages without data of the run. The page itself asks for the token, so it must come without one.
OPEN = frozenset({"/", "/page.js", "/style.css", "/icon.svg", "/health", "/openapi.json"})
PLACES = OPEN | {"/predict", "/about", "/metrics"}
SMALL_COST = 0.1  # of a request that is not for the network; the page loads some for each answer
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class Gate:
    """Wraps the app.

    Args:
        token: that requests must have; None if only this machine can ask.
        rate: of each client.
    """

    def __init__(self, app: ASGIApp, token: str | None, rate: Rate, counts: Counts) -> None:
        self._app, self._token, self._rate, self._counts = app, token, rate, counts
        self.in_flight = 0  # requests that are being read or answered
        self.is_draining = False  # finishes what it has, and takes nothing new

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status = time.perf_counter(), 500

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
                if self.is_draining:
                    headers["Connection"] = "close"
            await send(message)

        self.in_flight += 1
        try:
            refusal = self._refusal(scope)
            if refusal is None:
                await self._app(scope, receive, send_with_headers)
            else:
                await _answer(send_with_headers, *refusal)
        finally:
            self.in_flight -= 1
            self._counts.add(_place(scope["path"]), status, time.perf_counter() - start)

    def _refusal(self, scope: Scope) -> tuple[int, str, Mapping[str, str]] | None:
        path, headers = scope["path"], Headers(scope=scope)
        if self._token is None and not _is_this_machine(headers.get("host", "")):
            # A page of a stranger can give its own name the address 127.0.0.1, and would then read our answers.
            return 400, "this server answers under localhost and 127.0.0.1 only: start it with --token", {}
        if path == "/health":
            return None
        if self.is_draining:
            return 503, "the server is about to end: try again later", {"Retry-After": "5"}
        allowed = path in OPEN or self._token is None or self._has_token(headers)
        client = (scope.get("client") or ("unknown", 0))[0]
        seconds = self._rate.seconds_to_wait(client, 1.0 if path == "/predict" or not allowed else SMALL_COST)
        if seconds:
            return 429, f"too many requests: wait {seconds} s", {"Retry-After": str(seconds)}
        if not allowed:
            return 401, "the token is missing or wrong", {"WWW-Authenticate": "Bearer"}
        return None

    def _has_token(self, headers: Headers) -> bool:
        assert self._token is not None
        scheme, _, given = headers.get("authorization", "").partition(" ")
        right = hmac.compare_digest(given.strip().encode(), self._token.encode())  # takes as long for any wrong token
        return scheme.lower() == "bearer" and right


def _is_this_machine(host: str) -> bool:
    name = host.rpartition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]
    if name.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _place(path: str) -> str:
    """For the counts. What strangers ask for must not fill the memory."""
    if path.startswith("/pictures/"):
        return "/pictures"
    return path if path in PLACES else "other"


async def _answer(send: Any, status: int, detail: str, headers: Mapping[str, str]) -> None:
    body = json.dumps({"detail": detail}).encode()
    more = {"Content-Type": "application/json", "Content-Length": str(len(body)), "Connection": "close", **headers}
    raw = [(name.lower().encode(), value.encode()) for name, value in more.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
