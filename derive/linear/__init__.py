"""Linear theories: their linear form, closure, propagators, projections, lazy limit and Laplace transforms.

The modules take a :class:`~derive.theory.Theory` of a linear network and return equations without random
fields. Reductions, expansions, limits of infinite depth and the solvers use them.
"""
