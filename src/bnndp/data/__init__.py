"""Datasets: generators, readers of published files, and the records that training reads."""

from bnndp.data.images import fashion_mnist, mnist
from bnndp.data.records import ClassificationData, RegressionData
from bnndp.data.sine import noisy_sine

__all__ = ["ClassificationData", "RegressionData", "fashion_mnist", "mnist", "noisy_sine"]
