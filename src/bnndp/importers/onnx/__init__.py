"""Networks from ONNX files: the graph is read by the package ``onnx`` and put together as layers of bnndp."""

from __future__ import annotations

import os

__all__ = ["is_onnx"]


def is_onnx(path: str | os.PathLike[str]) -> bool:
    """Whether the name of a file says that it is one of ONNX.

    >>> is_onnx("network.onnx.gz"), is_onnx("network.pt")
    (True, False)
    """
    return str(path).lower().endswith((".onnx", ".onnx.gz"))
