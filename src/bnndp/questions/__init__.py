"""What can be asked of a network on a box of inputs: one small file for each question."""
