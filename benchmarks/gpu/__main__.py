"""``python -m benchmarks.gpu``: images per second for certified radii, and what of the device's ceilings is reached."""

from __future__ import annotations

import argparse
import json
import platform
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from benchmarks.gpu import agreement
from benchmarks.gpu.agreement import Agreement
from benchmarks.gpu.cases import ENSEMBLE, NAMES, REGRESSION, Case, pack, read
from benchmarks.gpu.ceilings import Ceilings, measure, name_of
from benchmarks.gpu.radii import Rate, Share, rate, share
from bnndp.options import Options

__all__ = ["Row", "main", "table"]

FOLDER = Path(__file__).resolve().parents[2] / ".cache" / "gpu"
_PROFILED = {"mnist-2x64": 1000, "mnist-2x256": 500, "mnist-3x256": 500, "fashion-cnn": 50}
_COLUMNS = (
    *("network", "images", "seconds", "images/s", "first call s", "peak GiB", "GFLOP/image", "MB/image"),
    *(
        "matrix products: % of dgemm",
        "all products: %",
        "untimed %",
        "run: % of dgemm",
        "run: % of copy",
        "kernels run % of time",
    ),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One network of the table."""

    name: str
    rate: Rate
    share: Share | None

    def cells(self) -> tuple[str, ...]:
        """One for each column."""
        fast, part = self.rate, self.share
        times = (f"{fast.seconds:.2f}", f"{fast.a_second:.0f}", f"{fast.first_call:.2f}")
        start = (self.name, str(fast.images), *times, f"{fast.peak / 2**30:.1f}")
        if part is None:
            return (*start, *("-",) * (len(_COLUMNS) - len(start)))
        flops = (part.counts.matrix + part.counts.vector) / part.images
        shares = (part.in_matrix_products, part.in_products, part.untimed, part.of_flops, part.of_bytes, part.busy)
        each = (f"{flops / 1e9:.2f}", f"{part.counts.bytes / part.images / 1e6:.0f}")
        return (*start, *each, *(f"{100 * value:.1f}" for value in shares))


def table(rows: list[Row]) -> str:
    """As Markdown: the machine with the GPU may have no library for tables."""
    lines = ["| " + " | ".join(_COLUMNS) + " |", "|---" + "|---:" * (len(_COLUMNS) - 1) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row.cells()) + " |" for row in rows)])


def _row(case: Case, profiled: int, device: str, options: Options, ceilings: Ceilings) -> Row:
    placed = replace(case, network=case.network.to(device))
    fast = rate(placed, device, options)
    print(case.name, fast, flush=True)
    if not profiled:
        return Row(case.name, fast, None)
    return Row(case.name, fast, share(placed.first(profiled), device, options, ceilings, fast.a_second))


def _agreements(folder: Path, device: str, inputs: int) -> list[Agreement]:
    options, found = Options(), []
    few = max(1, inputs // 4)
    for name, count in (("mnist-2x64", inputs), ("mnist-3x256", few), (ENSEMBLE, few), ("fashion-cnn", few)):
        case = read(folder, name).first(count)
        found.append(agreement.bounds_agree(case, 0.01, (0, 1), device, options))
        print(asdict(found[-1]), flush=True)
        found.append(agreement.radii_agree(case, device, options, attacked=min(16, count)))
        print(asdict(found[-1]), flush=True)
    regression = read(folder, REGRESSION).first(inputs)
    for options in (Options(), Options(refine=8), Options(optimise=5), Options(method="best")):
        found.append(agreement.bounds_agree(regression, 0.01, None, device, options))
        print(asdict(found[-1]), flush=True)
    return found


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="networks and images; made if there is none")
    parser.add_argument("--pack", action="store_true", help="make the folder and stop: to carry it to another machine")
    parser.add_argument("--networks", nargs="*", default=list(NAMES), choices=NAMES)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--cnn-images", type=int, default=1000)
    parser.add_argument("--memory", type=float, help="GiB for Options.memory; by default what the device has free")
    parser.add_argument("--no-profile", action="store_true")
    parser.add_argument("--agree", type=int, default=0, metavar="INPUTS", help="compare with the CPU, too")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    if asked.pack or not asked.folder.is_dir():
        pack(asked.folder)
    if asked.pack:
        return
    begin = time.perf_counter()
    ceilings = measure(asked.device)
    print(
        f"{name_of(asked.device)}, torch {torch.__version__}: float64 products {ceilings.flops / 1e12:.1f} TFLOP/s, "
        f"copies {ceilings.bytes / 1e12:.2f} TB/s",
        flush=True,
    )
    options = Options() if asked.memory is None else Options(memory=int(asked.memory * 2**30))
    rows: list[Row] = []
    for name in asked.networks:
        case = read(asked.folder, name).first(asked.cnn_images if name == "fashion-cnn" else asked.images)
        rows.append(_row(case, 0 if asked.no_profile else _PROFILED[name], asked.device, options, ceilings))
        print(" | ".join(rows[-1].cells()), f"({time.perf_counter() - begin:.0f} s)", flush=True)
    print(table(rows), flush=True)
    agreed = _agreements(asked.folder, asked.device, asked.agree) if asked.agree else []
    if asked.json is not None:
        record = {
            "device": name_of(asked.device), "torch": torch.__version__, "python": platform.python_version(),
            "ceilings": asdict(ceilings), "rows": [asdict(row) for row in rows],
            "agreement": [asdict(one) for one in agreed],
        }  # fmt: skip
        asked.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
