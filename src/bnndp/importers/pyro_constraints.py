"""Constraints of Pyro's parameters, as they stand in its files: empty classes in the place of the real ones.

A file of Pyro names classes of torch and of Pyro. Opening it needs neither: each name stands for a class of ours that
can do nothing and keeps what the file says of it, and is then put in words.
"""

from __future__ import annotations

_TORCH, _PYRO = "torch.distributions.constraints", "pyro.distributions.constraints"


class _Constraint:
    """What a file says of a constraint, as attributes."""

    words = ""


def _stub(words: str) -> type[_Constraint]:
    return type("Constraint", (_Constraint,), {"words": words})


CONSTRAINTS: dict[str, type[_Constraint]] = {
    f"{_TORCH}._Real": _stub("real"),
    f"{_TORCH}._GreaterThan": _stub("greater_than"),
    f"{_TORCH}._Interval": _stub("interval"),
    f"{_TORCH}._LowerCholesky": _stub("lower_cholesky"),
    f"{_TORCH}._IndependentConstraint": _stub("independent"),
    f"{_PYRO}._SoftplusPositive": _stub("softplus_positive"),
    f"{_PYRO}._UnitLowerCholesky": _stub("unit_lower_cholesky"),
    f"{_PYRO}._SoftplusLowerCholesky": _stub("softplus_lower_cholesky"),
}
"""The classes by the names that stand in files."""

_SETTINGS = {"greater_than": ("lower_bound",), "interval": ("lower_bound", "upper_bound")}
_DEEPEST = 4


def text_of(value: object, depth: int = 0) -> str | None:
    """A constraint in words, as ``greater_than 0.0``; None if it is none. One of independent parts is that of a part.

    >>> found = CONSTRAINTS["torch.distributions.constraints._GreaterThan"]()
    >>> vars(found)["lower_bound"] = 0.0
    >>> text_of(found)
    'greater_than 0.0'
    """
    if not isinstance(value, _Constraint):
        return None
    kept, words = vars(value), type(value).words
    if words == "independent":
        return text_of(kept.get("base_constraint"), depth + 1) if depth < _DEEPEST else None
    bounds = [kept.get(name) for name in _SETTINGS.get(words, ())]
    return " ".join([words, *(str(bound) if isinstance(bound, int | float) else "?" for bound in bounds)])
