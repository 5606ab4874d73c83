"""Pure functions on tensors: every formula names its source and the direction of its inequality."""
