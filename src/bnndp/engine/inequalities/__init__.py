"""Inequalities on means, variances and norms of an activation of a random value: one file each."""
