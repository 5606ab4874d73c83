"""``python -m bnndp_checker CERTIFICATE MODEL``."""

from bnndp_checker.check import main

raise SystemExit(main())
