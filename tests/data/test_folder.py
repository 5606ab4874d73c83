"""Where data sets lie: the argument before the environment, the named folder before the cache."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from bnndp.data.folder import OFFLINE, VARIABLE, Store, open_store
from bnndp.errors import InputError


def test_the_argument_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "environment")
    assert open_store("argument").named == Path("argument")
    assert open_store().named == Path("environment")
    monkeypatch.setenv(VARIABLE, "")
    assert open_store().named is None
    monkeypatch.delenv(VARIABLE)
    assert open_store().named is None


def test_the_cache_follows_the_specification_of_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert open_store().cache == tmp_path / "bnndp"
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for ignored in ("relative/path", ""):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert open_store().cache == tmp_path / "home" / ".cache" / "bnndp"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert open_store().cache == tmp_path / "home" / ".cache" / "bnndp"


@pytest.mark.parametrize(("value", "download"), [("1", False), ("yes", False), ("0", True), ("", True)])
def test_downloads_can_be_switched_off(value: str, download: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OFFLINE, value)
    assert open_store().download is download


def test_a_store_is_given_back_as_it_is(store: Store) -> None:
    assert open_store(store) is store


def test_the_named_folder_is_searched_first(store: Store) -> None:
    assert store.named is not None
    assert store.place == store.named
    assert store.find("set/file") is None
    for folder in (store.cache, store.named):
        (folder / "set").mkdir(parents=True)
        (folder / "set" / "file").write_text("")
        assert store.find("set/file") == folder / "set" / "file"
    assert store.find("set") is None  # a folder is not a file
    assert Store(None, store.cache).find("set/file") == store.cache / "set" / "file"
    assert Store(None, store.cache).place == store.cache


@pytest.mark.parametrize("timeout", [0.0, -1.0, math.nan, math.inf])
def test_a_senseless_time_limit_is_refused(timeout: float, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="timeout must be finite and > 0"):
        Store(None, tmp_path, timeout=timeout)
