"""A small campaign for classification in every run of the tests, and that it notices wrong bounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from benchmarks.fuzz.classification import MARGINS, certify, examine, main
from benchmarks.fuzz.classification_cases import FAMILIES, make_classifier
from benchmarks.fuzz.classification_judge import Claim, Questions, ask, gather
from benchmarks.fuzz.margins_judge import Bound, bounds_of, judge_margins
from benchmarks.fuzz.regression_cases import Case
from tests.marks import slow_but

from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork

SEED = 20
Certify = Callable[[BayesianNetwork, Box, Questions, str], list[Claim]]


@pytest.mark.parametrize("index", range(len(FAMILIES)))  # two boxes each: 48 pairs
def test_no_bound_is_broken(index: int) -> None:
    methods = ("best", MARGINS) if index % 2 else ("optimised", "branched")
    reports = examine(make_classifier(SEED, index, 2), methods, seed=SEED, samples=512)
    assert [report.method for report in reports] == list(methods)
    assert not [(report.method, report.failure) for report in reports if report.failure]
    assert not [finding for report in reports for finding in report.violations]


def test_the_cases_are_as_wild_as_promised() -> None:
    cases = [make_classifier(0, index) for index in range(5 * len(FAMILIES))]
    networks = [case.network for case in cases]
    assert {network.depth for network in networks} == {0, 1, 2, 3}
    assert {network.n_out for network in networks} >= {2, 3, 5, 9}
    widths = [width for network in networks for width in network.sizes[1:-1]]
    assert min(widths) == 1
    assert max(widths) > 48
    boxes = [case.box for case in cases]
    half = torch.cat([(box.upper - box.lower).flatten() / 2 for box in boxes])
    assert (half == 0).any()
    assert half.max() > 0.9
    assert any((box.lower < 0).any() for box in boxes)
    assert any(box.within is not None for box in boxes)
    inside = [box for box in boxes if (box.lower >= 0).all() and (box.upper <= 1).all()]
    assert any((box.lower == 0).any() or (box.upper == 1).any() for box in inside)  # cut by the domain
    uncertain = [case for case in cases if case.family.startswith("uncertain")]
    assert {case.network.depth for case in uncertain} == {1, 2}
    assert len(uncertain) >= len(cases) // 4


def test_a_case_is_determined_by_seed_and_index() -> None:
    a, b, c = make_classifier(3, 11), make_classifier(3, 11), make_classifier(4, 11)
    assert a.network.digest() == b.network.digest() != c.network.digest()
    assert torch.equal(a.box.lower, b.box.lower)


def test_the_command_reports_and_ends_with_success(capsys: pytest.CaptureFixture[str], tmp_path: object) -> None:
    out = f"{tmp_path}/log.jsonl"
    assert main(["--only", "1", "--samples", "256", "--methods", "moment,margins", "--out", out]) == 0
    text = capsys.readouterr().out
    assert "5 network x box pairs on 1 networks" in text
    with open(out, encoding="utf-8") as lines:
        assert len(lines.readlines()) == 2


# Known faults, put between the methods and the judge


def named(*names: str, count: int = 2) -> list[Case]:
    """The first cases of some families."""
    chosen = [index for index in range(6 * len(FAMILIES)) if FAMILIES[index % len(FAMILIES)].name in names]
    return [make_classifier(0, index, 2) for index in chosen[: count * len(names)]]


def found_by(certifier: Certify, cases: list[Case], method: str = "moment") -> set[str]:
    """Judges that confirmed a violation of a range or of a decision."""

    def first(*args: object) -> list[Claim]:
        return certifier(*args)[:3]

    reports = [report for case in cases for report in examine(case, (method,), samples=256, certifier=first)]
    assert not [report.failure for report in reports if report.failure]
    return {finding.judge for report in reports for finding in report.violations}


def tighter(network: BayesianNetwork, box: Box, questions: Questions, method: str) -> list[Claim]:
    """Every bound moved inward by a tenth of the distance to what the claim about the centre says."""
    whole = certify(network, box, questions, method)
    centre = certify(network, Box(box.centre, box.centre), questions, method)
    return [
        replace(a, bound=a.bound + (0.1 * (b.bound - a.bound)).clamp_min(0) + 1e-3)
        for a, b in zip(whole, centre, strict=True)
    ]


def at_centre(network: BayesianNetwork, box: Box, questions: Questions, method: str) -> list[Claim]:
    """Only the centre of the box certified."""
    return certify(network, Box(box.centre, box.centre), questions, method)


def noiseless(network: BayesianNetwork, box: Box, questions: Questions, method: str) -> list[Claim]:
    """The means taken for the network: no variance anywhere."""
    still = [Linear(k.weight_mean, 0 * k.weight_std, k.bias_mean, 0 * k.bias_std) for k in network.linears]
    return certify(BayesianNetwork.from_linears(still, "classification"), box, questions, method)


def exchanged(network: BayesianNetwork, box: Box, questions: Questions, method: str) -> list[Claim]:
    """The ranges of the classes in the wrong order."""
    least, most, *rest = certify(network, box, questions, method)
    return [replace(least, bound=least.bound.roll(1, -1)), replace(most, bound=most.bound.roll(1, -1)), *rest]


def not_a_number(network: BayesianNetwork, box: Box, questions: Questions, method: str) -> list[Claim]:
    """A bound that is NaN."""
    return [replace(claim, bound=claim.bound * torch.nan) for claim in certify(network, box, questions, method)]


def test_the_unharmed_methods_pass() -> None:
    assert found_by(certify, named("deterministic", "two", "stable", count=1)) == set()


@pytest.mark.parametrize("fault", [tighter, at_centre, exchanged, not_a_number])
def test_a_fault_is_found_without_variance(fault: Certify) -> None:
    assert found_by(fault, named("deterministic")) == {"arb"}


@pytest.mark.parametrize("fault", slow_but([at_centre, noiseless, exchanged, not_a_number], exchanged))
def test_a_fault_is_found_by_quadrature(fault: Certify) -> None:
    assert found_by(fault, named("two", count=4)[1:]) == {"quadrature"}


@pytest.mark.parametrize("fault", slow_but([at_centre, noiseless, exchanged], at_centre))
def test_a_fault_is_found_by_draws(fault: Certify) -> None:
    assert found_by(fault, named("plain", "uncertain 1", "uncertain 2", count=1)) == {"sampled"}


@pytest.mark.parametrize("kind", ["mean margin", "variance of a margin", "tail by two moments", "exponential tail"])
def test_a_wrong_margin_is_found(kind: str) -> None:
    """At a point, where the moments are exact: means by a tenth, variances by a third, tails by two thirds."""

    def harmed(claim: Bound) -> Bound:
        if claim.kind != kind:
            return claim
        factor = {"mean": 1.1, "variance": 0.67, "tail": 0.33}[claim.quantity]
        return replace(claim, value=claim.value * factor)

    case = named("uncertain 1")[1]
    case = replace(case, box=Box(case.box.centre, case.box.centre)[:1], planted=case.planted[:, :1])
    questions = ask(case, seed=1)
    evidence = gather(case, questions, samples=512, seed=1)
    claims = bounds_of(case, questions.label)
    assert not [f for f in judge_margins(case, questions, claims, evidence) if f.violation]
    wrong = judge_margins(case, questions, [harmed(claim) for claim in claims], evidence)
    assert {finding.kind for finding in wrong if finding.violation} == {kind}
