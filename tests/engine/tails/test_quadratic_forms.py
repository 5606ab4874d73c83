"""Means of exponentials of quadratic forms on a box: each step against what it bounds, the whole against quadrature."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from bnndp.engine.dense.first import Ranges, first_layer
from bnndp.engine.tails import quadratic_forms as subject
from bnndp.engine.tails.quadratic_forms import Base, Form, base_at, log_mean_of_form, worst_base
from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.maths.exponential import lipschitz, sub_gaussian, tilted

F64 = torch.float64
KINDS = ("point", "flat", "narrow", "wide", "l2", "l1", "piece")
_NODES, _WEIGHTS = (torch.tensor(part, dtype=F64) for part in np.polynomial.legendre.leggauss(16))


@dataclass(frozen=True, slots=True)
class Case:
    """A layer, a region, what is known of it, and a form whose M has a given largest eigenvalue."""

    layer: Linear
    box: Box
    ranges: Ranges
    form: Form
    base: Base
    ell: Tensor  # (batch, rows, sources)


def uniform(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.rand(shape, generator=generator, dtype=F64)


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=F64)


def region(kind: str, n: int, generator: torch.Generator, batch: int = 2) -> Box:
    x = normal(generator, batch, n)
    if kind in ("l2", "l1", "piece"):
        box = Box.ball(x, 0.4, norm=1 if kind == "l1" else 2)
        return box if kind != "piece" else box.split(torch.zeros(batch, dtype=torch.int64))
    radius = {"point": 0.0, "flat": 0.2, "narrow": 0.01, "wide": 0.5}[kind] * uniform(generator, batch, n)
    if kind == "flat":
        radius[:, ::2] = 0
    return Box(x - radius, x + radius)


def points(box: Box, count: int, generator: torch.Generator) -> Tensor:  # (count, batch, n)
    """Points of the region: half of a box's at vertices, of a ball's at its surface."""
    share = uniform(generator, count, box.batch, box.n)
    share[::2] = share[::2].round()
    x = box.lower + share * (box.upper - box.lower)
    if box.within is None:
        return x
    ball = box.within
    x = box.project(ball.centre + 10 * (x - ball.centre))
    x[1::2] = ball.centre + uniform(generator, count // 2, box.batch, 1) * (x[1::2] - ball.centre)
    keep = box.contains(x)[..., None]
    return torch.where(keep, x, box.project(box.centre.expand_as(x)))


def gaussian(layer: Linear, x: Tensor) -> tuple[Tensor, Tensor]:
    s = x.square() @ layer.weight_std.square().mT + layer.bias_std.square()
    return x @ layer.weight_mean.mT + layer.bias_mean, s.sqrt()


def make(kind: str, seed: int, sources: int = 5, size: float = 0.5, noise: float = 0.3) -> Case:
    generator = torch.Generator().manual_seed(seed)
    n, rows = 1 + seed % 4, 3
    layer = Linear(
        normal(generator, sources, n) * 10 ** (uniform(generator, 1) - 0.7),
        noise * uniform(generator, sources, n),
        normal(generator, sources),
        0.05 + noise * uniform(generator, sources),
    )
    box = region(kind, n, generator)
    ranges = first_layer(layer, box).ranges
    shape = (box.batch, rows, sources)
    r = ranges.r.upper[:, None]
    v = normal(generator, *shape) * 10 ** (1.5 * uniform(generator, box.batch, rows, 1) - 1)
    q = 0.5 / r.square() * 0.5 * uniform(generator, *shape) * (uniform(generator, *shape) < 0.7)
    x = points(box, rows, generator).transpose(0, 1)  # (batch, rows, n)
    base = base_at(layer, x)
    m, r = subject._spans(ranges, base)
    ell = lipschitz(m, r, v, q, cells=12)
    factor = normal(generator, *shape, sources)
    s = factor @ factor.mT
    most = torch.linalg.eigvalsh(ell[..., None] * s * ell[..., None, :])[..., -1]
    s = size * s / most[..., None, None]
    z0 = tilted(base.m, base.r, v, q).mean + 0.2 * normal(generator, *shape)
    return Case(layer, box, ranges, Form(v, q, z0, s), base, ell)


def shifts(case: Case, x: Tensor) -> Tensor:  # x (count, batch, n) -> (count, batch, rows, sources)
    m, r = gaussian(case.layer, x)
    return tilted(m[:, :, None], r[:, :, None], case.form.linear, case.form.square).mean - case.form.centre


def logs(case: Case, x: Tensor) -> Tensor:  # (count, batch, rows)
    m, r = gaussian(case.layer, x)
    return tilted(m[:, :, None], r[:, :, None], case.form.linear, case.form.square).log.sum(-1)


def values(case: Case, above: subject._Above, x: Tensor) -> Tensor:  # (count, batch, rows)
    m, _ = gaussian(case.layer, x)
    flat = torch.einsum("brn,pbn->pbr", above.matrix, x) + above.offset
    return flat + 0.5 * (above.curvature * (m[:, :, None] - case.base.m).square()).sum(-1)


def parabolas(case: Case) -> subject._Above:
    return subject._parabolas(case.layer, case.box, case.ranges, case.base, case.form, case.ell)


def shift_of(case: Case) -> subject._Shift:
    return subject._shift(case.layer, case.box, case.ranges, case.base, case.form, case.ell)


def problem_of(case: Case) -> subject._Problem:
    above = parabolas(case)
    weights = subject._weights(case.layer, case.box, above.matrix)
    return subject._Problem(case.layer, case.box, case.base, above, shift_of(case), weights)


# The steps


@pytest.mark.parametrize("kind", KINDS)
def test_parabolas_lie_above_the_sum_of_logarithms(kind: str) -> None:
    least = []
    for seed in range(10):
        case = make(kind, seed)
        if seed % 2:  # the base at a vertex of the box, of a ball's box outside the ball
            case = replace(case, base=base_at(case.layer, case.box.upper[:, None].expand_as(case.base.x)))
            m, r = subject._spans(case.ranges, case.base)
            case = replace(case, ell=lipschitz(m, r, case.form.linear, case.form.square, cells=12))
        above = parabolas(case)
        x = points(case.box, 300, torch.Generator().manual_seed(seed))
        gap = values(case, above, x) - logs(case, x)
        assert (above.curvature >= 0).all()
        assert gap.min() >= -1e-11, seed
        least.append(gap.amin(0).min().item())
    assert min(least) <= {"point": 1e-9, "narrow": 1e-3}.get(kind, 0.2)  # or the comparison could not fail


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_parabolas_of_one_source_are_nearly_sharp(sign: float) -> None:
    """One input, one source, no noise from the weights: only what the curvature adds is lost."""
    layer = Linear(*(torch.tensor(x, dtype=F64) for x in ([[1.0]], [[0.0]], [0.1], [0.7])))
    box = Box(torch.tensor([[-0.3]], dtype=F64), torch.tensor([[0.5]], dtype=F64))
    ranges = first_layer(layer, box).ranges
    v, q = torch.full((1, 1, 1), sign, dtype=F64), torch.full((1, 1, 1), 0.1, dtype=F64)
    form = Form(v, q, 0 * v, torch.zeros(1, 1, 1, 1, dtype=F64))
    x = torch.linspace(-0.3, 0.5, 81, dtype=F64)[:, None, None]
    for start in (-0.3, 0.0, 0.5):
        base = base_at(layer, torch.full((1, 1, 1), start, dtype=F64))
        ell = lipschitz(*subject._spans(ranges, base), v, q, cells=12)
        case = Case(layer, box, ranges, form, base, ell)
        above = parabolas(case)
        gap = (values(case, above, x) - logs(case, x))[:, 0, 0]
        assert gap.min() >= 0
        assert gap[(x[:, 0, 0] - start).abs() < 1e-6].max() < 1e-9  # it touches at the base
        step = (x[:, 0, 0] - start).square()
        assert (gap <= 0.6 * step + 1e-9).all()


@pytest.mark.parametrize("square", [0.0, 0.03])
@pytest.mark.parametrize("mean", [-3.0, 0.0, 4.0, 30.0])
@pytest.mark.parametrize("slope", [-0.9, -0.01])
def test_tangent_planes_about_either_end_of_r(slope: float, mean: float, square: float) -> None:
    """A helpful source whose r is all that moves; where it is always on, L is v m + v^2 r^2 / 2 for q = 0."""
    layer = Linear(*(torch.tensor(x, dtype=F64) for x in ([[0.0]], [[1.0]], [mean], [0.1])))
    box = Box(torch.tensor([[0.5]], dtype=F64), torch.tensor([[2.5]], dtype=F64))
    ranges = first_layer(layer, box).ranges
    v, q = torch.full((1, 1, 1), slope, dtype=F64), torch.full((1, 1, 1), square, dtype=F64)
    form = Form(v, q, 0 * v, torch.zeros(1, 1, 1, 1, dtype=F64))
    x = torch.linspace(0.5, 2.5, 101, dtype=F64)[:, None, None]
    for start in (0.5, 1.5, 2.5):
        base = base_at(layer, torch.full((1, 1, 1), start, dtype=F64))
        case = Case(layer, box, ranges, form, base, lipschitz(*subject._spans(ranges, base), v, q))
        assert (values(case, parabolas(case), x) - logs(case, x)).min() >= 0


def test_base_outside_the_ball() -> None:
    """It was unsound: a source off on the ball and on at the base had the tangent of the base, without curvature."""
    n = 100
    layer = Linear(
        torch.full((2, n), 0.1, dtype=F64),
        torch.full((2, n), 1e-4, dtype=F64),
        torch.tensor([4.0, -3.0], dtype=F64),
        torch.full((2,), 0.05, dtype=F64),
    )
    v = torch.full((1, 1, 2), 0.01, dtype=F64)
    centre = torch.tensor([[[4.0, 0.0]]], dtype=F64)
    form = Form(v, 0 * v, centre, 1e-8 * torch.eye(2, dtype=F64)[None, None])
    for norm, radius in ((2, 0.6), (1, 0.6)):
        box = Box.ball(torch.zeros(1, n, dtype=F64), radius, norm=norm)
        ranges = first_layer(layer, box).ranges
        x = torch.full((1, n), 0.999 * radius / (10 if norm == 2 else n), dtype=F64)
        assert box.contains(x).all()
        m, r = gaussian(layer, x)
        truth = tilted(m, r, v[0], 0 * v[0]).log.sum()
        outside = base_at(layer, box.upper[:, None])
        assert (outside.m > ranges.m.upper).all()
        for base in (outside, worst_base(layer, box, outside, form)):
            assert log_mean_of_form(layer, box, ranges, form, base) >= truth


@pytest.mark.parametrize("kind", KINDS)
def test_shift_contains_the_tilted_mean(kind: str) -> None:
    used = []
    for seed in range(10):
        case = make(kind, seed)
        shift = shift_of(case)
        x = points(case.box, 300, torch.Generator().manual_seed(seed))
        m, _ = gaussian(case.layer, x)
        off = (shifts(case, x) - shift.gain * (m[:, :, None] - case.base.m) - shift.middle).abs()
        assert (off <= shift.rest).all(), seed
        used.append((off.amax(0) / shift.rest).max().item())
    if kind in ("wide", "l2"):
        assert max(used) > 0.5
    if kind == "point":
        assert shift.rest.max() < 1e-7


@pytest.mark.parametrize("v", [-3.0, -0.7, 0.0, 0.7, 3.0])
@pytest.mark.parametrize("q", [0.0, 0.2])
def test_shift_between_the_spots(v: float, q: float) -> None:
    """One source whose m alone moves: the largest and least values lie between the spots, not at them."""
    for start, wide in itertools.product((-5.0, -3.0, -1.0, 0.5), (1.0, 6.0)):
        layer = Linear(*(torch.tensor(x, dtype=F64) for x in ([[1.0]], [[0.0]], [0.0], [1.0])))
        box = Box(torch.tensor([[start]], dtype=F64), torch.tensor([[start + wide]], dtype=F64))
        ranges = first_layer(layer, box).ranges
        base = base_at(layer, box.centre[:, None])
        tilt, square = (torch.full((1, 1, 1), value, dtype=F64) for value in (v, q))
        form = Form(tilt, square, 0 * tilt, torch.zeros(1, 1, 1, 1, dtype=F64))
        case = Case(layer, box, ranges, form, base, lipschitz(*subject._spans(ranges, base), tilt, square, cells=12))
        shift = shift_of(case)
        x = torch.linspace(start, start + wide, 1201, dtype=F64)[:, None, None]
        off = (shifts(case, x) - shift.gain * (x[..., None] - base.m) - shift.middle)[..., 0]
        assert (off.abs() <= shift.rest[..., 0]).all(), (start, wide)


def rectangles(count: int, seed: int, *, wide: float = 0.5) -> tuple[subject.Ends, subject.Ends, Tensor, Tensor]:
    """Ranges of m and r (1, 1, count), v and q."""
    generator = torch.Generator().manual_seed(seed)
    r_low = 10 ** (3 * uniform(generator, 1, 1, count) - 2)
    m_low = r_low * (16 * uniform(generator, 1, 1, count) - 8)
    r = r_low, r_low * (1 + wide * uniform(generator, 1, 1, count) ** 4)
    m = m_low, m_low + wide * r_low * 6 * uniform(generator, 1, 1, count) ** 4
    v = normal(generator, 1, 1, count) * 10 ** (2 * uniform(generator, 1, 1, count) - 1) / r[1]
    q = 0.48 / r[1].square() * uniform(generator, 1, 1, count) * (uniform(generator, 1, 1, count) < 0.7)
    return m, r, v, q


def within(ends: subject.Ends, generator: torch.Generator) -> Tensor:
    share = uniform(generator, *ends[0].shape)
    share = torch.where(uniform(generator, *share.shape) < 0.4, share.round(), share)
    return ends[0] + share * (ends[1] - ends[0])


@pytest.mark.parametrize("wide", [0.0, 0.5])
def test_slope_of_the_tilted_mean_in_r(wide: float) -> None:
    m, r, v, q = rectangles(4000, 3, wide=wide)
    zero = torch.zeros_like(v)
    ell = lipschitz(m, r, v, q, cells=12)
    bound = subject._slope_in_r(m, r, Form(v, q, zero, zero[..., None]), ell)
    generator = torch.Generator().manual_seed(4)
    least = math.inf
    for _ in range(20):
        x, y = within(m, generator), within(r, generator)
        h = 1e-5 * y
        slope = (tilted(x, y + h, v, q).mean - tilted(x, y - h, v, q).mean) / (2 * h)
        room = 1e-6 * (1 + slope.abs() + (v * y).square())  # of the difference
        assert (slope.abs() <= bound + room).all()
        least = min(least, (bound / (slope.abs() + room)).min().item())
    assert least < 1.6


def test_largest_tilted_mean() -> None:
    m, r, v, q = rectangles(4000, 5)
    bound = subject._largest_tilted_mean(m, r, v, q)
    generator = torch.Generator().manual_seed(4)
    for _ in range(30):
        mean = tilted(within(m, generator), within(r, generator), v, q).mean
        assert (mean <= bound).all()
    m, r, v, q = rectangles(400, 6, wide=0.0)
    assert (
        subject._largest_tilted_mean(m, r, v, q)
        <= tilted(*(x[1] for x in (m, r)), v.clamp_min(0), q).mean * 1.001 + r[1] * 1e-8
    ).all()


def random_matrix(case: Case, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    factor = normal(generator, *case.form.matrix.shape[:-1], 2)
    return factor @ factor.mT, uniform(generator, *case.form.linear.shape)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_lie_above_the_quadratic_form(kind: str) -> None:
    """``W^T A W <= lambda diag(omega)`` on steps inside the box, and lambda is not much more than needed."""
    for seed in range(12):
        case = make(kind, seed)
        core, bent = random_matrix(case, seed)
        slope = normal(torch.Generator().manual_seed(seed), *case.base.x.shape)
        weights = subject._weights(case.layer, case.box, slope)
        found = subject._largest_eigenvalue(weights, core, bent)
        free = (case.box.upper > case.box.lower)[:, None]
        assert torch.equal(weights.omega > 0, free.expand_as(weights.omega))
        w = case.layer.weight_mean
        form = w.mT @ (core + torch.diag_embed(bent)) @ w  # (batch, rows, n, n)
        root = torch.where(free, weights.omega.clamp_min(1e-300).rsqrt(), 0.0)
        truth = torch.linalg.eigvalsh(root[..., None] * form * root[..., None, :])[..., -1]
        assert (found >= truth).all()
        if kind != "point":
            assert (found <= 1.4 * truth * case.box.n**0.25 + 1e-12).all()


def test_weights_follow_the_slopes() -> None:
    case = make("wide", 3)
    slope = torch.zeros_like(case.base.x)
    slope[..., 0] = 1.0
    omega = subject._weights(case.layer, case.box, slope).omega * (case.box.upper - case.box.lower)[:, None]
    length = torch.linalg.vector_norm(case.layer.weight_mean, dim=0)
    assert (omega[..., :1] / length[0] > omega[..., 1:] / length[1:]).all()


def corners(rest: Tensor) -> Tensor:  # (2^sources, ..., sources)
    signs = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=rest.shape[-1])), dtype=F64)
    return signs.reshape(-1, *[1] * (rest.ndim - 1), rest.shape[-1]) * rest


def objective(case: Case, problem: subject._Problem, p: Tensor, x: Tensor) -> Tensor:  # (count, batch, rows)
    """What ``_largest`` bounds, with the worst of the corners of the rest."""
    shift = problem.shift
    m, _ = gaussian(case.layer, x)
    d = shift.gain * (m[:, :, None] - case.base.m) + shift.middle + corners(shift.rest)[:, None]
    form = torch.einsum("cpbrj,brjk,cpbrk->cpbr", d, p, d)
    return values(case, problem.above, x) + 0.5 * form.amax(0)


def climb(case: Case, problem: subject._Problem, p: Tensor, x: Tensor) -> Tensor:
    """Gradient ascent from x, steps of shares of the box."""
    width = case.box.upper - case.box.lower
    best = objective(case, problem, p, x)
    for share in (0.5, 0.3, 0.1, 0.03):
        here = x.clone().requires_grad_()
        objective(case, problem, p, here)[..., 0].sum().backward()  # of the first row: any direction will do
        assert here.grad is not None
        x = case.box.project(x + share * torch.sign(here.grad) * width).detach()
        inside = (x >= case.box.lower).all() & (x <= case.box.upper).all()
        assert inside
        best = torch.maximum(best, objective(case, problem, p, x))
    return best


@pytest.mark.parametrize("kind", KINDS[:-1])
@pytest.mark.parametrize("rest", [1.0, 30.0])
def test_largest_value_of_the_parabolas_and_the_form(kind: str, rest: float) -> None:
    gaps = []
    for seed in range(10):
        case = make(kind, seed, sources=4)
        problem = problem_of(case)
        problem = replace(problem, shift=replace(problem.shift, rest=rest * problem.shift.rest + 0.002 * (rest - 1)))
        p, _ = random_matrix(case, seed)
        found = subject._largest(problem, p)
        x = points(case.box, 60, torch.Generator().manual_seed(seed))
        truth = torch.maximum(objective(case, problem, p, x).amax(0), climb(case, problem, p, x[:5]).amax(0))
        assert (found >= truth - 1e-12).all(), seed
        gaps.append((found - truth).min().item())
    assert min(gaps) < {"point": 0.02, "flat": 0.2, "narrow": 0.02}.get(kind, 0.5) * (1 + rest / 10)


@pytest.mark.parametrize("kind", KINDS[:-1])
def test_largest_form(kind: str) -> None:
    gaps = []
    for seed in range(10):
        case = make(kind, seed, sources=4)
        problem = problem_of(case)
        p, _ = random_matrix(case, seed)
        m, _ = subject._spans(case.ranges, case.base)
        found = subject._largest_form(problem, (m[1] - case.base.m, case.base.m - m[0]), p)
        x = points(case.box, 200, torch.Generator().manual_seed(seed))
        d = shifts(case, x)
        truth = torch.einsum("pbrj,brjk,pbrk->pbr", d, p, d).amax(0)
        assert (found >= truth).all()
        gaps.append((found / truth).min().item())
    assert min(gaps) < 3


def test_solved_matrix_and_determinant() -> None:
    case = make("point", 1)
    p, log_det = subject._solved(case.form.matrix, case.ell)
    middle = case.ell[..., None] * case.form.matrix * case.ell[..., None, :]
    eye = torch.eye(5, dtype=F64)
    want = torch.linalg.inv(torch.linalg.inv(case.form.matrix) - torch.diag_embed(case.ell.square()))
    assert torch.allclose(p, want, rtol=1e-6)
    assert torch.allclose(log_det, 0.5 * torch.logdet(eye - middle), rtol=1e-6)
    assert (log_det <= 0.5 * torch.logdet(eye - middle)).all()
    assert subject._solved(2.01 * case.form.matrix, case.ell)[1].isnan().all()


# The whole


def panels(m: float, r: float, top: float, count: int = 8) -> tuple[Tensor, Tensor]:
    """Values of ReLU(N(m, r^2)) and logarithms of their weights; the tail beyond ``top`` deviations is left out."""
    half = 0.5 * (max(m, 0.0) + top * r) / count
    z = (half * (2 * torch.arange(count, dtype=F64) + 1)[:, None] + half * _NODES).flatten()
    weight = (half * _WEIGHTS).log().repeat(count) - 0.5 * ((z - m) / r).square() - math.log(r * math.sqrt(2 * math.pi))
    off = torch.special.log_ndtr(torch.tensor([-m / r], dtype=F64))
    return torch.cat([torch.zeros(1, dtype=F64), z]), torch.cat([off, weight])


def truth_at(layer: Linear, x: Tensor, form: Form, row: int) -> float:
    """log E exp(form) of two sources at x (n,), by quadrature over both."""
    m, r = gaussian(layer, x)
    (z1, w1), (z2, w2) = (panels(m[j].item(), r[j].item(), 30.0) for j in (0, 1))
    v, q, z0, s = (part[0, row] for part in (form.linear, form.square, form.centre, form.matrix))
    a = w1 + v[0] * z1 + q[0] * z1.square() + 0.5 * s[0, 0] * (z1 - z0[0]).square()
    b = w2 + v[1] * z2 + q[1] * z2.square() + 0.5 * s[1, 1] * (z2 - z0[1]).square()
    cross = s[0, 1] * (z1 - z0[0])[:, None] * (z2 - z0[1])
    return torch.logsumexp((a[:, None] + b + cross).flatten(), 0).item()


def two_sources(seed: int, kind: str, size: float, *, away: float = 0.2) -> Case:
    """One box of ``make`` with two sources; their forms have a largest eigenvalue of ``size`` and are not diagonal."""
    case = make(kind, seed, sources=2, size=size)
    box, form = case.box[:1], case.form
    generator = torch.Generator().manual_seed(seed)
    mean = tilted(case.base.m, case.base.r, form.linear, form.square).mean
    centre = mean + away * normal(generator, *mean.shape)
    parts = Form(form.linear[:1], form.square[:1], centre[:1], form.matrix[:1])
    base = Base(case.base.x[:1], case.base.m[:1], case.base.r[:1])
    return Case(case.layer, box, first_layer(case.layer, box).ranges, parts, base, case.ell[:1])


@pytest.mark.parametrize("far", [0.02, 0.7, 4.5])
@pytest.mark.parametrize("size", [0.2, 0.9])
def test_log_mean_lies_above_quadrature(monkeypatch: pytest.MonkeyPatch, far: float, size: float) -> None:
    """At any reach of the smaller constants: with a short one the escape term has to make up for much."""
    monkeypatch.setattr(subject, "_FAR", far)
    for seed, kind in itertools.product(range(6), ("point", "narrow", "wide", "l2")):
        case = two_sources(seed, kind, size, away=(0.02, 0.3, 2.0)[seed % 3])
        bound = log_mean_of_form(case.layer, case.box, case.ranges, case.form, case.base)
        xs = points(case.box, 1 if kind == "point" else 6, torch.Generator().manual_seed(seed))
        for row in range(3):
            if math.isfinite(bound[0, row].item()):
                truth = max(truth_at(case.layer, x[0], case.form, row) for x in xs)
                assert bound[0, row].item() >= truth - 1e-8 * (1 + abs(truth)), (seed, kind, row)


@pytest.mark.parametrize("away", [0.0, 3.0, 40.0, 60.0, 80.0])
def test_log_mean_far_from_the_centre_of_the_form(away: float) -> None:
    """Rarely active sources and z0 far below them: delta is near P d, where their variance is much larger than at 0."""
    layer = Linear(*(torch.tensor(x, dtype=F64) for x in ([[1.0], [1.0]], [[0.0], [0.0]], [-1.5, -1.6], [1.0, 1.0])))
    box = Box.ball(torch.zeros(1, 1, dtype=F64), 0.0)
    base = base_at(layer, box.centre[:, None])
    zero = torch.zeros(1, 1, 2, dtype=F64)
    s = torch.tensor([[[[0.05, 0.01], [0.01, 0.04]]]], dtype=F64)
    form = Form(zero, zero, zero - away, s)
    bound = log_mean_of_form(layer, box, first_layer(layer, box).ranges, form, base).item()
    truth = truth_at(layer, box.lower[0], form, 0)
    assert truth <= bound <= truth + 0.05 + 0.2 * away


def test_log_mean_at_a_point_is_tight_for_a_small_form() -> None:
    gaps = []
    for seed in range(24):
        case = two_sources(seed, "point", 0.1, away=0.05)
        bound = log_mean_of_form(case.layer, case.box, case.ranges, case.form, case.base)
        for row in range(3):
            truth = truth_at(case.layer, case.box.lower[0], case.form, row)
            alone = logs(case, case.box.lower[None])[0, 0, row].item()  # without S
            gaps.append((bound[0, row].item() - truth, truth - alone))
    excess = [gap - 0.05 * abs(part) for gap, part in gaps]
    assert np.median(excess) < 0.002
    assert np.quantile(excess, 0.95) < 0.02


def test_smaller_constants_gain() -> None:
    """Rarely active sources: with the constants for every delta alone the bound is much larger."""
    one = torch.ones(1, 1, 2, dtype=F64)
    layer = Linear(
        torch.ones(2, 1, dtype=F64),
        torch.zeros(2, 1, dtype=F64),
        torch.tensor([-2.0, -1.5], dtype=F64),
        torch.ones(2, dtype=F64),
    )
    box = Box.ball(torch.zeros(1, 1, dtype=F64), 0.0)
    ranges = first_layer(layer, box).ranges
    base = base_at(layer, box.centre[:, None])
    v = -0.3 * one
    mean = tilted(base.m, base.r, v, 0 * v).mean
    form = Form(v, 0 * v, mean, 0.03 * (torch.eye(2, dtype=F64) + 1)[None, None])
    got = log_mean_of_form(layer, box, ranges, form, base).item()
    p, log_det = subject._solved(form.matrix, lipschitz((base.m, base.m), (base.r, base.r), v, 0 * v))
    alone = tilted(base.m, base.r, v, 0 * v).log.sum().item()
    truth = truth_at(layer, box.lower[0], form, 0)
    assert truth <= got
    assert got - alone < 0.6 * -log_det.item()
    assert p.shape == (1, 1, 2, 2)


@pytest.mark.parametrize("kind", ["narrow", "wide", "l2"])
def test_smaller_constants_are_asked_for_on_the_whole_region(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    asked: list[tuple[subject.Ends, subject.Ends, Tensor]] = []

    def spy(m: subject.Ends, r: subject.Ends, a: Tensor, c: Tensor, reach: Tensor, cells: int) -> Tensor:
        asked.append((m, r, reach))
        return sub_gaussian(m, r, a, c, reach, cells=cells)

    monkeypatch.setattr(subject, "sub_gaussian", spy)
    case = make(kind, 5)
    log_mean_of_form(case.layer, case.box, case.ranges, case.form, case.base)
    ((m, r, reach),) = asked
    x = points(case.box, 200, torch.Generator().manual_seed(5))
    for ends, value in zip((m, r), gaussian(case.layer, x), strict=True):
        assert (ends[0] <= value[:, :, None]).all()
        assert (value[:, :, None] <= ends[1]).all()
    p, _ = subject._solved(case.form.matrix, case.ell)  # of delta: the law N(P d, P)
    centre = torch.einsum("brjk,pbrk->pbrj", p, shifts(case, x)).abs()
    assert (reach >= centre + 4.4 * torch.diagonal(p, dim1=-2, dim2=-1).sqrt()).all()


@pytest.mark.parametrize("kind", KINDS)
def test_worst_base_is_in_the_box(kind: str) -> None:
    for seed in range(8):
        case = make(kind, seed)
        moved = worst_base(case.layer, case.box, case.base, case.form)
        assert (moved.x >= case.box.lower[:, None]).all()
        assert (moved.x <= case.box.upper[:, None]).all()
        if kind in ("l1", "l2"):
            assert case.box.contains(moved.x.transpose(0, 1)).all()


def test_worst_base_helps() -> None:
    """Many inputs, a small box: the bound falls for nearly every form."""
    gains = []
    for seed in range(6):
        generator = torch.Generator().manual_seed(seed)
        std = 0.05 * uniform(generator, 8, 40)
        layer = Linear(0.2 * normal(generator, 8, 40), std, 0.5 * normal(generator, 8), std[:, 0] + 0.1)
        box = Box.ball(normal(generator, 2, 40), 0.04)
        ranges = first_layer(layer, box).ranges
        v, q = 0.5 * normal(generator, 2, 3, 8), 0.02 * uniform(generator, 2, 3, 8)
        start = base_at(layer, box.centre[:, None].expand(-1, 3, -1))
        factor = 0.1 * normal(generator, 2, 3, 8, 8)
        form = Form(v, q, tilted(start.m, start.r, v, q).mean, factor @ factor.mT)
        bases = (start, worst_base(layer, box, start, form))
        found = [log_mean_of_form(layer, box, ranges, form, base) for base in bases]
        gains += (found[0] - found[1]).flatten().tolist()
    assert np.quantile(gains, 0.1) > 0
    assert np.mean(gains) > 0.01


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e200])
@pytest.mark.parametrize("field", ["linear", "square", "centre", "matrix"])
def test_no_bound_from_bad_numbers(field: str, value: float) -> None:
    case = two_sources(2, "narrow", 0.3)
    broken = getattr(case.form, field).clone()
    broken[0, 1, 0] = value
    form = replace(case.form, **{field: broken})
    bound = log_mean_of_form(case.layer, case.box, case.ranges, form, case.base)
    assert bound[0, 1] == math.inf or (value == 1e200 and bound[0, 1] > 1e150)
    assert torch.isfinite(bound[0, [0, 2]]).all()  # the other rows do not suffer


def test_no_bound_where_the_form_is_too_large() -> None:
    for size, finite in ((0.99, True), (1.01, False), (50.0, False)):
        case = two_sources(1, "point", size)
        bound = log_mean_of_form(case.layer, case.box, case.ranges, case.form, case.base)
        assert torch.isfinite(bound).all() == finite
    case = two_sources(1, "narrow", 0.5)
    pole = 0.5 / case.ranges.r.upper[:, None].square().expand_as(case.form.square)
    for share in (0.999, 1.0, 1.5):
        bound = log_mean_of_form(case.layer, case.box, case.ranges, replace(case.form, square=share * pole), case.base)
        assert (bound == math.inf).all()
