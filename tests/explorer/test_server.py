"""The server answers its own page and nobody else: not other hosts, origins, paths or methods; and fails closed."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from bnndp.explorer import server as server_module
from bnndp.explorer.answers import answer
from bnndp.explorer.server import HOST, Explorer
from bnndp.explorer.session import Session
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork

QUESTION = {"x": [0.1], "eps": 0.1, "attack": False}
GOOD = json.dumps(QUESTION).encode()


@pytest.fixture(scope="module")
def explorer() -> Iterator[Explorer]:
    layer = Linear(torch.ones(1, 1), torch.full((1, 1), 0.1), torch.zeros(1), torch.zeros(1))
    opened = Explorer(Session("<b>line</b>", BayesianNetwork((layer,)), domain=(-1.0, 1.0)))
    thread = threading.Thread(target=opened.serve)
    thread.start()
    yield opened
    opened.stop()
    thread.join(10)
    assert not thread.is_alive()


def request(
    explorer: Explorer, method: str, path: str, body: bytes = b"", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(HOST, explorer.port, timeout=20)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        connection.request(method, path, body or None, named)
        found = connection.getresponse()
        return found.status, dict(found.getheaders()), found.read()
    finally:
        connection.close()


def ask(explorer: Explorer, question: Any = QUESTION, **headers: str) -> tuple[int, dict[str, Any]]:
    named = {"Content_Type": "application/json"} | headers
    status, _, body = request(explorer, "POST", f"/{explorer.token}/ask", json.dumps(question).encode(), **named)
    return status, json.loads(body)


def test_it_listens_on_this_machine_only(explorer: Explorer) -> None:
    assert explorer.server.socket.getsockname()[0] == "127.0.0.1"
    assert explorer.address == f"http://127.0.0.1:{explorer.port}/{explorer.token}/"


def test_the_page_is_there_with_the_headers_that_keep_others_out(explorer: Explorer) -> None:
    status, headers, body = request(explorer, "GET", f"/{explorer.token}/")
    assert status == 200
    assert b"<b>line" not in body
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert not [name for name in headers if name.lower().startswith("access-control")]


def test_a_question_is_answered(explorer: Explorer) -> None:
    status, found = ask(explorer, Origin=f"http://127.0.0.1:{explorer.port}", Sec_Fetch_Site="same-origin")
    assert status == 200
    assert "lies between" in found["sentence"]


def test_every_token_is_another() -> None:
    draw: Any = Explorer.__dataclass_fields__["token"].default_factory
    tokens = {draw() for _ in range(50)}
    assert len(tokens) == 50
    assert min(map(len, tokens)) >= 32


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1", "127.0.0.1:1", "[::1]", ""])
def test_a_name_that_was_bound_anew_gets_nothing(explorer: Explorer, host: str) -> None:
    for method, name in (("GET", ""), ("POST", "ask")):
        status, _, body = request(explorer, method, f"/{explorer.token}/{name}", b"{}", Host=host)
        assert status == 403
        assert b"nothing here" in body


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"}, {"Origin": "null"}, {"Origin": "http://127.0.0.1:1"},
        {"Sec_Fetch_Site": "cross-site"}, {"Sec_Fetch_Site": "same-site"},
    ],
)  # fmt: skip
def test_another_page_gets_nothing(explorer: Explorer, headers: dict[str, str]) -> None:
    assert ask(explorer, **headers) == (403, {"error": "there is nothing here."})


@pytest.mark.parametrize(("goal", "status"), [("document", 200), ("iframe", 403), ("empty", 403), ("script", 403)])
def test_from_elsewhere_the_page_can_be_opened_but_not_used(explorer: Explorer, goal: str, status: int) -> None:
    """As from the file that leads to it."""
    headers = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Dest": goal}
    assert request(explorer, "GET", f"/{explorer.token}/", **headers)[0] == status
    assert ask(explorer, **headers)[0] == 403


@pytest.mark.parametrize(
    "path", ["/", "/ask", "/wrong/", "/wrong/ask", "/{t}", "/{t}/x", "/{t}/../", "/{t}/?a=1", "/é"]
)
def test_no_other_path_is_there(explorer: Explorer, path: str) -> None:
    place = path.format(t=explorer.token).encode().decode("latin-1")
    with socket.create_connection((HOST, explorer.port), timeout=20) as raw:
        raw.sendall(f"GET {place} HTTP/1.1\r\nHost: {HOST}:{explorer.port}\r\n\r\n".encode("latin-1"))
        assert raw.makefile("rb").readline().split()[1] == b"404"


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "TRACE"])
def test_no_other_method_is_there(explorer: Explorer, method: str) -> None:
    assert request(explorer, method, f"/{explorer.token}/ask")[0] == 501


@pytest.mark.parametrize("entry", ["x", "eps"])
@pytest.mark.parametrize("value", ["-3", "99", "NaN", "Infinity", "1e400", '"abc"', '""', "null", "1" * 5000])
def test_a_value_out_of_range_has_no_answer(explorer: Explorer, entry: str, value: str) -> None:
    given = {"x": "0.1", "eps": "0.1"} | {entry: value}
    body = f'{{"x": [{given["x"]}], "eps": {given["eps"]}, "attack": false}}'.encode()
    status, _, text = request(explorer, "POST", f"/{explorer.token}/ask", body, Content_Type="application/json")
    assert status == 400
    found = json.loads(text)
    assert set(found) == {"error"}
    assert len(found["error"].splitlines()) == 1


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (GOOD, {"Content_Type": "text/plain"}),
        (GOOD, {}),
        (b"{}", {"Content_Type": "application/json", "Content_Length": "-1"}),
        (b"{}", {"Content_Type": "application/json", "Content_Length": "99999999999999"}),
        (GOOD + b" " * 70_000, {"Content_Type": "application/json"}),
        (b"{", {"Content_Type": "application/json"}),
        (b"[" * 60_000, {"Content_Type": "application/json"}),
        (b"\xff", {"Content_Type": "application/json"}),
        (b'{"x": [NaN], "eps": 0.1, "attack": false}', {"Content_Type": "application/json"}),
    ],
)
def test_what_is_no_question_is_refused(explorer: Explorer, body: bytes, headers: dict[str, str]) -> None:
    try:
        status, _, text = request(explorer, "POST", f"/{explorer.token}/ask", body, **headers)
    except (ConnectionResetError, BrokenPipeError):  # closed before all of a long body was sent
        assert len(body) > 2**16
        return
    assert status == 400
    assert "error" in json.loads(text)
    assert ask(explorer)[0] == 200  # and it goes on


def test_an_error_is_an_error_and_never_an_answer(
    explorer: Explorer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(server_module, "answer", Mock(side_effect=ArithmeticError("secret detail")))
    status, found = ask(explorer)
    assert status == 500
    assert set(found) == {"error"}
    assert "secret" not in found["error"]
    time.sleep(0.1)
    assert "secret detail" in capfd.readouterr().err
    monkeypatch.undo()
    assert ask(explorer)[0] == 200


def test_one_question_is_computed_at_a_time(explorer: Explorer, monkeypatch: pytest.MonkeyPatch) -> None:
    at_work, most = [0], [0]

    def watched(session: Any, question: Any) -> Any:
        at_work[0] += 1
        most[0] = max(most[0], at_work[0])
        time.sleep(0.05)
        at_work[0] -= 1
        return answer(session, question)

    monkeypatch.setattr(server_module, "answer", watched)
    statuses: list[int] = []
    threads = [threading.Thread(target=lambda: statuses.append(ask(explorer)[0])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [200] * 4
    assert most == [1]


def test_a_port_that_is_taken_is_refused_in_one_line(
    explorer: Explorer, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    from bnndp.cli.main import main
    from bnndp.files.posterior import save

    save(explorer.session.network, tmp_path / "net.safetensors")
    words = ["explore", str(tmp_path / "net.safetensors"), "--no-browser", "--port", str(explorer.port)]
    assert main(words) == 2
    assert f"port {explorer.port} cannot be used" in capsys.readouterr().err
