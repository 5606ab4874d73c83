"""What certificates cost and lose: radii with and without a checker, sizes of the files, time to check them.

python -m benchmarks.certificates MODEL ... [--data mnist] [--images 20]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch

from bnndp.certificates.issue import Office
from bnndp.data import load as load_data
from bnndp.files.posterior import load
from bnndp.questions.decision import decide
from bnndp.questions.radius import certified_radius
from bnndp_checker import check

__all__ = ["main"]


def main() -> None:
    """Print one row per model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--images", type=int, default=20)
    options = parser.parse_args()
    x = load_data(options.data, "test").x[: options.images]
    heads = ("model", "inputs", "certified radius", "checked radius", "checked / certified", "kB", "s to check", "most")
    print("| " + " | ".join(heads) + " |\n|" + "---|" * len(heads))
    for model in options.models:
        network = load(model)
        label = decide(network, x)
        radius = certified_radius(network, x, label, (0.0, 1.0)).radius
        with tempfile.TemporaryDirectory() as folder:
            office = Office(network, model, Path(folder), check=False)
            issued = office.of_radii(x, label, radius, (0.0, 1.0))
            seconds, sizes, checked = [], [], torch.zeros_like(radius)
            for one in issued:
                if one.path is None or one.radius is None:
                    continue
                start = time.process_time()
                verdict = check(one.path, model)
                seconds.append(time.process_time() - start)
                sizes.append(one.path.stat().st_size / 1000)
                if not verdict.accepted:
                    raise SystemExit(f"rejected: {model} {one.index}: {verdict.reason}")
                checked[one.index] = one.radius
        known = radius.nan_to_num(0.0)
        share = (checked / known.clamp_min(1e-300))[known > 0].mean().item()
        cells = (model.stem, x.shape[0], f"{known.mean():.5f}", f"{checked.mean():.5f}", f"{share:.3f}")
        times = (f"{max(sizes):.0f}", f"{statistics.median(seconds):.2f}", f"{max(seconds):.2f}")
        print("| " + " | ".join(map(str, cells + times)) + " |", flush=True)


if __name__ == "__main__":
    main()
