"""Simpler equations of a theory: exact reductions, limits, and approximations without responses.

Most modules take a :class:`~derive.theory.Theory` (or a program) and return a theory, differential equations
or closed forms. A message states why a reduction is impossible. The solvers, the analysis and the pages of
the documentation use them.
"""
