"""Safety of outputs on boxes: against enumeration, samples and instances whose answer is known."""

from __future__ import annotations

import contextlib
import math
import os
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from support.networks import make_network
from torch import Tensor

from bnndp.attack.draws import draw_networks, evaluate
from bnndp.errors import InputError, MagnitudeError
from bnndp.files.regions import regions_of
from bnndp.files.vnnlib import parse_vnnlib, read_vnnlib
from bnndp.geometry.box import Box
from bnndp.geometry.unsafe_set import Region, UnsafeSet
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork, Ensemble
from bnndp.options import Options
from bnndp.questions import constraint
from bnndp.questions.constraint import verify
from bnndp.questions.verdict import Verdict


def fixed_network(seed: int, sizes: tuple[int, ...] = (2, 6, 6, 3)) -> BayesianNetwork:
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return BayesianNetwork.from_linears(
        [Linear.fixed(random(b, a) / math.sqrt(a), 0.3 * random(b)) for a, b in pairwise(sizes)]
    )


def outputs(network: BayesianNetwork, x: Tensor) -> Tensor:  # (points, n) -> (points, outputs)
    return evaluate(draw_networks(network, 1, seed=0), x)[0]


def grid(box: Box, steps: int = 201) -> Tensor:  # (steps^2, 2)
    axes = [
        torch.linspace(low, high, steps, dtype=torch.float64)
        for low, high in zip(box.lower[0], box.upper[0], strict=True)
    ]
    return torch.cartesian_prod(*axes)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("margin", [-0.05, -1e-3, 1e-3, 0.05])
def test_answers_are_those_of_enumeration(seed: int, margin: float) -> None:
    """y_0 <= least value on a grid + margin: unsafe inputs exist if the margin is positive; y_1 makes a second way."""
    network, box = fixed_network(seed), Box([[-1.0, -0.5]], [[0.5, 1.0]])
    y = outputs(network, grid(box))
    least = y.amin(0)
    rows, owner = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], [0, 1]
    found = verify(
        network,
        [Region(box, UnsafeSet(rows, least[:2] + torch.tensor([margin, -0.5], dtype=torch.float64), owner))],
        Options(time_limit=60),
    )
    if margin > 0:
        assert found.verdict is Verdict.FALSIFIED
        assert found.witness is not None
        assert bool(box.contains(found.witness))
        assert outputs(network, found.witness[None])[0, 0] <= least[0] + margin
    elif found.witness is not None:  # there may be one between the points of the grid
        assert outputs(network, found.witness[None])[0, 0] <= least[0] + margin
        assert margin > -0.05
    else:
        assert found.verdict is Verdict.CERTIFIED


@pytest.mark.parametrize("seed", range(6))
def test_all_rows_of_a_conjunct_must_hold(seed: int) -> None:
    """Both outputs small at once: the least of their maximum decides."""
    network, box = fixed_network(seed), Box([[-1.0, -1.0]], [[1.0, 1.0]])
    least = outputs(network, grid(box))[:, :2].amax(-1).amin()
    rows = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    for margin, verdict in ((0.02, Verdict.FALSIFIED), (-0.1, Verdict.CERTIFIED)):
        unsafe = UnsafeSet(rows, (least + margin).expand(2), [0, 0])
        assert verify(network, [Region(box, unsafe)], Options(time_limit=60)).verdict is verdict


def test_constraints_may_hold_inputs() -> None:
    """f(x) = relu(x) and the unsafe set y <= x - 1/8: never, but y <= x + 1/8 everywhere above -1/8."""
    one = torch.ones(1, 1)
    network, box = BayesianNetwork.from_linears([Linear.fixed(one), Linear.fixed(one)]), Box([[-1.0]], [[1.0]])
    for bound, verdict in ((-0.125, Verdict.CERTIFIED), (0.125, Verdict.FALSIFIED)):
        unsafe = UnsafeSet([[1.0]], [bound], [0], [[-1.0]])
        assert verify(network, [Region(box, unsafe)], Options(time_limit=60)).verdict is verdict


