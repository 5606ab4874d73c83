"""Files of numpy: plain numbers and texts; archives that are broken or lie are refused."""

from __future__ import annotations

import io
import random
import zipfile
from pathlib import Path

import numpy as np
import pytest
from support.foreign_states import RELUS

from bnndp.errors import ModelFileError
from bnndp.importers.arrays import arrays_of, is_arrays
from bnndp.importers.convert import convert


def test_texts_are_values_and_objects_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "f.npz", kind="normal", **{"0.weight": np.ones((1, 2))})
    found = arrays_of((tmp_path / "f.npz").read_bytes(), "f.npz")
    assert found.values == {"kind": "normal"}
    assert list(found.tensors) == ["0.weight"]
    np.savez(tmp_path / "g.npz", a=np.array([{"x": 1}], dtype=object))
    with pytest.raises(ModelFileError, match="cannot be read as arrays: Object arrays cannot be loaded"):
        convert(tmp_path / "g.npz", RELUS)
    np.savez(tmp_path / "h.npz", a=np.ones(2, dtype=np.complex128))
    with pytest.raises(ModelFileError, match="has dtype complex128"):
        convert(tmp_path / "h.npz", RELUS)


def test_archives_that_lie(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", bytes(2**27))
    assert is_arrays(buffer.getvalue())
    with pytest.raises(ModelFileError, match="arrays would take 134217728 bytes"):
        arrays_of(buffer.getvalue(), "f")
    np.savez(tmp_path / "f.npz", a=np.ones(100))
    content = (tmp_path / "f.npz").read_bytes()
    for cut in range(1, len(content), 211):
        (tmp_path / "cut").write_bytes(content[:cut])
        with pytest.raises(ModelFileError, match="cut: cannot be converted"):
            convert(tmp_path / "cut", RELUS)
    broken = content.replace(b"'fortran_order': False", b"'fortran_order': Fals ")
    with pytest.raises(ModelFileError, match="cannot be read as arrays"):
        arrays_of(broken, "f")


def test_broken_arrays_end_in_one_line() -> None:
    """Bytes changed anywhere, and in the headers of arrays within a good archive."""
    draw, plain = random.Random(0), io.BytesIO()
    np.save(plain, np.ones((2, 3)))
    files = [plain.getvalue()]
    for write in (np.savez, np.savez_compressed):
        buffer = io.BytesIO()
        write(buffer, **{"0.weight": np.ones((2, 3)), "0.bias": np.zeros(2)})
        files.append(buffer.getvalue())
    refused = 0
    for index in range(1500):
        content = bytearray(files[index % 3])
        for _ in range(draw.randint(1, 4)):
            content[draw.randrange(len(content) if index % 2 else min(128, len(content)))] = draw.randrange(256)
        if index % 3 == 0:
            buffer = io.BytesIO()
            with zipfile.ZipFile(buffer, "w") as archive:
                archive.writestr("0.weight.npy", bytes(content))
            content = bytearray(buffer.getvalue())
        try:
            if is_arrays(bytes(content)):
                arrays_of(bytes(content), "f")
        except ModelFileError:
            refused += 1
    assert refused > 500
