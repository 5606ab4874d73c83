"""The benchmarks live in ``benchmarks/`` at the root of the project; tests of them import them from there."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
