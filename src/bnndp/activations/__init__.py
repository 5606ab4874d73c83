"""Records of activations, one file per kind; what the passes ask of one is in ``activation``."""

from typing import Any

from bnndp.activations.activation import Activation
from bnndp.activations.elu import Elu
from bnndp.activations.gelu import Gelu
from bnndp.activations.hard_tanh import HardTanh
from bnndp.activations.identity import Identity
from bnndp.activations.leaky_relu import LeakyRelu
from bnndp.activations.piecewise import PiecewiseAffine
from bnndp.activations.relu import Relu
from bnndp.activations.sigmoid import Sigmoid
from bnndp.activations.silu import Silu
from bnndp.activations.softplus import Softplus
from bnndp.activations.tanh import Tanh

__all__ = [
    "ACTIVATIONS",
    "Elu",
    "Gelu",
    "HardTanh",
    "Identity",
    "LeakyRelu",
    "PiecewiseAffine",
    "Relu",
    "Sigmoid",
    "Silu",
    "Softplus",
    "Tanh",
]

_RECORDS: tuple[type[Activation], ...] = (
    Relu,
    LeakyRelu,
    Identity,
    HardTanh,
    Tanh,
    Sigmoid,
    Softplus,
    Elu,
    Gelu,
    Silu,
    PiecewiseAffine,
)

ACTIVATIONS: dict[str, type[Any]] = {record.kind: record for record in _RECORDS}
"""Every record by its kind."""
