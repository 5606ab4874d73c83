"""The tables of this folder, and the campaigns under benchmarks/, can be imported by its tests."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]
