"""Whatever makes the bounds of a pass tighter: better slopes, branching, splitting of boxes, levels of effort."""
