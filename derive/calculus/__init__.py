"""Symbolic calculus used by the derivations: Gaussian averages, responses, truncated series, recurrences.

Most functions take and return SymPy expressions. The modules import nothing from programs or theories;
:mod:`.intervals` checks the constants that programs pass to it.
"""
