"""Expansions of mean-field theories in a small parameter: gamma0, one over a size, or the learning rate.

`expand` chooses the kind of expansion from a theory and the parameter; all results are an `Expansion`.
`numerics.expansion` evaluates them.
"""

from collections.abc import Mapping
from typing import Any

from sympy import Expr, Symbol

from derive.calculus.resummation import Mapped, Radius, conformal, radius
from derive.calculus.series import DegeneratePade, PowerSeries
from derive.calculus.symbols import eta, gamma0
from derive.errors import NotApplicable, require_integer
from derive.expansion.expansion import Expansion
from derive.expansion.integrals import error_equation, iterated_integral, time_integrals
from derive.expansion.linear import LinearExpansion, expand_linear
from derive.expansion.nonlinear import NonlinearExpansion, expand_nonlinear
from derive.expansion.nonlinear.expansion import KINKS
from derive.expansion.nonlinear.kinks import KinkExpansion, expand_kinks
from derive.expansion.operator_words import Memory
from derive.expansion.orders import (
    ModifiedEquation,
    TheorySeries,
    expand_sizes,
    expand_step_size,
    modified_equation,
)
from derive.linear.form import linear_form
from derive.program import Program
from derive.program.nonlinear import require_linear_rules
from derive.program.symbolic_depth import at_symbolic_depth
from derive.theory import Theory, mean_field
from derive.theory.conditioning import theory_of


def expand(
    theory: Theory | Program | Mapping[Expr, Expr], small: Expr = gamma0, order: int = 2, **options: Any
) -> Expansion:
    """Expand a theory in a small parameter up to an order.

    Parameters
    ----------
    theory : Theory | Program | Mapping[Expr, Expr]
        Theory or program. For a map ``{x: x after one step}`` the result is the modified equation: the
        differential equation whose solution passes through the values of x after each step, as a series
        in the step ``small``.
    small : Expr, optional
        ``gamma0``, one over a size, such as ``1/nu``, ``1/alpha`` or ``1/alpha_B``, or the learning rate
        ``eta``. For a map it may be any symbol.
    order : int, optional
        Highest order.
    **options : Any
        For an expansion in a size only: ``together={alpha: 3 * nu}`` are other sizes that grow with the
        size, as multiples of it. Other options raise TypeError.

    Returns
    -------
    Expansion
        `LinearExpansion` for a linear theory in gamma0, `NonlinearExpansion` for a nonlinear one,
        `KinkExpansion` in powers of ``|gamma0|`` if phi has a kink and ``order`` is not 0, `TheorySeries`
        in a size or the learning rate, `ModifiedEquation` for a map. A `KinkExpansion` contains all
        orders that are known, also those above ``order``.

    Raises
    ------
    NotApplicable
        If the theory has no such expansion, or an entrywise training rule, or if the order is above the
        known ones for a phi with a kink.
    ValueError
        If the order is negative or not an integer, or if ``small`` is not an expression of SymPy. For a
        theory, also if ``small`` is not gamma0, eta, or one over a symbol. For a map, also if it moves x at
        ``small = 0`` or is not a polynomial in ``small``.
    TypeError
        For an unknown option.

    Notes
    -----
    If a theory at an integer depth has no expansion in gamma0, the theory of symbolic depth to which it
    belongs is expanded.

    Examples
    --------
    >>> from sympy import Function
    >>> from derive import L, isotropic, mean_field, mlp
    >>> from derive.program.networks.random_data import nu
    >>> expand(mean_field(mlp(L, "linear", rule="flow")), gamma0, 2).coefficient("C", 0)
    ell*C0[K_x]
    >>> for phi in (Function("phi"), "relu"): print(type(expand(mean_field(mlp(L, phi)), gamma0, 1)).__name__)
    NonlinearExpansion
    KinkExpansion
    >>> [expand(mean_field(isotropic()), x, 1).variable for x in (1 / nu, eta)]
    [1/nu, eta]
    >>> x = Symbol("x")
    >>> expand({x: x - eta * x}, eta, 2).series("x").coefficients
    (-x, -x/2, -x/3)
    """
    if not isinstance(small, Expr):
        raise ValueError(
            f"small = {small!r}: must be the symbol gamma0 or eta of derive, or one over a size, such as 1/nu"
        )
    in_size = not isinstance(theory, Mapping) and small not in (gamma0, eta)
    if other := [x for x in options if not in_size or x != "together"]:
        what = (
            "the only option is together"
            if in_size
            else "only an expansion in one over a size has an option, which is together"
        )
        raise TypeError(f"expand() has no option {other[0]!r}: {what}")
    if isinstance(theory, Mapping):
        return modified_equation(theory, order, small)
    theory = theory_of(theory, "expand")
    require_linear_rules(theory.program, "the expansion")
    if small == gamma0:
        return _in_gamma0(theory, order)
    if small == eta:
        return expand_step_size(theory, order)
    size = 1 / small if small != 0 else small
    if not isinstance(size, Symbol):
        raise ValueError(
            f"small = {small}: must be the symbol gamma0 or eta of derive, with its assumptions, or one over "
            "a size, such as 1/nu"
        )
    return expand_sizes(theory, size, order, **options)


def _in_gamma0(theory: Theory, order: int) -> Expansion:
    """Return the expansion of a theory in gamma0.

    The theory itself is expanded first. If this is not possible and the depth is an integer, the program is
    derived again at symbolic depth, and the expansion of that theory is returned. Raises NotApplicable if
    neither has an expansion.
    """
    try:
        return _expanded(theory, order)
    except NotApplicable:
        if (general := _at_symbolic_depth(theory)) is None:
            raise
        return _expanded(general, order)


def _at_symbolic_depth(theory: Theory) -> Theory | None:
    """Return the theory with a symbolic number of layers of which this one is the case of integer depth.

    Returns None if there is no such family, if the depth of the theory is symbolic, or if the theory has been
    changed since it was derived.
    """
    depth = theory.program.depth
    try:
        general = mean_field(at_symbolic_depth(theory.program)) if depth.is_Integer else None
    except NotApplicable:
        return None
    if general is None or theory not in (mean_field(theory.program), general.at_depth(int(depth))):
        return None
    return general


def _expanded(theory: Theory, order: int) -> Expansion:
    """Return the expansion in gamma0 of a theory: linear, nonlinear, or that of a kink.

    The last is in powers of ``|gamma0|``, for a phi with a kink and an order above 0. Raises NotApplicable if
    the order is above the known ones of such a phi, or for a theory without an expansion, and ValueError for
    an order that is negative or not an integer.
    """
    order = require_integer("order", order, 0)
    try:
        linear_form(theory)
    except NotApplicable:
        lazy = expand_nonlinear(theory, 0)
    else:
        return expand_linear(theory, order)
    if order == 0 or not lazy.activation.expr.has(*KINKS):
        return expand_nonlinear(theory, order)
    expansion = expand_kinks(theory)
    highest = max(expansion.known.values())
    if order > highest:
        raise NotApplicable(
            f"order = {order}: for an activation with a kink the series is known to |gamma0|^{highest} only"
        )
    return expansion


__all__ = [
    "DegeneratePade",
    "Expansion",
    "KinkExpansion",
    "LinearExpansion",
    "Mapped",
    "Memory",
    "ModifiedEquation",
    "NonlinearExpansion",
    "PowerSeries",
    "Radius",
    "TheorySeries",
    "conformal",
    "error_equation",
    "expand",
    "expand_kinks",
    "expand_linear",
    "expand_nonlinear",
    "expand_sizes",
    "expand_step_size",
    "iterated_integral",
    "radius",
    "time_integrals",
]
