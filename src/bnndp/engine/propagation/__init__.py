"""The walk over the nodes: moments forward, affine bounds backward, and what is asked of the last layer."""
