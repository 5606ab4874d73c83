"""The general moment pass, for networks of any layers (docs/theory.md)."""
