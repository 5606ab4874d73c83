"""Do the tests bite? Known soundness faults, and random mutants, are put into a copy of the project, one at a time.

The tests of that copy must fail. ``python -m seeded_faults`` runs the list of faults and ``python -m
benchmarks.fuzz.seeded_faults.mutants`` a sample of mutants (docs/testing.md), with the folder ``tools`` on PYTHONPATH, as the targets
of the Makefile have it. Nothing here touches the working tree.
"""
