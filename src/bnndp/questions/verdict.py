"""The three answers to a claim, and the one function that gives them."""

import enum


class Verdict(enum.Enum):
    """The answer to a claim.

    It has no truth value: compare it by name.

    Examples:
        >>> Verdict("certified") is Verdict.CERTIFIED
        True
    """

    CERTIFIED = "certified"
    """Proved for every input of the region."""
    FALSIFIED = "falsified"
    """An input of the region breaks the claim: proved, or shown by fresh samples with the confidence that is stated."""
    UNDECIDED = "undecided"
    """The bounds are too loose to tell, or the time ran out."""

    def __bool__(self) -> bool:
        raise TypeError("Compare a Verdict by name (verdict is Verdict.CERTIFIED); it has no truth value.")


def judge(*, proved: bool, broken: bool) -> Verdict:
    """The only place that gives a verdict. Both arguments come from comparisons, which NaN fails."""
    if proved is True:
        return Verdict.CERTIFIED
    return Verdict.FALSIFIED if broken is True else Verdict.UNDECIDED
