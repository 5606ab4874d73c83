"""When work has to end: a moment of the monotonic clock, after which no more work is begun.

``Options.started`` makes a deadline of a time limit. Those who ask it:

- ``engine/chunks.py``: before every chunk of boxes or cells;
- ``tighten/branching.py``: before every chunk of cells, too;
- ``tighten/slopes.py``: before every step of the slopes; ``tighten/hidden_ranges.py``: before every layer;
- ``tighten/cells.py``, ``tighten/refinement.py``, ``tighten/halving.py``,
  ``tighten/input_splitting.py``: before every cut into cells;
- ``tighten/effort.py``: before every better answer; ``tighten/safety.py``: before the second;
- ``questions/decision.py``, ``questions/robustness.py``: before the attack;
- ``questions/constraint.py``, ``attack/violation.py``: before every attack, and every step of it;
- ``questions/radius.py``: before every trial of a radius; ``questions/member_levels.py`` and
  ``questions/margin_levels.py``: before every round of claims;
- ``attack/radius.py``: before every round of the search, ``attack/climbs.py``: before every step of it.

How a command shares its time among its inputs is ``Schedule`` in ``runs/work.py``.
"""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment of the monotonic clock after which no more work is begun; never, if there is none."""

    at: float | None = None

    @classmethod
    def after(cls, seconds: float | None) -> Deadline:
        """The deadline this many seconds from now; never, if None."""
        return cls(None if seconds is None else time.monotonic() + seconds)

    @property
    def passed(self) -> bool:
        """Whether it is over."""
        return self.at is not None and time.monotonic() >= self.at


NEVER = Deadline()
