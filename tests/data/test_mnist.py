"""MNIST and Fashion-MNIST: made files, absent and wrong ones, and, where they are at hand, the published ones."""

from __future__ import annotations

import gzip
import hashlib
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from bnndp.data import ClassificationData, fashion_mnist, mnist
from bnndp.data.folder import VARIABLE, Store
from bnndp.data.mnist import FILES
from bnndp.errors import InputError

if TYPE_CHECKING:
    from tests.data.conftest import Web

Loader = Callable[..., ClassificationData]
PUBLISHED_MD5 = {  # of the decompressed files of MNIST
    "train-images-idx3-ubyte.gz": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte.gz": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte.gz": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte.gz": "27ae3e4e09519cfbb04c329615203637",
}
LOADERS = pytest.mark.parametrize(("load", "name"), [(mnist, "mnist"), (fashion_mnist, "fashion_mnist")])


def make(
    folder: Path, name: str, *, images: int = 10_000, labels: int = 10_000, side: int = 28, label: int = 3
) -> None:
    """The test part of a set: image 0 is white, all others black; label 0 is 9, all others ``label``."""
    (folder / name).mkdir()
    pixels = b"\xff" * side**2 + bytes((images - 1) * side**2)
    for file, content in (
        ("t10k-images-idx3-ubyte.gz", struct.pack(">4I", 2051, images, side, side) + pixels),
        ("t10k-labels-idx1-ubyte.gz", struct.pack(">2I", 2049, labels) + bytes([9]) + bytes([label]) * (labels - 1)),
    ):
        (folder / name / file).write_bytes(gzip.compress(content, 1, mtime=0))


@LOADERS
def test_reads_made_files(load: Loader, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, name)
    monkeypatch.delenv(VARIABLE, raising=False)
    data = load("test", tmp_path)
    assert repr(data) == "ClassificationData(points=10000, inputs=784, classes=10)"
    assert data.x.dtype == torch.float64
    assert data.y.dtype == torch.int64
    assert torch.equal(data.x[0], torch.ones(784, dtype=torch.float64))
    assert not data.x[1:].any()
    assert data.y[:3].tolist() == [9, 3, 3]


def test_the_argument_wins_over_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, label in (("argument", 1), ("environment", 2)):
        (tmp_path / folder).mkdir()
        make(tmp_path / folder, "mnist", label=label)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "environment"))
    assert int(mnist("test").y[1]) == 2
    assert int(mnist("test", tmp_path / "argument").y[1]) == 1


@LOADERS
def test_without_a_folder_it_says_what_to_set(load: Loader, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(InputError, match=f"set {VARIABLE} .*'{name}'") as caught:
        load("train")
    assert "\n" not in str(caught.value)


def test_absent_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"lacks train-images-idx3-ubyte\.gz and train-labels-idx1-ubyte\.gz, not"):
        mnist("train", tmp_path)
    make(tmp_path, "mnist")
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(InputError, match=r"lacks t10k-labels-idx1-ubyte\.gz, not down.*; put it"):
        mnist("test", tmp_path)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"images": 9999}, r"images-idx3-ubyte.gz: has shape \(9999, 28, 28\), .* has \(10000, 28, 28\)"),
        ({"labels": 60_000}, r"labels-idx1-ubyte.gz: has shape \(60000,\), .* has \(10000,\)"),
        ({"side": 27}, r"has shape \(10000, 27, 27\)"),
        ({"label": 10}, r"labels-idx1-ubyte.gz: y\[1\] is 10 \(9999 such of 10000\); labels must be in 0..9"),
    ],
    ids=str,
)
def test_wrong_files_are_refused(tmp_path: Path, wrong: dict[str, int], says: str) -> None:
    make(tmp_path, "mnist", **wrong)
    with pytest.raises(InputError, match=says):
        mnist("test", tmp_path)


def test_an_unknown_split_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="split must be one of train, test, got 'valid'"):
        mnist("valid", tmp_path)


@pytest.mark.parametrize(
    ("name", "split"), [pytest.param(*key, marks=[pytest.mark.slow] * (key[1] == "train")) for key in FILES]
)
def test_the_checksums_are_those_of_the_published_files(name: str, split: str, data_folder: Path) -> None:
    for file in FILES[name, split]:
        path = data_folder / file.path
        if not path.is_file():
            pytest.skip(f"no file {file.path} in {data_folder}")
        content = gzip.decompress(path.read_bytes())
        assert (hashlib.sha256(content).hexdigest(), len(content)) == (file.sha256, file.size)
        if name == "mnist":
            assert hashlib.md5(content).hexdigest() == PUBLISHED_MD5[file.name]


@pytest.mark.slow
def test_downloads_what_is_absent(web: Web, store: Store, data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The published files themselves, recompressed, served by a local server."""
    files = FILES["mnist", "test"]
    if not all((data_folder / file.path).is_file() for file in files):
        pytest.skip(f"no test part of mnist in {data_folder}")
    for file in files:
        web.bodies[f"/{file.name}"] = gzip.compress(gzip.decompress((data_folder / file.path).read_bytes()), 1)
    local = tuple(replace(file, mirrors=(web.address,)) for file in files)
    monkeypatch.setitem(FILES, ("mnist", "test"), local)
    assert torch.equal(mnist("test", store).x, mnist("test", data_folder).x)
    assert sorted(web.asked) == sorted(web.bodies)
    assert mnist("test", store).points == 10_000  # now from the cache
    assert len(web.asked) == 2
    web.bodies["/t10k-labels-idx1-ubyte.gz"] = web.bodies["/t10k-images-idx3-ubyte.gz"]
    (store.cache / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(InputError, match=r"lacks t10k-labels-idx1-ubyte\.gz, not downloaded: .*; put it there"):
        mnist("test", store)


# Counted on the published files: the labels of each class, the first ten labels, the mean of the pixels.
@pytest.mark.parametrize(
    ("load", "name", "counts", "first"),
    [
        (mnist, "mnist", [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009], [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]),
        pytest.param(
            fashion_mnist, "fashion_mnist", [1000] * 10, [9, 2, 1, 1, 6, 1, 4, 6, 5, 7], marks=pytest.mark.slow
        ),
    ],
)
def test_published_files(load: Loader, name: str, counts: list[int], first: list[int], data_folder: Path) -> None:
    if not (data_folder / name).is_dir():
        pytest.skip(f"no folder {name!r} in {data_folder}")
    data = load("test", data_folder)
    assert data.y.bincount().tolist() == counts
    assert data.y[:10].tolist() == first
    assert data.x.min() == 0
    assert data.x.max() == 1
    assert torch.equal((data.x * 255).round() / 255, data.x)
