"""The pass: moments forward, affine bounds backward, for every kind of network."""
