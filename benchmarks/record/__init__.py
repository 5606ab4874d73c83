"""Records what the package computes, so that a change that should change nothing can be held against it."""
