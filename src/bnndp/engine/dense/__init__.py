"""The moment dynamic program: first and second moments forward, affine bounds backward (docs/theory.md)."""
