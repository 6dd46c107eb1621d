"""Verification of a theory and its solution: derivations, identities, series and finite networks.

:func:`verify` runs all checks of an experiment and returns a :class:`Report`; :func:`compare` compares a
solution with simulated networks.  For example::

    report = verify(experiment, out_dir="out")
    report.passed, report.checks, print(report.table())
"""

from numerics.verification.networks import compare
from numerics.verification.report import Check, Report
from numerics.verification.run import equations, verify
from numerics.verification.smaller_problems import Effort

__all__ = ["Check", "Effort", "Report", "compare", "equations", "verify"]
