"""Weighted sums over members: rounded outward, added before they are minimised."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import pytest
import torch
from support.records import normal, uniform
from tests.engine.pretended import F64, Pretended

from bnndp.engine.mixture import LowerSum, Mixture, Part, of_affine, plane_size, summed, weighted_interval
from bnndp.engine.protocol import both_signs
from bnndp.geometry.bounds import Affine, Interval
from bnndp.geometry.box import Box

BOX = Box(torch.zeros(4, 1), torch.ones(4, 1))


def mixture(box: Box, *parts: tuple[list[float], Pretended]) -> Mixture:
    def passes(region: Box, stack: bool) -> Iterator[Part]:
        yield from (Part(torch.tensor(weights, dtype=F64), bounds) for weights, bounds in parts)

    return Mixture(box, 1, sum(len(weights) for weights, _ in parts), 9, passes)


def test_functions_are_added_before_they_are_minimised() -> None:
    """x and 1 - x: each has the least value 0, their mean is 1/2 everywhere."""
    rise, fall = Pretended(BOX, [0.0, 0.0], matrix=1.0), Pretended(BOX, [1.0, 1.0], matrix=-1.0, name="partition")
    found = mixture(BOX, ([0.5], rise), ([0.5], fall)).affine(both_signs(1, BOX))
    assert torch.allclose(found.least, torch.full((4, 2), 0.5, dtype=F64), atol=1e-12)
    assert bool((found.least <= 0.5).all())
    assert found.method == ("moment+partition",) * 4
    alone = mixture(BOX, ([1.0], rise))
    assert not alone.several
    assert alone.alone() is rise
    assert torch.equal(alone.affine(both_signs(1, BOX)).least, rise.least(both_signs(1, BOX)))


def test_members_of_a_part_stand_one_after_the_other() -> None:
    """Three members on two boxes: values of a box are those at its place in every member's part."""
    values = torch.arange(12.0, dtype=F64).reshape(6, 2)
    weights = torch.tensor([0.5, 0.3, 0.2], dtype=F64)
    truth = sum(w * values[2 * k : 2 * k + 2] for k, w in enumerate(weights))
    torch.testing.assert_close(summed(weights, values), truth, rtol=1e-15, atol=0)
    part = Part(weights, Pretended(BOX, [0.0]))
    asked = torch.tensor([[1, 2], [3, 4]])
    assert part.again(asked).tolist() == asked.tolist() * 3


def test_a_member_without_a_bound_leaves_none() -> None:
    good, bad = Pretended(BOX, [0.0, 0.0]), Pretended(BOX, [torch.nan, 0.0])
    found = mixture(BOX, ([0.5], good), ([0.5], bad)).affine(both_signs(1, BOX))
    assert bool((found.least[:, 0] == -torch.inf).all())
    assert bool((found.least[:, 1] <= 0).all() & (found.least[:, 1] > -1e-9).all())


def test_the_sum_over_members_is_rounded_outward() -> None:
    """Functions that are known exactly and cancel: what is left are the rounding errors of the sum."""
    count, share = 60, uniform(60, seed=3)
    share = share / share.sum()
    plane = Affine(1e9 * normal(count * 4, 2, 1, seed=1), 1e9 * normal(count * 4, 2, seed=2))
    every = BOX[torch.arange(4).repeat(count)]
    found = LowerSum.zero(BOX, 2).plus(share, of_affine(plane, every)).rounded()
    for b in range(4):
        for row in range(2):
            slopes, levels = (t.tolist() for t in (plane.matrix[b::4, row, 0], plane.offset[b::4, row]))
            for at in (0, 1):
                terms = zip(share.tolist(), slopes, levels, strict=True)
                truth = sum((Fraction(w) * (Fraction(s) * at + Fraction(v)) for w, s, v in terms), Fraction(0))
                value = Fraction(found.matrix[b, row, 0].item()) * at + Fraction(found.offset[b, row].item())
                assert truth - Fraction(1, 1000) <= value < truth  # 1e-12 of the terms


def test_the_size_of_a_plane_is_the_largest_sum_of_its_terms() -> None:
    box = Box.ball(normal(20, 3, seed=1), 2.0)
    plane = Affine(normal(20, 2, 3, seed=2), normal(20, 2, seed=3))
    found = plane_size(plane, box)
    for x in (box.lower, box.upper, box.centre):
        assert bool((found >= (plane.matrix.abs() @ x.abs()[..., None])[..., 0] + plane.offset.abs()).all())


@pytest.mark.parametrize("scale", [1.0, 1e-300, 0.0])
def test_intervals_are_added_outward(scale: float) -> None:
    weights = [torch.tensor([0.1, 0.2], dtype=F64), torch.tensor([0.7], dtype=F64)]
    low = [scale * uniform(4, 1, seed=1), scale * uniform(2, 1, seed=2)]
    found = weighted_interval((w, Interval(v, v)) for w, v in zip(weights, low, strict=True))
    for b in range(2):
        terms = [(0.1, low[0][b]), (0.2, low[0][b + 2]), (0.7, low[1][b])]
        truth = sum((Fraction(w) * Fraction(v.item()) for w, v in terms), Fraction(0))
        assert Fraction(found.lower[b].item()) <= truth <= Fraction(found.upper[b].item())
        assert float(found.upper[b] - found.lower[b]) <= 1e-13 * scale + 2e-290
