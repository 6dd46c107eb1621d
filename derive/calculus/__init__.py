"""Symbolic calculus used by the derivations: Gaussian averages, responses, truncated series, recurrences.

Modules take SymPy expressions and return SymPy expressions; they do not depend on programs or theories.
"""
