"""Rows of coefficients that the pass carries backward: over a whole vector, over windows of an image, or joined.

All kinds know the same operations.
"""

from bnndp.engine.rows.dense import DenseRows, single_rows
from bnndp.engine.rows.joined import JoinedRows, Rows, minimum, pieces_of, split, sum_of
from bnndp.engine.rows.local import LocalRows

__all__ = ["DenseRows", "JoinedRows", "LocalRows", "Rows", "minimum", "pieces_of", "single_rows", "split", "sum_of"]
