"""Expansion of the action around its saddle point, for covariances and means at order 1/N.

With conjugates ``qhat`` the density of the order parameters ``q`` is exactly the integral of ``exp(N S)``,
``S = -sum a qhat (q - rest(q)) + sum over populations a ln Z(q, qhat)``, where a population of ``a N`` units
has the weight ``exp(E(q) + sum qhat F)``. Order parameters average ``F``; ``E`` is the exponent of one unit.
The expansion around the saddle point, at which qhat vanishes, has the coefficients

- ``kappa = (<F F'> - <F><F'>)/a``: noise of averages over units,
- ``D = d<F>/dq + d rest/dq`` with ``d<F>/dq = <F dE/dq>``: feedback of order parameters on each other,
- ``N Cov = R kappa R^T`` with ``R = (1 - D)^(-1)``, a finite sum because of causality,
- ``R (second derivatives of <F> and rest : Cov / 2 + d kappa/dq : R) / N``: shift of the mean.

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
from derive.theory.fluctuations.one_unit import indices_and_times, with_other_indices
from derive.theory.path_integral import path_integral
from derive.theory.path_integral.saddle import Assembly
from derive.theory.path_integral.step_order import responses_at_equal_times

ParameterName = str | FluctuatingParameter
"""Order parameter, or its name, which means the first of several members of a family."""


@dataclass(frozen=True, repr=False)
class Fluctuations(FluctuationData):
    """Leading corrections to a mean-field theory for networks of N units.

    Methods that take two order parameters write the first one with the indices of its symbol and the second
    one with other indices: ``alpha`` or ``mu_`` for ``mu``, ``t_`` for ``t``.

    Parameters
    ----------
    program : Program
        Program.
    products : tuple of Equation
        Equation of each product of a matrix and a vector, and of each vector of weights: source, responses
        and memory.
    definitions : tuple of Equation
        Equations of fields, in which products are separate fields.
    homes : tuple of Population
        Population of each of the products and then of each of the definitions.
    sources : tuple of Source
        Gaussian sources of ``products``.
    parameters : tuple of FluctuatingParameter
        Order parameters, then observables.
    terms : tuple of ExponentTerm
        Terms of the exponent of one unit: responses, memory and covariances of products, and the terms of
        definitions that contain order parameters.
    """

    @property
    def exponents(self) -> dict[str, Expr]:
        """Exponent E of one unit, by population: its fields have the weight exp(E) in the path integral.

        Terms that enforce equations without order parameters, such as ``x = phi(h)``, are left out.
        """
        exponents: dict[str, Expr] = {}
        for x in self.terms:
            exponents[x.home.name] = exponents.get(x.home.name, S.Zero) + x.whole
        return exponents

    def influence(self, name: ParameterName) -> dict[str, Expr]:
        """Return the derivative of the exponent of one unit by an order parameter.

        Parameters
        ----------
        name : str or FluctuatingParameter
            Order parameter, or the name of one (the first of that name). It is taken at the indices and
            times of its symbol.

        Returns
        -------
        dict[str, Expr]
            Derivative, with hatted (conjugate) fields, of the exponent E, for each population whose exponent
            contains the order parameter. The path integral over the fields of one unit has the weight exp(E).

        Examples
        --------
        >>> from derive.program import mlp
        >>> fluctuations(mlp()).influence("B")
        {'layer': gamma0*h(ell, alpha, s)*hat(xi(ell, t))}
        """
        return influence(self, self._parameter(name))

    def second_influence(self, name: ParameterName, other: ParameterName) -> dict[str, Expr]:
        """Return the derivative of the exponent of one unit by two order parameters.

        Parameters
        ----------
        name : str or FluctuatingParameter
            First order parameter, or the name of one (the first of that name).
        other : str or FluctuatingParameter
            Second order parameter in the same form; it is taken at other indices and times.

        Returns
        -------
        dict[str, Expr]
            Second derivative, with hatted (conjugate) fields, of the exponent E, for each population where it
            is not zero. The path integral over the fields of one unit has the weight exp(E).

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
        second = with_other_indices(self._parameter(other), indices_and_times(first))
        derivatives = {}
        for population, e in self.influence(first).items():
            slope = functional_derivative(e, second.symbol, (*first.ranges, *second.every))
            if slope != 0:
                derivatives[population] = slope
        return derivatives

    def noise(self, name: ParameterName, other: ParameterName) -> Expr:
        """Return the noise of two averages over units: N times their covariance.

        Parameters
        ----------
        name : str or FluctuatingParameter
            First order parameter, or the name of one (the first of that name).
        other : str or FluctuatingParameter
            Second order parameter in the same form; it is taken at other indices and times.

        Returns
        -------
        Expr
            ``kappa``, at fixed order parameters. It contains a Kronecker delta of the layers if these depend
            on indices. It is zero for averages over units of different populations or layers, and if one of
            the two is a function of other order parameters.

        Examples
        --------
        >>> from derive.program import mlp
        >>> fluctuations(mlp(1)).noise("f", "f")
        -<g(1, t)*h(1, mu, t)>*<g(1, t_)*h(1, alpha, t_)>/gamma0**2
            + <g(1, t)*g(1, t_)*h(1, alpha, t_)*h(1, mu, t)>/gamma0**2
        """
        return noise(self, self._parameter(name), self._parameter(other))

    def feedback(self, name: ParameterName, other: ParameterName) -> Expr:
        """Return the derivative of one order parameter by another, with all others fixed.

        Parameters
        ----------
        name : str or FluctuatingParameter
            Order parameter that changes, or the name of one (the first of that name).
        other : str or FluctuatingParameter
            Order parameter that is perturbed, in the same form; it is taken at other indices and times.

        Returns
        -------
        Expr
            ``D``: the derivative through the exponent of the unit over which the first one averages, plus the
            derivative of its part that is a function of order parameters.

        Examples
        --------
        >>> from derive.program import mlp
        >>> fluctuations(mlp()).feedback("A", "B")
        KroneckerDelta(ell, ell_)*<d d h(ell, alpha_, s_)*h(ell, mu, t) / d xi(ell, s) / d xi(ell, t_)>
        """
        return feedback(self, self._parameter(name), self._parameter(other))

    def shift_source(self, name: ParameterName, expanded: bool = False) -> ShiftSource:
        """Return the source of the shift of the mean of an order parameter at order 1/N.

        Parameters
        ----------
        name : str or FluctuatingParameter
            Order parameter, or the name of one (the first of that name).
        expanded : bool, optional
            Whether influences are written out; otherwise they stand as symbols ``E[q]``.

        Returns
        -------
        ShiftSource
            The source in three parts, with covariances and propagators as symbols.

        Notes
        -----
        N times the shift is ``R = (1 - D)^(-1)`` applied to the sources of all order parameters.

        Examples
        --------
        >>> from derive.program import mlp
        >>> fluctuations(mlp(1)).shift_source("f").curvature
        Sum(<g(1, t)*h(1, mu, t)*E[Delta(alpha, t_)]*E[Delta(mu_, t__)]>*Cov[Delta(alpha, t_), Delta(mu_,
            t__)]/(2*gamma0), (alpha, 1, P), (t_, 0, oo), (mu_, 1, P), (t__, 0, oo))
        """
        return shift_source(self, self._parameter(name), expanded)

    def deterministic(self, name: ParameterName) -> Expr:
        """Return a number or an observable as a function of averages.

        Parameters
        ----------
        name : str or FluctuatingParameter
            Number or observable, or the name of one (the first of that name).

        Returns
        -------
        Expr
            Expression with all other numbers substituted, except those that depend on their own earlier
            values.

        Raises
        ------
        ValueError
            If the order parameter is an average over units.
        KeyError
            If there is no order parameter of that name.

        Examples
        --------
        >>> from derive.program import mlp
        >>> fluctuations(mlp()).deterministic("Delta")
        -f(mu, t) + y(mu)
        """
        q = self._parameter(name)
        if q.unit != 0:
            raise ValueError(
                f"{q.symbol} is an average over units, and not a function of averages: give an observable, "
                "or a scalar that is a function of averages, such as an error"
            )
        return in_averages(self, q)

    # -- printing --------------------------------------------------------------------------------------------

    def render(self, show: document.FluctuationPart = "all", format: str = "text") -> str:
        """Return the fluctuations, or a part of them, as text, LaTeX or JSON.

        Parameters
        ----------
        show : document.FluctuationPart, optional
            ``"process"`` (the fields of one unit), ``"order-parameters"``, ``"exponent"``, ``"influences"``,
            ``"noise"``, ``"feedback"``, ``"shift"``, or ``"all"`` for everything except ``"shift"``.
        format : {"text", "latex", "json"}
            Format.

        Returns
        -------
        str
            Text, a LaTeX ``align*`` environment for each section, or a JSON object with a list for each
            section.

        Raises
        ------
        ValueError
            If the part or the format is unknown.

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
        """Return the origin of an order parameter and the terms that contain it, in words.

        Parameters
        ----------
        name : str
            Name of the order parameter.

        Returns
        -------
        str
            Explanation. For a response it also names the conjugate one, which is the response in the opposite
            direction between the same two products. Of the two, only the response of the later product to the
            earlier one is an order parameter. At equal times the order of computation within a step decides.

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
        """Return the first order parameter of a name; an order parameter is returned as it is."""
        return self.parameter(name) if isinstance(name, str) else name


def fluctuations(program: Program) -> Fluctuations:
    """Derive the leading fluctuations of finite networks around the mean-field theory.

    Parameters
    ----------
    program : Program
        Program whose rule is linear in the gradient. Its networks have N units in a population of ratio one.

    Returns
    -------
    Fluctuations
        Order parameters, the functions that they average, and the exponent of one unit.

    Raises
    ------
    NotApplicable
        If ``program`` is not a `Program`, or if its theory contains more than averages over equivalent units:
        pairs of units (rules that act on each entry), matrices correlated with their transposes, or units
        with attributes. Also for other expressions for which fluctuations are not derived; the message names
        them.
    ProgramError
        As :func:`derive.theory.mean_field` raises it.

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
    """Derive the fluctuations of finite networks of a program; the last 32 results are cached."""
    integral = path_integral(program)
    at_equal_times = responses_at_equal_times(integral._action)
    exponent = ExponentBuilder(Assembly(integral._saddle, at_equal_times), integral.theory()).build()
    parts = (
        exponent.products,
        exponent.definitions,
        exponent.homes,
        exponent.sources,
        exponent.parameters,
        exponent.terms,
    )
    return Fluctuations(integral.program, *parts)
