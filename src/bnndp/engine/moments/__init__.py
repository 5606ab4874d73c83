"""What the pass knows of values over a whole box: the records of moments that go from node to node."""
