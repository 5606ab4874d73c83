"""The paper's method: value functions on a partition of each latent space (docs/theory-partition.md)."""
