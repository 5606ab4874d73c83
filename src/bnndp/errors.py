"""The one family of errors that bnndp raises on purpose.

Every message says what was wrong, where, which value was seen and what to do. The command line prints it as one
line and exits with status 2; anything that is not a :class:`CertError` is a bug and keeps its traceback.
"""

__all__ = ["CertError", "InputError", "ModelFileError", "UnsupportedLayerError"]


class CertError(Exception):
    """Root of all errors raised by bnndp."""


class InputError(CertError, ValueError):
    """A value given by the caller cannot be used: wrong shape, not finite, out of range."""


class ModelFileError(CertError):
    """A posterior file cannot be read as ``bnndp-posterior-1``."""


class UnsupportedLayerError(CertError, TypeError):
    """A network has a layer, or an order of layers, for which there is no rule."""
