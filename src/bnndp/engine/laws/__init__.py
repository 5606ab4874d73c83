"""Random linear maps: the rules of every kind of layer with weights; importing this package registers them."""

from bnndp.engine.laws import convolution, correlated, dense, matrix_normal, stacked

__all__ = ["convolution", "correlated", "dense", "matrix_normal", "stacked"]
