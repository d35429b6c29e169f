"""A hub on this machine: it serves files of a repository as the real one does, and can cut a download off."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import huggingface_hub
import pytest


class FakeHub:
    """``commits`` maps (repository, commit) to files by name; ``newest`` maps a repository to a commit."""

    def __init__(self) -> None:
        self.commits: dict[tuple[str, str], dict[str, bytes]] = {}
        self.newest: dict[str, str] = {}
        self.cuts_off_after: int | None = None  # bytes of a download
        self.asked: list[str] = []  # method and path of every request

    def add(self, repository: str, commit: str, **files: bytes) -> None:
        """Files by name, with ``__`` for the dot."""
        self.commits[repository, commit] = {name.replace("__", "."): content for name, content in files.items()}
        self.newest[repository] = commit

    def find(self, path: str) -> tuple[str, bytes] | str:
        """(commit, content), or the hub's code of what is missing."""
        repository, _, rest = path.lstrip("/").partition("/resolve/")
        revision, _, name = rest.partition("/")
        if repository not in self.newest:
            return "RepoNotFound"
        commit = self.newest[repository] if revision == "main" else revision
        if (repository, commit) not in self.commits:
            return "RevisionNotFound"
        files = self.commits[repository, commit]
        return (commit, files[name]) if name in files else "EntryNotFound"


def handler_of(hub: FakeHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> bytes:
            hub.asked.append(f"{self.command} {self.path}")
            found = hub.find(self.path)
            if isinstance(found, str):
                self.send_response(404)
                self.send_header("X-Error-Code", found)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return b""
            commit, content = found
            self.send_response(200)
            self.send_header("X-Repo-Commit", commit)
            self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            return content

        def do_HEAD(self) -> None:
            self.answer()

        def do_GET(self) -> None:
            content = self.answer()
            self.wfile.write(content[: hub.cuts_off_after])

        def log_message(self, *args: object) -> None:
            pass

    return Handler


@contextmanager
def serving(hub: FakeHub) -> Iterator[str]:
    """The address at which it answers."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler_of(hub))
    thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)  # seconds until it sees that it shall stop
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def use_hub(monkeypatch: pytest.MonkeyPatch, address: str, cache: Path) -> None:
    """All that is asked of the hub in this process goes to ``address``; its cache is the folder ``cache``."""
    constants = huggingface_hub.constants
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    for variable in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(variable, raising=False)
