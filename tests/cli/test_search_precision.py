"""``bnndp radius --search-precision``: the same promise, asked for by name, and part of what a run folder holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

import bnndp as library
from bnndp.files import load
from bnndp.radius import Search


def test_rows_are_those_of_the_library(
    bnndp: Any, classifier: Path, labelled: Path, tmp_path: Path, read_rows: Any
) -> None:
    out = tmp_path / "out.jsonl"
    result = bnndp("radius", classifier, labelled, "--search-precision", "float32", "--no-attack", "--out", out)
    assert (result.status, result.stderr) == (0, "")
    arrays = np.load(labelled)
    x, y = torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"].astype(int))
    search = Search(attack=False, precision="float32")
    found = library.certified_radius(load(classifier), x, y, search=search)
    assert [row["radius"] for row in read_rows(out)] == [*found.radius[:3].tolist(), None]


def test_a_run_in_another_precision_is_another_run(
    bnndp: Any, refused: Any, classifier: Path, labelled: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert bnndp("radius", classifier, labelled, "--no-attack", "--run", run).status == 0
    again = ("radius", classifier, labelled, "--no-attack", "--run", run, "--search-precision")
    assert bnndp(*again, "float64").status == 0
    assert "search_precision" in refused(*again, "float32")


def test_other_precisions_are_refused(refused: Any, classifier: Path, labelled: Path) -> None:
    assert "float16" in refused("radius", classifier, labelled, "--search-precision", "float16")
