"""Proofs: their bounds hold, the checker accepts them, and what cannot be proved is not issued."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.dice import Dice
from support.ensembles import average, outputs
from support.layer_networks import ACTS, KINDS, make_case
from torch import Tensor

from bnndp.activations import PiecewiseAffine, Softplus
from bnndp.attack.draws import draw_networks, evaluate
from bnndp.certificates.certificate import file_digest
from bnndp.certificates.issue import Office, interval_claim, probability_claim
from bnndp.certificates.prove import Claim, Proof, prove, prove_decision, prove_mean, proved_radius
from bnndp.files.posterior import save
from bnndp.geometry.box import Box
from bnndp.layers import Linear
from bnndp.network import BayesianNetwork, Ensemble, Posterior
from bnndp.questions.certify import certify

pytest.importorskip("flint", reason="the checker needs python-flint")
from bnndp_checker import check


def _dense(*sizes: int, std: float, seed: int, task: str = "regression") -> BayesianNetwork:
    normal = Dice(seed).normal
    linears = [
        Linear(normal(b, a) / a**0.5, std * normal(b, a).abs(), 0.3 * normal(b), std * normal(b).abs())
        for a, b in itertools.pairwise(sizes)
    ]
    return BayesianNetwork.from_linears(linears, task)


def _accepted(proof: Proof, network: Posterior, folder: Path, index: int = 0) -> bool:
    model, path = folder / "model.safetensors", folder / "certificate.json"
    save(network, model)
    proof.certificate(index, file_digest(model)).save(path)
    verdict = check(path, model)
    if not verdict.accepted:
        pytest.fail(f"rejected: {verdict.reason}")
    return verdict.accepted


def _least_sampled(claim: Claim, draws: int = 4_000) -> Tensor:
    """Least sampled values (batch, rows) over corners and inner points, with six standard errors added."""
    dice = torch.Generator().manual_seed(5)
    box = claim.box
    shares = torch.rand(6, box.n, generator=dice, dtype=torch.float64)
    shares[:3] = shares[:3].round()
    found = []
    for k in range(box.batch):
        x = box.lower[k] + shares * (box.upper[k] - box.lower[k])
        values = evaluate(draw_networks(claim.network, draws, seed=k), x)  # (draws, points, outputs)
        values = values.expand(draws, *values.shape[1:])
        values = torch.softmax(values, -1) if claim.of == "softmax" else values
        values = values @ claim.rows[k].mT
        found.append((values.mean(0) + 6 * values.std(0) / draws**0.5).amin(0) + 1e-12)
    return torch.stack(found)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("index", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_every_kind_of_layer(kind: str, index: int, tmp_path: Path) -> None:
    at = index + KINDS.index(kind)
    case = make_case(3, kind, at + (ACTS[at % len(ACTS)] == "piecewise_affine"), boxes=2)  # that one below
    claims = [interval_claim(case.network, case.box)]
    if case.network.n_out > 1:
        classifier = replace(case.network, task="classification")
        claims.append(probability_claim(classifier, case.box, torch.zeros(2, dtype=torch.long)))
    for claim in claims:
        proof = prove(claim)
        assert bool((proof.at_least <= _least_sampled(claim)).all())
        for box in range(2):
            if bool(proof.at_least[box].isfinite().all()):
                assert _accepted(proof, claim.network, tmp_path, box)


@pytest.mark.parametrize(
    ("hidden", "inputs"),
    [
        ((8, 6), 1),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in itertools.product([(8,), (8, 6, 5)], [1, 6])),
        pytest.param((8, 6), 6, marks=pytest.mark.slow),
    ],
)
def test_moments_of_dense_networks(hidden: tuple[int, ...], inputs: int, tmp_path: Path) -> None:
    network = _dense(inputs, *hidden, 2, std=0.2, seed=len(hidden) + inputs)
    box = Box.ball(torch.full((1, inputs), 0.3), 0.05)
    proof = prove(interval_claim(network, box))
    assert proof.tree(0)["kind"] == "moment"
    assert bool((proof.at_least <= _least_sampled(proof.claim, 100_000)).all())
    assert _accepted(proof, network, tmp_path)
    low, high = proof.at_least[:, :2], -proof.at_least[:, 2:]
    bounds = certify(network, box)
    assert bool((high - low <= 2.0 * (bounds.upper - bounds.lower)).all())  # not far from what needs no certificate


def test_a_function_of_the_user_is_proved_between_its_knots_only(tmp_path: Path) -> None:
    first, last = _dense(2, 4, 1, std=0.05, seed=2).linears
    for reach, proved in ((9.0, True), (0.5, False)):
        sine = PiecewiseAffine.of(torch.sin, 1.0, reach=reach, pieces=16, curvature=1.0)
        network = BayesianNetwork((first, sine, last))
        proof = prove(interval_claim(network, Box.ball([[0.3, -0.2]], 0.05)))
        assert bool(proof.at_least.isfinite().all()) == proved
        if proved:
            assert bool((proof.at_least <= _least_sampled(proof.claim)).all())
            assert _accepted(proof, network, tmp_path)


def test_softplus_far_out(tmp_path: Path) -> None:
    """Beyond 20 torch's softplus is below the function."""
    one, zero = torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    first, last = Linear(one, 0.01 * one, zero, zero), Linear.fixed(one)
    network = BayesianNetwork((first, Softplus(), last))
    proof = prove_mean(network, Box(20.5 * one, 22 * one), torch.tensor([[1.0], [-1.0]], dtype=torch.float64))
    assert _accepted(proof, network, tmp_path)


