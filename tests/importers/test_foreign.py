"""``--ignore``: what is not a weight of the network is left out by name, and said to be; unknown names are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from support.foreign_states import RELUS, SETTINGS
from torch import Tensor

import bnndp
from bnndp.cli.main import main
from bnndp.errors import InputError, ModelFileError
from bnndp.files.posterior import read_model
from bnndp.importers.convert import ConvertOptions, convert
from bnndp.importers.flatten import flat
from bnndp.importers.foreign import Choices, drop_tensors


def guide() -> dict[str, Tensor]:
    """The state of an AutoNormal guide of a network and the noise of its data."""
    torch.manual_seed(0)
    shapes = {"0.weight": (8, 2), "0.bias": (8,), "2.weight": (1, 8), "2.bias": (1,), "sigma": ()}
    return {f"{kind}.{site}_unconstrained": torch.randn(s) for kind in ("locs", "scales") for site, s in shapes.items()}


def plain() -> dict[str, Tensor]:
    torch.manual_seed(1)
    return {"0.weight": torch.randn(8, 2), "0.bias": torch.randn(8), "2.weight": torch.randn(1, 8)}


def test_no_names_are_no_choice_whichever_empty_tuple_they_are() -> None:
    """In Python 3.10 ``tuple(each for each in ())`` is another object than ``()``."""

    class Names(tuple[str, ...]):
        """A second empty tuple, in every version."""

        __slots__ = ()

    assert Choices(ignore=Names()).changed == ()
    assert Choices(ignore=("a",), bias=False).changed == ("bias", "ignore")


def test_a_site_of_a_guide(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = tmp_path / "guide.safetensors", tmp_path / "m.safetensors"
    save_file(guide(), source)
    command = ["convert", str(source), "-o", str(out), "--task", "regression", "--activation", "relu"]
    assert main(command) == 2
    assert "leave it out with --ignore sigma" in capsys.readouterr().err
    assert main([*command, "--ignore", "sigma"]) == 0
    assert "note: left out, as --ignore says: sigma\n" in capsys.readouterr().out
    found = read_model(out)
    assert found.origin is not None
    assert found.origin["choices"] == {"ignore": ["sigma"]}
    assert "left out, as --ignore says: sigma" in found.origin["remarks"]
    without_noise = {name: value for name, value in guide().items() if "sigma" not in name}
    assert found.posterior.digest() == bnndp.importers.from_pyro(without_noise, **SETTINGS).digest()


def test_a_tensor_of_a_state_dict(tmp_path: Path) -> None:
    save_file(plain() | {"log_sigma": torch.zeros(1), "head.tau": torch.zeros(())}, tmp_path / "s.safetensors")
    found = convert(tmp_path / "s.safetensors", RELUS, options=ConvertOptions(ignore=("log_sigma", "head.tau")))
    assert found.posterior.digest() == bnndp.importers.from_tensors(plain(), **SETTINGS).digest()
    with pytest.raises(ModelFileError, match=r"leave it out with --ignore head\.tau; they look for"):
        convert(tmp_path / "s.safetensors", RELUS, options=ConvertOptions(ignore=("log_sigma",)))


def test_a_tensor_of_the_second_file(tmp_path: Path) -> None:
    last = {name: value for name, value in guide().items() if ".2." in name}
    first = {name: value for name, value in plain().items() if name.startswith("0.")}
    save_file(last, tmp_path / "g.safetensors")
    save_file(first | {"log_sigma": torch.zeros(1)}, tmp_path / "n.safetensors")
    beside = tmp_path / "n.safetensors"
    with pytest.raises(ModelFileError, match="'log_sigma' of the second file is not a weight"):
        convert(tmp_path / "g.safetensors", RELUS, options=ConvertOptions(beside=beside))
    found = convert(tmp_path / "g.safetensors", RELUS, options=ConvertOptions(beside=beside, ignore=("log_sigma",)))
    assert found.posterior.digest() == bnndp.importers.from_pyro(last, network=first, **SETTINGS).digest()


def test_a_tensor_within_an_entry_and_of_every_sample() -> None:
    found, left = drop_tensors(flat({"net": plain() | {"sigma": torch.ones(1)}, "epoch": 3}), ["sigma"])
    assert (list(found.tensors), left) == ([f"net.{name}" for name in plain()], ())
    samples, left = drop_tensors(flat([plain() | {"sigma": torch.ones(1)} for _ in range(3)]), ["sigma"])
    wanted = flat([plain() for _ in range(3)])
    assert (list(samples.tensors), samples.holders, left) == (list(wanted.tensors), wanted.holders, ())


def test_a_name_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path) -> None:
    save_file(plain(), tmp_path / "s.safetensors")
    with pytest.raises(ModelFileError, match=r"it has no tensor 'tau' to ignore; its tensors are '0.bias', '0.weight'"):
        convert(tmp_path / "s.safetensors", RELUS, options=ConvertOptions(ignore=("tau",)))
    save_file(guide(), tmp_path / "g.safetensors")
    with pytest.raises(ModelFileError, match=r"'tau' of --table or --ignore is not a site of the file; its sites are"):
        convert(tmp_path / "g.safetensors", RELUS, options=ConvertOptions(ignore=("sigma", "tau")))


def test_a_short_name_is_never_that_of_several_layers() -> None:
    nested = {"Dense_0": {"kernel": torch.ones(2, 8), "bias": torch.ones(8)}, "Dense_1": {"bias": torch.ones(1)}}
    with pytest.raises(ModelFileError, match=r"--ignore bias may be any of 'Dense_0.bias', 'Dense_1.bias'"):
        drop_tensors(flat(nested), ["bias"])
    found, left = drop_tensors(flat(nested), ["Dense_1.bias"])
    assert (list(found.tensors), found.holders, left) == (["Dense_0.kernel", "Dense_0.bias"], ("Dense_0",), ())
    with pytest.raises(ModelFileError, match="leaves no tensor"):
        drop_tensors(flat({"a": torch.ones(1)}), ["a"])


def test_sites_left_out_in_python() -> None:
    """``ignore=`` is what a table says."""
    wanted = bnndp.importers.from_pyro(guide(), table={"ignore": ["sigma"]}, **SETTINGS).digest()
    for ignore in ("sigma", ["sigma"], ("sigma",)):
        assert bnndp.importers.from_pyro(guide(), ignore=ignore, **SETTINGS).digest() == wanted
    with pytest.raises(ModelFileError, match=r"in Python by ignore=\['sigma'\]"):
        bnndp.importers.from_pyro(guide(), **SETTINGS)
    with pytest.raises(ModelFileError, match="'tau' of --table or --ignore is not a site"):
        bnndp.importers.from_pyro(guide(), ignore=["sigma", "tau"], **SETTINGS)
    with pytest.raises(InputError, match="ignore must be a list of names of sites, got 3"):
        bnndp.importers.from_pyro(guide(), ignore=3, **SETTINGS)  # type: ignore[arg-type]
    draws = {"w1": torch.ones(4, 2, 3), "w2": torch.ones(4, 3, 1), "noise": torch.ones(4)}
    found = bnndp.importers.from_numpyro(draws, ignore="noise", **SETTINGS).digest()
    assert found == bnndp.importers.from_numpyro(draws, table={"ignore": ["noise"]}, **SETTINGS).digest()


@pytest.mark.parametrize("name", ["guide.pt", Path("guide.pt")])
def test_a_file_is_not_a_guide(name: object) -> None:
    with pytest.raises(InputError, match=r"'guide.pt' is the name of a file.*bnndp convert FILE -o MODEL.safetensors"):
        bnndp.importers.from_pyro(name, **SETTINGS)
