"""Linear theories: their linear form, closure, propagators, projections, lazy limit and Laplace transforms.

The modules take a :class:`~derive.theory.Theory` of a linear network. Closure, propagators, lazy limit and
Laplace transforms are equations without random fields. Reductions, expansions, limits of infinite depth and
the solvers use them.
"""
