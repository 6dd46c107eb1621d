"""Reductions of a theory to simpler equivalent equations, or messages that state why this is impossible.

The modules take a :class:`~derive.theory.Theory` (or a program) and return a theory, differential equations
or closed forms. The solvers, the analysis and the pages of the documentation use them.
"""
