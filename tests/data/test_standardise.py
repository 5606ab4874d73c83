"""Standardisation: against exact rational arithmetic, constant columns, and round trips."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bnndp.data import ClassificationData, DataStandardisation, RegressionData, Standardisation, load
from bnndp.errors import InputError

UNIT = Fraction(1, 2**53)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
MODERATE = st.floats(-1e6, 1e6, allow_subnormal=False)
SCALE = st.floats(min_value=1e-3, max_value=1e6)


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def one(shift: float, scale: float) -> Standardisation:
    return Standardisation(tensor(shift), tensor(scale))


class TestFit:
    def test_means_and_deviations(self) -> None:
        values = torch.randn(1000, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3 + 7
        fitted = Standardisation.fit(values)
        for column in range(5):
            exact = [Fraction(value) for value in values[:, column].tolist()]
            mean = sum(exact) / 1000
            variance = sum((value - mean) ** 2 for value in exact) / 1000
            assert fitted.shift[column].item() == pytest.approx(float(mean), rel=1e-14)
            assert fitted.scale[column].item() == pytest.approx(math.sqrt(variance), rel=1e-14)
        z = fitted.apply(values)
        assert z.mean(0).abs().max() < 1e-13
        assert (z.std(0, correction=0) - 1).abs().max() < 1e-13

    @pytest.mark.parametrize("value", [0.0, 0.998, 288.0, -1e300, 5e-324])
    def test_a_constant_column_has_scale_one_and_becomes_zero(self, value: float) -> None:
        values = torch.full((11934, 1), value, dtype=torch.float64)
        fitted = Standardisation.fit(values)
        assert (fitted.shift.item(), fitted.scale.item()) == (value, 1.0)
        assert not fitted.apply(values).any()

    @pytest.mark.parametrize(
        ("low", "high"), [(1e-200, 3e-200), (-1.7e308, 1.7e308), (1.0, 1.0 + 2**-52), (1e308, 1.7e308)]
    )
    def test_extreme_columns(self, low: float, high: float) -> None:
        fitted = Standardisation.fit(tensor(low, high)[:, None])
        middle = (Fraction(low) + Fraction(high)) / 2
        spread = (Fraction(high) - Fraction(low)) / 2
        assert abs(Fraction(fitted.shift.item()) - middle) <= 4 * UNIT * max(abs(Fraction(low)), abs(Fraction(high)))
        assert spread / 2 <= Fraction(fitted.scale.item()) <= 2 * spread

    def test_one_point_is_constant(self) -> None:
        assert Standardisation.fit(tensor(3.0, 4.0)[None]).to_lists() == {"shift": [3.0, 4.0], "scale": [1.0, 1.0]}

    @pytest.mark.parametrize("values", [tensor(1.0), torch.zeros(0, 2), torch.tensor([[math.nan]])])
    def test_wrong_values_are_refused(self, values: Tensor) -> None:
        with pytest.raises(InputError, match="standardisation needs finite values"):
            Standardisation.fit(values)


@given(x=MODERATE, shift=MODERATE, scale=SCALE)
def test_apply_is_two_roundings_from_the_truth(x: float, shift: float, scale: float) -> None:
    truth = (Fraction(x) - Fraction(shift)) / Fraction(scale)
    got = Fraction(one(shift, scale).apply(tensor(x)).item())
    assert abs(got - truth) <= (2 * UNIT + UNIT**2) * abs(truth) + Fraction(5e-324)


@given(x=MODERATE, shift=MODERATE, scale=SCALE)
def test_undo_gives_back_what_apply_took_up_to_four_roundings(x: float, shift: float, scale: float) -> None:
    units = one(shift, scale)
    back = Fraction(units.undo(units.apply(tensor(x))).item())
    # three roundings of x - shift, then one of the sum
    moved = (1 + UNIT) ** 3 - 1
    error = moved * abs(Fraction(x) - Fraction(shift))
    assert abs(back - Fraction(x)) <= error + UNIT * (abs(Fraction(x)) + error) + Fraction(1e-300)


@given(x=st.integers(-(2**40), 2**40), shift=st.integers(-(2**40), 2**40), power=st.integers(-20, 20))
def test_the_round_trip_is_exact_where_float64_can_be(x: int, shift: int, power: int) -> None:
    units = one(float(shift), 2.0**power)
    z = units.apply(tensor(float(x)))
    assert Fraction(z.item()) == Fraction(x - shift) / Fraction(2) ** power
    assert units.undo(z).item() == x


@given(lower=FINITE, upper=FINITE, shift=FINITE, scale=st.floats(min_value=5e-324, allow_infinity=False))
def test_bounds_enclose_the_real_image(lower: float, upper: float, shift: float, scale: float) -> None:
    units, ends = one(shift, scale), (tensor(lower), tensor(upper))
    image = [(Fraction(end) - Fraction(shift)) / Fraction(scale) for end in (lower, upper)]
    inverse = [Fraction(end) * Fraction(scale) + Fraction(shift) for end in (lower, upper)]
    for found, truth in ((units.apply_bounds(*ends), image), (units.undo_bounds(*ends), inverse)):
        below, above = found[0].item(), found[1].item()
        assert below == -math.inf or Fraction(below) <= truth[0]
        assert above == math.inf or Fraction(above) >= truth[1]


def test_bounds_enclose_the_real_image_where_both_roundings_matter() -> None:
    """A single step after both operations is not enough: in each of these lists it fails for some."""
    generator = torch.Generator().manual_seed(0)
    x, scale, near = (torch.rand(4000, generator=generator, dtype=torch.float64) + 0.5 for _ in range(3))
    inside = torch.rand(4000, generator=generator, dtype=torch.float64)
    images = Standardisation(inside, scale)
    cancelling = Standardisation(-x * scale * (1 + near / 100), scale)
    for units, found in ((images, images.apply_bounds(x, x)), (cancelling, cancelling.undo_bounds(x, x))):
        rows = zip(*(value.tolist() for value in (x, units.shift, units.scale, *found)), strict=True)
        for value, shift, factor, below, above in rows:
            point, moved, stretched = Fraction(value), Fraction(shift), Fraction(factor)
            truth = (point - moved) / stretched if units is images else point * stretched + moved
            assert Fraction(below) <= truth <= Fraction(above)


@given(x=MODERATE, shift=MODERATE, scale=SCALE)
def test_bounds_are_close(x: float, shift: float, scale: float) -> None:
    below, above = (end.item() for end in one(shift, scale).apply_bounds(tensor(x), tensor(x)))
    truth = (Fraction(x) - Fraction(shift)) / Fraction(scale)
    assert Fraction(above) - Fraction(below) <= 16 * UNIT * abs(truth) + Fraction(1e-300)


def test_infinite_ends_stay() -> None:
    units = one(3.0, 0.1)
    for ends in (units.apply_bounds, units.undo_bounds):
        below, above = ends(tensor(-math.inf), tensor(math.inf))
        assert (below.item(), above.item()) == (-math.inf, math.inf)


@given(shift=FINITE, scale=st.floats(min_value=5e-324, allow_infinity=False))
def test_json_keeps_every_bit(shift: float, scale: float) -> None:
    units = one(shift, scale)
    back = Standardisation.from_lists(json.loads(json.dumps(units.to_lists())))
    assert torch.equal(back.shift.view(torch.int64), units.shift.view(torch.int64))
    assert torch.equal(back.scale.view(torch.int64), units.scale.view(torch.int64))


def test_shapes_and_dtypes() -> None:
    units = Standardisation(tensor(1.0, 2.0), tensor(2.0, 4.0))
    assert units.apply(torch.zeros(5, 6, 2)).shape == (5, 6, 2)
    assert units.apply(torch.zeros(2)).dtype == torch.float64


def test_a_caller_cannot_change_it() -> None:
    shift = tensor(1.0)
    units = Standardisation(shift, tensor(1.0))
    shift += 1
    assert units.shift.item() == 1


@pytest.mark.parametrize(
    ("shift", "scale", "says"),
    [
        ([0.0], [0.0], r"scale\[0\] must be finite and > 0, got 0.0"),
        ([0.0, 0.0], [1.0, -1.0], r"scale\[1\] must be finite and > 0, got -1.0"),
        ([0.0], [math.nan], r"scale\[0\] must be finite and > 0, got nan"),
        ([0.0], [math.inf], r"scale\[0\] must be finite and > 0, got inf"),
        ([math.nan], [1.0], r"shift\[0\] must be finite, got nan"),
        ([0.0], [1.0, 1.0], "shift has 1 columns, scale has 2"),
        ([], [], r"shift must have shape \(columns,\), got \(0,\)"),
        ([[0.0]], [[1.0]], r"shift must have shape \(columns,\), got \(1, 1\)"),
        (["a"], [1.0], "shift must be a list of numbers"),
    ],
)
def test_wrong_records_are_refused(shift: list[float], scale: list[float], says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        Standardisation.from_lists({"shift": shift, "scale": scale})
    assert "\n" not in str(caught.value)


def test_wrong_entries_and_columns_are_refused() -> None:
    with pytest.raises(InputError, match="has the entries shift and scale, got shift"):
        Standardisation.from_lists({"shift": [0.0]})
    for values in (torch.zeros(2, 2), torch.tensor(0.0)):
        with pytest.raises(InputError, match="the standardisation has 3 columns"):
            Standardisation(torch.zeros(3), torch.ones(3)).apply(values)


class TestOfData:
    def test_regression(self) -> None:
        train, test = load("sine2d"), load("sine2d", "test")
        units = DataStandardisation.fit(train)
        for data in (train, test):
            z = units.apply(data)
            assert isinstance(z, RegressionData)
            assert torch.equal(z.x, units.inputs.apply(data.x))
            assert torch.equal(z.y, units.targets.apply(data.y))
            assert isinstance(data, RegressionData)
            assert z.clean is not None
            assert data.clean is not None
            assert (units.targets.undo(z.clean) - data.clean).abs().max() < 1e-14
        again = DataStandardisation.fit(units.apply(train))
        assert (again.inputs.scale - 1).abs().max() < 1e-13

    def test_classification(self) -> None:
        train = load("digits")
        units = DataStandardisation.fit(train)
        assert units.targets is None
        z = units.apply(train)
        assert isinstance(z, ClassificationData)
        assert torch.equal(z.y, train.y)
        assert not z.x[:, 0].any()  # the corner pixel is always white: a constant column
        assert z.x.isfinite().all()

    def test_the_wrong_task_is_refused(self) -> None:
        pair = (load("sine1d"), load("digits"))
        for (fitted, other), says in zip(
            pairwise((*pair, pair[0])), ("classes have none", "has no targets"), strict=True
        ):
            with pytest.raises(InputError, match=says):
                DataStandardisation.fit(fitted).apply(other)

    def test_constant_inputs_of_naval(self, data_folder: Path) -> None:
        if not (data_folder / "naval").is_dir():
            pytest.skip(f"no folder 'naval' in {data_folder}")
        train = load("naval", folder=data_folder)
        units = DataStandardisation.fit(train)
        constant = (train.x.amin(0) == train.x.amax(0)).nonzero().flatten().tolist()
        assert len(constant) == 2
        assert units.inputs.scale[constant].tolist() == [1.0, 1.0]
        assert not units.inputs.apply(train.x)[:, constant].any()
