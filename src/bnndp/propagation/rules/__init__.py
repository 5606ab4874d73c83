"""The rules of every kind of layer; importing this package registers them."""

from bnndp.propagation.rules import convolution, correlated, dense, dropout, matrix_normal, pooling

__all__ = ["convolution", "correlated", "dense", "dropout", "matrix_normal", "pooling"]
