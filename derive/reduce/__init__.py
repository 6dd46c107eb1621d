"""Reductions of a theory to simpler equations, its limits, and theories with terms removed.

Errors state why a result is impossible. The modules take a :class:`~derive.theory.Theory` (or a program) and
return a theory, differential equations or closed forms. The solvers, the analysis and the pages of the
documentation use them.
"""
