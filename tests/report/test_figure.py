"""What every picture shares: refused early and in one line, written whole, the same bytes each time."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from bnndp.errors import CertError, InputError
from bnndp.report.figure import COLOURS, expect_picture, new_figure, save_figure

MAGIC = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


def some_figure() -> Any:
    figure = new_figure(2, 1.5)
    figure.subplots().plot([0, 1], [1, 2], label="a line")
    figure.legend()
    return figure


@pytest.mark.parametrize("suffix", MAGIC)
def test_the_same_figure_gives_the_same_bytes(tmp_path: Path, suffix: str) -> None:
    for name in ("a", "b"):
        save_figure(some_figure(), tmp_path / f"{name}{suffix}")
    first = (tmp_path / f"a{suffix}").read_bytes()
    assert first.startswith(MAGIC[suffix])
    assert first == (tmp_path / f"b{suffix}").read_bytes()
    assert b"CreationDate" not in first
    assert b"dc:date" not in first


def test_an_old_picture_is_replaced_and_nothing_else_left(tmp_path: Path) -> None:
    (tmp_path / "a.PNG").write_text("old")
    expect_picture(tmp_path / "a.PNG")
    save_figure(some_figure(), tmp_path / "a.PNG")
    assert (tmp_path / "a.PNG").read_bytes().startswith(MAGIC[".png"])
    assert [path.name for path in tmp_path.iterdir()] == ["a.PNG"]


def test_bad_places_are_named_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "folder.png").mkdir()
    places = {
        tmp_path / "a.txt": "got '.txt'",
        tmp_path / "a": "got no suffix",
        tmp_path / "none" / "a.png": "does not exist",
        tmp_path / "folder.png": "not a regular file",
    }
    for place, words in places.items():
        with pytest.raises(InputError) as caught:
            expect_picture(place, option="--figure")
        text = str(caught.value)
        assert text.startswith(f"{place}: ")
        assert words in text
        assert text.endswith("change --figure.")
        assert "\n" not in text


def test_a_folder_that_went_away_is_one_line_too(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot be written: .*; change --out\.$"):
        save_figure(some_figure(), tmp_path / "gone" / "a.png", option="--out")


def test_without_matplotlib_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(CertError, match=r"pip install 'bnndp\[plot\]'"):
        expect_picture(tmp_path / "a.png")


def test_there_are_six_colours() -> None:
    assert len(set(COLOURS)) == len(COLOURS) == 6
