"""The better of two passes, row by row, and passes behind a shift of the inputs."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from support.records import normal
from tests.engine.pretended import F64, Pretended
from torch import Tensor

from bnndp.engine.combined import Best, Shifted
from bnndp.engine.protocol import both_signs
from bnndp.geometry.box import Box

INF, NAN = torch.inf, torch.nan
BOX = Box(torch.zeros(2, 3), torch.ones(2, 3))


@pytest.mark.parametrize(
    ("partition", "better", "name"),
    [
        ([-1.0, 0.0, -3.0, -9.0], [0.0, 0.0, -2.0, -5.0], "moment"),
        ([0.5, 1.0, -1.5, -4.0], [0.5, 1.0, -1.5, -4.0], "partition"),
        ([0.5, -1.0, -2.0, -4.0], [0.5, 0.0, -2.0, -4.0], "moment+partition"),
    ],
)
def test_the_better_row_of_each_is_taken(partition: list[float], better: list[float], name: str) -> None:
    second = Pretended(BOX, partition, name="partition", moments=False)
    both = Best(Pretended(BOX, [0.0, 0.0, -2.0, -5.0]), second)
    found = both.affine(both_signs(2, BOX))
    assert torch.allclose(found.least, torch.tensor(better, dtype=F64), atol=1e-12)
    assert torch.equal(found.affine.offset, torch.tensor([better] * 2, dtype=F64))
    assert found.method == (name, name)
    assert both.name == "moment+partition"


def test_planes_are_compared_where_they_are_least() -> None:
    """The plane of the larger constant may be lower somewhere on the box: what is taken is one plane, whole."""
    flat, steep = Pretended(BOX, [0.0]), Pretended(BOX, [1.0], matrix=-1.0)
    found = Best(flat, steep).affine(torch.ones(1, 2, dtype=F64))
    assert found.affine.matrix.tolist() == [[[0.0] * 3]] * 2
    assert found.affine.offset.tolist() == [[0.0]] * 2
    assert torch.allclose(found.least, torch.zeros(2, 1, dtype=F64), atol=1e-12)


@pytest.mark.parametrize("broken", [NAN, INF, -INF])
@pytest.mark.parametrize("which", [0, 1])
def test_the_other_pass_serves_where_one_has_no_bound(broken: float, which: int) -> None:
    passes = [Pretended(BOX, [0.5, 0.0]), Pretended(BOX, [0.5, 0.0])]
    passes[which] = Pretended(BOX, [broken, broken])
    both, rows, truth = Best(*passes), both_signs(1, BOX), torch.tensor([[0.5, 0.0]] * 2, dtype=F64)
    found = both.affine(rows)
    assert torch.equal(found.affine.offset, truth)
    for least in (found.least, both.least(rows)):
        assert torch.allclose(least, truth, atol=1e-12)


def test_rows_of_each_box_are_asked_only_of_a_pass_that_knows_them() -> None:
    first = Pretended(BOX, [1.0])
    rows = torch.ones(2, 1, 2, dtype=F64)
    for knows, least in ((False, 1.0), (True, 9.0)):
        both = Best(first, Pretended(BOX, [9.0], moments=knows))
        assert torch.allclose(both.affine(rows).least, torch.full((2, 1), least, dtype=F64))
        assert torch.allclose(both.least(rows), torch.full((2, 1), least, dtype=F64))
    assert bool((both.variance(rows) == 1).all())


def test_the_larger_lower_bound_of_softmax_is_taken_and_nan_never() -> None:
    a, b = torch.tensor([[0.2, NAN, 0.4]], dtype=F64), torch.tensor([[0.1, 0.3, NAN]], dtype=F64)
    one, other, none = (Pretended(BOX, [0.0], probabilities=p) for p in (a, b, None))
    rows = torch.zeros(2, 3, 2, dtype=F64)
    found = Best(one, other).softmax(rows)
    assert found is not None
    assert found.tolist() == [[0.2, 0.3, 0.4]]
    assert Best(none, other).softmax(rows) is b
    assert Best(one, none).softmax(rows) is a
    assert Best(none, none).softmax(rows) is None


@pytest.mark.parametrize("each", [False, True], ids=["one shift", "a shift for each box"])
def test_functions_behind_a_shift_are_those_of_x(each: bool) -> None:
    """A (x - shift) + b in exact arithmetic is not below what the pass says of x, and hardly above."""
    shift = 10 * normal(*((4, 3) if each else (3,)), seed=1)
    region = Box.ball(normal(4, 3, seed=2), 0.5)
    matrix, offset = 1e6 * normal(4, 2, 3, seed=3), normal(4, 2, seed=4)
    inner = Pretended(region.moved(shift), offset, matrix)
    bounds = Shifted(inner, shift, region)
    found = bounds.affine(torch.zeros(2, 2, dtype=F64))
    assert bounds.box is region
    assert torch.equal(found.affine.matrix, matrix)
    for b in range(4):
        own: Tensor = shift[b] if each else shift
        for row in range(2):
            terms = zip(matrix[b, row].tolist(), own.tolist(), strict=True)
            truth = Fraction(offset[b, row].item()) - sum((Fraction(a) * Fraction(s) for a, s in terms), Fraction(0))
            level = Fraction(found.affine.offset[b, row].item())
            assert truth - Fraction(1, 10**6) <= level <= truth
