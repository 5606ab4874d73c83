"""Guides and samples of NumPyro, in its names: scales as they are, layouts by name, by shape or by the user."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from support.foreign_states import SETTINGS
from support.site_states import (
    SEEDS,
    Sites,
    check_independent,
    covariance,
    random_sites,
    random_sizes,
    table_of,
    vector,
)
from torch import Tensor

import bnndp
from bnndp.cli.main import main
from bnndp.errors import ModelFileError
from bnndp.files.posterior import read_model
from bnndp.importers.flatten import flat
from bnndp.importers.foreign import Choices
from bnndp.importers.numpyro import CHAIN, NUMPYRO
from bnndp.importers.registry import importer_for
from bnndp.layers import CorrelatedLinear


def named(sites: Sites, style: str) -> dict[str, Tensor]:
    """Sites by the names of NumPyro, sorted as JAX sorts them, with weights (inputs, outputs)."""
    found = {}
    for name, value in sites.items():
        layer, _, part = name.rpartition(".")
        number = int(layer) // 2
        kernel = part == "weight"
        theirs = {
            "flax": f"nn/Dense_{number}.{'kernel' if kernel else 'bias'}",
            "haiku": f"nn/linear{f'_{number}' if number else ''}.{'w' if kernel else 'b'}",
            "hand": f"{'w' if kernel else 'b'}{number + 1}",
        }[style]
        found[theirs] = value.T.contiguous() if kernel else value
    return dict(sorted(found.items()))


def auto_normal(locs: Sites, scales: Sites, style: str) -> dict[str, Tensor]:
    found = {f"{name}_auto_loc": value for name, value in named(locs, style).items()}
    return dict(sorted((found | {f"{name}_auto_scale": value for name, value in named(scales, style).items()}).items()))


def pair(seed: int) -> tuple[Sites, Sites]:
    sizes = random_sizes(seed)
    return random_sites(sizes, seed), {n: v.exp() for n, v in random_sites(sizes, seed + 1, start=-3.0).items()}


@pytest.mark.parametrize("style", ["flax", "hand", "haiku"])
@pytest.mark.parametrize("seed", SEEDS)
def test_scales_are_used_as_they_are(seed: int, style: str) -> None:
    locs, scales = pair(seed)
    state = auto_normal(locs, scales, style)
    assert importer_for(flat(state)).name == "numpyro"
    found = bnndp.importers.from_numpyro({name: value.numpy() for name, value in state.items()}, **SETTINGS)
    check_independent(found, locs, scales)  # no second softplus


def test_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    locs, scales = pair(7)
    state = auto_normal(locs, scales, "flax") | {"noise_auto_loc": torch.zeros(()), "noise_auto_scale": torch.ones(())}
    np.savez(tmp_path / "p.npz", **{name: value.numpy() for name, value in state.items()})
    out, table = tmp_path / "m.safetensors", tmp_path / "t.toml"
    command = ["convert", str(tmp_path / "p.npz"), "-o", str(out), "--task", "regression", "--activation", "relu"]
    assert main(command) == 2
    assert "site 'noise' is not known to be a weight or a bias" in capsys.readouterr().err
    table.write_text('ignore = ["noise"]\n')
    assert main([*command, "--table", str(table)]) == 0
    assert "read by numpyro: mean = auto_loc, std = auto_scale" in capsys.readouterr().out
    check_independent(read_model(out).posterior, locs, scales)


def test_ten_layers_are_in_the_order_of_their_numbers() -> None:
    sizes = (1, *([2] * 11), 1)
    locs = random_sites(sizes, 0)
    state = {f"{name}_auto_loc": value for name, value in named(locs, "flax").items()}
    assert list(state)[1:3] == ["nn/Dense_0.kernel_auto_loc", "nn/Dense_1.bias_auto_loc"]
    assert list(state)[4].startswith("nn/Dense_10")  # before Dense_2
    check_independent(bnndp.importers.from_numpyro(state, **SETTINGS), locs, {})


# Layout


def fault(state: dict[str, Tensor], **choices: object) -> str:
    foreign = flat(state)
    with pytest.raises(ModelFileError) as caught:
        importer_for(foreign).read(foreign, Choices(**choices))  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    return str(caught.value)


def locs(**shapes: tuple[int, ...]) -> dict[str, Tensor]:
    return {f"{name.replace('__', '.')}_auto_loc": torch.randn(shape) for name, shape in shapes.items()}


def test_a_layout_that_shapes_do_not_say_must_be_given() -> None:
    square = locs(w1=(3, 3), b1=(3,), w2=(3, 3), b2=(3,))
    assert "fit one another in several layouts" in fault(square)
    for layout in ("in_out", "out_in"):
        weight = bnndp.importers.from_numpyro(square, table={"layout": layout}, **SETTINGS).linears[0].weight_mean  # type: ignore[union-attr]
        given = square["w1_auto_loc"].double()
        assert torch.equal(weight, given.T if layout == "in_out" else given)
    kernel = locs(Dense_0__kernel=(3, 3), Dense_0__bias=(3,))  # flax has one layout
    network = bnndp.importers.from_numpyro(kernel, **SETTINGS)
    assert torch.equal(network.linears[0].weight_mean, kernel["Dense_0.kernel_auto_loc"].T.double())  # type: ignore[union-attr]


def test_equinox_has_the_layout_of_torch() -> None:
    given = locs(layers0__weight=(4, 3), layers0__bias=(4,), layers1__weight=(2, 4), layers1__bias=(2,))
    network = bnndp.importers.from_numpyro(given, **SETTINGS)
    assert network.sizes == (3, 4, 2)  # type: ignore[union-attr]
    assert torch.equal(network.linears[0].weight_mean, given["layers0.weight_auto_loc"].double())  # type: ignore[union-attr]


def test_wrong_guesses_are_refused() -> None:
    assert "fit one another in no order and layout" in fault(locs(w1=(3, 4), b1=(4,), w2=(5, 2), b2=(2,)))
    bent = locs(Dense_0__kernel=(3, 4), Dense_0__bias=(3,))
    assert "read as (inputs, outputs), and a bias of shape (3,): they do not fit" in fault(bent)
    told = {"sites": [{"site": "w1", "layout": "out_in"}]}
    assert "they do not fit" in fault(locs(w1=(3, 4), b1=(4,)), table=told)
    assert "channels last" in fault(locs(Conv_0__kernel=(3, 3, 1, 4), Conv_0__bias=(4,)))
    assert "layer '1' has a bias, 'b1', but no weight" in fault(locs(b1=(3,)))
    assert "two sites for its weight" in fault(locs(w1=(3, 4), kernel1=(3, 4)))


def test_an_order_that_names_do_not_say_is_the_only_one_that_fits() -> None:
    given = locs(out__kernel=(5, 2), out__bias=(2,), hidden__kernel=(3, 4), middle__kernel=(4, 5))
    assert bnndp.importers.from_numpyro(given, **SETTINGS).sizes == (3, 4, 5, 2)  # type: ignore[union-attr]
    loop = locs(a__kernel=(3, 3), b__kernel=(3, 3))
    assert "fit one another in several orders; give their sites in order by --table" in fault(loop)
    told = bnndp.importers.from_numpyro(loop, table={"sites": [{"site": "b.kernel"}, {"site": "a.kernel"}]}, **SETTINGS)
    assert torch.equal(told.linears[0].weight_mean, loop["b.kernel_auto_loc"].T.double())  # type: ignore[union-attr]
    many = locs(**{f"{chr(97 + k)}__kernel": (2, 2) for k in range(7)})
    assert "the order of its 7 layers is not said by their names" in fault(many)


def test_sites_with_names_of_their_own() -> None:
    given = locs(theta=(3, 4), offset=(4,))
    rows: list[dict[str, object]] = [
        {"site": "theta", "layer": "first", "part": "weight", "layout": "in_out", "shape": [3, 4]},
        {"site": "offset", "layer": "first", "part": "bias"},
    ]
    assert bnndp.importers.from_numpyro(given, table={"sites": rows}, **SETTINGS).sizes == (3, 4)  # type: ignore[union-attr]
    assert "must say layer and part" in fault(given, table={"sites": [{"site": "theta"}]})
    assert "the table says (4, 3)" in fault(given, table={"sites": [rows[0] | {"shape": [4, 3]}, rows[1]]})
    assert "unknown settings: 'rows'" in fault(given, table={"rows": rows})
    assert "layout 'backwards'" in fault(given, table={"layout": "backwards"})
    assert "names a site twice" in fault(given, table={"sites": [rows[0], rows[0]]})
    for odd in ({"sites": 3}, {"ignore": "theta"}, {"sites": [3]}, {"sites": [{"site": "w1", "shape": [0]}]}):
        assert "the table" in fault(given, table=odd) or "row 0 of sites" in fault(given, table=odd)


# One vector for all sites


@pytest.mark.parametrize("seed", SEEDS)
def test_a_vector_of_one_layer(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    sites = {"b1": torch.randn(3, generator=generator), "w1": torch.randn(2, 3, generator=generator)}
    table = table_of(sites) | {"layout": "in_out"}
    n = 9
    scale, factor = torch.rand(n, generator=generator), torch.randn(n, 2, generator=generator)
    low = {"auto_loc": vector(sites), "auto_scale": scale, "auto_cov_factor": factor}
    layer = bnndp.importers.from_numpyro(low, table=table, **SETTINGS).layers[0]  # type: ignore[union-attr]
    assert isinstance(layer, CorrelatedLinear)
    rows = scale.double()[:, None] * factor.double()
    assert torch.equal(layer.weight_mean, sites["w1"].T.double())
    assert torch.equal(layer.weight_std, scale[3:].reshape(2, 3).T.double())
    assert torch.equal(layer.factor[:, :-1], rows[3:].reshape(2, 3, 2).transpose(0, 1))
    assert torch.equal(layer.factor[:, -1], rows[:3])
    diagonal = {"auto_loc": vector(sites), "auto_scale": scale}
    plain = bnndp.importers.from_numpyro(diagonal, table=table, **SETTINGS).linears[0]  # type: ignore[union-attr]
    assert torch.equal(plain.bias_std, scale[:3].double())
    lower = torch.randn(n, n, generator=generator).tril()
    full = {"auto_loc": vector(sites), "auto_scale_tril": lower}
    layer = bnndp.importers.from_numpyro(full, table=table, **SETTINGS).layers[0]  # type: ignore[union-attr]
    order = [3 + 3 * j + i for i in range(3) for j in range(2)] + [0, 1, 2]  # ours, in their vector
    wanted = (lower.double() @ lower.double().mT)[order][:, order]
    torch.testing.assert_close(covariance(layer), wanted, rtol=1e-13, atol=1e-13)


def test_vectors_that_cannot_be_read() -> None:
    sites = random_sites((2, 3, 1), 0)
    n = len(vector(sites))
    table = table_of(sites) | {"layout": "out_in"}
    full = {"auto_loc": vector(sites), "auto_scale_tril": torch.ones(n, n).tril()}
    assert "weights of the layers '0' and '2' are correlated" in fault(full, table=table)
    assert "one vector of 13 values for all sites" in fault(full)
    assert "a Laplace guide, whose covariance is not in its parameters" in fault({"auto_loc": vector(sites)})
    upper = full | {"auto_scale_tril": torch.ones(n, n)}
    assert fault(upper, table=table) == "auto_scale_tril is not lower triangular"
    bad = {"auto_loc": vector(sites), "auto_scale": torch.ones(n - 1)}
    assert fault(bad, table=table) == "auto_scale has shape (12,), but auto_loc has 13 values"
    wide = {"auto_loc": vector(sites), "auto_scale": torch.ones(n), "auto_cov_factor": torch.ones(n)}
    assert "auto_cov_factor has shape (13,)" in fault(wide, table=table)
    negative = {"auto_loc": vector(sites), "auto_scale": -torch.ones(n)}
    assert "as standard deviation" in fault(negative, table=table)
    odd = {"auto_loc": vector(sites), "auto_cov_factor": torch.ones(n, 1)}
    assert "auto_loc and auto_cov_factor alone: a tensor is missing" in fault(odd, table=table)
    two = full | {"w1_auto_loc": torch.ones(2, 2)}
    assert "several guides" in fault(two, table=table)
    less = locs(w1=(3, 2), b1=(2,)) | {"w1_auto_scale": torch.ones(3, 2)}
    assert fault(less) == "it has the location of 'b1' without its scale: a tensor is missing"
    assert "not a location or scale of an autoguide" in fault(locs(w1=(3, 2)) | {"w1": torch.ones(3, 2)})


def test_layers_of_flax_without_a_prior_have_no_variance() -> None:
    class ParamShape:
        """Stands in ``params`` for a parameter with a prior."""

        shape = (4, 1)

    params = {
        "nn$params": {
            "Dense_0": {"kernel": np.ones((3, 4), np.float32), "bias": np.ones(4, np.float32)},
            "Dense_1": {"kernel": ParamShape(), "bias": np.ones(1, np.float32)},
        },
        "nn/Dense_1.kernel_auto_loc": np.zeros((4, 1), np.float32),
        "nn/Dense_1.kernel_auto_scale": np.full((4, 1), 0.5, np.float32),
    }
    network = bnndp.importers.from_numpyro(params, **SETTINGS)
    assert network.sizes == (3, 4, 1)  # type: ignore[union-attr]
    assert not network.linears[0].random  # type: ignore[union-attr]
    assert torch.equal(network.linears[1].weight_std, torch.full((1, 4), 0.5).double())  # type: ignore[union-attr]
    assert torch.equal(network.linears[1].bias_mean, torch.ones(1).double())  # type: ignore[union-attr]


# Samples


@pytest.mark.parametrize("style", ["flax", "hand", "haiku"])
@pytest.mark.parametrize("seed", SEEDS)
def test_samples_of_a_chain(seed: int, style: str) -> None:
    draws = [random_sites(random_sizes(seed), 50 * seed + k) for k in range(4)]
    stacked = {name: torch.stack([named(draw, style)[name] for draw in draws]) for name in named(draws[0], style)}
    assert importer_for(flat(stacked)).name == "mcmc"
    ensemble = bnndp.importers.from_numpyro(stacked, **SETTINGS)
    assert isinstance(ensemble, bnndp.Ensemble)
    for member, draw in zip(ensemble.members, draws, strict=True):
        check_independent(member, draw, {})
    assert torch.equal(ensemble.probabilities, torch.full((4,), 0.25).double())


def test_samples_that_cannot_be_read() -> None:
    chain = {"w1": torch.zeros(5, 3, 2), "b1": torch.zeros(5, 2), "noise": torch.ones(5)}
    assert "site 'noise' is not known" in fault(chain)
    assert len(bnndp.importers.from_numpyro(chain, table={"ignore": ["noise"]}, **SETTINGS).members) == 5  # type: ignore[union-attr]
    assert "the same number of samples" in fault(chain | {"b1": torch.zeros(4, 2)})
    assert not CHAIN.knows(flat({"w1": torch.zeros(2, 5, 3, 2)}))  # chains apart
    assert not CHAIN.knows(flat({"0.weight": torch.zeros(5, 3, 2)}))  # of torch: importer samples
    assert not NUMPYRO.knows(flat(chain))
