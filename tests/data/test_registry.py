"""The registry: every set is described as it loads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bnndp.data import NAMES, ClassificationData, RegressionData, describe, load, noisy_sine
from bnndp.data.moons import two_moons
from bnndp.errors import InputError

WITHOUT_FILES = ("sine1d", "sine2d", "moons", "digits")
SMALL = ("kin8nm", "concrete", "power_plant", "energy", "yacht", "wine_quality_red", "naval")


def check(name: str, folder: Path | None, split: str) -> None:
    described, data = describe(name), load(name, split, folder=folder)
    assert data.points == (described.train_points if split == "train" else described.test_points)
    assert (data.n_in, data.n_out) == (described.inputs, described.outputs)
    assert isinstance(data, {"regression": RegressionData, "classification": ClassificationData}[described.task])
    if described.domain is not None:
        low, high = described.domain
        assert low <= data.x.min().item() <= data.x.max().item() <= high
        assert data.x.max().item() - data.x.min().item() > 0.95 * (high - low)


def test_all_names() -> None:
    images = ("mnist", "fashion_mnist", "cifar10", "cifar10_subset")
    assert (*WITHOUT_FILES, *SMALL, *images) == NAMES
    assert tuple(describe(name).name for name in NAMES) == NAMES


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("name", WITHOUT_FILES)
def test_sets_without_files_load_as_described(name: str, split: str) -> None:
    assert describe(name).files == ()
    check(name, None, split)


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("name", SMALL)
def test_tables_load_as_described(name: str, split: str, data_folder: Path) -> None:
    if not (data_folder / name).is_dir():
        pytest.skip(f"no folder {name!r} in {data_folder}")
    check(name, data_folder, split)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "cifar10", "cifar10_subset"])
def test_images_load_as_described(name: str, data_folder: Path) -> None:
    absent = [file.path for file in describe(name).files if not (data_folder / file.path).is_file()]
    if absent:
        pytest.skip(f"no file {absent[0]} in {data_folder}")
    check(name, data_folder, "test")


@pytest.mark.parametrize("name", NAMES)
def test_absent_files_are_refused_in_one_line(name: str, tmp_path: Path) -> None:
    described = describe(name)
    if not described.files:
        assert load(name, folder=tmp_path).points == described.train_points
        return
    with pytest.raises(InputError, match=r"lacks .*not downloaded: .*put .*BNNDP_DATA") as caught:
        load(name, folder=tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", NAMES)
def test_every_file_has_a_checksum_and_an_address_of_the_web(name: str) -> None:
    for file in describe(name).files:
        assert len(bytes.fromhex(file.sha256)) == 32
        assert file.size > 0
        assert all(address.startswith(("https://", "http://")) for address in file.addresses)
        assert bool(file.addresses) == (name != "cifar10_subset")


def test_training_parts_are_those_of_the_generators() -> None:
    for n_in in (1, 2):
        assert torch.equal(load(f"sine{n_in}d", seed=5).y, noisy_sine(n_in, seed=5).y)
    assert torch.equal(load("moons", seed=5).x, two_moons(seed=5).x)


@pytest.mark.parametrize("name", ["sine1d", "sine2d", "moons"])
def test_generated_parts_and_seeds_share_no_point(name: str) -> None:
    parts = [load(name, split, seed=seed).x for split in ("train", "test") for seed in (0, 1)]
    points = torch.cat(parts)
    assert len(points.unique(dim=0)) == len(points)
    assert torch.equal(load(name, "test", seed=1).x, parts[3])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"name": "minst"}, "there is no data set 'minst'; did you mean mnist. known: sine1d, "),
        ({"name": "Fashion-MNIST"}, "did you mean fashion_mnist. known"),
        ({"name": "xxxxxxxx"}, "there is no data set 'xxxxxxxx'; known: "),
        ({"name": "digits", "split": "valid"}, "split must be one of train, test, got 'valid'"),
        ({"name": "digits", "fold": 5}, "fold is 5, but digits has the divisions 0 to 4"),
        ({"name": "sine1d", "fold": 1}, "fold is 1, but sine1d has one division only, fold 0"),
        ({"name": "sine1d", "seed": -1}, "seed must be in 0..2147483647, got -1"),
        ({"name": "sine1d", "seed": 2**31}, "seed must be in 0..2147483647, got 2147483648"),
    ],
)
def test_wrong_choices_are_refused(arguments: dict[str, object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        load(**arguments)
