"""The expansion of the action around its saddle, to the order that covariances and means at order 1/N need.

With conjugates ``qhat`` the density of the order parameters ``q`` is exactly the integral of ``exp(N S)``,
``S = -sum a qhat (q - rest(q)) + sum over populations a ln Z(q, qhat)``, where a population of ``a N`` units
has the weight ``exp(E(q) + sum qhat F)``.  Order parameters average ``F``; ``E`` is the exponent of one unit.
Expanded around the saddle, at which qhat vanishes,

- ``kappa = (<F F'> - <F><F'>)/a`` is the noise of averages over units,
- ``D = d<F>/dq + d rest/dq``, in which ``d<F>/dq = <F dE/dq>``, is the feedback of order parameters on each
  other,
- ``N Cov = R kappa R^T`` with ``R = (1 - D)^(-1)``, which causality makes a finite sum,
- the mean moves by ``R (second derivatives of <F> and rest : Cov / 2 + d kappa/dq : R) / N``.

All averages are those of one unit at infinite width; hats in them are derivatives.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from sympy import Expr, S

from derive.calculus.functional import functional_derivative
from derive.errors import require_type
from derive.program.program import Program
from derive.theory.fluctuations import document, explanation
from derive.theory.fluctuations.coefficients import (
    ShiftSource,
    feedback,
    in_averages,
    influence,
    noise,
    shift_source,
)
from derive.theory.fluctuations.data import FluctuatingParameter, FluctuationData
from derive.theory.fluctuations.exponent import ExponentBuilder
from derive.theory.fluctuations.one_unit import elsewhere, letters
from derive.theory.path_integral import path_integral
from derive.theory.path_integral.saddle import Assembly
from derive.theory.path_integral.step_order import responses_at_equal_times

ParameterName = str | FluctuatingParameter
"""An order parameter, or the name of one; of several members of a family the first one."""


@dataclass(frozen=True, repr=False)
class Fluctuations(FluctuationData):
    """The leading corrections to the mean-field theory of a program, by which its networks of N units differ.

    Methods that take two order parameters write the first one at the letters of its symbol, and the second
    one at other letters: ``mu_`` for ``mu``, ``t_`` for ``t``.
    """

    @property
    def exponents(self) -> dict[str, Expr]:
        """The exponent of one unit of each population, as far as order parameters stand in it."""
        found: dict[str, Expr] = {}
        for x in self.terms:
            found[x.home.name] = found.get(x.home.name, S.Zero) + x.whole
        return found

    def influence(self, name: ParameterName) -> dict[str, Expr]:
        """Return the factor of an order parameter in the exponent of one unit: ``E = dA/dq``.

        Parameters
        ----------
        name
            The name of an order parameter, which is taken at the indices and times of its symbol, or the
            order parameter itself.

        Returns
        -------
        dict
            An expression with hats for each population in whose exponent it stands.

        Examples
        --------
        >>> from derive.program import mlp
        >>> fluctuations(mlp()).influence("B")
        {'layer': gamma0*h(ell, alpha, s)*hat(xi(ell, t))}
        """
        return influence(self, self._parameter(name))

    def second_influence(self, name: ParameterName, other: ParameterName) -> dict[str, Expr]:
        """Return the second derivative of the exponent of one unit by two order parameters.

        Examples
        --------
        >>> from derive.program import mlp
        >>> fluctuations(mlp(1)).second_influence("Delta", "f")
        {}
        >>> fluctuations(mlp(2)).second_influence("G", "Delta")
        {'layer': Piecewise((eta*gamma0*h(ell - 1, alpha, s)*KroneckerDelta(s, t_)*hat(xi(ell - 1, t)),
            (ell >= 2) & (s - t <= -1)), (0, True))}
        """
        first = self._parameter(name)
        second = elsewhere(self._parameter(other), letters(first))
        found = {}
        for population, e in self.influence(first).items():
            slope = functional_derivative(e, second.symbol, (*first.ranges, *second.every))
            if slope != 0:
                found[population] = slope
        return found

    def noise(self, name: ParameterName, other: ParameterName) -> Expr:
        """Return how the averages of two order parameters over units scatter together: ``kappa``.

        It is zero for order parameters of different populations, and has a Kronecker delta of their layers.

        Examples
        --------
        >>> from derive.program import mlp
        >>> fluctuations(mlp(1)).noise("f", "f")
        -<g(1, t)*h(1, mu, t)>*<g(1, t_)*h(1, alpha, t_)>/gamma0**2
            + <g(1, t)*g(1, t_)*h(1, alpha, t_)*h(1, mu, t)>/gamma0**2
        """
        return noise(self, self._parameter(name), self._parameter(other))

    def feedback(self, name: ParameterName, other: ParameterName) -> Expr:
        """Return the derivative of one order parameter by another one, all others held: ``D``.

        Examples
        --------
        >>> from derive.program import mlp
        >>> fluctuations(mlp()).feedback("A", "B")
        KroneckerDelta(ell, ell_)*<d d h(ell, alpha_, s_)*h(ell, mu, t) / d xi(ell, s) / d xi(ell, t_)>
        """
        return feedback(self, self._parameter(name), self._parameter(other))

    def shift_source(self, name: ParameterName, expanded: bool = False) -> ShiftSource:
        """Return the source of the shift of the mean of an order parameter at order 1/N.

        N times the shift is ``R = (1 - D)^(-1)`` applied to the sources of all order parameters.  Covariances
        and propagators stand in them as symbols.

        Parameters
        ----------
        name
            The name of an order parameter, or the order parameter itself.
        expanded
            If true, influences are written out.  They stand as symbols ``E[q]`` otherwise.

        Examples
        --------
        >>> from derive.program import mlp
        >>> fluctuations(mlp(1)).shift_source("f").curvature
        Sum(<g(1, t)*h(1, mu, t)*E[Delta(alpha, t_)]*E[Delta(mu_, t__)]>*Cov[Delta(alpha, t_), Delta(mu_,
            t__)]/(2*gamma0), (alpha, 1, P), (t_, 0, oo), (mu_, 1, P), (t__, 0, oo))
        """
        return shift_source(self, self._parameter(name), expanded)

    def deterministic(self, name: ParameterName) -> Expr:
        """Return a number or an observable as a function of averages, all other numbers put in.

        Raises
        ------
        ValueError
            If it is an average itself.

        Examples
        --------
        >>> from derive.program import mlp
        >>> fluctuations(mlp()).deterministic("Delta")
        -f(mu, t) + y(mu)
        """
        q = self._parameter(name)
        if q.unit != 0:
            raise ValueError(f"{q.symbol} is an average over units")
        return in_averages(self, q)

    # -- shown -----------------------------------------------------------------------------------------------

    def render(self, show: document.FluctuationPart = "all", format: str = "text") -> str:
        """Return the fluctuations, or a part of them, as text, LaTeX or JSON.

        Parameters
        ----------
        show
            "process" (the fields of one unit), "order-parameters", "exponent", "influences", "noise",
            "feedback", "shift", or "all" for everything but "shift".
        format
            "text", "latex" or "json".

        Returns
        -------
        str
            The text, a LaTeX ``align*`` environment for each section, or a JSON object with a list for each
            section.

        Raises
        ------
        ValueError
            For an unknown part or format.

        Examples
        --------
        >>> from derive.program import mlp
        >>> print(fluctuations(mlp(1)).render("order-parameters"))
        Deep linear network, 1 hidden layer, gradient descent at rate η; μ, α = 1..P
        <BLANKLINE>
        Order parameters: averages over units, and functions of them
          G^1(t,s)      = ⟨g^1(t) g^1(s)⟩
          H^1_μα(t,s)   = ⟨h^1_μ(t) h^1_α(s)⟩
          f_μ(t)        = γ₀⁻¹ ⟨g^1(t) h^1_μ(t)⟩
          Δ_μ(t)        = -f_μ(t) + y_μ
          K^NTK_μα(t,s) = K^x_μα G^1(t,s) + H^1_μα(t,s)
        """
        return document.render(self, show, format)

    def explain(self, name: str) -> str:
        """Return where an order parameter comes from and where it acts, in words.

        Of a response the reason is told why it is the one of a pair of conjugates that is kept.

        Raises
        ------
        KeyError
            If there is no order parameter of that name.

        Examples
        --------
        >>> from derive.program import mlp
        >>> print(fluctuations(mlp()).explain("B"))
        B(ell, alpha, t, s): response, the average of g(ell + 1, t)*hat(chi(ell + 1, alpha, s))/gamma0 over
                units of layer at layer ell + 1
            W(ell).T @ g(ell + 1, t) and W(ell) @ h(ell, mu, t) share weights, whose average gives products of
                B with its conjugate A: of the two, the response of the later use to the earlier one is an
                order parameter
            0 unless s <= t: a step computes W(ell).T @ g(ell + 1, t) after W(ell) @ h(ell, mu, t)
            its mean vanishes at s = t, its fluctuations do not
            acts on units of layer by gamma0*h(ell, alpha, s)*hat(xi(ell, t))
                response in the equation of xi(ell, t), from the random part of W (saddle point of the mixed
                inner product)
        """
        return explanation.explain(self, name)

    def __repr__(self) -> str:
        return document.summary(self)

    def _repr_latex_(self) -> str:
        return self.render(format="latex")

    def _parameter(self, name: ParameterName) -> FluctuatingParameter:
        return self.parameter(name) if isinstance(name, str) else name


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
        The order parameters, the functions that they average, and the exponent of one unit.

    Raises
    ------
    NotApplicable
        If the theory of the program holds more than sums over units that are alike: pairs of units, matrices
        correlated with their transposes, units with attributes.

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
    found = ExponentBuilder(Assembly(integral._saddle, kept), integral.theory()).build()
    parts = (found.products, found.definitions, found.homes, found.sources, found.parameters, found.terms)
    return Fluctuations(program, *parts)
