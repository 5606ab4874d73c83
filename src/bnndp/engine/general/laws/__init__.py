"""The rules of every kind of layer; importing this package registers them."""

from bnndp.engine.general.laws import convolution, correlated, dense, dropout, matrix_normal, pooling

__all__ = ["convolution", "correlated", "dense", "dropout", "matrix_normal", "pooling"]
