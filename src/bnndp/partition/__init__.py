"""The paper's method: piecewise-affine value functions on a partition of every latent space (docs/theory-partition.md)."""
