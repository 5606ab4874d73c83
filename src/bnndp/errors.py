"""The one family of errors that bnndp raises on purpose.

Every message says what was wrong, where, which value was found and what to do. The command line prints it as one
line and exits with status 2, as it does for an ``OSError``; anything else is a bug and keeps its traceback.
"""

__all__ = [
    "CertError",
    "InputError",
    "MagnitudeError",
    "ModelFileError",
    "RunStateError",
    "UnsupportedLayerError",
    "one_line",
]

_LONGEST = 600  # characters of a message about a file


class CertError(Exception):
    """Base class of all errors raised by bnndp.

    Examples:
        >>> import bnndp
        >>> try:
        ...     bnndp.Box([1.0], [0.0])
        ... except bnndp.CertError as error:
        ...     print(type(error).__name__)
        InputError
    """


class InputError(CertError, ValueError):
    """A value given by the caller cannot be used: wrong shape, not finite, out of range."""


class MagnitudeError(InputError):
    """A number of a network or of a box is beyond the range of magnitudes that bounds are computed for."""


class ModelFileError(CertError):
    """A model file cannot be read as ``bnndp-posterior-1``, or not be converted to it."""


class RunStateError(CertError):
    """A run folder cannot be used: it is of another run, in use, damaged, or cannot be written."""


class UnsupportedLayerError(CertError, TypeError):
    """A network has a layer, or an order of layers, for which there is no rule."""


def one_line(message: str) -> str:
    r"""A message that quotes a file, made harmless: one line, no control characters, its middle cut out if very long.

    >>> one_line("name 'a" + chr(27) + "[31m' " + chr(10) + "unknown")
    "name 'a\\x1b[31m' \\nunknown"
    """
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in message)
    half = _LONGEST // 2
    return text if len(text) <= _LONGEST else f"{text[:half]} ... {text[-half:]}"
