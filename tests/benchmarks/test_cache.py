"""Names of the files of trained networks."""

from __future__ import annotations

from benchmarks.cache import options_for_digest

from bnndp.training.options import TrainingOptions


def test_new_options_leave_old_names_alone() -> None:
    """Networks are found again by a digest of this."""
    plain = options_for_digest(TrainingOptions())
    assert not {"activation", "conv", "image", "dropout", "dropout_last", "robust"} & set(plain)
    changed = options_for_digest(TrainingOptions(conv="4x3", image=(1, 9, 9), activation="tanh"))
    assert {"activation", "conv", "image"} <= set(changed)
    assert {name for name in plain if plain[name] != changed[name]} == set()
