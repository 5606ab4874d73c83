"""Annotations that typer can use in every version of Python that is declared."""

from __future__ import annotations

import types
from typing import get_type_hints

from typer.utils import get_params_from_function

from bnndp.cli.main import app


def test_callbacks_of_options_take_nothing_that_is_no_class() -> None:
    """Typer asks ``issubclass`` of what passes for a class; in Python 3.10 ``list[float]`` does, and is none."""
    functions = [command.callback for command in app.registered_commands] + [app.registered_callback.callback]
    found = {}
    for function in functions:
        for name, parameter in get_params_from_function(function).items():
            callback = getattr(parameter.default, "callback", None)
            if callback is not None:
                hints = get_type_hints(callback)
                found[function.__name__, name] = [hint for key, hint in hints.items() if key != "return"]
    assert len(found) > 10  # those of all commands
    assert {key for key, hints in found.items() if any(isinstance(hint, types.GenericAlias) for hint in hints)} == set()
