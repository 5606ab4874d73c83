"""Sums of independent terms: their norms, how close they are to Gaussian, and what that says of a mean above them."""
