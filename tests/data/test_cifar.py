"""CIFAR-10: made batches, unpacked and in the archive; the subset, made and as shared."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from bnndp.data import cifar
from bnndp.data.cifar import cifar10, cifar10_subset
from bnndp.data.folder import Store
from bnndp.errors import InputError

if TYPE_CHECKING:
    from tests.data.conftest import Web

COUNT = 6  # records of a batch in these tests


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar, "BATCH", COUNT)


def batch(seed: int) -> np.ndarray:  # (records, 3073), uint8
    records = np.random.default_rng(seed).integers(0, 256, (COUNT, 3073), dtype=np.uint8)
    records[:, 0] %= 10
    return records


BATCHES = {f"data_batch_{k}.bin": batch(k) for k in range(1, 6)} | {"test_batch.bin": batch(0)}


def unpack(folder: Path) -> Path:
    inner = folder / "cifar10" / "cifar-10-batches-bin"
    inner.mkdir(parents=True)
    for name, records in BATCHES.items():
        (inner / name).write_bytes(records.tobytes())
    return inner


def packed(batches: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as archive:
        for name, content in {"readme.html": b"hello", **batches}.items():
            info = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def pack(folder: Path, **changed: bytes | None) -> Path:
    content = {name: records.tobytes() for name, records in BATCHES.items()} | {
        f"{name}.bin": value for name, value in changed.items()
    }
    path = folder / "cifar10" / "cifar-10-binary.tar.gz"
    path.parent.mkdir()
    path.write_bytes(packed({name: value for name, value in content.items() if value is not None}))
    return path


@pytest.mark.parametrize("prepare", [unpack, pack])
def test_reads_the_binary_form(prepare: Callable[[Path], Path], tmp_path: Path) -> None:
    prepare(tmp_path)
    train, test = (cifar10(split, tmp_path) for split in ("train", "test"))
    assert (train.points, train.n_in, train.classes, test.points) == (5 * COUNT, 3072, 10, COUNT)
    records = np.concatenate([BATCHES[f"data_batch_{k}.bin"] for k in range(1, 6)])
    assert train.y.tolist() == records[:, 0].tolist()
    assert torch.equal((train.x * 255).round().to(torch.uint8), torch.from_numpy(records[:, 1:]))
    assert test.x[2, 5].item() == BATCHES["test_batch.bin"][2, 6] / 255
    assert test.x.max() <= 1


def test_the_archive_is_downloaded(web: Web, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    body = packed({name: records.tobytes() for name, records in BATCHES.items()})
    sha256 = hashlib.sha256(body).hexdigest()
    monkeypatch.setattr(cifar, "ARCHIVE", replace(cifar.ARCHIVE, mirrors=(web.address,), sha256=sha256, size=len(body)))
    web.bodies["/cifar-10-binary.tar.gz"] = body
    assert cifar10("test", store).y.tolist() == BATCHES["test_batch.bin"][:, 0].tolist()
    assert cifar10("train", store).points == 5 * COUNT
    assert web.asked == ["/cifar-10-binary.tar.gz"]


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (None, r"lacks test_batch.bin; fetch it again"),
        (b"abc", r"test_batch.bin: a batch has 18438 bytes, this has 3; fetch it again"),
        (bytes(18439), r"test_batch.bin: a batch has 18438 bytes, this has more"),
        (b"\x0a" * 18438, r"test_batch.bin: has the label 10; labels must be in 0..9"),
    ],
)
def test_wrong_batches_are_refused(changed: bytes | None, says: str, tmp_path: Path) -> None:
    pack(tmp_path, test_batch=changed)
    with pytest.raises(InputError, match=says) as caught:
        cifar10("test", tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "damage", [lambda whole: whole[:-2000], lambda _: b"no archive", lambda _: gzip.compress(b"x")]
)
def test_a_damaged_archive_is_refused(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = pack(tmp_path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match=r"cannot be read as a tar.gz archive: .*; fetch it again") as caught:
        cifar10("test", tmp_path)
    assert "\n" not in str(caught.value)


def write_subset(folder: Path, **changed: np.ndarray | None) -> Path:
    path = folder / "cifar10" / "cifar10_subset.npz"
    path.parent.mkdir()
    arrays = {
        "x_test": np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), dtype=np.uint8),
        "y_test": np.array([3, 0, 9, 1], dtype=np.uint8),
    } | changed
    np.savez(path, **{key: value for key, value in arrays.items() if value is not None})
    return path


@pytest.fixture
def _four(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cifar.SUBSET_POINTS, "test", 4)


@pytest.mark.usefixtures("_four")
def test_the_subset_is_put_into_the_order_of_the_whole(tmp_path: Path) -> None:
    path = write_subset(tmp_path)
    data = cifar10_subset("test", tmp_path)
    images = np.load(path)["x_test"]
    assert data.y.tolist() == [3, 0, 9, 1]
    for image, channel, row, column in ((0, 0, 0, 1), (1, 2, 31, 30), (3, 1, 5, 17)):
        value = data.x.reshape(4, 3, 32, 32)[image, channel, row, column].item()
        assert value == images[image, row, column, channel] / 255


@pytest.mark.usefixtures("_four")
@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"x_test": None}, "has no array x_test; it holds y_test"),
        ({"y_test": np.zeros(5, dtype=np.uint8)}, r"y_test is uint8 \(5,\), expected uint8 \(4,\)"),
        ({"x_test": np.zeros((4, 32, 32, 3))}, r"x_test is float64 .* expected uint8"),
        ({"y_test": np.full(4, 10, dtype=np.uint8)}, r"cifar10_subset.npz: y\[0\] is 10"),
        ({"y_test": np.array([None] * 4)}, "cannot be read as an npz file: Object arrays cannot be loaded"),
    ],
)
def test_wrong_subsets_are_refused(changed: dict[str, np.ndarray], says: str, tmp_path: Path) -> None:
    write_subset(tmp_path, **changed)
    with pytest.raises(InputError, match=says) as caught:
        cifar10_subset("test", tmp_path)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_npz_is_refused(tmp_path: Path) -> None:
    write_subset(tmp_path).write_bytes(b"PK\x03\x04 broken")
    with pytest.raises(InputError, match="cannot be read as an npz file"):
        cifar10_subset("test", tmp_path)


def test_the_subset_never_stands_for_the_whole(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"lacks cifar-10-binary.tar.gz, .*") as caught:
        cifar10("test", tmp_path)
    assert "cifar10_subset" not in str(caught.value)
    write_subset(tmp_path)
    with pytest.raises(InputError, match=r"The subset is available: ask for cifar10_subset.") as caught:
        cifar10("test", tmp_path)
    assert "\n" not in str(caught.value)


def test_the_shared_subset(data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not (data_folder / cifar.SUBSET.path).is_file():
        pytest.skip(f"no file {cifar.SUBSET.path} in {data_folder}")
    assert hashlib.sha256((data_folder / cifar.SUBSET.path).read_bytes()).hexdigest() == cifar.SUBSET.sha256
    data = cifar10_subset("test", data_folder)
    assert data.y[:10].tolist() == [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]
    assert data.y.bincount().tolist() == [250] * 10
    assert data.x.min() == 0
    assert data.x.max() == 1
