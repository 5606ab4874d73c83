"""Answers show themselves as tables in notebooks."""

from __future__ import annotations

import torch
from tests.questions.cases import CLASSIFIER, LINE, POINTS

import bnndp


def test_tables_for_notebooks_show_the_numbers() -> None:
    box = bnndp.Box.ball(POINTS, 0.1)
    bounds = bnndp.certify(LINE, box)._repr_html_()
    assert "Bounds of 3 boxes" in bounds
    assert "0.4<" in bounds
    decision = bnndp.robust_decision(CLASSIFIER, POINTS, box)._repr_html_()
    assert decision.count("certified") == 2
    assert "falsified" in decision


def test_radii_and_curves_have_tables_too() -> None:
    found = bnndp.evaluate(CLASSIFIER, POINTS, torch.zeros(3, dtype=torch.long))
    assert "Radii of 3 inputs" in found._repr_html_()
    curve = found.curve([0.0, 0.2])._repr_html_()
    assert "100.0% at the input" in curve
    assert "0.66667" in curve
    radii = bnndp.certified_radius(CLASSIFIER, POINTS, search=bnndp.Search(attack=False))._repr_html_()
    assert radii.count("<tr>") == 4
    assert "–" in radii  # no attack was asked for


def test_long_results_are_cut() -> None:
    box = bnndp.Box.ball(torch.zeros(40, 1, dtype=torch.float64), 0.1)
    assert "and 28 more" in bnndp.certify(LINE, box)._repr_html_()
