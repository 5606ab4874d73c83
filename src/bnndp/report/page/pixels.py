"""Small pictures of inputs as PNG, written without any library, for the page to hold in itself."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Sequence

import numpy as np

from bnndp.report.page.markup import Markup, tag
from bnndp.report.page.scales import rounded, short

_SMALLEST = 8  # pixels on a side: vectors that could be smaller squares are not taken for pictures
_LARGEST = 512
_PALE = 0.6  # saturation of a field
_RISE, _FALL = (196, 74, 18), (38, 92, 190)  # colours of what was added and what was taken away


def image_shape(shape: Sequence[int]) -> tuple[int, int, int] | None:
    """Channels, height and width, if inputs of this shape can be shown as pictures; None: they cannot.

    A vector is taken for a square of grey or of three colours if it has the length of one.

    >>> image_shape((784,)), image_shape((3, 32, 32)), image_shape((8,))
    ((1, 28, 28), (3, 32, 32), None)
    """
    if len(shape) == 1:
        found = next((c for c in (1, 3) if shape[0] % c == 0 and math.isqrt(shape[0] // c) ** 2 * c == shape[0]), None)
        side = 0 if found is None else math.isqrt(shape[0] // found)
        shape = (found or 0, side, side)
    if len(shape) != 3 or shape[0] not in (1, 3):
        return None
    return (shape[0], shape[1], shape[2]) if all(_SMALLEST <= side <= _LARGEST for side in shape[1:]) else None


def input_images(  # noqa: PLR0913 (what is shown, and how)
    x: np.ndarray,  # (n,)
    witness: np.ndarray | None,  # (n,)
    shape: tuple[int, int, int],
    limits: tuple[float, float] | None,
    *,
    size: int,
    name: str = "",
    class_: str = "images",
) -> Markup:
    """An input, the witness of an attack, and the change between them; ``limits`` are black and white."""
    low, high = limits or (float(x.min()), float(x.max()))
    images = [("input", image_uri(x, shape, low, high))]
    if witness is not None:
        change = short(rounded(float(np.abs(witness - x).max()), up=True, digits=2))
        images.append(("attacked", image_uri(witness, shape, low, high)))
        images.append((f"change ≤\N{NO-BREAK SPACE}{change}", difference_uri(witness - x, shape)))
    figures = (
        tag("figure", tag("img", src=uri, alt=f"{name}{text}", width=size, height=size), tag("figcaption", text))
        for text, uri in images
    )
    return tag("div", figures, class_=class_)


def image_uri(values: np.ndarray, shape: tuple[int, int, int], low: float, high: float) -> str:
    """The picture of an input (n,) as a data: address; ``low`` is black, ``high`` white."""
    span = high - low if high > low else 1.0
    grey = np.clip((values.reshape(shape) - low) / span, 0, 1)
    colour = np.repeat(grey, 3, axis=0) if shape[0] == 1 else grey
    return _uri(np.round(255 * colour).astype(np.uint8))


def difference_uri(change: np.ndarray, shape: tuple[int, int, int]) -> str:
    """A change (n,): white where there is none, orange where a value rises, blue where it falls, at most full there.

    Of three channels the mean is shown.
    """
    mean = change.reshape(shape).mean(0)  # (height, width)
    return _signed_uri(mean / max(float(np.abs(mean).max()), np.finfo(np.float64).tiny))


def field_uri(share: np.ndarray) -> str:
    """Numbers from 0 to 1 (height, width) as shades of two colours with white in the middle, pale enough to draw on."""
    return _signed_uri(2 * np.clip(share, 0, 1) - 1, _PALE)


def _signed_uri(values: np.ndarray, saturation: float = 1.0) -> str:  # (height, width) in [-1, 1]
    ends = np.where(values[..., None] > 0, np.array(_RISE), np.array(_FALL))  # (height, width, 3)
    colour = 255 + saturation * np.abs(values)[..., None] * (ends - 255)
    return _uri(np.round(colour).astype(np.uint8).transpose(2, 0, 1))


def _uri(pixels: np.ndarray) -> str:  # pixels (3, height, width) of uint8
    _, height, width = pixels.shape
    rows = pixels.transpose(1, 2, 0).reshape(height, width * 3)
    raw = b"".join(b"\0" + row.tobytes() for row in rows)  # filter 0: none
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits, RGB
    parts = (_chunk(b"IHDR", head), _chunk(b"IDAT", zlib.compress(raw, 9)), _chunk(b"IEND", b""))
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(parts)).decode()


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
