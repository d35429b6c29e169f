"""Start, serve, and end in good order."""

import errno
import logging
import os
import secrets
import signal
import socket
import threading
import time
import warnings
from collections.abc import Callable
from types import FrameType

import uvicorn

from unida.errors import UserError
from unida.serving.app import Service, make_app
from unida.serving.gate import Gate
from unida.serving.model import ServedModel
from unida.serving.options import ServeOptions, check_token

SILENT_SECONDS = 10.0  # a connection that sends no whole request for so long is closed
DRAIN_SECONDS = 60.0  # at most, for what is being read or answered when the server is told to end
TOKEN_VARIABLE = "UNIDA_TOKEN"


class DrainingServer(uvicorn.Server):
    """Uvicorn's server ends at once when it is told to, with the signal. This one first finishes what it has."""

    def __init__(self, config: uvicorn.Config, gate: Gate) -> None:
        super().__init__(config)
        self._gate = gate
        self._until = 0.0
        self._silent_since: dict[object, float] = {}

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._gate.is_draining and sig == signal.SIGINT:  # a second Ctrl-C
            self.should_exit = self.force_exit = True
        elif not self._gate.is_draining:
            self._gate.is_draining, self._until = True, time.monotonic() + DRAIN_SECONDS

    async def on_tick(self, counter: int) -> bool:
        if self._gate.is_draining and (self._gate.in_flight == 0 or time.monotonic() > self._until):
            self.should_exit = True
        if counter % 10 == 0:  # every second
            self._close_silent()
        return await super().on_tick(counter)

    def _close_silent(self) -> None:
        """Uvicorn waits for ever for the first line of a request: a thousand such connections would fill the server."""
        now, before = time.monotonic(), self._silent_since
        silent = [
            one
            for one in self.server_state.connections
            if getattr(one, "cycle", None) is None or one.cycle.response_complete  # type: ignore[union-attr]
        ]
        self._silent_since = {one: before.get(one, now) for one in silent}
        for one, since in self._silent_since.items():
            if now - since > SILENT_SECONDS:
                one.transport.close()  # type: ignore[attr-defined]


def token_for(options: ServeOptions) -> tuple[str | None, bool]:
    """The token, and whether it was made here. None where only this machine can ask."""
    given = options.token or os.environ.get(TOKEN_VARIABLE)
    if given is not None:
        check_token(given)
        return given, False
    return (None, False) if options.is_loopback else (secrets.token_urlsafe(32), True)


def bind(options: ServeOptions) -> socket.socket:
    """Before the model is loaded, so that a port in use is told at once."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            raise UserError(f"--host {options.host} is no address of this machine: try 127.0.0.1") from error
        raise UserError(f"--port {options.port} cannot be used ({error.strerror}): choose another") from error
    return listener


def _be_quiet_about_bad_requests() -> None:
    """Who sends one learns the reason. Strangers must not fill the log."""
    logging.getLogger("python_multipart").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="PIL")


def serve(options: ServeOptions, say: Callable[[str], None]) -> None:
    """Serve until SIGTERM or Ctrl-C. Returns when all that had begun is answered."""
    token, is_made = token_for(options)
    _be_quiet_about_bad_requests()
    with bind(options) as listener:
        say(f"loading {options.run}")
        service = Service(options, ServedModel(options.run, options.alone))
        gate = make_app(service, token)
        config = uvicorn.Config(
            gate,
            http="h11",
            ws="none",
            lifespan="off",
            log_level=logging.ERROR,
            access_log=False,
            proxy_headers=False,  # or a client could choose the address that its rate is counted for
            server_header=False,
            timeout_graceful_shutdown=5,
        )
        host = f"[{options.host}]" if ":" in options.host else options.host
        say(f"{service.model.name}, {len(service.model.info.classes)} classes; {service.model.how}")
        listener.listen()  # from now on, who opens the address waits a moment instead of being refused
        if is_made:
            say(f"token: {token}")
        say(f"open http://{host}:{listener.getsockname()[1]}/ in a browser; Ctrl-C ends")
        service.batches.start()
        if service.pictures is not None:
            threading.Thread(target=service.pictures.list_files, name="files", daemon=True).start()
        try:
            DrainingServer(config, gate).run(sockets=[listener])
        finally:
            service.stop()
        say("all requests are answered: ended")
