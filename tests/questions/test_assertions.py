"""``assert_robust`` passes exactly where the certificates do, and says which inputs fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.questions.cases import CLASSIFIER, LINE, POINTS

import bnndp
from bnndp.network import BayesianNetwork
from bnndp.questions.assertions import NotRobust


def test_a_classifier_passes_where_all_decisions_hold() -> None:
    bnndp.assert_robust(CLASSIFIER, POINTS[[0, 2]], eps=0.2)
    bnndp.assert_robust(CLASSIFIER, POINTS, torch.zeros(3, dtype=torch.long), eps=0.04)


def test_it_names_the_inputs_that_fail() -> None:
    words = r"2 of 3 inputs certified, a share of 1 asked for.*Input 1: falsified"
    with pytest.raises(AssertionError, match=words) as found:
        bnndp.assert_robust(CLASSIFIER, POINTS, eps=0.2)
    assert isinstance(found.value, NotRobust)
    assert [each.value for each in found.value.verdict] == ["certified", "falsified", "certified"]


MANY = torch.cat([POINTS[:1].expand(55, 1), POINTS[1:2].expand(45, 1)])


@pytest.mark.parametrize(
    ("x", "share", "above", "words"), [(POINTS, 0.66, 0.67, "asked for"), (MANY, 0.55, 0.551, "55 of 100")]
)
def test_a_share_may_fail(x: torch.Tensor, share: float, above: float, words: str) -> None:
    """It is that of the inputs and no rounding more: 0.55 * 100 is above 55 in floating point."""
    bnndp.assert_robust(CLASSIFIER, x, eps=0.2, share=share)
    with pytest.raises(NotRobust, match=words):
        bnndp.assert_robust(CLASSIFIER, x, eps=0.2, share=above)


def test_a_wrong_label_is_not_robust() -> None:
    with pytest.raises(NotRobust, match="0 of 3"):
        bnndp.assert_robust(CLASSIFIER, POINTS, torch.ones(3, dtype=torch.long), eps=0.01)


def test_a_regression_network_is_asked_for_its_change() -> None:
    bnndp.assert_robust(LINE, POINTS, eps=0.1, gamma=0.2001)
    with pytest.raises(NotRobust, match=r"Input 0: falsified, changes by up to 0\.2"):
        bnndp.assert_robust(LINE, POINTS, eps=0.1, gamma=0.1999)


SENSELESS = [(CLASSIFIER, {"gamma": 1.0}), (CLASSIFIER, {"share": 0.0}), (CLASSIFIER, {"share": float("nan")})]


@pytest.mark.parametrize(("network", "more"), [*SENSELESS, (LINE, {}), (LINE, {"gamma": 1.0, "label": 0})])
def test_questions_that_make_no_sense_are_refused(network: BayesianNetwork, more: dict[str, object]) -> None:
    with pytest.raises(bnndp.CertError):
        bnndp.assert_robust(network, POINTS, eps=0.1, **more)


def test_the_example_runs_without_pytest() -> None:
    example = Path(__file__).resolve().parents[2] / "examples" / "assert_robust.py"
    program = f"import runpy, sys; sys.modules['pytest'] = None; runpy.run_path({str(example)!r}, run_name='__main__')"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert "inputs certified" in result.stdout  # what is refused, said
