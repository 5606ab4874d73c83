"""The choices of a certification, in one frozen record; every one of them gives sound bounds."""

from dataclasses import dataclass

from bnndp.errors import InputError

__all__ = ["METHODS", "Options"]

METHODS = ("auto", "moment", "partition", "best")


@dataclass(frozen=True, slots=True)
class Options:
    """How to certify: the method, how far to refine, and the memory that intermediate tensors may take.

    ``auto`` is the moment method; ``best`` intersects the moment and the partition method. Refinement splits a box
    into at most ``refine`` cells and stops early for a box whose interval is proved to be within ``tolerance`` of the
    exact range at both ends, and for all when ``time_limit`` seconds have passed. ``mass`` and ``cells`` belong to the
    partition method: the probability left outside the main rectangle of a layer (any value is sound; a large one is
    tighter, see docs/theory-partition.md) and the number of regions N_k of a layer. ``optimise`` is the number of steps
    by which the moment method optimises its lower planes for every box and row; 0: one pass. ``branch`` is the largest
    number of cells into which the decision of a nearly deterministic classifier is branched by the signs of neurons.
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

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise InputError(f"method must be one of {', '.join(METHODS)}, got {self.method!r}.")
        if type(self.refine) is not int or not self.refine >= 1:
            raise InputError(f"refine is the largest number of cells a box and must be >= 1, got {self.refine!r}.")
        if type(self.optimise) is not int or not self.optimise >= 0:
            raise InputError(f"optimise is a number of steps and must be >= 0, got {self.optimise!r}.")
        if type(self.branch) is not int or not self.branch >= 1:
            raise InputError(f"branch is the largest number of cells a box and must be >= 1, got {self.branch!r}.")
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
