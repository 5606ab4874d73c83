"""The networks and draws of the campaign live in ``benchmarks/`` at the root of the project."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
