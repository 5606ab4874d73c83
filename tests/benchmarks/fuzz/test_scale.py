"""The campaign of scale sees what grows, and what is missing from a run folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from benchmarks.fuzz.scale import CASES, faults_of, missing, written

from bnndp.cli.main import main


@pytest.mark.parametrize(
    ("peak", "seconds", "faults"),
    [
        ([300.0, 310.0, 320.0], [3.0, 5.0, 23.0], []),
        ([300.0, 310.0, 400.0], [3.0, 5.0, 23.0], ["the peak grows from 310 to 400 MB"]),
        ([300.0, 310.0, 320.0], [3.0, 5.0, 60.0], ["3.0, 5.0 and 60.0 seconds are not linear"]),
        ([300.0, 310.0, 320.0], [3.0, 2.5, 4.5], []),  # nothing but starting
        ([300.0, 310.0, np.nan], [3.0, 5.0, np.nan], ["the peak grows", "are not linear"]),
    ],
)
def test_what_grows_is_a_fault(peak: list[float], seconds: list[float], faults: list[str]) -> None:
    found = faults_of({"command": "certify", "peak MB": peak, "processor seconds": seconds})
    assert len(found) == len(faults)
    assert all(part in fault for part, fault in zip(faults, found, strict=True))


def test_a_run_folder_without_a_row_is_found(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    model, inputs = written(tmp_path, CASES[0], 5)
    run = tmp_path / "run"
    assert main(["certify", str(model), str(inputs), *CASES[0].words, "--run", str(run), "--quiet"]) == 0
    assert missing(run, 5) is None
    assert missing(run, 6) is not None
    for name in ("rows.jsonl", "results.csv", "results.jsonl"):
        content = (run / name).read_bytes()
        (run / name).write_bytes(b"".join(content.splitlines(keepends=True)[:-1]))
        assert missing(run, 5) == f"['{name}'] lack rows"
        (run / name).write_bytes(content)
