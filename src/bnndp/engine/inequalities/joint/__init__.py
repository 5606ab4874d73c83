"""Inequalities on values of a jointly Gaussian vector: noise that several outputs share."""