def test_a_layer_without_variance_costs_nothing(tmp_path: Path) -> None:
    network = _dense(3, 5, 4, 2, std=0.0, seed=1)
    x = torch.tensor([[0.1, -0.4, 0.7]], dtype=torch.float64)
    proof = prove(interval_claim(network, Box.ball(x, 0.0)))
    value = outputs(network, x)[0, 0]
    assert torch.allclose(proof.at_least[0], torch.cat([value, -value]), atol=1e-8)
    assert _accepted(proof, network, tmp_path)


def test_cells_are_tighter_and_cover_the_box(tmp_path: Path) -> None:
    network = _dense(1, 8, 8, 1, std=0.1, seed=4)
    box = Box.ball([[0.2]], 0.5)
    whole, cut = (prove_mean(network, box, torch.tensor([[1.0], [-1.0]], dtype=torch.float64), cells=n) for n in (1, 8))
    assert bool((cut.at_least >= whole.at_least).all())
    assert cut.at_least.sum() > whole.at_least.sum() + 1e-3
    assert cut.tree(0)["kind"] == "split"
    assert _accepted(cut, network, tmp_path)
    assert bool((cut.at_least <= _least_sampled(cut.claim)).all())


def test_an_ensemble_adds_before_it_minimises(tmp_path: Path) -> None:
    members = tuple(_dense(2, 6, 2, std=0.0, seed=k) for k in range(3))
    network = Ensemble(members, torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64))
    box = Box.ball([[0.1, 0.2]], 0.3)
    claim = interval_claim(network, box)
    proof = prove(claim)
    apart = average(network, [prove(interval_claim(member, box)).at_least for member in members])
    assert bool((proof.at_least >= apart - 1e-9).all())
    assert proof.at_least.sum() > apart.sum() + 1e-3
    assert _accepted(proof, network, tmp_path)
    assert bool((proof.at_least <= _least_sampled(claim, 3_000)).all())


def test_a_member_whose_exponentials_overflow_costs_its_own_share_only(tmp_path: Path) -> None:
    mild = _dense(3, 4, 3, std=0.0, seed=3, task="classification")
    linears = [replace(layer, weight_mean=layer.weight_mean * 1e4) for layer in mild.linears]
    wild = BayesianNetwork.from_linears(linears, "classification")
    both = Ensemble((mild, wild), torch.tensor([0.25, 0.75], dtype=torch.float64))
    box, label = Box(torch.zeros(1, 3).double(), torch.ones(1, 3).double()), torch.zeros(1, dtype=torch.long)
    alone, proof = (prove(probability_claim(network, box, label)) for network in (mild, both))
    assert bool((proof.at_least >= 0.25 * alone.at_least + 0.75 * proof.claim.rows.amin(-1) - 1e-9).all())
    assert _accepted(proof, both, tmp_path)


