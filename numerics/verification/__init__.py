"""The checks: two derivations against each other, identities, the expansion, theory against finite networks.

report = verify(experiment, out_dir="out")
report.passed, report.checks, print(report.table())
"""

from numerics.verification.networks import compare
from numerics.verification.openings import Effort
from numerics.verification.report import Check, Report
from numerics.verification.run import equations, verify

__all__ = ["Check", "Effort", "Report", "compare", "equations", "verify"]
