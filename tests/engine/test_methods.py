"""One pass over a batch: pieces, the intersection of methods, and overflow that must not look like a bound."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bnndp.engine import methods
from bnndp.engine.dense import forward
from bnndp.engine.methods import one_pass, piece_size
from bnndp.errors import InputError
from bnndp.geometry.bounds import Affine, AffineBounds, Interval
from bnndp.geometry.box import Box
from bnndp.options import Options
from bnndp.paper import recursion

F64 = torch.float64


def boxes(batch: int, n: int, radius: float = 0.1) -> Box:
    generator = torch.Generator().manual_seed(batch)
    centre = torch.randn(batch, n, generator=generator, dtype=F64)
    return Box(centre - radius, centre + radius)


@pytest.mark.parametrize("method", ["auto", "moment", "partition", "best"])
def test_pieces_give_what_the_whole_gives(random_network: object, method: str) -> None:
    network, box = random_network((40, 60, 50, 2), 1), boxes(3, 40)
    small, large = Options(method=method, memory=2**20), Options(method=method)
    assert piece_size(network, small) == 1
    assert piece_size(network, large) >= 3
    (cut, cut_interval, cut_names), (whole, interval, names) = (one_pass(network, box, o) for o in (small, large))
    assert cut_names == names
    assert len(names) == 3
    for a, b in ((cut_interval.lower, interval.lower), (cut_interval.upper, interval.upper)):
        assert a.shape == (3, 2)
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-12)
    assert torch.allclose(cut.lower.matrix, whole.lower.matrix, rtol=1e-9, atol=1e-9)
    assert torch.equal(cut.region.lower, box.lower)
    assert torch.equal(cut.region.upper, box.upper)


def test_the_last_piece_may_be_smaller(random_network: object, monkeypatch: pytest.MonkeyPatch) -> None:
    network, box = random_network((2, 6, 5, 3), 2), boxes(7, 2)
    whole = one_pass(network, box, Options())[1]
    monkeypatch.setattr(methods, "piece_size", lambda *_: 3)
    seen: list[int] = []
    bound = forward.bound
    monkeypatch.setattr(forward, "bound", lambda net, piece: seen.append(piece.batch) or bound(net, piece))
    cut = one_pass(network, box, Options())[1]
    assert seen == [3, 3, 1]
    assert torch.allclose(cut.lower, whole.lower, rtol=1e-9, atol=1e-12)
    assert torch.allclose(cut.upper, whole.upper, rtol=1e-9, atol=1e-12)


def test_a_ball_is_cut_with_its_box(random_network: object, monkeypatch: pytest.MonkeyPatch) -> None:
    network = random_network((3, 6, 5, 1), 2)
    ball = Box.ball(torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=F64), 0.3, norm=2)
    whole = one_pass(network, ball, Options())[1]
    monkeypatch.setattr(methods, "piece_size", lambda *_: 2)
    cut = one_pass(network, ball, Options())[1]
    assert torch.allclose(cut.lower, whole.lower, rtol=1e-9, atol=1e-12)
    assert torch.allclose(cut.upper, whole.upper, rtol=1e-9, atol=1e-12)


def test_more_memory_allows_more_boxes_and_never_none(random_network: object) -> None:
    network = random_network((784, 64, 64, 10), 0)
    sizes = [piece_size(network, Options(memory=2**power)) for power in (20, 24, 30, 34)]
    assert sizes[0] == 1
    assert sizes == sorted(sizes)
    assert sizes[-1] > sizes[0]


def test_wrong_number_of_inputs_is_refused(random_network: object) -> None:
    with pytest.raises(InputError, match="the boxes have 2 inputs, the network takes 3"):
        one_pass(random_network((3, 4, 1)), boxes(1, 2), Options())


# The intersection, with two methods whose answers are known


def constant(low: list[float], high: list[float], box: Box) -> AffineBounds:
    matrix = torch.zeros(box.batch, len(low), box.n, dtype=F64)
    ends = (torch.tensor([end], dtype=F64).expand(box.batch, -1) for end in (low, high))
    return AffineBounds(*(Affine(matrix, end) for end in ends), box)


def pretend(
    monkeypatch: pytest.MonkeyPatch, moment: tuple[list[float], list[float]], partition: tuple[list[float], list[float]]
) -> None:
    monkeypatch.setattr(forward, "bound", lambda _, box: constant(*moment, box))
    monkeypatch.setattr(recursion, "bound", lambda _, box, **__: constant(*partition, box))


@pytest.mark.parametrize(
    ("partition", "lower", "upper", "name"),
    [
        (([-1.0, 0.0], [3.0, 9.0]), [0.0, 0.0], [2.0, 5.0], "moment"),
        (([0.5, 1.0], [1.5, 4.0]), [0.5, 1.0], [1.5, 4.0], "partition"),
        (([0.5, -1.0], [2.0, 4.0]), [0.5, 0.0], [2.0, 4.0], "moment+partition"),
    ],
)
def test_best_takes_the_tighter_end_of_each_output(
    random_network: object,
    monkeypatch: pytest.MonkeyPatch,
    partition: tuple[list[float], list[float]],
    lower: list[float],
    upper: list[float],
    name: str,
) -> None:
    pretend(monkeypatch, ([0.0, 0.0], [2.0, 5.0]), partition)
    box = boxes(2, 3)
    affine, interval, names = one_pass(random_network((3, 2)), box, Options(method="best"))
    close = {"rtol": 1e-12, "atol": 1e-12}
    for row in range(2):
        assert torch.allclose(interval.lower[row], torch.tensor(lower, dtype=F64), **close)
        assert torch.allclose(interval.upper[row], torch.tensor(upper, dtype=F64), **close)
        assert torch.allclose(affine.lower.offset[row], torch.tensor(lower, dtype=F64), **close)
        assert torch.allclose(affine.upper.offset[row], torch.tensor(upper, dtype=F64), **close)
    assert names == (name, name)


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("which", [0, 1])
def test_best_uses_the_other_method_where_one_has_no_bound(
    random_network: object, monkeypatch: pytest.MonkeyPatch, broken: float, which: int
) -> None:
    answers = [([0.0], [2.0]), ([0.0], [2.0])]
    answers[which] = ([broken], [broken])
    pretend(monkeypatch, *answers)
    _, interval, _ = one_pass(random_network((1, 1)), boxes(1, 1), Options(method="best"))
    assert interval.lower.item() == pytest.approx(0.0, abs=1e-12)
    assert interval.upper.item() == pytest.approx(2.0, abs=1e-12)


@pytest.mark.parametrize("method", ["moment", "partition"])
def test_what_is_not_a_number_becomes_no_bound(
    random_network: object, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    nan = float("nan")
    pretend(monkeypatch, ([nan, 0.0], [1.0, nan]), ([nan, 0.0], [1.0, nan]))
    interval: Interval = one_pass(random_network((1, 2)), boxes(1, 1), Options(method=method))[1]
    assert interval.lower[0, 0] == -torch.inf
    assert interval.upper[0, 1] == torch.inf
    kept: Tensor = torch.stack([interval.lower[0, 1], interval.upper[0, 0]])
    assert torch.allclose(kept, torch.tensor([0.0, 1.0], dtype=F64), atol=1e-12)


@pytest.mark.parametrize("end", [float("inf"), -float("inf")])
def test_what_overflowed_becomes_no_bound(random_network: object, monkeypatch: pytest.MonkeyPatch, end: float) -> None:
    """Not the largest float64 number either: the mean is a real number and may lie beyond it."""
    pretend(monkeypatch, ([end], [end]), ([end], [end]))
    interval = one_pass(random_network((1, 1)), boxes(1, 1), Options(method="moment"))[1]
    assert interval.lower.item() == -torch.inf
    assert interval.upper.item() == torch.inf
