"""The program behind the page: an HTTP server for this machine and this session only.

It listens on 127.0.0.1 and answers two things, the page and its questions, under an address that holds a random token.
Other pages in the same browser cannot use it: a request must name this server as its host (which a name that was bound
anew to 127.0.0.1 does not), must not come from another origin, and must know the token; no answer may be read by or
framed in another page. One question is computed at a time.
"""

from __future__ import annotations

import json
import re
import secrets
import tempfile
import threading
import time
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

from bnndp.errors import CertError
from bnndp.explorer.answers import answer
from bnndp.explorer.backdrop import Backdrop, backdrop_of
from bnndp.explorer.page import explorer_page
from bnndp.explorer.pictures import bounds_chart, sentence, view
from bnndp.explorer.session import Session, read_question
from bnndp.report.page.markup import joined, tag

HOST = "127.0.0.1"
_MAX_LENGTH = 2**16  # bytes of a question
_TIMEOUT = 30.0  # seconds for a request to arrive
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",  # the rest is in the page
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def reply(session: Session, backdrop: Backdrop, asked: object) -> dict[str, Any]:
    """The answer to a question as the page shows it."""
    begin = time.perf_counter()
    question = read_question(session, asked)
    found = answer(session, question)
    seconds = time.perf_counter() - begin
    return {
        "sentence": sentence(found),
        "view": joined(view(session, backdrop, found)),
        "bounds": joined(bounds_chart(session, found)),
        "x": question.x[0].tolist() if session.free else [],
        "state": f"{'bounds and attack' if question.attack else 'bounds'} in {seconds:.2g} s",
    }


@dataclass(slots=True)
class Explorer:
    """A session that is served; ``address`` is what the browser opens."""

    session: Session
    port: int = 0  # 0: one that is free
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    server: _Server = field(init=False)

    def __post_init__(self) -> None:
        self.server = _Server((HOST, self.port), _Handler)
        self.port = self.server.server_address[1]
        self.server.explorer = self
        self.server.page = explorer_page(self.session).encode("utf-8", "replace")
        self.server.backdrop = backdrop_of(self.session)

    @property
    def address(self) -> str:
        """With the token, which is the key to it."""
        return f"http://{HOST}:{self.port}/{self.token}/"

    def serve(self) -> None:
        """Answer until the process is stopped or :meth:`stop` is called from another thread."""
        try:
            self.server.serve_forever(poll_interval=0.2)
        finally:
            self.server.server_close()

    def stop(self) -> None:
        """End :meth:`serve`."""
        self.server.shutdown()


@contextmanager
def open_page(address: str) -> Iterator[Path]:
    """Open the page in the user's browser without showing its address to other users.

    Every user of the machine can see the command line of a browser. So the browser opens a file that only this user can
    read, which redirects to the address. The file exists as long as the context lasts.
    """
    with tempfile.TemporaryDirectory(prefix="bnndp-explore-") as folder:  # for this user only
        path = Path(folder) / "open.html"
        redirect = tag("meta", http_equiv="refresh", content=f"0; url={address}")
        path.write_text(f"<!doctype html>{redirect}{tag('a', 'Open the explorer', href=address)}", encoding="utf-8")
        webbrowser.open(path.as_uri())
        yield path


class _Server(ThreadingHTTPServer):
    """Threads take the requests; a lock lets one of them compute."""

    daemon_threads = True
    allow_reuse_address = False
    explorer: Explorer
    page: bytes
    backdrop: Backdrop

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self.computing = threading.Lock()


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    timeout = _TIMEOUT
    server_version, sys_version = "bnndp", ""
    protocol_version = "HTTP/1.1"

    @property
    def _own(self) -> _Server:
        return cast(_Server, self.server)

    def do_GET(self) -> None:
        """The page."""
        if self._allowed(""):
            self._send(HTTPStatus.OK, self._own.page, "text/html; charset=utf-8")

    def do_POST(self) -> None:
        """A question."""
        if not self._allowed("ask"):
            return
        asked = self._body()
        if asked is None:
            return
        own = self._own
        with own.computing:
            try:
                found = reply(own.explorer.session, own.backdrop, json.loads(asked))
            except (CertError, ValueError, RecursionError) as error:
                self._send_error(HTTPStatus.BAD_REQUEST, str(error))
                return
            except Exception:  # the browser gets a short message, the terminal the traceback
                self._send_error(HTTPStatus.INTERNAL_SERVER_ERROR, "an error in bnndp; the terminal has the details.")
                raise
        self._send(HTTPStatus.OK, json.dumps(found, allow_nan=False).encode(), "application/json")

    def _allowed(self, name: str) -> bool:
        """Whether the request comes from our page; any other request gets an error that says nothing."""
        explorer = self._own.explorer
        hosts = {f"{HOST}:{explorer.port}", f"localhost:{explorer.port}"}
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        site, destination = self.headers.get("Sec-Fetch-Site", "none"), self.headers.get("Sec-Fetch-Dest")
        followed = self.command == "GET" and destination == "document"  # a link, which must hold the token
        near = followed or site in ("none", "same-origin")
        own = host in hosts and origin in (None, f"http://{host}") and near
        wanted = f"/{explorer.token}/{name}"
        if own and secrets.compare_digest(self.path.encode(), wanted.encode()):
            return True
        self.close_connection = True
        self._send_error(HTTPStatus.NOT_FOUND if own else HTTPStatus.FORBIDDEN, "there is nothing here.")
        return False

    def _body(self) -> bytes | None:
        """The body, if it is JSON of a known, small length; None after an error was sent."""
        length = self.headers.get("Content-Length", "")
        kind = self.headers.get("Content-Type", "").partition(";")[0].strip()
        if kind == "application/json" and re.fullmatch("[0-9]{1,9}", length) and int(length) <= _MAX_LENGTH:
            return self.rfile.read(int(length))
        self.close_connection = True
        self._send_error(HTTPStatus.BAD_REQUEST, f"a question is JSON of at most {_MAX_LENGTH} bytes.")
        return None

    def _send_error(self, status: HTTPStatus, error: str) -> None:
        self._send(status, json.dumps({"error": error}).encode(), "application/json")

    def _send(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        headers = {"Content-Type": kind, "Content-Length": str(len(body)), **_HEADERS}
        if self.close_connection:
            headers["Connection"] = "close"
        for name, value in headers.items():
            self.send_header(name, value)
        try:
            self.end_headers()
            self.wfile.write(body)
        except ConnectionError:  # the page was closed meanwhile
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the name of the base class)
        """Nothing: requests hold the token."""
