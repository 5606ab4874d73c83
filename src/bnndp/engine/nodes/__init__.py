"""The nodes of the graph that the pass walks; importing this package registers those of layers without weights."""

from bnndp.engine.nodes import dropout, pooling

__all__ = ["dropout", "pooling"]
