"""Boxes and balls against exact rational arithmetic: nothing of the real region may be lost to rounding."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction

import pytest
import torch
from flint import arb, ctx
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.oracles import PRECISION, above, below, exact
from torch import Tensor

from bnndp.errors import InputError
from bnndp.geometry.box import Box, apply_rows
from bnndp.maths.rounding import TINY, gamma

NORMS = (1, 2, math.inf)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def distance(x: list[float], y: list[float], norm: float) -> arb:
    """Exact distance as a ball."""
    steps = [abs(Fraction(a) - Fraction(b)) for a, b in zip(x, y, strict=True)]
    if norm == 1:
        return exact(sum(steps, Fraction(0)))
    if norm == math.inf:
        return exact(max(steps))
    with ctx.workprec(4 * PRECISION):
        return exact(sum((step**2 for step in steps), Fraction(0))).sqrt()


# Construction


def test_a_single_box_and_a_batch() -> None:
    one = Box([0.0, -1.0], [1.0, 1.0])
    assert (one.batch, one.n) == (1, 2)
    assert repr(one) == "Box(batch=1, inputs=2)"
    many = Box(torch.zeros(5, 3), torch.ones(5, 3))
    assert (many.batch, many.n) == (5, 3)
    assert many.lower.dtype == many.upper.dtype == torch.float64
    assert Box([0.1], [0.2]).lower.item() == 0.1  # all digits of a Python number


REFUSED: list[tuple[object, object, str]] = [
    ([1.0], [0.0], "lower=1.0, upper=0.0"),
    ([math.nan], [0.0], "lower=nan"),
    ([0.0], [math.nan], "upper=nan"),
    ([math.nan], [math.nan], "nan"),
    ([-math.inf], [0.0], "lower=-inf"),
    ([0.0], [math.inf], "upper=inf"),
    ([0.0, 0.0], [1.0], "shape"),
    ([[0.0]], [[1.0], [1.0]], "shape"),
    ([], [], "shape"),
    (0.0, 1.0, "shape"),
    (torch.zeros(1, 1, 1), torch.ones(1, 1, 1), "shape"),
    (torch.zeros(2, 0), torch.zeros(2, 0), "shape"),
    ("a", "b", "numbers"),
    ([[0.0, 1.0], [0.0]], [[0.0, 1.0], [0.0]], "numbers"),
    ([None], [1.0], "numbers"),
    (torch.zeros(2, dtype=torch.complex64), torch.ones(2), "complex"),
]


@pytest.mark.parametrize(("lower", "upper", "word"), REFUSED)
def test_nonsense_is_refused(lower: object, upper: object, word: str) -> None:
    with pytest.raises(InputError, match=word):
        Box(lower, upper)  # type: ignore[arg-type]


def test_the_first_bad_end_is_named() -> None:
    lower, upper = torch.zeros(3, 4), torch.ones(3, 4)
    lower[1, 2], lower[2, 0] = 5.0, math.nan
    with pytest.raises(InputError, match=r"box 1, input 2 has lower=5.0, upper=1.0 \(2 bad of 12\)"):
        Box(lower, upper)


def test_a_box_is_frozen_and_does_not_follow_its_arguments() -> None:
    lower, upper = torch.zeros(1, 2, dtype=torch.float64), torch.ones(1, 2, dtype=torch.float64)
    box = Box(lower, upper)
    lower += 10
    assert box.lower.tolist() == [[0, 0]]
    with pytest.raises(dataclasses.FrozenInstanceError):
        box.lower = upper  # type: ignore[misc]
    centre = torch.zeros(1, 2, dtype=torch.float64)
    ball = Box.ball(centre, 1.0, norm=2)
    centre += 10
    assert ball.within is not None
    assert ball.within.centre.tolist() == [[0, 0]]


# Balls

MODERATE = st.floats(-1e300, 1e300)


@settings(max_examples=500, deadline=None)
@given(x=MODERATE, eps=st.floats(0, 1e300), norm=st.sampled_from(NORMS))
@example(x=1.0, eps=1e-20, norm=math.inf)  # below the spacing of floats at 1
@example(x=1.0, eps=5e-324, norm=2)
@example(x=0.0, eps=5e-324, norm=math.inf)
@example(x=-0.0, eps=0.0, norm=1)
@example(x=0.1, eps=0.1, norm=math.inf)
@example(x=1e300, eps=1.0, norm=math.inf)
@example(x=2.0**53, eps=0.5, norm=1)
def test_every_real_point_of_the_ball_is_in_the_box(x: float, eps: float, norm: float) -> None:
    box = Box.ball([x], eps, norm=norm)
    lower, upper = box.lower.item(), box.upper.item()
    assert Fraction(lower) <= Fraction(x) - Fraction(eps)
    assert Fraction(upper) >= Fraction(x) + Fraction(eps)
    if eps == 0:
        assert lower == upper == x
    else:  # and it is at most two steps too wide
        assert Fraction(math.nextafter(math.nextafter(lower, math.inf), math.inf)) > Fraction(x) - Fraction(eps)
        assert Fraction(math.nextafter(math.nextafter(upper, -math.inf), -math.inf)) < Fraction(x) + Fraction(eps)


@settings(max_examples=200, deadline=None)
@given(x=st.floats(0, 1), eps=st.floats(0, 3))
def test_a_domain_cuts_exactly(x: float, eps: float) -> None:
    box = Box.ball([x], eps, domain=(0, 1))
    free = Box.ball([x], eps)
    assert box.lower.item() == max(free.lower.item(), 0.0)
    assert box.upper.item() == min(free.upper.item(), 1.0)


def test_a_domain_may_be_half_open_or_a_point() -> None:
    box = Box.ball([0.5, 0.0], 2.0, domain=(0.0, math.inf))
    assert box.lower.tolist() == [[0, 0]]
    assert (box.upper >= torch.tensor([2.5, 2.0])).all()
    point = Box.ball([0.5], 2.0, domain=(0.5, 0.5))
    assert point.lower.item() == point.upper.item() == 0.5


BAD_BALLS: list[tuple[dict[str, object], str]] = [
    ({"eps": -0.1}, "eps"),
    ({"eps": math.nan}, "eps"),
    ({"eps": math.inf}, "eps"),
    ({"eps": torch.tensor([0.1, 0.2, 0.3])}, "eps"),
    ({"eps": torch.tensor([[0.1]])}, "eps"),
    ({"eps": torch.tensor([0.1, -0.2])}, "eps"),
    ({"norm": 3}, "norm"),
    ({"norm": 0}, "norm"),
    ({"norm": math.nan}, "norm"),
    ({"domain": (1.0, 0.0)}, "domain"),
    ({"domain": (math.nan, 1.0)}, "domain"),
    ({"domain": (0.6, 1.0)}, r"point 0 lies outside the domain \[0.6, 1.0\]: input 0 is 0.5"),
    ({"x": [[math.nan, 0.0], [0.0, 0.0]]}, "nan"),
    ({"x": [[math.inf, 0.0], [0.0, 0.0]]}, "inf"),
    ({"x": [[math.nan, 0.0], [0.0, 0.0]], "domain": (0, 1)}, "nan"),
    ({"x": [[1.7e308, 0.0], [0.0, 0.0]], "eps": 1.7e308}, "inf"),
]


@pytest.mark.parametrize(("change", "word"), BAD_BALLS)
def test_bad_balls_are_refused(change: dict[str, object], word: str) -> None:
    arguments: dict[str, object] = {"x": [[0.5, 0.5], [0.7, 0.9]], "eps": 0.1} | change
    with pytest.raises(InputError, match=word):
        Box.ball(**arguments)  # type: ignore[arg-type]


# Concretisation

ROWS = ("dense", "sparse", "wide range", "subnormal", "zero")


def matrices(kind: str, batch: int, rows: int, n: int) -> Tensor:
    matrix = random(batch, rows, n, seed=1)
    if kind == "sparse":
        return matrix * (random(batch, rows, n, seed=2) > 0.8)
    if kind == "wide range":
        return matrix * 10 ** (5 * random(batch, rows, n, seed=3))
    if kind == "subnormal":
        return matrix * 1e-170  # squares underflow
    return matrix * 0 if kind == "zero" else matrix


def exact_box_minimum(matrix: list[float], offset: float, lower: list[float], upper: list[float]) -> Fraction:
    value = Fraction(offset)
    for w, low, high in zip(matrix, lower, upper, strict=True):
        value += Fraction(w) * Fraction(low if w > 0 else high)
    return value


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("width", [0.0, 1e-12, 0.3, 1e6])
def test_box_extremes_are_on_the_safe_side_and_tight(kind: str, width: float) -> None:
    batch, rows, n = 4, 5, 23
    centre = random(batch, n, seed=4)
    box = Box(centre - width, centre + width * random(batch, n, seed=5).abs())
    matrix, offset = matrices(kind, batch, rows, n), random(batch, rows, seed=6)
    low, high = box.minimum(matrix, offset), box.maximum(matrix, offset)
    for b in range(batch):
        lower, upper, size = box.lower[b].tolist(), box.upper[b].tolist(), box.magnitude[b]
        for r in range(rows):
            row, shift = matrix[b, r].tolist(), offset[b, r].item()
            least = exact_box_minimum(row, shift, lower, upper)
            most = -exact_box_minimum([-w for w in row], -shift, lower, upper)
            slack = Fraction(4 * gamma(2 * n + 8) * (float(matrix[b, r].abs() @ size) + abs(shift)) + 4 * TINY)
            assert least - slack <= Fraction(low[b, r].item()) <= least
            assert most <= Fraction(high[b, r].item()) <= most + slack


def test_matrix_and_offset_may_be_shared_by_the_batch() -> None:
    box = Box.ball(random(6, 4), 0.1, norm=2)
    matrix, offset = random(3, 4, seed=8), random(3, seed=9)
    for method in (box.minimum, box.maximum):
        shared = method(matrix, offset)
        own = method(matrix.expand(6, 3, 4), offset.expand(6, 3))
        assert shared.shape == (6, 3)
        assert torch.allclose(shared, own, rtol=1e-13, atol=1e-13)
    assert torch.allclose(apply_rows(matrix, box.lower), apply_rows(matrix.expand(6, 3, 4), box.lower), rtol=1e-13)


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("radius", [0.0, 1e-12, 0.3, 1e6])
def test_ball_extremes_are_those_of_the_dual_norm(kind: str, norm: int, radius: float) -> None:
    """Over a ball the exact minimum is ``w . c + offset - radius * |w|_dual``: never above it, hardly below."""
    batch, rows, n = 3, 4, 17
    region = Box.ball(random(batch, n, seed=4), radius, norm=norm)
    matrix, offset = matrices(kind, batch, rows, n), random(batch, rows, seed=6)
    if kind == "subnormal":
        offset = torch.zeros_like(offset)  # nothing hides what underflow takes away
    low, high = region.minimum(matrix, offset), region.maximum(matrix, offset)
    assert region.within is not None
    for b in range(batch):
        centre = region.within.centre[b].tolist()
        for r in range(rows):
            row = [Fraction(w) for w in matrix[b, r].tolist()]
            middle = sum((w * Fraction(c) for w, c in zip(row, centre, strict=True)), Fraction(offset[b, r].item()))
            with ctx.workprec(4 * PRECISION):
                dual = exact(max(map(abs, row))) if norm == 1 else exact(sum((w**2 for w in row), Fraction(0))).sqrt()
                least, most = exact(middle) - arb(radius) * dual, exact(middle) + arb(radius) * dual
                size = float(matrix[b, r].abs() @ (region.magnitude[b] + region.within.centre[b].abs() + radius))
                slack = arb(4 * gamma(2 * n + 8) * (size + abs(offset[b, r].item())) + 4 * TINY)
                assert below(low[b, r].item(), least)
                assert above(high[b, r].item(), most)
                assert arb(low[b, r].item()) >= least - slack
                assert arb(high[b, r].item()) <= most + slack


@pytest.mark.parametrize("norm", [1, 2])
def test_the_better_of_box_and_ball_is_taken_and_holds_at_the_corners_of_both(norm: int) -> None:
    """A domain cuts the ball: the bound beats each alone somewhere, and holds on points of the intersection."""
    x = torch.rand(5, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    cut, free = Box.ball(x, 0.8, domain=(0, 1), norm=norm), Box.ball(x, 0.8, norm=norm)
    plain = Box(cut.lower, cut.upper)
    matrix, offset = random(5, 40, 6, seed=1), random(5, 40, seed=2)
    low = cut.minimum(matrix, offset)
    assert (low >= plain.minimum(matrix, offset) - 1e-12).all()
    assert (low >= free.minimum(matrix, offset) - 1e-12).all()
    assert (low > plain.minimum(matrix, offset) + 0.1).any()
    assert (low > free.minimum(matrix, offset) + 0.1).any()
    points = cut.project(x + random(500, 5, 6, seed=7))
    assert cut.contains(points).all()
    for point in points[:40]:
        for b in range(5):
            for r in range(0, 40, 8):
                value = sum(
                    (Fraction(w) * Fraction(z) for w, z in zip(matrix[b, r].tolist(), point[b].tolist(), strict=True)),
                    Fraction(offset[b, r].item()),
                )
                assert Fraction(low[b, r].item()) <= value


@settings(max_examples=200, deadline=None)
@given(
    data=st.lists(
        st.tuples(st.floats(-1e100, 1e100), st.floats(0, 1e100), st.floats(-1e100, 1e100)), min_size=1, max_size=6
    ),
    offset=st.floats(-1e200, 1e200),
)
def test_box_minimum_is_safe_for_any_numbers(data: list[tuple[float, float, float]], offset: float) -> None:
    lower, widths, row = (list(column) for column in zip(*data, strict=True))
    box = Box([lower], [[low + width for low, width in zip(lower, widths, strict=True)]])
    matrix, shift = torch.tensor([[row]], dtype=torch.float64), torch.tensor([[offset]], dtype=torch.float64)
    truth = exact_box_minimum(row, offset, box.lower[0].tolist(), box.upper[0].tolist())
    assert Fraction(box.minimum(matrix, shift).item()) <= truth
    most = -exact_box_minimum([-w for w in row], -offset, box.lower[0].tolist(), box.upper[0].tolist())
    assert Fraction(box.maximum(matrix, shift).item()) >= most


def test_an_overflow_never_gives_a_finite_bound() -> None:
    box = Box([-1e300, -1e300], [1e300, 1e300])
    matrix, offset = torch.full((1, 1, 2), 1e10, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64)
    assert not box.minimum(matrix, offset).isfinite().any()
    assert not (box.minimum(matrix, offset) > 0).any()
    assert box.minimum(torch.full((1, 1, 2), math.nan, dtype=torch.float64), offset).isnan()


# Points


def test_contains_has_no_tolerance_on_a_box() -> None:
    box = Box([[0.0, -1.0]], [[1.0, 1.0]])
    inside = torch.tensor([[[0.0, -1.0]], [[1.0, 1.0]], [[0.5, 0.0]]], dtype=torch.float64)
    assert box.contains(inside).tolist() == [[True]] * 3
    outside = torch.tensor(
        [[-5e-324, 0.0], [math.nextafter(1.0, 2), 0.0], [0.5, math.nan], [math.inf, 0.0]], dtype=torch.float64
    )
    assert box.contains(outside[:, None]).tolist() == [[False]] * 4


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("radius", [0.0, 1e-200, 1e-12, 0.37])
def test_contains_is_never_wrong_about_a_ball(norm: int, radius: float) -> None:
    """Points within a few units of the surface: what is said to be inside is, by exact arithmetic; the centre is."""
    n = 9
    centre = random(1, n, seed=1) if radius > 1e-100 else torch.zeros(1, n, dtype=torch.float64)
    region = Box.ball(centre, radius, norm=norm)
    direction = random(400, 1, n, seed=2)
    direction = direction / torch.linalg.vector_norm(direction, ord=norm, dim=-1, keepdim=True)
    nudge = 1 + 2.0**-52 * torch.linspace(-40, 40, 400, dtype=torch.float64)[:, None, None]
    points = centre + radius * nudge * direction
    inside = region.contains(points)[:, 0]
    for point, said in zip(points[:, 0].tolist(), inside.tolist(), strict=True):
        if said:
            assert distance(point, centre[0].tolist(), norm) <= arb(radius)
    assert region.contains(centre).all()
    deep = centre + 0.99 * radius * direction
    if radius > 1e-6:
        assert region.contains(deep).all()


def test_contains_sees_distances_whose_squares_underflow() -> None:
    region = Box.ball([0.0, 0.0], 1e-175, norm=2)
    wide = Box(torch.full((1, 2), -1.0), torch.ones(1, 2), region.within)
    assert not wide.contains(torch.tensor([[1e-170, 0.0]], dtype=torch.float64)).any()
    assert wide.contains(torch.tensor([[0.9e-175, 0.0]], dtype=torch.float64)).all()


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(("n", "radius"), [(1, 0.1), (3, 1e-14), (9, 0.0), (784, 1e-3), (784, 30.0), (5000, 0.5)])
def test_project_gives_points_of_the_region_and_leaves_inner_points_alone(norm: float, n: int, radius: float) -> None:
    x = torch.rand(2, n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    region = Box.ball(x, radius, domain=(0, 1), norm=norm)
    near = region.project(x + 3 * radius * random(20, 2, n, seed=3))
    far = region.project(1e3 * random(20, 2, n, seed=4))
    assert region.contains(near).all()
    assert region.contains(far).all()
    for point in (near[0, 0], far[0, 0]):
        slack = 4 * 2.0**-53 if norm == math.inf else 0.0  # the box of an l-infinity ball is rounded outward
        assert distance(point.tolist(), x[0].tolist(), norm) <= arb(radius) + slack
    if radius >= 1e-3:
        inner = region.project(x + 1e-6 * radius / n * random(20, 2, n, seed=5))
        assert torch.equal(region.project(inner), inner)
        assert (
            torch.linalg.vector_norm(far - x, ord=norm, dim=-1) > 0.3 * min(radius, 0.3)
        ).all()  # not simply the centre


# Pieces


def test_split_covers_the_box_and_only_the_box() -> None:
    box = Box(random(4, 3) - 1, random(4, 3) + 1)
    axis = torch.tensor([0, 2, 1, 2])
    halves = box.split(axis)
    assert halves.batch == 8
    for b in range(4):
        left, right, a = halves[b : b + 1], halves[b + 4 : b + 5], int(axis[b])
        assert left.upper[0, a] == right.lower[0, a]  # they meet: no gap between the two
        assert box.lower[b, a] < left.upper[0, a] < box.upper[b, a]
        others = [i for i in range(3) if i != a]
        for half in (left, right):
            assert torch.equal(half.lower[0, others], box.lower[b, others])
            assert torch.equal(half.upper[0, others], box.upper[b, others])
        assert left.lower[0, a] == box.lower[b, a]
        assert right.upper[0, a] == box.upper[b, a]


@settings(max_examples=200, deadline=None)
@given(a=st.floats(-1.7e308, 1.7e308), b=st.floats(-1.7e308, 1.7e308))
@example(a=5e-324, b=5e-324)
@example(a=0.0, b=5e-324)
@example(a=-1.7e308, b=1.7e308)
def test_split_and_centre_stay_inside_for_any_ends(a: float, b: float) -> None:
    box = Box([min(a, b)], [max(a, b)])
    assert box.lower.item() <= box.centre.item() <= box.upper.item()
    halves = box.split(torch.tensor([0]))
    assert halves.lower[0].item() == box.lower.item()
    assert halves.upper[1].item() == box.upper.item()
    assert halves.upper[0].item() == halves.lower[1].item() == box.centre.item()


def test_split_and_selection_keep_the_ball() -> None:
    region = Box.ball(random(3, 2), torch.tensor([0.1, 0.2, 0.3]), norm=2)
    halves = region.split(torch.tensor([0, 1, 0]))
    assert halves.within is not None
    assert halves.within.radius.tolist() == pytest.approx([0.1, 0.2, 0.3] * 2, rel=1e-7)
    corners = torch.stack([halves.lower, halves.upper])
    assert not halves.contains(corners).any()  # a corner of the square is not in the disc
    points = region.project(region.centre + random(300, 3, 2, seed=6))
    assert region.contains(points).all()
    twice = torch.cat([points, points], dim=1)
    found = halves.contains(twice)
    assert (found[:, :3] | found[:, 3:]).all()  # every point of the region is in one of the halves
    for index in (slice(1, 3), torch.tensor([2, 0]), torch.tensor([False, True, True])):
        part = region[index]
        assert part.within is not None
        assert region.within is not None
        assert torch.equal(part.lower, region.lower[index])
        assert torch.equal(part.within.radius, region.within.radius[index])
        assert part.within.norm == 2
    plain = Box(torch.zeros(3, 2), torch.ones(3, 2))
    assert plain[torch.tensor([1])].batch == 1
    assert plain[1:1].batch == 0


def test_a_moved_region_holds_every_moved_point() -> None:
    """Its ends in exact fractions, and a ball that is larger by what its centre was rounded."""
    centre, step = 1e3 * random(50, 4, seed=3), 10 ** (3 * random(4, seed=4))
    for norm in NORMS:
        box = Box.ball(centre, 1e-12, norm=norm)
        moved = box.moved(step)
        for before, after, side in ((box.lower, moved.lower, 1), (box.upper, moved.upper, -1)):
            for a, b, s in zip(before.flatten(), after.flatten(), step.repeat(50), strict=True):
                assert side * (Fraction(a.item()) - Fraction(s.item()) - Fraction(b.item())) > 0  # exact, and outward
        if box.within is None or moved.within is None:
            continue
        balls = (box.within.centre, moved.within.centre, box.within.radius, moved.within.radius)
        for old, new, r, grown in zip(*balls, strict=True):
            three = zip(old.tolist(), step.tolist(), new.tolist(), strict=True)
            off = [Fraction(a) - Fraction(s) - Fraction(b) for a, s, b in three]
            away = sum(map(abs, off)) if norm == 1 else Fraction(math.hypot(*map(float, off)))
            assert Fraction(r.item()) + away <= Fraction(grown.item())


def test_magnitude_is_the_largest_absolute_value() -> None:
    box = Box([[-3.0, 1.0, -0.5]], [[1.0, 2.0, 0.25]])
    assert box.magnitude.tolist() == [[3, 2, 0.5]]
