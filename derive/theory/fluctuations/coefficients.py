"""Noise, feedback and the source of the shift, as averages over one unit.

Noise is N times a covariance at fixed order parameters, and feedback is the derivative of one order parameter
by another. From the source follows the shift of the mean at order 1/N. The first order parameter of a pair is
taken at the indices of its symbol and the second one at other indices. Averages over units of different
populations or layers are independent; a Kronecker delta of layers multiplies an average over the unit that
both share. `Fluctuations` and `numerics.fluctuations` use the functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import Any

from sympy import Add, Expr, Function, Integral, Rational, S, Sum

from derive.calculus.sums import bound, defined, over, rename_all_bound, substitute
from derive.calculus.symbols import spelled
from derive.theory.fluctuations.data import FluctuatingParameter, FluctuationData
from derive.theory.fluctuations.hats import averaged
from derive.theory.fluctuations.one_unit import (
    PlacedParameter,
    UnitExponent,
    derivative_by,
    exponent_at,
    indices_and_times,
    layers_meet,
    placed_home,
    with_other_indices,
    with_renamed_indices,
)


class ParameterElement(Expr):
    """Base class of unevaluated quantities of one or two order parameters, such as ``Cov[q, p]``."""

    is_commutative = True
    head = ""
    latex_head = ""

    def __new__(cls, *parameters: Any) -> ParameterElement:
        """Return the unevaluated quantity of one or two order parameters, given by their symbols."""
        node: ParameterElement = Expr.__new__(cls, *map(S, parameters))
        return node

    def _latex(self, printer: Any, *_: Any) -> str:
        return rf"{self.latex_head}\left[{', '.join(printer._print(x) for x in self.args)}\right]"

    def _sympystr(self, printer: Any, *_: Any) -> str:
        return f"{self.head}[{', '.join(printer._print(x) for x in self.args)}]"


class ScaledCovariance(ParameterElement):
    """N times the covariance of two order parameters.

    >>> from sympy.abc import a, b
    >>> ScaledCovariance(a, b)
    Cov[a, b]
    """

    head, latex_head = "Cov", r"\mathrm{Cov}"


class Propagator(ParameterElement):
    """Element ``R[q, p]`` of the propagator: change of an order parameter q for a unit perturbation of p.

    It is ``R = (1 - D)^(-1)``, where ``D[q, p]`` is the derivative of q by p with all others fixed.

    >>> from sympy.abc import a, b
    >>> Propagator(a, b)
    R[a, b]
    """

    head, latex_head = "R", r"\mathcal{R}"


class NoiseElement(ParameterElement):
    """Element ``kappa[q, p]`` of the noise: N times the covariance of two averages over units, q and p.

    The units are independent, because all order parameters in their equations are fixed.
    """

    head, latex_head = "kappa", r"\kappa"


class FeedbackElement(ParameterElement):
    """Element ``D[q, p]`` of the feedback: derivative of an order parameter q by p with all others fixed."""

    head, latex_head = "D", "D"


class Influence(ParameterElement):
    """Derivative ``E[q]`` of the exponent E of one unit by an order parameter q, or ``E[q, p]`` by two.

    The path integral over the fields of one unit has the weight exp(E).

    >>> from sympy.abc import a, b
    >>> Influence(a), Influence(a, b)
    (E[a], E[a, b])
    """

    head, latex_head = "E", r"\mathcal{E}"


class ShiftElement(ParameterElement):
    """Element ``source[q]`` of the vector from which the shifts of means at order 1/N follow.

    N times the shifts of all order parameters are ``R = (1 - D)^(-1)`` applied to this vector, where D holds
    the derivatives of order parameters by each other.
    """

    head, latex_head = "source", r"\mathrm{source}"


def influence(theory: FluctuationData, q: FluctuatingParameter) -> dict[str, Expr]:
    """Return the derivative by an order parameter of the exponent E of one unit, for each population.

    The path integral over the fields of one unit has the weight exp(E). The result maps names of populations
    to expressions, without populations whose exponent does not contain the order parameter.
    """
    placed, derivatives = with_renamed_indices(q, {}), dict[str, Expr]()
    for x in theory.terms:
        slope = derivative_by(x.whole, placed, (*placed.ranges, *theory.depths))
        if slope != 0:
            derivatives[x.home.name] = derivatives.get(x.home.name, S.Zero) + slope
    return derivatives


def noise(theory: FluctuationData, first: FluctuatingParameter, second: FluctuatingParameter) -> Expr:
    """Return N times the covariance of two averages over units, while order parameters are fixed.

    The second order parameter has other indices and times. The result contains a Kronecker delta of the
    layers if these depend on indices. It is zero for units of different populations or layers, and if one of
    the two is not an average but a function of other order parameters.
    """
    first_placed = with_renamed_indices(first, {})
    second_placed = with_other_indices(second, indices_and_times(first))
    if (
        first_placed.home is None
        or second_placed.home is None
        or first_placed.home.name != second_placed.home.name
    ):
        return S.Zero
    meeting = layers_meet(
        first_placed.home.site,
        second_placed.home.site,
        (*first_placed.ranges, *second_placed.ranges),
        theory.depths,
    )
    if meeting is None:
        return S.Zero
    share, at = meeting
    one, two = (substitute(x, at) for x in (first_placed.unit, second_placed.unit))
    connected = averaged(one * two, theory.random)
    connected -= _product(averaged(one, theory.random), averaged(two, theory.random))
    home = placed_home(first_placed.home, at)
    assert home is not None
    return (share * connected / home.ratio).expand()


def feedback(theory: FluctuationData, first: FluctuatingParameter, second: FluctuatingParameter) -> Expr:
    """Return the derivative of the first order parameter by the second, with all others fixed.

    The second order parameter has other indices and times. The derivative acts on the exponent of the unit
    over which the first one averages, and on its part that is a function of other order parameters.
    """
    changed, perturbed = with_renamed_indices(first, {}), with_other_indices(second, indices_and_times(first))
    derivative = derivative_by(changed.function, perturbed, (*changed.every, *theory.depths))
    for part in _influences(theory, changed, perturbed):
        derivative += part.share * averaged(substitute(changed.unit, part.at) * part.expr, theory.random)
    return derivative


def _influences(
    theory: FluctuationData, unit_of: PlacedParameter, by: PlacedParameter
) -> Iterator[UnitExponent]:
    """Yield the derivatives of the terms in the exponent E of one unit by the order parameter ``by``.

    The path integral over the fields of one unit has the weight exp(E). The unit is one of those over which
    ``unit_of`` is an average; nothing is yielded if that is not an average. Derivatives that are zero are
    left out.
    """
    if unit_of.home is None:
        return
    for x in exponent_at(theory, unit_of.home, unit_of.ranges):
        slope = substitute(derivative_by(x.expr, by, (*unit_of.every, *theory.depths)), x.at)
        if slope != 0:
            yield UnitExponent(x.share, x.at, slope)


# -- the source of the shift ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class ShiftSource:
    """Vector element from which the shift of the mean of an order parameter at order 1/N follows.

    N times the shifts of all order parameters are ``R = (1 - D)^(-1)`` applied to the vector of these
    elements, where D is the derivative of order parameters by each other.

    Parameters
    ----------
    curvature : Expr
        Half the sum over pairs of order parameters: second derivative of the average times the covariance.
    self_action : Expr
        Effect of a unit on itself: it changes order parameters, and these change the average over the unit.
    functions : Expr
        Sum as in ``curvature``, with second derivatives of the part of the order parameter that is not an
        average but a function of other order parameters.
    """

    curvature: Expr
    self_action: Expr
    functions: Expr

    @property
    def whole(self) -> Expr:
        """Source of the shift as one expression: ``curvature + self_action + functions``."""
        return Add(self.curvature, self.self_action, self.functions)


def shift_source(theory: FluctuationData, q: FluctuatingParameter, expanded: bool) -> ShiftSource:
    """Return the source of the shift of the mean of the order parameter ``q`` at order 1/N, in three parts.

    N times the shifts are ``R = (1 - D)^(-1)`` applied to the sources, where D is the derivative of order
    parameters by each other. The derivatives ``E[p]`` of the exponent of one unit are written out if
    ``expanded``, and are symbols otherwise.
    """
    unit = _Unit(theory, with_renamed_indices(q, {}), expanded)
    others = [x for x in theory.parameters if x.kind != "observable"]
    curvature, functions = [], []
    for one, two in combinations_with_replacement(others, 2):
        j, k = _with_distinct_indices(unit.own, one, two)
        curvature.append(_contracted(unit.curvature(j, k), j, k))
        second = derivative_by(derivative_by(unit.own.function, k, unit.own.every), j, unit.own.every)
        functions.append(_contracted(second, j, k))
    acting = (unit.self_action(*_with_distinct_indices(unit.own, b, c)) for b in others for c in others)
    return ShiftSource(Add(*curvature), Add(*acting), Add(*functions))


def _with_distinct_indices(
    own: PlacedParameter, one: FluctuatingParameter, two: FluctuatingParameter
) -> tuple[PlacedParameter, PlacedParameter]:
    """Return ``one`` and ``two`` with indices that differ from each other and from those of ``own``."""
    taken = {*indices_and_times(own.parameter)}
    first = with_other_indices(one, taken)
    return first, with_other_indices(two, {*taken, *(r.index for r in first.every)})


def _contracted(e: Expr, j: PlacedParameter, k: PlacedParameter) -> Expr:
    """Return ``e``, a second derivative by order parameters j and k, times their covariance.

    The product is summed over the indices and times of both. It is multiplied by 1/2 if j and k are the same
    order parameter at different indices, because each pair of different ones is counted only once.
    """
    if e == 0:
        return S.Zero
    half = Rational(1, 2) if j.parameter == k.parameter else S.One
    return over(half * ScaledCovariance(j.symbol, k.symbol) * e, (*j.limits, *k.limits))


@dataclass(frozen=True)
class _Unit:
    """Unit over whose fields the order parameter ``own`` averages, for the shift of the mean of ``own``.

    Derivatives ``E[q]`` of the exponent E of the unit (its fields have the weight exp(E) in the path
    integral) are written out if ``expanded``, and are symbols otherwise.
    """

    theory: FluctuationData
    own: PlacedParameter
    expanded: bool

    def influences(self, by: PlacedParameter) -> tuple[UnitExponent, ...]:
        """Return the derivatives of the terms in the unit's exponent E by the order parameter ``by``.

        The path integral over the fields of the unit has the weight exp(E). Without ``expanded`` one symbol
        ``E[by]`` stands for their sum. The tuple is empty if all derivatives are zero.
        """
        derivatives = tuple(_influences(self.theory, self.own, by))
        return (
            derivatives
            if self.expanded or not derivatives
            else (UnitExponent(S.One, {}, Influence(by.symbol)),)
        )

    def second_influences(self, j: PlacedParameter, k: PlacedParameter) -> tuple[UnitExponent, ...]:
        """Return the second derivatives of the terms in the unit's exponent E by order parameters j and k.

        The path integral over the fields of the unit has the weight exp(E). Without ``expanded`` one symbol
        ``E[j, k]`` stands for their sum. The tuple is empty if all derivatives are zero.
        """
        slopes = (
            (x, derivative_by(x.expr, k, self.own.every)) for x in _influences(self.theory, self.own, j)
        )
        derivatives = tuple(UnitExponent(x.share, x.at, slope) for x, slope in slopes if slope != 0)
        both = Influence(j.symbol, k.symbol)
        return derivatives if self.expanded or not derivatives else (UnitExponent(S.One, {}, both),)

    def averaged(self, *parts: Expr) -> Expr:
        """Return the average over the unit's fields of the product of ``parts``.

        Hatted (conjugate) fields in the product become derivatives by perturbations of the fields' equations.
        Symbols ``E[q]`` count as functions of the fields.
        """
        body = S.One
        for x in parts:
            body = _product(body, x)
        random = self.theory.random
        if body.has(Influence):
            slots = {x: Function(f"E{i}")() for i, x in enumerate(sorted(body.atoms(Influence), key=spelled))}
            names = random | {str(x.func) for x in slots.values()}
            return averaged(body.xreplace(slots), names).xreplace({y: x for x, y in slots.items()})
        return averaged(body, random)

    def curvature(self, j: PlacedParameter, k: PlacedParameter) -> Expr:
        """Return the second derivative ``<F E_j E_k> + <F E_jk>`` of ``<F>`` by order parameters j and k.

        F is the function of the unit's fields that ``own`` averages, and E_j, E_jk are derivatives of the
        unit's exponent E; its fields have the weight exp(E) in the path integral.
        """
        total = S.Zero
        for x in self.influences(j):
            for y in self.influences(k):
                unit = substitute(self.own.unit, {**x.at, **y.at})
                total += (
                    x.share
                    * y.share
                    * self.averaged(unit, substitute(x.expr, y.at), substitute(y.expr, x.at))
                )
        for x in self.second_influences(j, k):
            total += x.share * self.averaged(substitute(self.own.unit, x.at), x.expr)
        return total

    def self_action(self, perturbed: PlacedParameter, moved: PlacedParameter) -> Expr:
        """Return the part of the shift of ``own`` that is due to the action of a unit on itself.

        It is the connected average ``<F F_b E_c>`` times the propagator ``R[c, b]``, summed over indices and
        times and divided by the number of units over N. F and F_b are the functions of the unit that ``own``
        and ``perturbed`` average. One unit changes the order parameter b (``perturbed``), which changes c
        (``moved``); c acts on the unit by E_c, the derivative of the unit's exponent by c.
        """
        home, other = self.own.home, perturbed.home
        if home is None or other is None or home.name != other.name:
            return S.Zero
        meeting = layers_meet(
            home.site, other.site, (*self.own.ranges, *perturbed.ranges), self.theory.depths
        )
        if meeting is None:
            return S.Zero
        share, at = meeting
        body = S.Zero
        for x in self.influences(moved):
            one, two = (substitute(substitute(u, at), x.at) for u in (self.own.unit, perturbed.unit))
            slope = substitute(x.expr, at)
            connected = self.averaged(one, two, slope)
            connected -= _product(self.averaged(one), self.averaged(two, slope))
            connected -= _product(self.averaged(two), self.averaged(one, slope))
            body += x.share * connected
        if body == 0:
            return S.Zero
        strength = share * Propagator(moved.symbol, perturbed.symbol) / substitute(S(home.ratio), at)
        return over(strength * body, (*perturbed.limits, *moved.limits))


def _product(one: Expr, other: Expr) -> Expr:
    """Return the product of two expressions; summation indices of the second are renamed if needed."""
    if not (one.has(Sum, Integral) or other.has(Sum, Integral)):
        return one * other
    return one * rename_all_bound(other, {*one.free_symbols, *bound(one)})


# -- numbers -------------------------------------------------------------------------------------------------


def in_averages(theory: FluctuationData, q: FluctuatingParameter) -> Expr:
    """Return the number or observable ``q`` as a function of averages over units.

    Numbers (order parameters that are functions of others, such as errors) are replaced by their definitions.
    Numbers that depend on their own earlier values are kept.
    """
    numbers = [x for x in theory.parameters if x.unit == 0 and not x.function.has(x.symbol.func)]
    definitions = [(x.symbol, x.function) for x in numbers if x.name != q.name]
    expression = q.function
    for _ in definitions:
        expression = defined(expression, definitions)
    return expression
