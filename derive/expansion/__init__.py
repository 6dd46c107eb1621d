"""Powers of the feature-learning strength gamma0."""

from derive.calculus.power_series import PowerSeries
from derive.calculus.rational import DegeneratePade
from derive.expansion.integrals import error_equation, iterated_integral, time_integrals
from derive.expansion.linear import LinearExpansion, expand_linear
from derive.expansion.nonlinear import NonlinearExpansion, expand_nonlinear
from derive.expansion.resummation import Mapped, Radius, conformal, radius
from derive.expansion.words import Memory
from derive.theory.theory import Theory


def expand(theory: Theory, order: int = 2) -> LinearExpansion | NonlinearExpansion:
    """Expand a theory in gamma0 up to ``order``: in operator words if it is linear, else layer by layer.

    >>> from sympy import Function
    >>> from derive.theory import mean_field
    >>> from derive.program import L, mlp
    >>> [type(expand(mean_field(mlp(L, phi)), 0)).__name__ for phi in ("linear", Function("phi"))]
    ['LinearExpansion', 'NonlinearExpansion']
    """
    nonlinear = any(e.name == "z" for e in theory.equations)
    return expand_nonlinear(theory, order) if nonlinear else expand_linear(theory, order)


__all__ = [
    "DegeneratePade",
    "LinearExpansion",
    "Mapped",
    "Memory",
    "NonlinearExpansion",
    "PowerSeries",
    "Radius",
    "conformal",
    "error_equation",
    "expand",
    "expand_linear",
    "expand_nonlinear",
    "iterated_integral",
    "radius",
    "time_integrals",
]
