"""Downloads from a local server: right, wrong, cut short, absent, silent; a file is there whole or not at all."""

from __future__ import annotations

import gzip
import hashlib
import random
import socket
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest

from bnndp.data.download import CONTENT, Published, fetch
from bnndp.data.folder import Store
from bnndp.errors import InputError

if TYPE_CHECKING:
    from tests.data.conftest import Web

BODY = random.Random(0).randbytes(200_000)  # more than one piece, and nothing that compresses
WHAT = "what it is"


def published(web: Web, content: bytes = BODY, *, of: str = "the file", mirrors: tuple[str, ...] = ("",)) -> Published:
    digest = hashlib.sha256(content).hexdigest()
    return Published("set/a.bin", tuple(web.address + m for m in mirrors), ("a.bin",), digest, len(content), of)


def files_below(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def refused(file: Published, store: Store) -> str:
    """The one line that says why; nothing may be left in any folder."""
    with pytest.raises(InputError) as caught:
        fetch([file], store, what=WHAT)
    assert store.named is not None
    assert files_below(store.cache) == files_below(store.named) == []
    message = str(caught.value)
    assert "\n" not in message
    assert f"{store.named / 'set'}: lacks a.bin, not downloaded: " in message
    assert "put it there (what it is), or set BNNDP_DATA to the folder whose subfolder 'set' holds it." in message
    return message


def test_a_download_lands_in_the_cache_once(web: Web, store: Store) -> None:
    web.bodies["/a.bin"] = BODY
    told: list[tuple[str, int, int | None]] = []
    store = replace(store, progress=lambda *news: told.append(news))
    for _ in range(2):
        (path,) = fetch([published(web)], store, what=WHAT)
        assert path == store.cache / "set" / "a.bin"
        assert path.read_bytes() == BODY
    assert web.asked == ["/a.bin"]
    assert files_below(store.cache) == ["a.bin"]
    assert told[-1] == ("a.bin", len(BODY), len(BODY))
    assert [done for _, done, _ in told] == sorted({done for _, done, _ in told})


def test_a_file_in_the_named_folder_is_not_downloaded(web: Web, store: Store) -> None:
    assert store.named is not None
    (store.named / "set").mkdir()
    (store.named / "set" / "a.bin").write_bytes(b"own")
    assert fetch([published(web)], store, what=WHAT) == [store.named / "set" / "a.bin"]
    assert web.asked == []


@pytest.mark.parametrize("level", [1, 9])
def test_the_content_counts_however_it_was_compressed(level: int, web: Web, store: Store) -> None:
    content = BODY + bytes(500_000)
    web.bodies["/a.bin"] = gzip.compress(content, level)
    (path,) = fetch([published(web, content, of=CONTENT)], store, what=WHAT)
    assert gzip.decompress(path.read_bytes()) == content


def test_the_second_mirror_is_tried_after_the_first(web: Web, store: Store) -> None:
    web.bodies["/wrong/a.bin"], web.bodies["/right/a.bin"] = BODY[::-1], BODY
    (path,) = fetch([published(web, mirrors=("absent/", "wrong/", "right/"))], store, what=WHAT)
    assert path.read_bytes() == BODY
    assert web.asked == ["/absent/a.bin", "/wrong/a.bin", "/right/a.bin"]
    path.unlink()
    message = refused(published(web, mirrors=("absent/", "wrong/")), store)
    assert "/absent/a.bin: the server answered 404 Not Found; " in message
    assert "/wrong/a.bin: the sha256 of the file is " in message


def test_a_wrong_checksum(web: Web, store: Store) -> None:
    web.bodies["/a.bin"] = wrong = bytes([BODY[0] ^ 1]) + BODY[1:]
    message = refused(published(web), store)
    assert hashlib.sha256(wrong).hexdigest() in message
    assert hashlib.sha256(BODY).hexdigest() in message


@pytest.mark.parametrize("length", [0, 1, len(BODY) - 1])
def test_a_body_cut_short(length: int, web: Web, store: Store) -> None:
    web.bodies["/a.bin"] = BODY[:length]
    web.announced["/a.bin"] = len(BODY)
    assert f"it ended after {length} of 200000 bytes" in refused(published(web), store)


def test_a_body_that_is_too_long(web: Web, store: Store) -> None:
    web.bodies["/a.bin"] = BODY + b"!"
    told: list[object] = []
    watched = replace(store, progress=lambda *news: told.append(news))
    assert "it has 200001 bytes, more than the 200000 that it may have" in refused(published(web), watched)
    assert told == []  # the announcement was enough


def test_lengths_that_are_not_announced(web: Web, store: Store) -> None:
    wrong: list[tuple[bytes, Any, str]] = [
        (BODY[:-1], None, "(199999 bytes), expected"),
        (BODY + b"!", None, "it has more than the 200000 bytes that it may have"),
        (BODY, "many", "the answer cannot be understood"),
    ]
    for web.bodies["/a.bin"], web.announced["/a.bin"], says in wrong:
        assert says in refused(published(web), store)
    web.bodies["/a.bin"], web.announced["/a.bin"] = BODY, None
    assert fetch([published(web)], store, what=WHAT)[0].read_bytes() == BODY


@pytest.mark.parametrize(
    ("packed", "says"),
    [
        (BODY, "it is not a gzip file"),
        (gzip.compress(BODY)[:-9], "it is a gzip file that is cut short"),
        (gzip.compress(BODY) + b"!", "it is a gzip file with more bytes after its end"),
        (gzip.compress(BODY) * 2, "it is a gzip file with more bytes after its end"),
        (gzip.compress(BODY[1:]), "the sha256 of the decompressed content"),
        (gzip.compress(BODY + bytes(50_000_000)), "the sha256 of the decompressed content"),
    ],
    ids=["not gzip", "cut short", "garbage after", "two members", "other content", "bomb"],
)
def test_damaged_compression(packed: bytes, says: str, web: Web, store: Store) -> None:
    web.bodies["/a.bin"] = packed
    message = refused(published(web, of=CONTENT), store)
    assert says in message
    # A bomb is not unpacked to its end: one piece past the size that is allowed is enough to know.
    assert "(50200000 bytes), expected" not in message


def test_servers_that_do_not_answer(web: Web, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = replace(store, timeout=0.2)
    assert f"{web.address}a.bin: the server answered 404 Not Found" in refused(published(web), store)
    web.silent.add("/a.bin")
    assert "no answer for 0.2 s" in refused(published(web), quick)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        file = replace(published(web), mirrors=(f"http://127.0.0.1:{listener.getsockname()[1]}/",))
        assert "no answer for 0.2 s" in refused(file, quick)  # it is connected, but not served
    assert "no connection (Connection refused)" in refused(file, store)
    monkeypatch.setattr(
        socket, "getaddrinfo", Mock(side_effect=socket.gaierror(socket.EAI_NONAME, "Name or service not known"))
    )
    assert "no connection (Name or service not known)" in refused(published(web), store)


def test_what_is_not_asked_for(web: Web, store: Store) -> None:
    web.bodies["/a.bin"] = BODY
    assert "not downloaded: downloads are switched off; put" in refused(published(web), replace(store, download=False))
    without = refused(published(web, mirrors=()), store)
    assert "not downloaded: no public address with a known checksum; put" in without
    for address in ("file:///etc/", "ftp://127.0.0.1/", "/etc/"):
        assert "is not an address of the web" in refused(replace(published(web), mirrors=(address,)), store)
    assert web.asked == []


def test_a_cache_that_cannot_be_written(web: Web, store: Store) -> None:
    web.bodies["/a.bin"] = BODY
    store.cache.write_text("a file, not a folder")
    with pytest.raises(InputError, match=r"cannot be written: .*; put it there") as caught:
        fetch([published(web)], store, what=WHAT)
    assert "\n" not in str(caught.value)
    assert store.cache.read_text() == "a file, not a folder"


def test_all_absent_files_are_named(web: Web, store: Store) -> None:
    files = [replace(published(web), path=f"set/{name}") for name in ("a.bin", "b.bin")]
    with pytest.raises(InputError, match=r"lacks a\.bin and b\.bin, .* put them there"):
        fetch(files, store, what=WHAT)


def test_an_interrupted_download_leaves_nothing(web: Web, store: Store) -> None:
    web.bodies["/a.bin"] = BODY

    with pytest.raises(KeyboardInterrupt):
        fetch([published(web)], replace(store, progress=Mock(side_effect=KeyboardInterrupt)), what=WHAT)
    assert files_below(store.cache) == []
