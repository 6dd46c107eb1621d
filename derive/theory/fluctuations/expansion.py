"""The expansion of the action around its saddle, to the order that covariances and means at order 1/N need.

With conjugates ``qhat`` the density of the order parameters ``q`` is exactly the integral of ``exp(N S)``,
``S = -sum a qhat (q - rest(q)) + sum over populations a ln Z(q, qhat)``, where a population of ``a N`` units
has the weight ``exp(E(q) + sum qhat F)``.  ``F`` are what order parameters average, ``E`` is the exponent of
one unit.  Expanded around the saddle, at which qhat vanishes,

- ``kappa = <F F'> - <F><F'>`` over ``a``: how averages over units scatter,
- ``D = d<F>/dq + d rest/dq``, of which ``d<F>/dq = <F dE/dq>``: how order parameters move each other,
- ``N Cov = R kappa R^T`` with ``R = (1 - D)^(-1)``, which causality makes a finite sum,
- the mean moves by ``R (second derivatives of <F> and rest : Cov / 2 + d kappa/dq : R) / N``.

All averages are those of one unit at infinite width; hats in them are derivatives.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from sympy import Add, Expr, Mul, S
from sympy.core.function import AppliedUndef

from derive.calculus.functional import functional_derivative
from derive.calculus.symbols import IndexRange, alpha, mu, primed, s, t
from derive.errors import require_type
from derive.program.program import Program
from derive.program.words import Population, Rewritable
from derive.theory.data import Equation, Source
from derive.theory.fluctuations.exponent import Exponent, ExponentBuilder, ExponentTerm, FluctuatingParameter
from derive.theory.fluctuations.hats import averaged
from derive.theory.path_integral import path_integral
from derive.theory.path_integral.saddle import Assembly
from derive.theory.path_integral.step_order import responses_at_equal_times


@dataclass(frozen=True, repr=False)
class Fluctuations(Rewritable):
    """The leading corrections to the mean-field theory of a program, by which its networks of N units differ.

    Attributes
    ----------
    program
        What is trained.
    products
        The equation of each product of a weight and a vector: its source, responses and memory.
    definitions
        The equations of fields, in which products are fields of their own.
    homes
        The population, at its layer, of each of the products and then of each of the definitions.
    sources
        The Gaussian sources of products.
    parameters
        The order parameters: correlations, causal responses, means, and numbers that follow from them; then
        observables.
    terms
        The exponent of one unit, as far as order parameters stand in it.
    """

    program: Program
    products: tuple[Equation, ...]
    definitions: tuple[Equation, ...]
    homes: tuple[Population, ...]
    sources: tuple[Source, ...]
    parameters: tuple[FluctuatingParameter, ...]
    terms: tuple[ExponentTerm, ...]

    def parameter(self, name: str) -> FluctuatingParameter:
        """Return the order parameter of that name.

        Raises
        ------
        KeyError
            If there is none; the message names what there is.
        """
        for q in self.parameters:
            if q.name == name:
                return q
        there = ", ".join(dict.fromkeys(q.name for q in self.parameters))
        raise KeyError(f"no order parameter {name}; there are {there}")

    @property
    def exponents(self) -> dict[str, Expr]:
        """The exponent of one unit of each population, as far as order parameters stand in it."""
        found: dict[str, Expr] = {}
        for x in self.terms:
            found[x.home.name] = found.get(x.home.name, S.Zero) + x.whole
        return found

    def influence(self, name: str) -> dict[str, Expr]:
        """Return what an order parameter multiplies in the exponent of one unit: ``E = dA/dq``.

        Parameters
        ----------
        name
            The name of an order parameter, which is taken at the indices and times of its symbol.

        Returns
        -------
        dict
            An expression with hats for each population in whose exponent it stands.

        Examples
        --------
        >>> from derive.program import mlp
        >>> found = fluctuations(mlp()).influence("B")
        >>> found["layer"]
        Piecewise((gamma0*h(ell, alpha, s)*hat(xi(ell, t)), s - t <= 0), (0, True))
        """
        q = self.parameter(name)
        found: dict[str, Expr] = {}
        for x in self.terms:
            slope = functional_derivative(x.whole, q.symbol, (*q.ranges, *TIMES))
            if slope != 0:
                found[x.home.name] = found.get(x.home.name, S.Zero) + slope
        return found

    def second_influence(self, name: str, other: str) -> dict[str, Expr]:
        """Return the second derivative of the exponent of one unit by two order parameters.

        The second one is taken at primed indices and at other times, ``t_`` and ``s_``.
        """
        target = self._elsewhere(self.parameter(other))
        found = {}
        for population, e in self.influence(name).items():
            slope = functional_derivative(e, target, TIMES)
            if slope != 0:
                found[population] = slope
        return found

    def noise(self, name: str, other: str) -> Expr:
        """Return how the averages of two order parameters over units scatter together: ``kappa``.

        It is zero for order parameters of different populations or layers.  The second one is taken at primed
        indices and at other times.

        Examples
        --------
        >>> from derive.program import mlp
        >>> fluctuations(mlp(1)).noise("f", "f")
        -<g(1, t)*h(1, mu, t)>*<g(1, t_)*h(1, alpha, t_)>/gamma0**2
            + <g(1, t)*g(1, t_)*h(1, alpha, t_)*h(1, mu, t)>/gamma0**2
        """
        first, second = self.parameter(name), self.parameter(other)
        if first.home is None or second.home is None or first.home.name != second.home.name:
            return S.Zero
        moved = self._moved(second)
        unit = second.unit.xreplace(moved)
        connected = averaged(first.unit * unit) - averaged(first.unit) * averaged(unit)
        return connected / first.home.ratio

    def feedback(self, name: str, other: str) -> Expr:
        """Return the derivative of one order parameter by another one, all others held: ``D``.

        The second one is taken at primed indices and at other times.
        """
        first, second = self.parameter(name), self.parameter(other)
        target, moved = self._elsewhere(second), self._moved(second)
        found = functional_derivative(first.function, target, TIMES)
        if first.home is not None:
            e = self.influence(other).get(first.home.name, S.Zero).xreplace(moved)
            found += _averaged_cases(e, first.unit)
        return found

    def _moved(self, q: FluctuatingParameter) -> dict[Expr, Expr]:
        """Other letters for the indices and times of an order parameter."""
        own = [x for x in q.symbol.free_symbols if x not in (t, s)]
        return {x: alpha if x == mu else primed(x) for x in own} | {t: primed(t), s: primed(s)}

    def _elsewhere(self, q: FluctuatingParameter) -> AppliedUndef:
        moved = self._moved(q)
        if alpha in q.symbol.args and mu in q.symbol.args:
            moved[alpha] = primed(alpha)
            moved[mu] = primed(mu) if primed(mu) != alpha else type(mu)("mu_", **mu.assumptions0)
        found: AppliedUndef = q.symbol.xreplace(moved)
        return found


TIMES = (IndexRange(t, S.Zero, S.Infinity), IndexRange(s, S.Zero, S.Infinity))
"""The ranges of both times."""


def _averaged_cases(e: Expr, unit: Expr) -> Expr:
    """The average of ``unit`` times an expression with cases and sums."""
    from sympy import Piecewise, Sum

    found = []
    for x in Add.make_args(e):
        if isinstance(x, Piecewise):
            found.append(Piecewise(*[(_averaged_cases(y, unit), c) for y, c in x.args]))
        elif isinstance(x, Sum):
            found.append(x.func(_averaged_cases(x.function, unit), *x.limits))
        else:
            inner = [y for y in Mul.make_args(x) if isinstance(y, Piecewise | Sum)]
            if inner:
                rest = x / inner[0]
                parts = inner[0]
                if isinstance(parts, Sum):
                    found.append(parts.func(_averaged_cases(rest * parts.function, unit), *parts.limits))
                else:
                    found.append(Piecewise(*[(_averaged_cases(rest * y, unit), c) for y, c in parts.args]))
            else:
                found.append(averaged(unit * x) if x != 0 else S.Zero)
    return Add(*found)


def fluctuations(program: Program) -> Fluctuations:
    """Derive the leading fluctuations of finite networks around the mean-field theory of a program.

    Parameters
    ----------
    program
        Any program whose rule is linear in the gradient.  Its networks have N units in a population of ratio
        one.

    Returns
    -------
    Fluctuations
        The order parameters, what they average, and the exponent of one unit in which they stand.

    Raises
    ------
    NotApplicable
        If the theory of the program holds what no sum over units is: pairs of units, matrices correlated with
        their transposes, units with attributes.

    Examples
    --------
    >>> from derive.program import mlp
    >>> [q.name for q in fluctuations(mlp()).parameters]
    ['H', 'G', 'A', 'B', 'f', 'Delta', 'K']
    """
    require_type(program, Program, "fluctuations", "a program")
    return _expanded(program)


@lru_cache(maxsize=32)
def _expanded(program: Program) -> Fluctuations:
    integral = path_integral(program)
    kept = responses_at_equal_times(integral._action)
    found: Exponent = ExponentBuilder(Assembly(integral._saddle, kept)).build()
    parts = (found.products, found.definitions, found.homes, found.sources, found.parameters, found.terms)
    return Fluctuations(program, *parts)
