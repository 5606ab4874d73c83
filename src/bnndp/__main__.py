"""``python -m bnndp`` is the program ``bnndp``."""

from bnndp.cli.main import run

if __name__ == "__main__":
    run()
