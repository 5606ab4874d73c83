"""Records of the layers that carry or move values, one file per kind (activations are in ``bnndp.activations``)."""

from bnndp.layers.batch_norm import BatchNorm
from bnndp.layers.branched import Branched
from bnndp.layers.concatenate import Concatenate
from bnndp.layers.convolution import Conv2d
from bnndp.layers.correlated import CorrelatedLinear
from bnndp.layers.dropout import Dropout
from bnndp.layers.linear import Linear
from bnndp.layers.matrix_normal import MatrixNormalLinear
from bnndp.layers.record import Record
from bnndp.layers.residual import Residual
from bnndp.layers.shape import AveragePool, Flatten, MaxPool

__all__ = [
    "DENSE",
    "LAYERS",
    "WEIGHTED",
    "AveragePool",
    "BatchNorm",
    "Branched",
    "Concatenate",
    "Conv2d",
    "CorrelatedLinear",
    "Dropout",
    "Flatten",
    "Linear",
    "MatrixNormalLinear",
    "MaxPool",
    "Record",
    "Residual",
]

DENSE = (Linear, CorrelatedLinear, MatrixNormalLinear)
"""Layers that take a vector and have weights."""

WEIGHTED = (*DENSE, Conv2d)
"""Layers with weights: a network ends in one of them."""

LAYERS: dict[str, type[Record]] = {
    record.kind: record for record in (*WEIGHTED, Dropout, AveragePool, MaxPool, Flatten, Residual, Concatenate)
}
"""The layers by their kind."""
