"""No test of data sets reaches the internet or the user's cache; a local server stands for the web."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from bnndp.data.folder import OFFLINE, Store


@pytest.fixture(autouse=True)
def _no_internet(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv(OFFLINE, "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@dataclass
class Web:
    """A server on this machine: what it answers to each path, and what it was asked."""

    address: str = ""
    bodies: dict[str, bytes] = field(default_factory=dict)
    announced: dict[str, int | None] = field(default_factory=dict)  # a false Content-Length; None: none at all
    silent: set[str] = field(default_factory=set)  # paths that are never answered
    asked: list[str] = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)


@pytest.fixture
def web() -> Iterator[Web]:
    """A running server with nothing on it."""
    state = Web()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.asked.append(self.path)
            if self.path in state.silent:
                state.closing.wait(20)
                return
            body = state.bodies.get(self.path)
            if body is None:
                self.send_error(404)
                return
            self.send_response(200)
            length = state.announced.get(self.path, len(body))
            if length is not None:
                self.send_header("Content-Length", str(length))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    state.address = f"http://127.0.0.1:{server.server_address[1]}/"
    yield state
    state.closing.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty named folder and an empty cache; downloads are allowed."""
    (tmp_path / "named").mkdir()
    return Store(tmp_path / "named", tmp_path / "cache", timeout=5.0)
