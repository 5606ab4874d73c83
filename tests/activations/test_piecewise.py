"""User callables: bounds hold for the function itself, wrong promises are refused, a file keeps what is needed."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from flint import arb
from support.activation_truths import TRUTHS, Truth, inside
from torch import Tensor

from bnndp.activations import PiecewiseAffine
from bnndp.errors import InputError

ABSOLUTE = Truth((lambda z, _: -z, lambda z, _: z), (0.0,), 1.0)
SINE = TRUTHS["piecewise_affine"]
POINTS = [(0.0, 0.05), (0.3, 0.4), (-1.0, 1.0), (2.2, 3.0), (18.0, 2.0), (-25.0, 1.0), (5.0, 1e-3), (40.0, 5.0)]


def points() -> tuple[Tensor, Tensor]:
    m, r = torch.tensor(POINTS, dtype=torch.float64).T
    return m.contiguous(), r.contiguous()


def contains(activation: PiecewiseAffine, truth: Truth) -> None:
    m, r = points()
    mean, error, central = activation.mean(m, r), activation.error(m, r), activation.central(m, r)
    for i, (a, b) in enumerate(POINTS):
        assert inside(mean[i].item(), error[i].item(), truth.mean(a, b)), (a, b)
        variance, third, fourth = truth.central(a, b)
        assert arb(central.variance.lower[i].item()) <= variance <= arb(central.variance.upper[i].item()), (a, b)
        assert arb(central.third.lower[i].item()) <= third <= arb(central.third.upper[i].item()), (a, b)
        assert arb(central.fourth.lower[i].item()) <= fourth <= arb(central.fourth.upper[i].item()), (a, b)


@pytest.mark.parametrize("pieces", [7, 300])
@pytest.mark.parametrize("curvature", [None, 1.0])
def test_a_sine_with_few_or_many_pieces(pieces: int, curvature: float | None) -> None:
    contains(PiecewiseAffine.of(torch.sin, 1.0, pieces=pieces, curvature=curvature), SINE)


@pytest.mark.parametrize("pieces", [9, 400])
def test_a_kink_between_or_at_a_knot(pieces: int) -> None:
    contains(PiecewiseAffine.of(torch.abs, 1.0, pieces=pieces), ABSOLUTE)


def test_a_function_read_from_a_file_is_bounded_as_the_one_written() -> None:
    written = PiecewiseAffine.of(torch.sin, 1.0, pieces=100)
    read = PiecewiseAffine(written.knots, written.values, written.lipschitz, written.inner_error, written.curvature)
    contains(read, SINE)
    x = torch.linspace(-25, 25, 999, dtype=torch.float64)
    inside_knots = x.abs() <= 20
    assert ((read(x) - torch.sin(x)).abs() <= written.inner_error)[inside_knots].all()
    assert torch.equal(read(x[:50]), read.values[:1].expand(50))  # flat beyond: x < -20


def test_more_pieces_and_a_curvature_make_it_tight() -> None:
    m, r = torch.tensor([0.3], dtype=torch.float64), torch.tensor([0.5], dtype=torch.float64)
    plain = PiecewiseAffine.of(torch.sin, 1.0)
    curved = PiecewiseAffine.of(torch.sin, 1.0, curvature=1.0)
    assert plain.inner_error == pytest.approx(0.01, rel=1e-3)
    assert curved.inner_error == pytest.approx(0.02**2 / 8, rel=1e-6)
    assert curved.error(m, r).item() < 5.1e-5
    fine = PiecewiseAffine.of(torch.sin, 1.0, pieces=200_000, curvature=1.0)
    assert fine.error(m, r).item() < 1e-8
    assert inside(fine.mean(m, r).item(), 1e-8, SINE.mean(0.3, 0.5))
    central, truth = curved.central(m, r), SINE.central(0.3, 0.5)
    assert central.variance.upper.item() - central.variance.lower.item() < 1e-3 * float(truth[0])
    assert 0.999 * float(truth[2]) < central.fourth.lower.item()
    assert central.fourth.upper.item() < 1.001 * float(truth[2])


def test_the_surrogate_of_lines_is_exact() -> None:
    """The mean of |x| from its own knots agrees with the closed form to rounding."""
    activation = PiecewiseAffine.of(torch.abs, 1.0, pieces=400)
    assert activation.inner_error < 1e-11
    m, r = torch.tensor([0.0, 0.7, -3.0], dtype=torch.float64), torch.tensor([1.0, 0.2, 1.5], dtype=torch.float64)
    for a, b, value, error in zip(
        m.tolist(), r.tolist(), activation.mean(m, r).tolist(), activation.error(m, r).tolist(), strict=True
    ):
        assert error < 1e-11
        assert inside(value, error, ABSOLUTE.mean(a, b))


@pytest.mark.parametrize(
    ("function", "lipschitz", "options", "message"),
    [
        (torch.sin, 0.5, {}, "values break lipschitz=0.5"),
        (lambda x: torch.sin(50 * x), 1.0, {"pieces": 50}, "breaks? "),
        (torch.exp, 1.0, {"reach": 1000.0}, "not finite"),
        (torch.log, 1.0, {}, "not finite at x=-20.0"),
        (torch.sin, 0.0, {}, "lipschitz must be a positive number, got 0.0"),
        (torch.sin, -1.0, {}, "lipschitz must be a positive number"),
        (torch.sin, math.nan, {}, "lipschitz must be a positive number"),
        (torch.sin, math.inf, {}, "lipschitz must be a positive number"),
        (torch.sin, 1.0, {"pieces": 0}, "pieces must be an integer"),
        (torch.sin, 1.0, {"reach": 0.0}, "reach must be positive"),
        (torch.sin, 1.0, {"curvature": 0.1, "pieces": 400}, "breaks its constants"),
        (torch.sin, 1.0, {"curvature": math.nan}, "curvature"),
        (torch.sin, 1.0, {"curvature": -1.0}, "curvature"),
        (lambda x: x.sum(), 1.0, {}, "same shape"),
        (lambda x: x.float(), 1.0, {}, "float64"),
        (lambda x: 3.0, 1.0, {}, "got float"),
    ],
)
def test_wrong_promises_are_refused(function: Any, lipschitz: float, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        PiecewiseAffine.of(function, lipschitz, **options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"knots": torch.tensor([0.0, 0.0, 1.0])}, "knots must increase; knots\\[0\\]=0.0"),
        ({"knots": torch.tensor([0.0, math.nan, 1.0])}, "knots\\[1\\] is not finite"),
        ({"values": torch.tensor([0.0, 5.0, 0.0])}, "values break lipschitz"),
        ({"values": torch.tensor([0.0, 1.0])}, "one length"),
        ({"knots": torch.zeros(3, 1)}, "must be a vector"),
        ({"inner_error": -1.0}, "inner_error"),
        ({"inner_error": math.inf}, "inner_error"),
        ({"lipschitz": "1"}, "lipschitz"),
    ],
)
def test_records_that_cannot_be_are_refused(change: dict[str, Any], message: str) -> None:
    fields = {
        "knots": torch.tensor([-1.0, 0.0, 1.0]), "values": torch.zeros(3), "lipschitz": 1.0, "inner_error": 0.1,
    }  # fmt: skip
    PiecewiseAffine(**fields)
    with pytest.raises(InputError, match=message):
        PiecewiseAffine(**(fields | change))


def test_a_later_change_of_the_tensors_does_not_reach_the_record() -> None:
    knots, values = torch.linspace(-1, 1, 5, dtype=torch.float64), torch.zeros(5, dtype=torch.float64)
    record = PiecewiseAffine(knots, values, 1.0, 0.5)
    values += 7
    assert not record.values.any()
