"""Affine bounds of means and variances after an activation, in the mean and the variance before it."""
