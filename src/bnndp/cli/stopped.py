"""The end of a command that was interrupted when it already had an answer for everything."""

__all__ = ["Stopped"]


class Stopped(Exception):
    """Raised after the output is written; its text says so, and the exit status is that of an interruption."""
