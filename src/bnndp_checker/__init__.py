"""An independent checker of bnndp certificates, in ball arithmetic: standard library and python-flint only.

It shares no code with bnndp. The inequalities are those of docs/certificates.md; every one of them is proved again from
the numbers in the model file, without tolerances, or the certificate is rejected.
"""

try:
    from bnndp_checker.check import Verdict, check
except ModuleNotFoundError as error:
    if error.name != "flint":
        raise  # without python-flint there is the command only, to say so; what is imported from here says so too

__all__ = ["Verdict", "check"]
