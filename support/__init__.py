"""What tests and benchmarks share: independent oracles, random networks, files made by hand, a browser."""
