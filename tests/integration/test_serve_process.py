"""`unida serve` as a process: it starts, answers, and ends in good order when it is told to."""

import json
import re
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tiny_runs import Forked

from unida.data.glyphs import GlyphFolders

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
pytest.importorskip("python_multipart")


@pytest.fixture
def server(finished: Path) -> Iterator[tuple[Forked, int]]:
    process = Forked(["serve", str(finished), "--port", "0"])
    port = _wait_for(lambda: re.search(r"http://127.0.0.1:(\d+)/", process.printed), process)
    yield process, int(port[1])
    if process.code is None:
        process.send(signal.SIGKILL)
        process.end()


def _wait_for(look: Callable[[], re.Match[str] | None], process: Forked) -> re.Match[str]:
    until = time.monotonic() + 600
    while time.monotonic() < until and process.code is None:
        if found := look():
            return found
        time.sleep(0.02)
    pytest.fail(process.printed)


def _status(port: int, path: str) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=300) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        return refused.code


def test_told_to_end_it_finishes_what_it_has_and_takes_nothing_new(
    server: tuple[Forked, int], glyphs: GlyphFolders
) -> None:
    process, port = server
    picture = min(glyphs.target.rglob("*.png")).read_bytes()
    body = (
        b'--x\r\nContent-Disposition: form-data; name="images"; filename="a.png"\r\n\r\n' + picture + b"\r\n--x--\r\n"
    )
    head = f"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=300) as connection:
        assert _status(port, "/health") == 200
        connection.sendall(f"{head}Content-Type: multipart/form-data; boundary=x\r\n\r\n".encode() + body[:50])
        _wait_for(lambda: re.search(r"in_flight 2", _metrics(port)), process)  # this one, and the question itself
        process.send(signal.SIGTERM)
        time.sleep(0.3)
        assert _status(port, "/health") == _status(port, "/about") == 503
        connection.sendall(body[50:])
        answer = b""
        while chunk := connection.recv(65536):  # to its end: the server closes the connection
            answer += chunk
    assert answer.startswith(b"HTTP/1.1 200")
    assert len(json.loads(answer.partition(b"\r\n\r\n")[2])["answers"]) == 1
    assert process.end(30) == 0, process.printed


def _metrics(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=300) as answer:
        return str(answer.read().decode())


def test_a_port_in_use_is_told_in_one_line(finished: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        process = Forked(["serve", str(finished), "--port", str(other.getsockname()[1])])
        assert process.end(60) == 2
    assert process.printed.startswith("error: --port") and process.printed.count("\n") == 1
