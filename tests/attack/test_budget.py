"""The budget of an attack."""

from __future__ import annotations

import pytest

from bnndp.attack import AttackBudget
from bnndp.errors import InputError


@pytest.mark.parametrize(("name", "value"), [("steps", 0), ("seed", -1)])
def test_budgets_that_are_none_are_refused(name: str, value: int) -> None:
    with pytest.raises(InputError, match=f"{name} must be at least .*, got {value}"):
        AttackBudget(**{name: value})  # type: ignore[arg-type]
