"""``bnndp-check CERTIFICATE MODEL``, or ``python -m bnndp_checker CERTIFICATE MODEL``."""

import sys


def main() -> int:
    """The command, or one line that says what to install where python-flint is missing."""
    try:
        from bnndp_checker.check import main as command
    except ModuleNotFoundError as error:
        if error.name != "flint":
            raise
        print("bnndp-check: needs python-flint, which is not installed; pip install 'bnndp[check]'.", file=sys.stderr)
        return 2
    return command()


if __name__ == "__main__":
    sys.exit(main())