def test_every_region_counts() -> None:
    network = BayesianNetwork((Linear.fixed(torch.ones(1, 2)),))
    unsafe = UnsafeSet([[-1.0]], [-1.0], [0])  # x_0 + x_1 >= 1
    safe, other = (Region(Box([[0.0, 0.0]], [[0.4, high]]), unsafe) for high in (0.5, 0.7))
    assert verify(network, [safe, safe]).verdict is Verdict.CERTIFIED
    for regions in ([safe, other], [other, safe]):
        assert verify(network, regions).verdict is Verdict.FALSIFIED
    assert verify(network, []).verdict is Verdict.UNDECIDED


def test_the_border_belongs_to_the_unsafe_set() -> None:
    """y <= 0 where the least y is exactly 0: never certified."""
    network = BayesianNetwork.from_linears([Linear.fixed(torch.ones(1, 1)), Linear.fixed(torch.ones(1, 1))])
    region = Region(Box([[-1.0]], [[1.0]]), UnsafeSet([[1.0]], [0.0], [0]))
    assert verify(network, [region], Options(time_limit=1)).verdict is not Verdict.CERTIFIED


def test_an_input_between_two_floats_is_proved_for_both() -> None:
    text = "(declare-const X_0 Real)(declare-const Y_0 Real)(assert (= X_0 0.1))(assert (>= Y_0 {}))"
    network = BayesianNetwork((Linear.fixed(torch.ones(1, 1)),))
    found = {bound: verify(network, regions_of(parse_vnnlib(text.format(bound)))).verdict for bound in ("0.09", "0.11")}
    assert found == {"0.09": Verdict.FALSIFIED, "0.11": Verdict.CERTIFIED}
    assert (
        verify(network, regions_of(parse_vnnlib(text.format("0.1"))), Options(time_limit=1)).verdict
        is Verdict.UNDECIDED
    )


@pytest.mark.parametrize("seed", range(4))
def test_networks_with_variance_are_asked_about_their_mean(seed: int) -> None:
    network, box = make_network((2, 6, 5, 1), seed), Box([[0.2, 0.2]], [[0.3, 0.3]])
    drawn = evaluate(draw_networks(network, 20000, seed=1), box.centre)[:, 0, 0]
    mean, error = drawn.mean(), 5 * drawn.std() / math.sqrt(len(drawn))
    above = UnsafeSet([[-1.0]], (-(mean - error - 1e-3))[None], [0])  # the mean at the centre is above this
    options = Options(time_limit=5)
    assert verify(network, [Region(box, above)], options).verdict is not Verdict.CERTIFIED
    far = UnsafeSet([[-1.0]], (-(mean + 100))[None], [0])
    assert verify(network, [Region(box, far)], options).verdict is Verdict.CERTIFIED
    both = Ensemble((network, make_network((2, 6, 5, 1), seed + 10)))
    assert verify(both, [Region(box, far)], options).verdict is Verdict.CERTIFIED


def test_nothing_is_certified_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    network, box = fixed_network(0), Box([[-1.0, -0.5]], [[0.5, 1.0]])
    least = outputs(network, grid(box)).amin(0)[0] - 0.05
    region = Region(box, UnsafeSet([[1.0, 0.0, 0.0]], least[None], [0]))
    assert verify(network, [region], Options(time_limit=60)).verdict is Verdict.CERTIFIED
    found = verify(network, [region], Options(time_limit=1e-9))
    assert (found.verdict, found.late) == (Verdict.UNDECIDED, True)
    monkeypatch.setattr(constraint, "unproved", lambda *_: iter(()))
    assert verify(network, [region]).verdict is Verdict.UNDECIDED


def test_nan_is_never_a_proof() -> None:
    huge = torch.full((1, 2), 1e300, dtype=torch.float64)
    network = BayesianNetwork.from_linears([Linear.fixed(huge), Linear.fixed(huge[:, :1])])
    region = Region(Box([[-1.0, -1.0]], [[1.0, 1.0]]), UnsafeSet([[1.0]], [-1.0], [0]))
    with contextlib.suppress(MagnitudeError):  # beyond the range of magnitudes
        assert verify(network, [region], Options(time_limit=1)).verdict is Verdict.UNDECIDED


