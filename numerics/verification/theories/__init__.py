"""Every kind of program: its derived theory against finite networks trained as the program says."""

from numerics.verification.theories.cases import CASES, Case
from numerics.verification.theories.compare import Comparison, Row, compare_with_networks

__all__ = ["CASES", "Case", "Comparison", "Row", "compare_with_networks"]
