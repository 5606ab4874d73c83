"""What the benchmark of GPUs counts, on a CPU: operations of products, bytes, and products with their times."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from benchmarks.gpu.counting import Counts, counted, kind_of
from benchmarks.gpu.profiling import Profile, profiled
from benchmarks.gpu.radii import together


def products() -> None:
    """Products of every kind: 3 boxes of 4x5 by 5x6."""
    a, b, c = (torch.ones(shape, dtype=torch.float64) for shape in ((3, 4, 5), (3, 5, 6), (3, 4, 6)))
    c.baddbmm_(a, b)
    torch.baddbmm(c, a, b)
    a @ b
    a @ b[0]
    a @ b[0, :, 0]  # a matrix and a vector
    a @ b[..., :1]
    torch.nn.functional.conv2d(torch.ones(2, 3, 8, 8), torch.ones(4, 3, 3, 3))


def test_operations_are_those_of_the_shapes() -> None:
    found = counted(products)
    convolution = 2 * (2 * 4 * 6 * 6) * (3 * 3 * 3)
    assert found.matrix == 4 * (2 * 3 * 4 * 5 * 6) + convolution
    assert found.vector == 2 * (2 * 3 * 4 * 5)
    assert sum(flops for _, flops in found.products) == found.matrix + found.vector


def test_bytes_count_repeated_rows_once() -> None:
    wide, narrow = torch.ones(8, 16, dtype=torch.float64), torch.ones(16, dtype=torch.float64)
    assert counted(lambda: wide + narrow.expand(8, 16)).bytes == 8 * (8 * 16 + 16 + 8 * 16)
    assert counted(lambda: wide.mT).bytes == 0


def test_a_profile_sees_each_product_once() -> None:
    counts, seen = counted(products), profiled(products, "cpu")
    timed = together(counts, seen)  # a product within another, or one in place, would be out of step
    assert timed.untimed == 0.0
    assert timed.flops == {"matrix": counts.matrix, "vector": counts.vector}
    assert all(seconds > 0 for seconds in timed.seconds.values())


def test_products_without_a_time_count_in_neither() -> None:
    counts = Counts(matrix=30, vector=10, bytes=0, products=(("matrix", 30), ("vector", 10)), operations=2)
    seen = Profile(wall=1.0, busy=1.0, products=(("matrix", 0.0), ("vector", 2.0)), copies={}, longest=[])
    timed = together(counts, seen)
    assert (timed.rate("matrix"), timed.rate("vector"), timed.untimed) == (0.0, 5.0, 0.75)
    with pytest.raises(RuntimeError, match="2 products were counted and 1 profiled"):
        together(counts, replace(seen, products=seen.products[:1]))


@pytest.mark.parametrize(
    ("name", "shapes", "kind"),
    [
        ("mm", [(4, 5), (5, 6)], "matrix"),
        ("baddbmm_", [(3, 4, 6), (3, 4, 5), (3, 5, 6)], "matrix"),
        ("bmm", [(3, 4, 5), (3, 5, 1)], "vector"),
        ("mv", [(4, 5), (5,)], "vector"),
        ("add", [(4, 5), (4, 5)], None),
    ],
)
def test_kinds(name: str, shapes: list[tuple[int, ...]], kind: str | None) -> None:
    assert kind_of(name, shapes) == kind
