"""auto_LiRPA's CROWN beside bnndp on networks without variance: the same boxes, float64, one thread, by turns.

auto_LiRPA 0.3 is what pip has. It was written for an older torch and reads a network by tracing it through parts of
torch.onnx that are gone. The graph of a chain of Linear and ReLU is handed to it here instead (``_parsed``), and the
two names that it imports and no longer finds are put in their places. Nothing of its bounds is touched.

``make bench`` installs it into ``.cache/crown`` (``benchmarks/requirements-crown.txt``); where it is not, there are no
rows, and the table says so.
"""

from __future__ import annotations

import importlib
import sys
import types
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.cache import FOLDER
from benchmarks.networks import vogn
from benchmarks.timing import by_turns
from bnndp import certify
from bnndp.data import mnist
from bnndp.geometry.bounds import Interval
from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork

__all__ = ["Row", "available", "crown", "mean_network", "measure"]

LIBRARY = FOLDER.parent / "crown"
SHAPES = ((64, 64), (256, 256), (256, 256, 256))
EPS = (0.002, 0.01, 0.05)
BOXES = 64
_CLOSE = 1e-9  # of the width: an end that is looser by no more is as tight


@dataclass(frozen=True, slots=True)
class Row:
    """One network and radius: medians of seconds for all boxes, and how the bounds of the logits compare."""

    network: str
    eps: float
    boxes: int
    wall: float
    crown_wall: float
    cpu: float
    crown_cpu: float
    width: float  # means over boxes and logits
    crown_width: float
    tight: float  # share of the ends that are at least as tight as CROWN's
    ratio: float  # our time over CROWN's, on the wall


def available() -> bool:
    """Whether auto_LiRPA can be imported."""
    try:
        _library()
    except ImportError:
        return False
    return True


def measure(boxes: int = BOXES) -> list[Row]:
    """All rows, on the first MNIST test images with pixels in [0, 1]."""
    x = mnist("test").x[:boxes]
    return [_row(hidden, Box.ball(x, eps, domain=(0, 1)), eps) for hidden in SHAPES for eps in EPS]


def mean_network(network: BayesianNetwork) -> BayesianNetwork:
    """Without its variance, and as a regression: its outputs are bounded as they are."""
    fixed = [Linear.fixed(layer.weight_mean, layer.bias_mean) for layer in network.linears]
    return BayesianNetwork.from_linears(fixed, shift=network.shift)


def crown(network: BayesianNetwork) -> Callable[[Box], Interval]:
    """CROWN's bounds of the outputs of a plain network without variance, prepared for any boxes."""
    library = _library()
    modules: list[nn.Module] = []
    for layer in network.linears:
        linear = nn.Linear(layer.n_in, layer.n_out, dtype=torch.float64)
        linear.load_state_dict({"weight": layer.weight_mean, "bias": layer.bias_mean})
        modules += [nn.ReLU(), linear] if modules else [linear]
    chain = nn.Sequential(*modules).eval()
    bounded = library.BoundedModule(chain, torch.zeros(1, network.n_in, dtype=torch.float64), device="cpu")

    def bounds(box: Box) -> Interval:
        shifted = box if network.shift is None else box.moved(network.shift)
        ball = library.PerturbationLpNorm(norm=np.inf, x_L=shifted.lower, x_U=shifted.upper)
        with torch.no_grad():
            lower, upper = bounded.compute_bounds(x=(library.BoundedTensor(shifted.centre, ball),), method="CROWN")
        return Interval(lower, upper)

    return bounds


def _row(hidden: tuple[int, ...], box: Box, eps: float) -> Row:
    network = mean_network(vogn("mnist", hidden))
    theirs = crown(network)
    own, other = by_turns([lambda: certify(network, box), lambda: theirs(box)])
    ours, interval = certify(network, box), theirs(box)
    return Row(
        network=f"mnist-{len(hidden)}x{hidden[0]}",
        eps=eps,
        boxes=box.batch,
        wall=own.wall,
        crown_wall=other.wall,
        cpu=own.cpu,
        crown_cpu=other.cpu,
        width=float((ours.upper - ours.lower).mean()),
        crown_width=float((interval.upper - interval.lower).mean()),
        tight=_share(ours.lower, ours.upper, interval),
        ratio=own.wall / other.wall,
    )


def _share(lower: Tensor, upper: Tensor, other: Interval) -> float:
    """The share of the ends (boxes, outputs) that are as tight as the other's."""
    slack = _CLOSE * (other.upper - other.lower)
    return float(torch.cat([lower >= other.lower - slack, upper <= other.upper + slack]).double().mean())


def _library() -> Any:
    """The module auto_LiRPA, made to work with this torch."""
    if LIBRARY.is_dir() and str(LIBRARY) not in sys.path:
        sys.path.append(str(LIBRARY))
    helper: Any = importlib.import_module("torch.onnx.symbolic_helper")
    if not hasattr(helper, "_set_opset_version"):
        helper._set_opset_version = lambda _: None  # asked for by name only: nothing is traced here
    if "numpy.lib.arraysetops" not in sys.modules:
        old = types.ModuleType("numpy.lib.arraysetops")
        old.isin = np.isin  # type: ignore[attr-defined]
        sys.modules["numpy.lib.arraysetops"] = old
    with warnings.catch_warnings(record=True):  # deprecations of torch.jit, which it uses; it sets filters itself
        library = importlib.import_module("auto_LiRPA")
        importlib.import_module("auto_LiRPA.bound_general").parse_module = _parsed  # type: ignore[attr-defined]
    return library


def _parsed(chain: nn.Sequential, _inputs: object) -> tuple[list[Any], list[Any], list[str], None]:
    """The graph of a chain of Linear and ReLU as auto_LiRPA's parser gives it: operations, inputs, outputs."""
    node = importlib.import_module("auto_LiRPA.parse_graph").Node
    given = [node(name="/x", ori_name="input_0", op="Parameter", inputs=[], attr="", input_index=0)]
    operations, below = [], "/x"
    for index, module in enumerate(chain):
        names = [f"/{index}.{name}" for name, _ in module.named_parameters()]
        given += [
            node(name=name, ori_name=name[1:], op="Parameter", inputs=[], attr="", param=parameter)
            for name, parameter in zip(names, module.parameters(), strict=True)
        ]
        kind = ("onnx::Gemm", {"transB": 1}) if isinstance(module, nn.Linear) else ("onnx::Relu", {})
        operations.append(
            node(name=f"/{index}", op=kind[0], attr=kind[1], inputs=[below, *names], output_index=0, param={})
        )
        below = f"/{index}"
    return operations, given, [below], None
