"""Numbers that an activation is made with: kept as floats, refused with their value where they make no sense."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from bnndp.activations import ACTIVATIONS, Elu, LeakyRelu, Relu
from bnndp.errors import InputError


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e7, "0.1", None, True, [0.1]])
@pytest.mark.parametrize(("record", "field"), [(LeakyRelu, "negative_slope"), (Elu, "alpha")])
def test_what_is_no_setting_is_refused(record: Any, field: str, value: object) -> None:
    with pytest.raises(InputError, match=f"{field} of {record.__name__} must be"):
        record(**{field: value})


def test_elu_has_no_negative_alpha() -> None:
    with pytest.raises(InputError, match=r"alpha of Elu must be a number from 0 to 1e\+06, got -0.5"):
        Elu(-0.5)


def test_integers_become_floats_and_records_compare_by_value() -> None:
    assert isinstance(Elu(2).alpha, float)
    assert Elu(2) == Elu(2.0) != Elu(1.0)
    assert LeakyRelu() == LeakyRelu(0.01)
    assert Relu() == Relu()
    assert repr(LeakyRelu(0.2)) == "LeakyRelu(negative_slope=0.2)"
    with pytest.raises(FrozenInstanceError):
        Elu().alpha = 2.0  # type: ignore[misc]


def test_kinds_are_those_of_the_file_format() -> None:
    assert set(ACTIVATIONS) == {
        "relu", "leaky_relu", "identity", "hard_tanh", "tanh", "sigmoid", "softplus", "elu", "gelu", "silu",
        "piecewise_affine",
    }  # fmt: skip
