"""The reader of IDX files: what it reads, and what it refuses in one line that names the file."""

import gzip
import struct
from pathlib import Path

import pytest
import torch

from bnndp.data.idx import read_idx
from bnndp.errors import InputError


def idx(shape: tuple[int, ...], payload: bytes, *, kind: int = 8) -> bytes:
    """The bytes of an IDX file, by the format's definition."""
    return bytes((0, 0, kind, len(shape))) + struct.pack(f">{len(shape)}I", *shape) + payload


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(gzip.compress(content, mtime=0))
    return path


def test_reads_rows_in_order_into_what_may_be_written_to(tmp_path: Path) -> None:
    path = write(tmp_path / "a.gz", idx((2, 3, 2), bytes(range(250, 256)) + bytes(range(6))))
    found = read_idx(path, 3)
    assert found.tolist() == [[[250, 251], [252, 253], [254, 255]], [[0, 1], [2, 3], [4, 5]]]
    assert found.dtype == torch.uint8
    found[0] = 7
    assert read_idx(write(path, idx((258,), bytes(258))), 1).shape == (258,)  # sizes are big-endian


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (idx((2, 2, 1), bytes(4)), "magic number is 2051, expected 2049"),
        (idx((4,), bytes(4), kind=13), "magic number is 3329, expected 2049"),
        (b"\x00\x00\x08", "magic number is cut short"),
        (b"", "magic number is cut short"),
        (b"\x00\x00\x08\x01\x00\x00", "ends in its header, after 6 of 8 bytes"),
        (idx((4,), bytes(3)), "claims 4 bytes of data .* it holds 3"),
        (idx((4,), bytes(5)), "claims 4 bytes of data .* it holds more"),
        (idx((0,), b""), r"claims the shape \(0,\), which is empty"),
        (idx((2**32 - 1,), bytes(3)), "which is too large"),
    ],
)
def test_malformed_content_is_refused(tmp_path: Path, content: bytes, says: str) -> None:
    path = write(tmp_path / "a.gz", content)
    with pytest.raises(InputError, match=says) as caught:
        read_idx(path, 1)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


DEFLATED = gzip.compress(idx((4,), bytes(4)), mtime=0)


@pytest.mark.parametrize(
    "raw",
    [
        idx((4,), bytes(4)),  # not compressed
        gzip.compress(idx((400,), bytes(400)), mtime=0)[:-12],  # cut short
        DEFLATED[:10] + b"\xff" * 20,  # not a deflate stream
        DEFLATED[:-8] + bytes([DEFLATED[-8] ^ 0xFF]) + DEFLATED[-7:],  # the checksum of other content
    ],
    ids=["plain", "short", "stream", "sum"],
)
def test_what_is_no_gzip_file_is_refused(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "a.gz"
    with pytest.raises(InputError, match="No such file"):
        read_idx(path, 1)
    path.write_bytes(raw)
    with pytest.raises(InputError, match="cannot be read as a gzip file") as caught:
        read_idx(path, 1)
    assert str(path) in str(caught.value)
