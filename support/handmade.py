"""Model files and certificates written by hand, byte by byte: neither bnndp nor the checker takes part."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Values = Sequence[float]
Table = dict[str, tuple[list[int], Values]]

_CODES = {"F64": "d", "F32": "f", "F16": "e"}


def tensors(name: str, mean: Sequence[Values], std: Sequence[Values], bias: Values, bias_std: Values) -> Table:
    """Those of a dense layer with independent weights."""
    shape = [len(mean), len(mean[0])]
    flat: Table = {
        "weight_mean": (shape, [x for row in mean for x in row]),
        "weight_std": (shape, [x for row in std for x in row]),
    }
    flat |= {"bias_mean": ([len(bias)], bias), "bias_std": ([len(bias)], bias_std)}
    return {f"{name}.{field}": value for field, value in flat.items()}


def linear(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "linear", "name": name, "posterior": "mean_field"} | more


def header(layers: Sequence[Mapping[str, Any]], shape: Sequence[int], task: str = "regression") -> dict[str, Any]:
    return {"format": "bnndp-posterior-1", "task": task, "input_shape": list(shape), "layers": list(layers)}


def container(table: Mapping[str, Any], body: bytes, description: object) -> bytes:
    """A safetensors file with this table of tensors."""
    text = json.dumps({"__metadata__": {"bnndp": description}, **table}).encode()
    return struct.pack("<Q", len(text)) + text + body


def write_model(path: Path, entry: Mapping[str, Any], given: Table, dtype: str = "F64") -> Path:
    table, body = {}, b""
    for name, (shape, values) in given.items():
        if dtype == "BF16":
            part = b"".join(struct.pack("<f", value)[2:] for value in values)
        else:
            part = struct.pack(f"<{len(values)}{_CODES[dtype]}", *values)
        table[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(part)]}
        body += part
    path.write_bytes(container(table, body, json.dumps(entry)))
    return path


def hexed(value: Any) -> Any:
    """Floats in hexadecimal, everything else as it is."""
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, Mapping):
        return {key: hexed(each) for key, each in value.items()}
    return [hexed(each) for each in value] if isinstance(value, list | tuple) else value


def sealed(body: Mapping[str, Any]) -> str:
    """The text of a certificate with the digest of its content."""
    plain = {key: value for key, value in hexed(body).items() if key != "digest"}
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return json.dumps(plain | {"digest": hashlib.sha256(text.encode()).hexdigest()})


def certificate(
    model: Path, box: tuple[Values, Values], of: str, rows: Sequence[Values], at_least: Values, proof: Mapping[str, Any]
) -> dict[str, Any]:
    """The content of a certificate about this file."""
    return hexed({
        "format": "bnndp-certificate-1",
        "network": {"sha256": hashlib.sha256(model.read_bytes()).hexdigest()},
        "region": {"low": list(box[0]), "high": list(box[1])},
        "claim": {"of": of, "rows": [list(row) for row in rows], "at_least": list(at_least)},
        "proof": proof,
    })  # fmt: skip


def cdf(u: float) -> float:
    return 0.5 * math.erfc(-u / math.sqrt(2))


def rectified(m: float, r: float) -> float:
    """E max(m + r xi, 0)."""
    if r == 0:
        return max(m, 0.0)
    return m * cdf(m / r) + r * math.exp(-0.5 * (m / r) ** 2) / math.sqrt(2 * math.pi)


def _under(a: float, b: float, r: float, slope: float, pieces: int = 8) -> list[float]:
    """By how much the tangents in the middle of the pieces exceed a line, at the ends of the pieces."""
    found, h = [], (b - a) / pieces
    for i in range(pieces):
        touch = a + (i + 0.5) * h
        tilt = cdf(touch / r) if r > 0 else float(touch >= 0)
        found += [rectified(touch, r) + tilt * (at - touch) - slope * at for at in (touch - h / 2, touch + h / 2)]
    return found


def relu_step(low: Values, high: Values, least: Values, most: Values, slack: float = 1e-9) -> dict[str, Any]:
    """Ranges of means and standard deviations with a chord above and a tangent below, all moved outward a little."""
    above: tuple[list[float], list[float]] = ([], [])
    below: tuple[list[float], list[float]] = ([], [])
    for a, b, r, s in zip(low, high, least, most, strict=True):
        chord = (rectified(b, s) - rectified(a, s)) / (b - a) if b > a else 0.5
        middle = 0.5 * (a + b)
        tilt = cdf(middle / r) if r > 0 else float(middle >= 0)
        for sides, slope, constant in (
            (above, chord, max(rectified(end, s) - chord * end for end in (a, b)) + slack),
            (below, tilt, min(_under(a, b, r, tilt)) - slack),
        ):
            sides[0].append(slope)
            sides[1].append(constant)
    return {"mean": [list(low), list(high)], "deviation": [list(least), list(most)], "above": above, "below": below}
