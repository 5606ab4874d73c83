"""Certified radii on a GPU beside what the device can do: ``python -m benchmarks.gpu`` (docs/gpu.md)."""
