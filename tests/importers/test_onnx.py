"""ONNX files: every operation against the reference evaluator of ONNX, and one clear line for everything else."""

from __future__ import annotations

import contextlib
import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from bnndp.attack.draws import draw_networks, evaluate
from bnndp.errors import ModelFileError
from bnndp.importers.architecture import Architecture
from bnndp.importers.convert import ConvertOptions, convert
from bnndp.importers.onnx.operators import RULES
from bnndp.importers.onnx.read import read_onnx
from bnndp.layers import Conv2d, Linear, Residual
from bnndp.network import BayesianNetwork

onnx = pytest.importorskip("onnx", reason="ONNX files are read by the package onnx")
reference = pytest.importorskip("onnx.reference", reason="ONNX files are read by the package onnx")
helper = onnx.helper

RANDOM = np.random.default_rng(0)
IMAGE, VECTOR = (1, 2, 6, 6), (1, 5)


def floats(*shape: int) -> np.ndarray[Any, Any]:
    return RANDOM.normal(size=shape).astype(np.float32)


def positive(*shape: int) -> np.ndarray[Any, Any]:
    return (0.5 + RANDOM.random(shape)).astype(np.float32)


def node(kind: str, inputs: str, output: str, **settings: Any) -> Any:
    """A node; inputs are separated by blanks, ``-`` stands for one that is left out."""
    return helper.make_node(
        kind, ["" if n == "-" else n for n in inputs.split()], output.split(), name=output, **settings
    )


