"""Datasets: generators, and the record that training reads."""

from bnndp.data.records import RegressionData
from bnndp.data.sine import noisy_sine

__all__ = ["RegressionData", "noisy_sine"]
