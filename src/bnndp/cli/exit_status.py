"""The exit statuses of the program (docs/cli.md)."""

from __future__ import annotations

from typing import Final

SUCCESS: Final = 0
"""The command has done what was asked."""

ERROR: Final = 2
"""The command or its input is wrong, or the system refused something, such as writing to a full disk."""

NOT_CERTIFIED: Final = 3
"""Done, but less is certified than ``--require-certified`` asks for."""

INTERRUPTED: Final = 130
"""Interrupted by Ctrl-C, or the time was over before every input had an answer."""

TERMINATED: Final = 143
"""Told to stop by SIGTERM."""