def model(
    nodes: Sequence[Any], shape: Sequence[int | str], constants: dict[str, Any], output: str = "y", opset: int = 17
) -> Any:
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        list(nodes),
        "g",
        [info("x", onnx.TensorProto.FLOAT, list(shape))],
        [info(output, onnx.TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def written(path: Path, made: Any) -> Path:
    path.write_bytes(made.SerializeToString())
    return path


def expect_same(made: Any, network: BayesianNetwork, shape: Sequence[int]) -> None:
    """The outputs at random inputs are those of the reference, which computes in float32."""
    evaluator = reference.ReferenceEvaluator(made)
    x = RANDOM.normal(size=(8, network.n_in)).astype(np.float32)
    truth = np.stack([evaluator.run(None, {"x": each.reshape(shape)})[0].ravel() for each in x])
    found = evaluate(draw_networks(network, 1, seed=0), torch.from_numpy(x).double())[0].numpy()
    assert found.shape == truth.shape
    assert np.abs(found - truth).max() < 1e-4 * (1 + np.abs(truth).max())  # float32 sums of some hundred terms


W, B, K, C = floats(4, 5), floats(4), floats(3, 2, 3, 3), floats(3)

CASES: dict[str, tuple[list[Any], Sequence[int], dict[str, Any]]] = {
    "Gemm": ([node("Gemm", "x w b", "y", transB=1, alpha=2.0, beta=-0.5)], VECTOR, {"w": W, "b": B}),
    "Gemm, neither transposed nor biased": ([node("Gemm", "x w", "y")], VECTOR, {"w": W.T.copy()}),
    "MatMul and Add": ([node("MatMul", "x w", "h"), node("Add", "b h", "y")], VECTOR, {"w": W.T.copy(), "b": B}),
    "scaled inputs": (
        [node("Sub", "x m", "a"), node("Div", "a s", "c"), node("Gemm", "c w b", "y", transB=1)],
        VECTOR,
        {"m": floats(5), "s": positive(5), "w": W, "b": B},
    ),
    "scaled images": (
        [node("Mul", "x s", "a"), node("Add", "a m", "c"), node("Conv", "c k", "y", pads=[1, 1, 1, 1])],
        IMAGE,
        {"m": floats(2, 1, 1), "s": positive(1), "k": K},
    ),
    "an image of means": (
        [node("Sub", "x m", "a"), node("Conv", "a k", "y", pads=[1, 1, 1, 1])],
        IMAGE,
        {"m": floats(*IMAGE), "k": K},
    ),
    "numbers less values": (
        [node("Gemm", "x w", "h", transB=1), node("Sub", "b h", "n"), node("Neg", "n", "y")],
        VECTOR,
        {"w": W, "b": B},
    ),
    "Conv": ([node("Conv", "x k c", "y", strides=[2, 1], pads=[1, 0, 1, 0])], IMAGE, {"k": K, "c": C}),
    "Conv, dilated": ([node("Conv", "x k c", "y", dilations=[2, 1])], IMAGE, {"k": K, "c": C}),
    "Conv, in groups": ([node("Conv", "x k", "y", group=2)], IMAGE, {"k": floats(4, 1, 2, 2)}),
    "Conv, uneven padding": ([node("Conv", "x k c", "y", pads=[0, 2, 1, 0], strides=[2, 2])], IMAGE, {"k": K, "c": C}),
    "Conv, same": ([node("Conv", "x k", "y", auto_pad="SAME_UPPER", strides=[2, 2])], IMAGE, {"k": K}),
    "Conv, same below": (
        [node("Conv", "x k", "y", auto_pad="SAME_LOWER", strides=[1, 2])], IMAGE, {"k": floats(3, 2, 2, 2)},
    ),
    "BatchNormalization": (
        [node("Conv", "x k c", "h", pads=[1, 1, 1, 1]), node("BatchNormalization", "h s b m v", "y", epsilon=1e-3)],
        IMAGE,
        {"k": K, "c": C, "s": floats(3), "b": floats(3), "m": floats(3), "v": positive(3)},
    ),
    "BatchNormalization behind an activation": (
        [node("Conv", "x k", "h"), node("Relu", "h", "r"), node("BatchNormalization", "r s b m v", "y")],
        IMAGE,
        {"k": K, "s": floats(3), "b": floats(3), "m": floats(3), "v": positive(3)},
    ),
    "pooling": (
        [
            node("Conv", "x k", "h"),
            node("MaxPool", "h", "p", kernel_shape=[2, 2], strides=[1, 1]),
            node("AveragePool", "p", "y", kernel_shape=[2, 2], strides=[2, 1]),
        ],
        IMAGE,
        {"k": K},
    ),
    "GlobalAveragePool": ([node("Conv", "x k", "h"), node("GlobalAveragePool", "h", "y")], IMAGE, {"k": K}),
    "ReduceMean": ([node("Conv", "x k", "h"), node("ReduceMean", "h", "y", axes=[2, 3], keepdims=0)], IMAGE, {"k": K}),
    "Flatten, Reshape, Squeeze and Unsqueeze": (
        [
            node("Flatten", "x", "a"), node("Reshape", "a sizes", "b"), node("Squeeze", "b axis", "c"),
            node("Unsqueeze", "c axis", "d"), node("Gemm", "d w", "y"),
        ],
        IMAGE,
        {"sizes": np.array([1, 1, -1]), "axis": np.array([0]), "w": floats(72, 3)},
    ),
    "a shape that is computed": (
        [
            node("Conv", "x k", "h"), node("Shape", "h", "s"), node("Gather", "s zero", "n"),
            node("Unsqueeze", "n axis", "u"), node("Concat", "u rest", "sizes", axis=0),
            node("Reshape", "h sizes", "f"),
            node("Gemm", "f w", "y"),
        ],
        IMAGE,
        {"k": K, "zero": np.array(0), "axis": np.array([0]), "rest": np.array([-1]), "w": floats(48, 3)},
    ),
    "Transpose of a matrix of weights": (
        [node("Transpose", "w", "t", perm=[1, 0]), node("MatMul", "x t", "y")], VECTOR, {"w": W},
    ),
    "Transpose of an image": (
        [node("Conv", "x k", "h"), node("Transpose", "h", "t", perm=[0, 2, 3, 1]), node("Flatten", "t", "f"),
         node("Gemm", "f w", "y")],
        IMAGE,
        {"k": K, "w": floats(48, 3)},
    ),
    "Transpose without effect": (
        [node("Transpose", "x", "t", perm=[0, 2, 1]), node("Flatten", "t", "f"), node("Gemm", "f w", "y")],
        (1, 5, 1),
        {"w": W.T.copy()},
    ),
    "a residual block": (
        [
            node("Conv", "x k c", "h", pads=[1, 1, 1, 1]), node("Relu", "h", "r"),
            node("Conv", "r l", "a", pads=[1, 1, 1, 1]), node("Add", "r a", "s"), node("Relu", "s", "y"),
        ],
        IMAGE,
        {"k": K, "c": C, "l": floats(3, 3, 3, 3)},
    ),
    "a block with a projection, subtracted": (
        [
            node("Gemm", "x w b", "h", transB=1), node("Tanh", "h", "t"), node("Gemm", "t u", "p"),
            node("Gemm", "t v", "q"), node("Relu", "q", "z"), node("Sub", "p z", "y"),
        ],
        VECTOR,
        {"w": W, "b": B, "u": floats(4, 3), "v": floats(4, 3)},
    ),
    "Concat": (
        [
            node("Gemm", "x w b", "h", transB=1), node("Relu", "h", "r"), node("Gemm", "r u", "p"),
            node("Concat", "p r", "y", axis=1),
        ],
        VECTOR,
        {"w": W, "b": B, "u": floats(4, 3)},
    ),
    "Concat of channels": (
        [
            node("Conv", "x k", "h"), node("Conv", "x l", "g"), node("Relu", "g", "r"),
            node("Concat", "h r", "y", axis=1),
        ],
        IMAGE,
        {"k": K, "l": floats(2, 2, 3, 3)},
    ),
    "Dropout, Identity and Cast": (
        [
            node("Dropout", "x", "d"), node("Identity", "d", "i"), node("Cast", "i", "c", to=1),
            node("Identity", "w", "v"), node("Gemm", "c v", "y"),
        ],
        VECTOR,
        {"w": W.T.copy()},
    ),
    "Constant": (
        [node("Constant", "", "w", value=onnx.numpy_helper.from_array(W.T.copy())), node("MatMul", "x w", "y")],
        VECTOR,
        {},
    ),
    "Silu": (
        [node("Gemm", "x w", "h", transB=1), node("Sigmoid", "h", "s"), node("Mul", "h s", "y")], VECTOR, {"w": W},
    ),
    "PRelu": ([node("Gemm", "x w", "h", transB=1), node("PRelu", "h a", "y")], VECTOR, {"w": W, "a": floats(1)}),
    "Clip": (
        [node("Gemm", "x w", "h", transB=1), node("Clip", "h low high", "y")],
        VECTOR,
        {"w": W, "low": np.float32(0), "high": np.float32(1.5)},
    ),
    "Clip of an image": (
        [node("Conv", "x k", "h"), node("Clip", "h low high", "c"), node("Conv", "c l", "y", pads=[1, 1, 1, 1])],
        IMAGE,
        {"k": K, "l": floats(2, 3, 3, 3), "low": np.float32(-1), "high": np.float32(1)},
    ),
    "Clip below": (
        [node("Gemm", "x w", "h", transB=1), node("Clip", "h z -", "y")], VECTOR, {"w": W, "z": np.float32(0)},
    ),
    "an unused node": ([node("Gemm", "x w", "y", transB=1), node("Loop", "x", "z")], VECTOR, {"w": W}),
}  # fmt: skip

for kind, settings in {
    "Relu": {}, "LeakyRelu": {"alpha": 0.2}, "Sigmoid": {}, "Tanh": {}, "Elu": {"alpha": 0.5}, "Softplus": {},
    "HardSigmoid": {"alpha": 0.3},
}.items():  # fmt: skip
    CASES[kind] = ([node("Gemm", "x w", "h", transB=1), node(kind, "h", "y", **settings)], VECTOR, {"w": W})


@pytest.mark.parametrize("case", CASES)
def test_networks_are_those_of_the_reference(case: str, tmp_path: Path) -> None:
    nodes, shape, constants = CASES[case]
    made = model(nodes, shape, constants)
    network = read_onnx(written(tmp_path / "n.onnx", made))
    if case == "an unused node":
        made = model(nodes[:1], shape, constants)
    expect_same(made, network, shape)


def test_gelu(tmp_path: Path) -> None:
    made = model([node("Gemm", "x w", "h", transB=1), node("Gelu", "h", "y")], VECTOR, {"w": W}, opset=20)
    expect_same(made, read_onnx(written(tmp_path / "n.onnx", made)), VECTOR)


def test_layers_are_the_simplest(tmp_path: Path) -> None:
    """Scalings leave no layer of their own, shifts of inputs become the shift of the network."""
    nodes, shape, constants = CASES["scaled inputs"]
    network = read_onnx(written(tmp_path / "n.onnx", model(nodes, shape, constants)))
    assert network.plain
    assert network.shift is not None
    assert network.shift.tolist() == constants["m"].astype(float).tolist()
    nodes, shape, constants = CASES["a residual block"]
    network = read_onnx(written(tmp_path / "n.onnx", model(nodes, shape, constants)))
    assert isinstance(network.layers[2], Residual)


def test_weights_are_exact_and_a_free_batch_is_one(tmp_path: Path) -> None:
    path = tmp_path / "N.ONNX.GZ"
    made = model([node("Gemm", "x w b", "y", transB=1)], ("batch", 5), {"w": W, "b": B})
    path.write_bytes(gzip.compress(made.SerializeToString()))
    (layer,) = read_onnx(path).layers
    assert isinstance(layer, Linear)
    assert np.array_equal(layer.weight_mean.numpy(), W.astype(np.float64))
    assert not layer.random


def test_a_softmax_is_a_part_of_classification(tmp_path: Path) -> None:
    made = model([node("Gemm", "x w", "h", transB=1), node("Softmax", "h", "y", axis=1)], VECTOR, {"w": W})
    path = written(tmp_path / "n.onnx", made)
    assert len(read_onnx(path, task="classification").layers) == 1
    with pytest.raises(ModelFileError, match="give the task classification"):
        read_onnx(path)


class TestStandardDeviations:
    """A second file with the names of the weights."""

    @staticmethod
    def read(tmp_path: Path, made: Any, stds: dict[str, Any]) -> BayesianNetwork:
        save_file({name: np.ascontiguousarray(value) for name, value in stds.items()}, tmp_path / "s.safetensors")
        return read_onnx(written(tmp_path / "n.onnx", made), tmp_path / "s.safetensors")

    def test_they_go_with_their_weights(self, tmp_path: Path) -> None:
        made = model(
            [node("MatMul", "x w", "h"), node("Add", "h b", "a"), node("Mul", "a s", "y")],
            VECTOR,
            {"w": W.T.copy(), "b": B, "s": np.float32(-2)},
        )
        (layer,) = self.read(tmp_path, made, {"w": abs(W.T), "b": abs(B)}).layers
        assert isinstance(layer, Linear)
        assert np.allclose(layer.weight_std.numpy(), 2 * abs(W), rtol=1e-15)
        assert np.allclose(layer.bias_std.numpy(), 2 * abs(B), rtol=1e-15)
        assert np.allclose(layer.weight_mean.numpy(), -2 * W, rtol=1e-15)

    def test_of_kernels(self, tmp_path: Path) -> None:
        made = model([node("Conv", "x k c", "y", dilations=[2, 1], pads=[0, 1, 0, 0])], IMAGE, {"k": K, "c": C})
        layer = self.read(tmp_path, made, {"k": abs(K), "c": abs(C)}).layers[0]
        assert isinstance(layer, Conv2d)
        assert torch.equal(layer.weight_std, layer.weight_mean.abs())
        assert torch.equal(layer.bias_std, layer.bias_mean.abs())

    @pytest.mark.parametrize(
        ("stds", "says"),
        [
            ({"q": abs(W)}, "no such weights"),
            ({"w": abs(B)}, "has the shape"),
            ({"w": -abs(W)}, "finite and >= 0"),
            ({"s": abs(B)}, "only weights, kernels and biases"),
        ],
    )
    def test_what_does_not_fit_is_refused(self, tmp_path: Path, stds: dict[str, Any], says: str) -> None:
        made = model([node("Gemm", "x w", "h", transB=1), node("Mul", "h s", "y")], VECTOR, {"w": W, "s": B})
        with pytest.raises(ModelFileError, match=says):
            self.read(tmp_path, made, stds)

    def test_weights_that_are_shared_are_refused(self, tmp_path: Path) -> None:
        made = model([node("Gemm", "x w", "h"), node("Gemm", "h w", "y")], VECTOR, {"w": floats(5, 5)})
        with pytest.raises(ModelFileError, match="used 2 times"):
            self.read(tmp_path, made, {"w": positive(5, 5)})

    def test_weights_that_are_shared_by_another_name_are_refused(self, tmp_path: Path) -> None:
        nodes = [node("Identity", "w", "v"), node("Identity", "v", "u"), node("Gemm", "x w", "h")]
        once = model([*nodes[:2], node("Gemm", "x u", "y")], VECTOR, {"w": floats(5, 5)})
        (layer,) = self.read(tmp_path, once, {"w": positive(5, 5)}).layers
        assert isinstance(layer, Linear)
        assert bool((layer.weight_std > 0).all())
        twice = model([*nodes, node("Relu", "h", "r"), node("Gemm", "r u", "y")], VECTOR, {"w": floats(5, 5)})
        with pytest.raises(ModelFileError, match="used 2 times"):
            self.read(tmp_path, twice, {"w": positive(5, 5)})

    @pytest.mark.parametrize("shape", [(1,), (1, 1)])
    def test_a_draw_that_several_outputs_share_is_refused(self, shape: tuple[int, ...], tmp_path: Path) -> None:
        made = model(
            [node("MatMul", "x w", "h"), node("Add", "h b", "y")], VECTOR, {"w": W.T.copy(), "b": floats(*shape)}
        )
        with pytest.raises(ModelFileError, match="several entries share a draw"):
            self.read(tmp_path, made, {"b": positive(*shape)})

    @pytest.mark.parametrize("shape", [(1, 3, 4, 4), (1, 1, 4, 4), (1, 1, 1), (4,)])
    def test_noise_of_pixels_is_refused(self, shape: tuple[int, ...], tmp_path: Path) -> None:
        nodes = [node("Conv", "x k", "h"), node("Add", "h b", "a"), node("Relu", "a", "y")]
        made = model(nodes, IMAGE, {"k": K, "b": np.ones(shape, np.float32)})
        with pytest.raises(ModelFileError, match=r"several entries share a draw|noise of their own"):
            self.read(tmp_path, made, {"b": np.ones(shape)})

    @pytest.mark.parametrize("way", ["after a convolution", "after an activation", "before flattening", "twice"])
    def test_noise_of_channels_is_one_draw_for_each(self, way: str, tmp_path: Path) -> None:
        """The difference of two pixels of a channel does not vary."""
        nodes = {
            "after a convolution": [node("Add", "h b", "a"), node("Flatten", "a", "y")],
            "after an activation": [node("Relu", "h", "r"), node("Add", "r b", "a"), node("Flatten", "a", "y")],
            "before flattening": [
                node("Relu", "h", "r"), node("Add", "r b", "a"), node("Mul", "a s", "c"), node("Flatten", "c", "y"),
            ],
            "twice": [
                node("Relu", "h", "r"), node("Add", "r b", "a"), node("Add", "a c", "d"), node("Flatten", "d", "y"),
            ],
        }[way]  # fmt: skip
        constants = {"k": K, "b": floats(3, 1, 1), "c": floats(1, 3, 1, 1), "s": floats(1, 3, 1, 1)}
        made = model([node("Conv", "x k", "h"), *nodes], IMAGE, constants)
        net = self.read(
            tmp_path, made, {"b": positive(3, 1, 1)} | ({"c": positive(1, 3, 1, 1)} if way == "twice" else {})
        )
        drawn = evaluate(draw_networks(net, 64, seed=0), torch.ones(1, 72, dtype=torch.float64))[:, 0].unflatten(
            -1, (3, 16)
        )
        assert bool((drawn.std(0) > 1e-3).all())
        assert bool(((drawn - drawn[..., :1]).std(0) < 1e-12).all())

    def test_noise_of_pixels_behind_flattening_is_refused(self, tmp_path: Path) -> None:
        nodes = [node("Conv", "x k", "h"), node("Flatten", "h", "f"), node("Add", "f b", "y")]
        with pytest.raises(ModelFileError, match="noise of their own"):
            self.read(tmp_path, model(nodes, IMAGE, {"k": K, "b": floats(48)}), {"b": positive(48)})

    def test_a_random_layer_in_branches_that_start_apart_is_refused(self, tmp_path: Path) -> None:
        """h is a part of p + h, and is added again outside: two draws would take the place of one."""
        made = model(
            [
                node("Gemm", "x w", "h"), node("Gemm", "x v", "g"), node("Add", "h g", "s"), node("Relu", "s", "r"),
                node("Add", "r h", "y"),
            ],
            VECTOR,
            {"w": floats(5, 5), "v": floats(5, 5)},
        )  # fmt: skip
        expect_same(made, read_onnx(written(tmp_path / "n.onnx", made)), VECTOR)
        with pytest.raises(ModelFileError, match="two branches that start at different values"):
            self.read(tmp_path, made, {"w": positive(5, 5)})


REFUSED: dict[str, tuple[list[Any], Sequence[int | str], dict[str, Any], str]] = {
    "an unknown operation": ([node("Sin", "x", "y")], VECTOR, {}, "node y \\(Sin\\): is not supported; known are Clip"),
    "a product of values": (
        [node("Gemm", "x w", "h", transB=1), node("Mul", "h h", "y")], VECTOR, {"w": W}, "products of two values",
    ),
    "a matrix of values": ([node("MatMul", "w x", "y")], (5, 1), {"w": W}, "argument 0 must depend on the input"),
    "several rows": ([node("MatMul", "x w", "y")], (2, 5), {"w": W.T.copy()}, "a single vector"),
    "a constant that is too large": ([node("Add", "x b", "y")], VECTOR, {"b": floats(3, 5)}, "does not fit"),
    "division by zero": ([node("Div", "x b", "y")], VECTOR, {"b": np.zeros(5, np.float32)}, "divides by zero"),
    "a value from nowhere": ([node("Add", "x q", "y")], VECTOR, {}, "comes from nowhere"),
    "an output from nowhere": ([node("Relu", "x", "z")], VECTOR, {}, "does not depend on the input"),
    "padded pooling": (
        [node("MaxPool", "x", "y", kernel_shape=[2, 2], pads=[1, 1, 1, 1])], IMAGE, {}, "with padding or dilation",
    ),
    "a window over the edge": (
        [node("MaxPool", "x", "y", kernel_shape=[4, 4], strides=[4, 4], ceil_mode=1)], IMAGE, {}, "ceil_mode",
    ),
    "an image out of a vector": (
        [node("Gemm", "x w", "h"), node("Reshape", "h s", "i"), node("Conv", "i k", "y")],
        VECTOR,
        {"w": floats(5, 72), "s": np.array(IMAGE), "k": K},
        "no reshaping has made",
    ),
    "approximate gelu": (
        [node("Gelu", "x", "y", approximate="tanh")], VECTOR, {}, "approximate 'tanh' is not supported",
    ),
    "a half-open clip": ([node("Clip", "x a -", "y")], VECTOR, {"a": np.float32(1)}, "both ends must be finite"),
    "a shape that does not fit": (
        [node("Reshape", "x s", "y")], VECTOR, {"s": np.array([3, 3])}, "cannot have the shape",
    ),
    "pixels of their own": (
        [node("Conv", "x k", "h"), node("Relu", "h", "r"), node("Mul", "r m", "n"), node("Conv", "n l", "y")],
        IMAGE,
        {"k": K, "m": floats(1, 3, 4, 4), "l": floats(2, 3, 1, 1)},
        "differ between the pixels",
    ),
    "weights that are no numbers": (
        [node("Gemm", "x w", "y")], VECTOR, {"w": np.full((5, 2), np.nan, np.float32)}, "not finite",
    ),
    "a cast to integers": ([node("Cast", "x", "y", to=7)], VECTOR, {}, "to 7 is not supported"),
    "a size that is unknown": ([node("Relu", "x", "y")], (1, "n"), {}, "where 0 is not known"),
    "an outer product": (
        [node("Reshape", "x s", "z"), node("Sigmoid", "x", "g"), node("Mul", "z g", "y")],
        VECTOR,
        {"s": np.array([5, 1])},
        "products of two values",
    ),
    "a part of a shape": (
        [node("Shape", "x", "s", end=1), node("Reshape", "x s", "y")], VECTOR, {}, "only whole shapes",
    ),
    "a value added to itself": ([node("Add", "x x", "y")], VECTOR, {}, "added to itself"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_anything_else_is_one_clear_line(case: str, tmp_path: Path) -> None:
    nodes, shape, constants, says = REFUSED[case]
    path = written(tmp_path / "n.onnx", model(nodes, shape, constants))
    with pytest.raises(ModelFileError, match=says) as caught:
        read_onnx(path)
    assert str(caught.value).startswith(f"{path}: cannot be converted: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "content", [b"", b"\x00", b"hello", b"\x08", b"\x80" * 100, gzip.compress(b"\x0a\xff", mtime=0)]
)
def test_what_is_no_model_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "n.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=r"n\.onnx: "):
        read_onnx(path)


@pytest.mark.parametrize("seed", range(60))
def test_damaged_models_are_refused_or_read(seed: int, tmp_path: Path) -> None:
    """Nothing but an error of ours comes out of a file with some bytes changed."""
    nodes, shape, constants = CASES["Flatten, Reshape, Squeeze and Unsqueeze" if seed % 2 else "a residual block"]
    content = bytearray(model(nodes, shape, constants).SerializeToString())
    random_ = np.random.default_rng(seed)
    for at in random_.integers(0, min(len(content), 600), 4):
        content[at] = random_.integers(256)
    path = tmp_path / "n.onnx"
    path.write_bytes(bytes(content))
    with contextlib.suppress(ModelFileError):
        read_onnx(path)


def test_convert_keeps_where_it_comes_from(tmp_path: Path) -> None:
    path = written(tmp_path / "n.onnx", model([node("Gemm", "x w", "y", transB=1)], VECTOR, {"w": W}))
    found = convert(path, Architecture(task="classification"))
    assert (found.posterior.task, (found.origin or {})["importer"]) == ("classification", "onnx")
    with pytest.raises(ValueError, match="is converted alone, with --task"):
        convert(path)
    with pytest.raises(ValueError, match="is converted alone, with --task"):
        convert([path, path], Architecture(task="classification"))
    with pytest.raises(ValueError, match="is converted alone, with --task"):
        convert(path, Architecture(task="regression"), ConvertOptions(bias=False))


def test_every_operation_has_a_case() -> None:
    tried = {each.op_type for nodes, _, _ in CASES.values() for each in nodes} | {"Gelu"}
    assert set(RULES) <= tried
