"""Do the tests notice? Known soundness faults, or random mutants, are put into a copy of the project, one at a time.

The tests of that copy must fail (docs/testing.md). Nothing here touches the working tree.
"""
