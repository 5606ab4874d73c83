"""Datasets: generators, readers of published files, and the records that training reads."""

from bnndp.data.folder import Store, open_store
from bnndp.data.mnist import fashion_mnist, mnist
from bnndp.data.records import ClassificationData, Data, RegressionData
from bnndp.data.registry import NAMES, Description, describe, load
from bnndp.data.sine import noisy_sine
from bnndp.data.standardise import DataStandardisation, Standardisation

__all__ = [
    "NAMES",
    "ClassificationData",
    "Data",
    "DataStandardisation",
    "Description",
    "RegressionData",
    "Standardisation",
    "Store",
    "describe",
    "fashion_mnist",
    "load",
    "mnist",
    "noisy_sine",
    "open_store",
]
