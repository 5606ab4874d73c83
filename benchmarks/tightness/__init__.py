"""``make tightness``: how far the bounds are from the truth, and which step of the proof costs how much of it.

Every source of the gap is one bound that is replaced by its sampled value while all others stay (docs/tightness.md).
What comes out of such a pass is a diagnosis and no bound: nothing of it may reach the package.
"""
