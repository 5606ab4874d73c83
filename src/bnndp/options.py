"""The choices of a certification, in one frozen record; every one of them gives sound bounds."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

from bnndp.deadline import NEVER, Deadline
from bnndp.errors import InputError

METHODS = ("auto", "moment", "partition", "best")
LEVELS = ("low", "medium", "high")


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a certification: the method, the effort, and limits on time and memory.

    Every choice gives sound bounds.

    Args:
        method: ``"moment"``, ``"partition"``, ``"best"`` (the intersection of both), or ``"auto"``, which is the moment
            method.
        refine: The largest number of cells into which a box is split.
        tolerance: Refinement of a box stops early once its interval is proved to be this close to the exact range, at
            both ends.
        time_limit: Seconds after which all work stops. The answer is what was found by then; nothing is known about
            boxes that were not reached.
        memory: Bytes that intermediate tensors may take.
        mass: For the partition method: the probability left outside the main rectangle of a layer. A large value is
            tighter (docs/theory-partition.md).
        cells: For the partition method: the number of regions of a layer.
        optimise: Number of steps by which the moment method optimises its lower planes for every box and row; 0 means a
            single pass.
        branch: The largest number of cells into which the decision of a classifier is split by the signs of neurons:
            of any ensemble or Gaussian head, and of other networks whose margins are nearly deterministic.
        effort: ``"low"`` is one pass; ``"medium"`` costs about 10 and ``"high"`` about 100 times as much. It sets
            ``method``, ``refine``, ``optimise`` and ``branch``, except where they differ from their defaults or are
            named in ``fixed`` (docs/effort.md).
        fixed: Names of options that ``effort`` must not change; :meth:`of` fixes all that it is given.
        deadline: Set by :meth:`started`.

    Examples:
        >>> Options(refine=64, time_limit=10.0).refine
        64
    """

    method: str = "auto"
    refine: int = 1
    tolerance: float = 0.0
    time_limit: float | None = None
    memory: int = 2**30
    mass: float = 0.9
    cells: int = 2
    optimise: int = 0
    branch: int = 1
    effort: str = "low"
    fixed: frozenset[str] = frozenset()
    deadline: Deadline = field(default=NEVER, repr=False)

    def started(self) -> Options:
        """Start the clock: replace the time limit by a deadline.

        Returns:
            The options with a deadline, or the same options if there is no time limit.

        Examples:
            >>> Options(time_limit=60).started().deadline.passed
            False
        """
        if self.time_limit is None:
            return self
        return replace(self, time_limit=None, deadline=Deadline.after(self.time_limit))

    @classmethod
    def of(cls, effort: str, **given: Any) -> Options:
        """Create the options of a level of effort.

        Args:
            effort: ``"low"``, ``"medium"`` or ``"high"``.
            **given: Other options, which take precedence over the effort even where they are the defaults.

        Returns:
            The options.

        Examples:
            >>> Options.of("high", branch=1).fixed
            frozenset({'branch'})
        """
        return cls(effort=effort, fixed=frozenset(given), **given)

    @property
    def own(self) -> frozenset[str]:
        """Names of the options that the user has chosen, over which ``effort`` has no say."""
        usual = {field.name: field.default for field in fields(self)}
        return self.fixed | {name for name, value in usual.items() if getattr(self, name) != value}

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise InputError(f"method must be one of {', '.join(METHODS)}, got {self.method!r}.")
        self._check_effort()
        if type(self.refine) is not int or not self.refine >= 1:
            raise InputError(f"refine is the largest number of cells per box and must be >= 1, got {self.refine!r}.")
        if type(self.optimise) is not int or not self.optimise >= 0:
            raise InputError(f"optimise is a number of steps and must be >= 0, got {self.optimise!r}.")
        if type(self.branch) is not int or not self.branch >= 1:
            raise InputError(f"branch is the largest number of cells per box and must be >= 1, got {self.branch!r}.")
        if not self.tolerance >= 0:
            raise InputError(f"tolerance must be >= 0, got {self.tolerance!r}.")
        if self.time_limit is not None and not self.time_limit > 0:
            raise InputError(f"time_limit must be a positive number of seconds or None, got {self.time_limit!r}.")
        if not self.memory >= 2**20:
            raise InputError(f"memory must be at least {2**20} bytes, got {self.memory!r}.")
        if not 0 < self.mass < 1:
            raise InputError(f"mass must lie between 0 and 1, got {self.mass!r}.")
        if not self.cells >= 2:
            raise InputError(
                f"cells counts the main rectangle and its complement and must be >= 2, got {self.cells!r}."
            )

    def _check_effort(self) -> None:
        if self.effort not in LEVELS:
            raise InputError(f"effort must be one of {', '.join(LEVELS)}, got {self.effort!r}.")
        unknown = sorted(set(self.fixed) - {field.name for field in fields(self)})
        if unknown:
            known = ", ".join(field.name for field in fields(self))
            raise InputError(f"fixed names the option {unknown[0]!r}, which does not exist; the options are {known}.")
