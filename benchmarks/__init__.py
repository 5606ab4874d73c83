"""Benchmarks: tightness and speed, always as ratios in one run. Not part of the package."""
