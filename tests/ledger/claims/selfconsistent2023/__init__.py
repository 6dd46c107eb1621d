"""The printed formulas of selfconsistent2023 as SymPy expressions, slips included.

Each function takes no argument and returns the printed right-hand sides by name.  Fields and kernels are
applied functions whose arguments come in the order layer, samples, times, with a prime in the paper
written as another time; time derivatives are named ``d...``.  Symbols are those of ``derive.program``.
"""