@pytest.mark.parametrize("method", ["moment", "partition", "best"])
@pytest.mark.parametrize("scale", [-5.0, 0.1, 3.0])
@pytest.mark.parametrize("outputs_", [1, 2])
def test_answers_do_not_depend_on_the_scale_of_rows(method: str, scale: float, outputs_: int) -> None:
    """As many rows as there are outputs: y in [0.4, 0.6] for each, and a level below, within or above."""
    network = BayesianNetwork.from_linears([Linear.fixed(torch.full((outputs_, 1), 1.0, dtype=torch.float64))])
    box, rows = Box([[0.4]], [[0.6]]), scale * torch.eye(outputs_, dtype=torch.float64)
    low, high = sorted((0.4 * scale, 0.6 * scale))
    for level, unsafe in ((low - 0.05, False), (0.5 * (low + high), True), (high + 0.05, True)):
        bound = torch.full((outputs_,), level, dtype=torch.float64)
        found = verify(network, [Region(box, UnsafeSet(rows, bound, [0] * outputs_))], Options.of("low", method=method))
        assert found.verdict is (Verdict.FALSIFIED if unsafe else Verdict.CERTIFIED)


def test_what_does_not_fit_is_refused() -> None:
    network = fixed_network(0)
    with pytest.raises(InputError, match="the property has 1 inputs and 3 outputs, the network 2 and 3"):
        verify(network, [Region(Box([[0.0]], [[1.0]]), UnsafeSet([[1.0, 0.0, 0.0]], [0.0], [0]))])
    with pytest.raises(InputError, match="numbered 0, 1"):
        UnsafeSet([[1.0]], [0.0], [1])
    with pytest.raises(InputError, match="finite"):
        UnsafeSet([[1.0]], [math.nan], [0])
    with pytest.raises(InputError, match="one bound and conjunct each"):
        UnsafeSet([[1.0]], [0.0, 1.0], [0])
    for norm in (1, 2):
        with pytest.raises(InputError, match="take the box around it"):
            Region(Box.ball([[0.0]], 1.0, norm=norm), UnsafeSet([[1.0]], [0.0], [0]))
    with pytest.raises(InputError, match="one box"):
        Region(Box([[0.0], [0.0]], [[1.0], [1.0]]), UnsafeSet([[1.0]], [0.0], [0]))


COMPETITION = Path(os.environ.get("BNNDP_BENCHMARKS", "")) / "vnncomp"
SAT = [  # with a counterexample that others have found, and that is not found at once
    ("acasxu_2023", "ACASXU_run2a_1_9_batch_2000", "prop_7"),
    ("acasxu_2023", "ACASXU_run2a_1_4_batch_2000", "prop_2"),
    ("acasxu_2023", "ACASXU_run2a_1_7_batch_2000", "prop_3"),
    ("mnist_fc", "mnist-net_256x2", "prop_12_0.03"),
    ("mnist_fc", "mnist-net_256x4", "prop_1_0.05"),
]


@pytest.mark.skipif("BNNDP_BENCHMARKS" not in os.environ, reason="BNNDP_BENCHMARKS names no folder")
@pytest.mark.parametrize(("name", "network", "asked"), SAT)
def test_no_instance_with_a_counterexample_is_certified(name: str, network: str, asked: str) -> None:
    """Also where the attack sees nothing: then the bounds alone must not prove what is false."""
    pytest.importorskip("onnx", reason="ONNX files are read by the package onnx")
    from bnndp.importers.onnx.read import read_onnx

    folder = COMPETITION / name
    posterior = read_onnx(folder / "onnx" / f"{network}.onnx.gz")
    regions = regions_of(read_vnnlib(folder / "vnnlib" / f"{asked}.vnnlib.gz"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constraint, "_confirmed", lambda *_: None)
        assert verify(posterior, regions, Options(time_limit=3)).verdict is Verdict.UNDECIDED
    assert verify(posterior, regions, Options(time_limit=3)).verdict is not Verdict.CERTIFIED