def test_radius_is_proved_and_not_beyond_what_was_asked(tmp_path: Path) -> None:
    network = _dense(4, 8, 3, std=0.01, seed=3, task="classification")
    x = torch.tensor([[0.5, -0.2, 0.1, 0.9], [0.0, 0.3, -0.7, 0.2]], dtype=torch.float64)
    label = evaluate(draw_networks(network, 2000, seed=0), x).softmax(-1).mean(0).argmax(-1)
    upper = torch.tensor([0.01, 5.0], dtype=torch.float64)
    radius, proof = proved_radius(network, x, label, upper)
    assert bool((radius <= upper).all())
    assert radius[0] == pytest.approx(0.01)
    assert 0 < radius[1] < 5
    assert bool((proof.at_least > 0).all())
    assert _accepted(proof, network, tmp_path, 1)
    wider = prove_decision(network, Box.ball(x, radius * 1.1 + 0.02), label)
    assert not bool((wider.at_least[1] > 0).all())


@pytest.mark.parametrize("hidden", [(12,), pytest.param((6, 5), marks=pytest.mark.slow)])
def test_uncertain_classifiers(hidden: tuple[int, ...], tmp_path: Path) -> None:
    network = _dense(3, *hidden, 3, std=0.4, seed=6, task="classification")
    last = network.linears[-1]
    sure = replace(last, bias_mean=last.bias_mean + torch.tensor([9.0, 0.0, 0.0], dtype=torch.float64))
    network = BayesianNetwork.from_linears((*network.linears[:-1], sure), "classification")
    box = Box.ball([[0.2, -0.1, 0.4]], 0.05)
    claim = probability_claim(network, box, torch.zeros(1, dtype=torch.long))
    proof = prove(claim)
    assert bool((proof.at_least <= _least_sampled(claim, 50_000)).all())
    assert _accepted(proof, network, tmp_path)
    if len(hidden) == 1:
        assert bool((proof.at_least[0, :2] > 0.5).all())  # the decision, with margins of deviation 1 and more


def test_a_wrong_decision_is_not_proved() -> None:
    network = _dense(4, 8, 3, std=0.01, seed=3, task="classification")
    x = torch.zeros(1, 4, dtype=torch.float64)
    right = evaluate(draw_networks(network, 2000, seed=0), x).softmax(-1).mean(0).argmax(-1)
    radius, proof = proved_radius(network, x, (right + 1) % 3, torch.ones(1, dtype=torch.float64))
    assert bool(radius.isnan().all())
    assert not bool((proof.at_least > 0).all())


def test_office_writes_what_the_checker_accepts_and_nothing_else(tmp_path: Path) -> None:
    network = _dense(2, 5, 2, std=0.05, seed=8)
    model = tmp_path / "m.safetensors"
    save(network, model)
    box = Box.ball([[0.1, 0.2], [0.5, -0.5]], 0.1)
    issued = list(Office(network, model, tmp_path / "certificates").of_boxes(interval_claim(network, box)))
    assert [one.path and one.path.name for one in issued] == ["000000.json", "000001.json"]
    assert all(one.path is not None and check(one.path, model).accepted for one in issued)
    first = json.loads(issued[0].path.read_text())
    assert first["made"]["by"].startswith("bnndp ")
    other = tmp_path / "other.safetensors"
    save(_dense(2, 5, 2, std=0.05, seed=9), other)
    refused = list(Office(network, other, tmp_path / "none").of_boxes(interval_claim(network, box)))
    assert all(one.path is None and one.reason.startswith("rejected by the checker") for one in refused)
    assert list((tmp_path / "none").iterdir()) == []


def test_the_same_claim_gives_the_same_file(tmp_path: Path) -> None:
    network = _dense(2, 5, 2, std=0.05, seed=8)
    box = Box.ball([[0.1, 0.2]], 0.1)
    texts = {prove(interval_claim(network, box)).certificate(0, "0" * 64).text for _ in range(2)}
    assert len(texts) == 1
    assert "NaN" not in texts.pop()
