"""The checks: two derivations against each other, identities, the expansion, theory against finite networks.

report = verify(experiment, out_dir="out")
report.passed, report.checks, print(report.table())
"""

from numerics.rooms import callable_as_its_function
from numerics.verify.networks import Comparison, compare
from numerics.verify.report import Check, Report
from numerics.verify.run import verify

__all__ = ["Check", "Comparison", "Report", "compare", "verify"]

callable_as_its_function(__name__)
