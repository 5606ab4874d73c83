"""Long runs: every answer is kept in a folder as soon as it is there, and an interrupted run continues from there."""
