"""The campaign must notice a wrong bound: known faults are put between the methods and the judge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from benchmarks.fuzz.regression import certify, examine
from benchmarks.fuzz.regression_cases import make_case
from tests.marks import slow_but

from bnndp.geometry.bounds import Affine, AffineBounds, Interval, PiecewiseAffine
from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork
from bnndp.questions.bounds import Bounds

Certify = Callable[[BayesianNetwork, Box, str], Bounds]


def rebuilt(bounds: Bounds, lower: Affine, upper: Affine, box: Box) -> Bounds:
    """Bounds with other functions and the interval that follows from them."""
    affine = AffineBounds(lower, upper, box)
    interval = affine.interval()
    return Bounds(interval.lower, torch.maximum(interval.lower, interval.upper), affine, bounds.method)


def shrunk(network: BayesianNetwork, box: Box, method: str) -> Bounds:
    """Both ends of the interval moved inward by one percent of the width."""
    bounds = certify(network, box, method)
    return replace(bounds, lower=bounds.lower + 0.01 * bounds.width, upper=bounds.upper - 0.01 * bounds.width)


def swapped(network: BayesianNetwork, box: Box, method: str) -> Bounds:
    """The bounds of -f."""
    bounds = certify(network, box, method)
    low, high = bounds.affine.lower, bounds.affine.upper
    return rebuilt(bounds, Affine(-high.matrix, -high.offset), Affine(-low.matrix, -low.offset), box)


def clipped(network: BayesianNetwork, box: Box, method: str) -> Bounds:
    """The box cut to the positive orthant, as the authors' code does (errata, item 9)."""
    bounds = certify(network, Box(box.lower.clamp_min(0), box.upper.clamp_min(0)), method)
    return replace(bounds, affine=AffineBounds(bounds.affine.lower, bounds.affine.upper, box))


def noiseless(network: BayesianNetwork, box: Box, method: str) -> Bounds:
    """The means taken for the network: no variance anywhere."""
    still = [Linear(k.weight_mean, 0 * k.weight_std, k.bias_mean, 0 * k.bias_std) for k in network.linears]
    return certify(BayesianNetwork.from_linears(still), box, method)


def quiet_biases(network: BayesianNetwork, box: Box, method: str) -> Bounds:
    """The variance of the biases forgotten."""
    still = [Linear(k.weight_mean, k.weight_std, k.bias_mean, 0 * k.bias_std) for k in network.linears]
    return certify(BayesianNetwork.from_linears(still), box, method)


def tilted(network: BayesianNetwork, box: Box, method: str) -> Bounds:
    """The interval is right, but the affine functions have two percent too much slope around the centre."""
    bounds = certify(network, box, method)
    low, high = bounds.affine.lower, bounds.affine.upper

    def steeper(affine: Affine) -> Affine:
        extra = 0.02 * affine.matrix
        return Affine(affine.matrix + extra, affine.offset - (extra @ box.centre[..., None])[..., 0])

    return replace(bounds, affine=AffineBounds(steeper(low), steeper(high), box))


def at_centre(network: BayesianNetwork, box: Box, method: str) -> Bounds:
    """Only the centre of the box certified."""
    bounds = certify(network, Box(box.centre, box.centre), method)
    return replace(bounds, affine=AffineBounds(bounds.affine.lower, bounds.affine.upper, box))


def not_a_number(network: BayesianNetwork, box: Box, method: str) -> Bounds:
    """A right interval whose affine function is NaN."""
    bounds = certify(network, box, method)
    low, high = bounds.affine.lower, bounds.affine.upper
    return replace(bounds, affine=AffineBounds(Affine(low.matrix, low.offset * torch.nan), high, box))


def kinds(certifier: Certify, indices: list[int], method: str = "moment") -> set[tuple[int, str, str]]:
    """Depth of the network, kind of claim and judge of all violations found in some cases of seed 0."""
    found = set()
    for index in indices:
        case = make_case(0, index)
        for report in examine(case, (method,), samples=512, certifier=certifier):
            found |= {(report.depth, finding.kind, finding.judge) for finding in report.violations}
    return found


ONE_HIDDEN, NARROW, WIDE = [14, 23, 35], [2, 28], [8, 9]
EVERYWHERE = {"swapped": swapped, "noiseless": noiseless, "at_centre": at_centre, "not_a_number": not_a_number}


def test_the_unharmed_methods_pass() -> None:
    assert kinds(certify, ONE_HIDDEN + NARROW + WIDE) == set()


def test_a_refinement_that_forgets_a_cell_is_found() -> None:
    def forgetful(network: BayesianNetwork, box: Box, method: str) -> Bounds:
        bounds = certify(network, box, method)
        cells, keep = bounds.cells, slice(0, len(bounds.cells.owner) - 1)
        pieces, inner = cells.pieces, cells.interval
        low, high = (Affine(side.matrix[keep], side.offset[keep]) for side in (pieces.lower, pieces.upper))
        fewer = PiecewiseAffine(
            AffineBounds(low, high, pieces.region[keep]),
            Interval(inner.lower[keep], inner.upper[keep]),
            cells.owner[keep],
        )
        return replace(bounds, cells=fewer)

    assert {kind for _, kind, _ in kinds(forgetful, [14], "refined")} == {"cover"}


def test_a_wrong_cell_is_found() -> None:
    def lifted(network: BayesianNetwork, box: Box, method: str) -> Bounds:
        bounds = certify(network, box, method)
        cells = bounds.cells
        assert cells is not None
        pieces = cells.pieces
        gap = 0.3 * (pieces.upper(pieces.region.centre) - pieces.lower(pieces.region.centre)) + 1e-9
        wrong = AffineBounds(Affine(pieces.lower.matrix, pieces.lower.offset + gap), pieces.upper, pieces.region)
        return replace(bounds, cells=replace(cells, pieces=wrong))

    assert {kind for _, kind, _ in kinds(lifted, [14], "refined")} == {"cell affine"}


@pytest.mark.parametrize("fault", [shrunk, clipped, quiet_biases, tilted])
def test_a_fault_is_found_with_one_hidden_layer(fault: Certify) -> None:
    assert {judge for _, _, judge in kinds(fault, ONE_HIDDEN)} == {"arb"}


@pytest.mark.parametrize("name", slow_but(EVERYWHERE, "swapped"))
def test_a_gross_fault_is_found_at_any_depth(name: str) -> None:
    fault = EVERYWHERE[name]
    assert {judge for _, _, judge in kinds(fault, ONE_HIDDEN)} == {"arb"}
    assert {judge for _, _, judge in kinds(fault, NARROW)} == {"quadrature"}
    assert {judge for _, _, judge in kinds(fault, WIDE)} == {"sampled"}
