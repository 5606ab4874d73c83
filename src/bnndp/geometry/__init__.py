"""Regions of inputs, and functions that bound on them: boxes and balls, intervals, affine bounds."""
