"""The networks of the benchmarks: posteriors on the noisy sine sets, trained on demand and kept in ``.cache/networks``.

Two families, both honest fits of the evidence lower bound with the noise of the data as the noise of the likelihood:

``paper`` (names such as ``sine2d-2x64``): in the manner of the authors' published posteriors. Prior N(0, 1) on every
weight and bias, standard deviations that start at 0.1, Adam, one draw of all weights a step (as Pyro's ``AutoNormal``
with ``Trace_ELBO``) and a moderate number of steps. The noise of such gradients hides the pull of the prior, so that
most standard deviations stay near 0.1, as in the authors' sine1d_1x256; in hidden layers those that the data leave free
reach the prior's 1. Minibatches and a rate that falls to zero are ours, to save time.

``scaled`` (``sine2d-2x64-scaled``): prior N(0, 1/n_in) on weights and N(0, 1) on biases, which keeps the scale of the
prior over functions independent of the width; standard deviations that start at 0.02; local reparametrisation, whose
quiet gradients fit function and standard deviations better. Its ELBO still rises slowly where the training ends (2x64:
4208 after the 4000 steps taken here, 4890 after 8000, 5355 after 16,000 smaller ones): neurons return to the prior.

Settings were chosen by the error of the mean function and by the ELBO alone, never by how well a network certifies.
Run ``python benchmarks/networks.py --all`` to train everything (once), or name the networks wanted.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from dataclasses import asdict
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

import bnndp.demo
import bnndp.files
from bnndp.data import noisy_sine
from bnndp.errors import InputError
from bnndp.network import BayesianNetwork
from bnndp.training import Card, TrainingOptions, train

__all__ = ["FAMILIES", "NAMES", "network", "options_of"]

CACHE = Path(__file__).resolve().parent.parent / ".cache" / "networks"
SHAPES = {
    "sine1d": ("1x64", "2x64"),
    "sine2d": ("1x64", "1x256", "1x512", "2x64", "2x128", "2x256", "2x512", "3x64", "3x128", "4x64"),
}
FAMILIES = ("paper", "scaled")
NAMES = tuple(f"{data}-{shape}" for data, shapes in SHAPES.items() for shape in shapes)
DEMO = "sine1d-2x32"
DEMO_FILE = Path(bnndp.demo.__file__).parent / bnndp.demo.NAME
NOISE_STD = 0.1
_PATTERN = re.compile(r"sine(?P<inputs>\d+)d-(?P<depth>\d+)x(?P<width>\d+)(?:-(?P<family>paper|scaled))?")


def network(name: str) -> BayesianNetwork:
    """The posterior called ``sine<inputs>d-<layers>x<width>[-scaled]``, from the cache or trained now."""
    path = path_of(name)
    if not path.exists():
        _train(name, path)
    return bnndp.files.load(path)


def card(name: str) -> Card:
    """The training card of a network (trained now if it is not in the cache)."""
    network(name)
    return Card(**json.loads(path_of(name).with_suffix(".json").read_text())["card"])


def path_of(name: str) -> Path:
    """Where the network lies once it is trained: the name and a digest of all settings that decide it."""
    settings = json.dumps({"noise_std": NOISE_STD, **asdict(options_of(name))}, sort_keys=True)
    return CACHE / f"{name}-{hashlib.sha256(settings.encode()).hexdigest()[:8]}.safetensors"


def options_of(name: str) -> TrainingOptions:
    """The settings of the family and size that ``name`` asks for."""
    match = _parse(name)
    depth, width = int(match["depth"]), int(match["width"])
    hidden = (width,) * depth
    if match["family"] == "scaled":
        steps, batch = (4000, 512) if width <= 128 else (2000, 256)
        return TrainingOptions(
            hidden,
            NOISE_STD,
            prior="fan_in",
            init_std=0.02,
            steps=steps,
            batch=batch,
            learning_rate=1e-2,
            sampling="local",
        )
    # In wide layers the noise of the weight draws decides, not the batch: more steps, each cheaper.
    steps, batch, rate = 4000, 1024, 1e-2
    if width > 64:
        steps, batch, rate = (6000, 128, 2e-2) if depth <= 2 else (10_000, 128, 5e-3)  # 2e-2 diverges for 3x128
    return TrainingOptions(
        hidden, NOISE_STD, init_std=0.1, steps=steps, batch=batch, learning_rate=rate, sampling="weights"
    )


def _parse(name: str) -> re.Match[str]:
    match = _PATTERN.fullmatch(name)
    if match is None:
        raise InputError(
            f"{name!r} is not a network of the benchmarks; names look like {NAMES[3]} or {NAMES[3]}-scaled."
        )
    return match


def _train(name: str, path: Path) -> None:
    n_in = int(_parse(name)["inputs"])
    options = options_of(name)
    data = noisy_sine(n_in, noise_std=NOISE_STD, seed=0)
    trained = train(data, options, held_out=noisy_sine(n_in, noise_std=NOISE_STD, points=2048, seed=1))
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {"name": name, "options": asdict(options), "card": asdict(trained.card)}
    path.with_suffix(".json").write_text(json.dumps(record, indent=2) + "\n")
    bnndp.files.save(trained.network, path, source=f"benchmarks/networks.py {name}")


def _std_quantiles(posterior: BayesianNetwork) -> str:
    """Smallest, 10 %, median, 90 % and largest standard deviation of the weights of each layer, one layer a line."""
    levels = torch.tensor([0, 0.1, 0.5, 0.9, 1], dtype=torch.float64)
    rows = (sorted_quantiles(linear.weight_std.flatten(), levels) for linear in posterior.linears)
    return "\n".join(" ".join(f"{value:.4f}" for value in row.tolist()) for row in rows)


def sorted_quantiles(values: torch.Tensor, levels: torch.Tensor) -> torch.Tensor:
    """Nearest-rank quantiles (``torch.quantile`` refuses large tensors)."""
    return values.sort().values[(levels * (values.numel() - 1)).round().long()]


def main() -> None:
    """Train or read the networks named on the command line and print their cards."""
    parser = argparse.ArgumentParser(description="Train the networks of the benchmarks.")
    parser.add_argument("names", nargs="*", help="for example sine2d-2x64 sine2d-2x64-scaled")
    parser.add_argument("--all", action="store_true", help="all networks of both families")
    parser.add_argument("--demo", action="store_true", help="write the network of the package's demo anew")
    arguments = parser.parse_args()
    names = arguments.names
    if arguments.all:
        names = [*NAMES, *(f"{name}-scaled" for name in NAMES)]
    torch.set_num_threads(1)
    if arguments.demo:
        names = [*names, DEMO]
        bnndp.files.save(network(DEMO), DEMO_FILE, source=f"benchmarks/networks.py {DEMO}")
    table = Table("network", "RMSE clean", "held out", "ELBO", "s", "weight std: min, 10 %, median, 90 %, max")
    for name in names:
        posterior, fit = network(name), card(name)
        table.add_row(
            name,
            f"{fit.rmse_clean:.4f}",
            f"{fit.rmse_held_out:.4f}",
            f"{fit.elbo:.0f}",
            f"{fit.seconds:.0f}",
            _std_quantiles(posterior),
            end_section=True,
        )
        print(f"{name}: {path_of(name).relative_to(CACHE.parent.parent)}", flush=True)
    Console(width=None).print(table)


if __name__ == "__main__":
    main()
