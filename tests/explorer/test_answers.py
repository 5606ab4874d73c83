"""Questions are checked, and answers say what the library says, never more."""

from __future__ import annotations

import math

import pytest
import torch
from support.networks import make_network

from bnndp.errors import CertError, InputError
from bnndp.explorer import answers
from bnndp.explorer.answers import answer
from bnndp.explorer.backdrop import backdrop_of
from bnndp.explorer.server import reply
from bnndp.explorer.session import Question, Session, read_question
from bnndp.geometry.box import Box
from bnndp.network import BayesianNetwork
from bnndp.questions.certify import certify
from bnndp.questions.decision import robust_decision
from bnndp.questions.verdict import Verdict


def network(n_in: int, n_out: int, task: str = "regression") -> BayesianNetwork:
    return make_network((n_in, 6, n_out), n_in + 7 * n_out, task=task)


LINE = Session("line", network(1, 1), domain=(-1.0, 1.0))
PLANE = Session("plane", network(2, 2, "classification"), domain=(-2.0, 2.0))
IMAGES = Session(
    "images", network(64, 3, "classification"), torch.linspace(0, 1, 192, dtype=torch.float64).reshape(3, 64),
    torch.tensor([0, 1, 2]), (0.0, 1.0),
)  # fmt: skip
ALL = [LINE, PLANE, IMAGES, Session("many", network(5, 3), torch.zeros(2, 5, dtype=torch.float64))]


def somewhere(session: Session, eps: float = 0.05, attack: bool = False) -> dict[str, object]:
    place: dict[str, object] = {"x": [0.1] * session.network.n_in} if session.free else {"index": 1}
    return place | {"eps": eps, "attack": attack}


@pytest.mark.parametrize("session", ALL, ids=lambda session: session.name)
@pytest.mark.parametrize("attack", [False, True])
def test_every_kind_of_network_is_answered(session: Session, attack: bool) -> None:
    found = reply(session, backdrop_of(session), somewhere(session, attack=attack))
    assert "within 0.05" in found["sentence"].lower()
    assert found["view"] or session.name == "many"
    assert "<svg" in found["bounds"]
    assert len(found["x"]) == (session.network.n_in if session.free else 0)


def test_the_bounds_are_those_of_certify() -> None:
    question = read_question(LINE, {"x": [0.3], "eps": 0.1, "attack": False})
    found = answer(LINE, question)
    expected = certify(LINE.network, Box.ball([[0.3]], 0.1, domain=(-1, 1)))
    assert torch.equal(found.bounds.lower, expected.lower)
    assert torch.equal(found.bounds.upper, expected.upper)


@pytest.mark.parametrize("eps", [0.0, 0.01, 0.3, 2.0])
def test_the_verdict_is_that_of_robust_decision(eps: float) -> None:
    question = read_question(PLANE, {"x": [0.1, -0.2], "eps": eps, "attack": True})
    found = answer(PLANE, question).claim
    box = Box.ball(question.x, eps, domain=PLANE.domain)
    expected = robust_decision(PLANE.network, question.x, box)
    assert found.verdict is expected.verdict[0]
    assert (found.witness is not None) == (found.verdict is Verdict.FALSIFIED)
    assert found.witness is None or bool(box.contains(found.witness).all())
    quick = answer(PLANE, Question(question.x, eps, False)).claim
    assert (quick.verdict is Verdict.CERTIFIED) == (found.verdict is Verdict.CERTIFIED)
    assert quick.verdict is not Verdict.FALSIFIED


def test_the_label_of_the_data_is_what_is_asked_about() -> None:
    for index in range(3):
        found = answer(IMAGES, read_question(IMAGES, {"index": index, "eps": 0.0, "attack": True})).claim
        assert found.label == index


@pytest.mark.parametrize("lead", [math.nan, -math.inf, 0.0, -1.0])
def test_no_lead_is_no_certificate(monkeypatch: pytest.MonkeyPatch, lead: float) -> None:
    monkeypatch.setattr(answers, "bound_rows", lambda *_: torch.tensor([[lead]]))
    found = answer(PLANE, read_question(PLANE, somewhere(PLANE))).claim
    assert found.verdict is Verdict.UNDECIDED


@pytest.mark.parametrize(
    "asked",
    [
        None, [], "x", 3, {}, {"eps": 0.1}, {"x": [0.1], "eps": 0.1}, {"x": [0.1], "eps": 0.1, "attack": 1},
        {"x": [0.1], "eps": -0.1, "attack": False}, {"x": [0.1], "eps": 1e9, "attack": False},
        {"x": [0.1], "eps": math.nan, "attack": False}, {"x": [0.1], "eps": "0.1", "attack": False},
        {"x": [0.1], "eps": True, "attack": False}, {"x": [0.1, 0.2], "eps": 0.1, "attack": False},
        {"x": [math.inf], "eps": 0.1, "attack": False}, {"x": ["a"], "eps": 0.1, "attack": False},
        {"x": 0.1, "eps": 0.1, "attack": False}, {"index": 0, "eps": 0.1, "attack": False},
        {"x": [0.1], "eps": 0.1, "attack": False, "more": 1}, {"x": [10**400], "eps": 0.1, "attack": False},
    ],
)  # fmt: skip
def test_what_is_no_question_is_refused(asked: object) -> None:
    with pytest.raises(CertError):
        read_question(LINE, asked)


@pytest.mark.parametrize(
    ("session", "place", "words"),
    [
        *((IMAGES, {"index": index}, "from 0 to 2") for index in (-1, 3, 1.0, True, None, "0")),
        (IMAGES, {"x": [0.5] * 64}, "one or two inputs"),
        (LINE, {"index": 0}, "no inputs to choose from"),
        *((LINE, {"x": [x]}, r"x must lie between -1\.0 and 1\.0") for x in (-5.0, math.nextafter(1.0, 2.0))),
    ],
)
def test_places_that_are_none_are_refused(session: Session, place: dict[str, object], words: str) -> None:
    """And what lies outside of the range is not moved into it."""
    assert read_question(LINE, {"x": [1.0], "eps": 0.1, "attack": False}).x.item() == 1.0
    with pytest.raises(InputError, match=words):
        read_question(session, place | {"eps": 0.1, "attack": False})


def test_the_largest_radius_can_be_typed_as_it_is_shown() -> None:
    session = Session("some", network(1, 1), torch.tensor([[0.1], [1 / 3]], dtype=torch.float64))
    with pytest.raises(InputError, match="between 0 and") as refusal:
        read_question(session, {"index": 0, "eps": 9.0, "attack": False})
    shown = float(str(refusal.value).partition(" and ")[2].partition(",")[0])
    assert read_question(session, {"index": 0, "eps": shown, "attack": False}).eps == session.largest


def test_the_range_is_that_of_the_inputs_and_a_little_more() -> None:
    with pytest.raises(InputError, match="--data or --inputs"):  # of many inputs some to choose from are needed
        Session("none", network(5, 1))
    session = Session("two", network(1, 1), torch.tensor([[0.0], [2.0]], dtype=torch.float64))
    assert session.span == ((-0.2, 2.2),)
    assert session.largest == pytest.approx(1.2)
