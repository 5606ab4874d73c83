"""Sealed lines: any cut and any flipped bit is noticed, and numbers come back bit for bit."""

from __future__ import annotations

import json
import math
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bnndp.runs.sealed_lines import exact, number, numbers, seal, unseal

RECORD = {"id": 17, "stage": 0, "whole": True, "answer": {"lower": [-0.1], "upper": [0.30000000000000004]}}


def test_a_line_is_json_and_is_read_back() -> None:
    line = seal(RECORD)
    assert line.endswith(b"}\n")
    assert line.count(b"\n") == 1
    assert unseal(line) == RECORD
    assert {key: value for key, value in json.loads(line).items() if key != "crc"} == RECORD


def test_every_cut_is_noticed() -> None:
    line = seal(RECORD)
    assert [cut for cut in range(len(line)) if unseal(line[:cut]) is not None] == []
    assert [cut for cut in range(1, len(line)) if unseal(line[cut:]) is not None] == []


def test_every_flipped_bit_is_noticed() -> None:
    line = seal(RECORD)
    for place in range(len(line)):
        for bit in range(8):
            wrong = bytearray(line)
            wrong[place] ^= 1 << bit
            assert unseal(bytes(wrong)) is None


LIST = b'[1,"crc":"%08x"}\n' % zlib.crc32(b"[1")  # a seal on something else than an object


@pytest.mark.parametrize("line", [b"", b"\n", b"{}\n", b"null\n", b"\0" * 4096, b"\xff" * 50 + b"\n", LIST])
def test_other_lines_are_not_whole(line: bytes) -> None:
    assert unseal(line) is None


@given(st.floats())
def test_numbers_come_back_bit_for_bit(value: float) -> None:
    line = seal({"value": exact([value])[0]})
    record = unseal(line)
    assert record is not None
    found = number(record["value"])
    assert math.isnan(found) if math.isnan(value) else struct.pack("<d", found) == struct.pack("<d", value)


def test_what_json_does_not_know_is_a_text() -> None:
    assert exact([1.5, math.inf, -math.inf, math.nan]) == [1.5, "inf", "-inf", "nan"]
    assert numbers(["inf", 2, "-inf"]) == [math.inf, 2.0, -math.inf]
    with pytest.raises(ValueError, match="JSON compliant"):
        seal({"value": math.nan})
