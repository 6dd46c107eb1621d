"""Limit of infinite depth and its corrections: equations in layer time ``tau = ell/L``.

Every function is ``X = sum over n of u^n X_n``. Here u is the largest vanishing power of L in the equations:
``1/L`` from the discrete layers, or the relative size of a term that the limit drops, if that is larger.
:mod:`.layers` expands equations between layers into equations of the ``X_n``. At order 0, recursions are
differential equations in layer time (linear2025 C.1, depth2023 Prop. 4.4). :func:`diversity` derives from the
equations at order 0 how far neighbouring layers differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from sympy import (
    Add,
    Derivative,
    DiracDelta,
    Eq,
    Expr,
    Function,
    Heaviside,
    Integral,
    Mul,
    Pow,
    S,
    Sum,
    Symbol,
)
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average
from derive.calculus.series import PowerCoefficients
from derive.calculus.sums import addends, evaluate_deltas, factors, rewritten, without_empty
from derive.calculus.symbols import L, ell, s, t
from derive.depth.balance import power
from derive.depth.layers import (
    ABOVE,
    BELOW,
    LayerExpansion,
    LayerRecursion,
    between,
    coefficient_name,
    crossings,
    cuts,
    layers_of,
    neighbour,
    place,
    recursion,
    require_free_layer_times,
    tau,
    tau_,
    tau_2,
)
from derive.depth.rescale import relabelled
from derive.errors import NotApplicable, require_type
from derive.linear.propagators import CrossLayer, find, k
from derive.show.conditions import ConditionalResult
from derive.show.latex import aligned_latex
from derive.theory import Equation

WIDTH_FIRST = "assumed: the width goes to infinity before the depth, at a fixed number of steps"
"""A condition of the equations in layer time."""
STEPS = S.NegativeOne
"""The power of L of the discretisation error of layers."""


@dataclass(frozen=True)
class Scaling:
    """Dependence of symbols on the depth, such as ``{beta: beta0/sqrt(L)}``; exponents may be symbols.

    Symbols in exponents of L can be replaced too. With ``L**-alpha`` the branch multiplier and ``L**-gamma``
    the size of updates, ``{alpha: 1/2 + e, gamma: 1/2 - e}`` with e > 0 gives the scalings on the line
    ``alpha + gamma = 1`` above alpha = 1/2.

    Parameters
    ----------
    values : mapping of Symbol to Expr
        The expression in L of each symbol; by default no symbol depends on L.
    """

    values: Mapping[Symbol, Expr] = field(default_factory=dict)

    def __call__(self, e: Expr) -> Expr:
        """Return an expression with each symbol that depends on the depth replaced by its expression in L."""
        return S(e).subs(dict(self.values))


@dataclass(frozen=True)
class Dropped:
    """A term ``L**order * expr`` of the equation of ``lhs`` that vanishes in the limit of infinite depth.

    The terms that stay are of order one, and ``order < 0``.
    """

    lhs: Expr
    expr: Expr
    order: Expr


@dataclass(frozen=True, repr=False)
class LayerTime(ConditionalResult):
    """Equations of a linear residual network in layer time.

    Parameters
    ----------
    single_site : tuple of Eq
        Stochastic differential equations of the fields in tau, and equations of fields without a recursion
        over layers, such as those at an end of the network.
    noise : tuple of Eq
        Covariances of the sources: white in layer time, or those of single layers.
    responses : tuple of Eq
        Differential equations of the responses at ``tau`` to perturbations at ``tau_``.
    starts : tuple of Eq
        Initial values of the responses, at the end of the network at which their recursion starts, and
        equations of responses without a recursion.
    integrals : tuple of Eq
        The responses as integral equations, in which differential equation and initial value are one, and
        equations of responses without a recursion.
    correlations, scalars : tuple of Eq
        Equations of correlations at a layer time, and of outputs and errors.
    dropped : tuple of Dropped
        Terms that vanish as L grows.
    vanishing : tuple of str
        Names of the responses that are zero in the limit.
    """

    single_site: tuple[Eq, ...]
    noise: tuple[Eq, ...]
    responses: tuple[Eq, ...]
    starts: tuple[Eq, ...]
    integrals: tuple[Eq, ...]
    correlations: tuple[Eq, ...]
    scalars: tuple[Eq, ...]
    dropped: tuple[Dropped, ...]
    vanishing: tuple[str, ...]

    def response(self, name: str) -> Eq:
        """Return the differential equation in layer time of a response.

        Parameters
        ----------
        name : str
            The name of the response.

        Returns
        -------
        Eq
            The equation.

        Raises
        ------
        KeyError
            If there is no such response, if it has no recursion over layers, or if it is zero in the limit.
        """
        return find(self.responses, name)

    def start(self, name: str) -> Eq:
        """Return the initial value in layer time of a response.

        Parameters
        ----------
        name : str
            The name of the response.

        Returns
        -------
        Eq
            The value at the end of the network (``tau = 0`` or 1) where the recursion starts; the whole
            equation of a response without a recursion over layers.

        Raises
        ------
        KeyError
            If there is no such response, or if it is zero in the limit.
        """
        return find(self.starts, name)

    def integral(self, name: str) -> Eq:
        """Return a response as an integral equation.

        Parameters
        ----------
        name : str
            The name of the response.

        Returns
        -------
        Eq
            The equation; that of a response without a recursion over layers may have no integral.

        Raises
        ------
        KeyError
            If there is no such response, or if it is zero in the limit.
        """
        return find(self.integrals, name)

    def correlation(self, name: str) -> Eq:
        """Return the equation of a correlation or scalar.

        Parameters
        ----------
        name : str
            The name of the correlation or scalar.

        Returns
        -------
        Eq
            The equation.

        Raises
        ------
        KeyError
            If no equation has this name.
        """
        return find((*self.correlations, *self.scalars), name)

    def field(self, name: str) -> Eq:
        """Return the single-site equation of a field in the body of the network.

        Parameters
        ----------
        name : str
            The name of the field.

        Returns
        -------
        Eq
            The stochastic differential equation in tau.

        Raises
        ------
        KeyError
            If there is no such field, or if its equation is not a recursion over layers.
        """
        return find([e for e in self.single_site if isinstance(e.lhs, Derivative)], name)

    def conditions(self) -> tuple[str, ...]:
        """Return what is assumed in the limit of infinite depth, and which terms vanish in it.

        Returns
        -------
        tuple of str
            Two sentences that begin with "assumed:". Then, if there are any, the powers of L of dropped terms
            and the names of the responses that vanish, each in one sentence that begins with "derived:".
        """
        lost = sorted({str(x.order) for x in self.dropped})
        return (
            WIDTH_FIRST,
            "assumed: functions are smooth in layer time on either side of the layer of a source",
            *([f"derived: terms of relative size L^({'), L^('.join(lost)}) are dropped"] if lost else []),
            *(
                [
                    f"derived: the responses {', '.join(self.vanishing)} are zero, because no term of their "
                    "equations stays in the limit"
                ]
                if self.vanishing
                else []
            ),
        )

    def _repr_latex_(self) -> str:
        return aligned_latex((*self.integrals, *self.correlations, *self.scalars))


@dataclass(frozen=True, repr=False)
class InfiniteDepth(ConditionalResult):
    """Series of a network of L layers about infinite depth: ``sum over n <= order of L**(n power) X_n``.

    Parameters
    ----------
    limit : LayerTime
        The order 0, X_0.
    power : Expr
        The power of L of the first correction.
    order : int
        The highest order n.
    system : LayerTime
        The equations of all ``X_n`` and of the derivatives by layer time in them: ``first_X`` and
        ``second_X`` are coefficients, ``slope_X`` is the derivative of X by tau, ``source_slope_X`` that by
        ``tau_``, ``X_above`` and ``X_below`` are the limits of X at ``tau_ = tau`` from the layers above and
        below the source, ``ddloss`` is the derivative of a given function ``dloss(t, f)`` by f.
    """

    limit: LayerTime
    power: Expr
    order: int
    system: LayerTime

    @cached_property
    def equations(self) -> Mapping[str, Eq]:
        """The equations of the series, by the name of the function on their left-hand side.

        The functions are the coefficients ``X_n`` at all orders, such as ``first_X``, and those of their
        derivatives by layer time that the equations contain, such as ``slope_X``.
        """
        whole = (*self.system.integrals, *self.system.correlations, *self.system.scalars)
        return {str(e.lhs.func): e for e in whole}

    def coefficient(self, name: str, n: int) -> Eq:
        """Return the equation of the coefficient ``X_n`` of ``L**(n power)`` in the series of a function X.

        Parameters
        ----------
        name : str
            The name of the function.
        n : int
            The order.

        Returns
        -------
        Eq
            The equation.

        Raises
        ------
        KeyError
            If there is no such coefficient.
        """
        whole = coefficient_name(name, n)
        if whole not in self.equations:
            first = coefficient_name("", min(self.order, 1))
            have = sorted(x.removeprefix(first) for x in self.equations if x.startswith(first))
            raise KeyError(
                f"no coefficient of order {n} of {name}: coefficients up to order {self.order} exist of "
                f"{', '.join(have)}"
            )
        return self.equations[whole]

    def conditions(self) -> tuple[str, ...]:
        """Return what is assumed and what is derived in the series in powers of L.

        Terms that the limit drops are part of the series, and are not listed.

        Returns
        -------
        tuple of str
            Four sentences: three that begin with "assumed:", and one that begins with "derived:".
        """
        orders = ("zero", "one")[self.order] if self.order < 2 else f"1 to {self.order}"
        return (
            *self.limit.conditions()[:2],
            f"assumed: a series in powers of L^({self.power}) exists",
            f"derived: the power of L, and the coefficients of order {orders}",
        )

    def _repr_latex_(self) -> str:
        return aligned_latex(self.equations.values())


RESCALED = "a rescaled system, rescale(cross_layer(theory), branch) of derive.depth"
"""Description of the argument that a limit of infinite depth accepts, for messages."""


def layer_time(cross: CrossLayer, scaling: Scaling | None = None) -> LayerTime:
    """Return the limit L to infinity of a rescaled system (see :mod:`.rescale`).

    Parameters
    ----------
    cross : CrossLayer
        The rescaled recursions over layers.
    scaling : Scaling, optional
        The dependence of symbols on L; by default symbols do not depend on L.

    Returns
    -------
    LayerTime
        The equations in layer time.

    Raises
    ------
    NotApplicable
        If a term grows with L or the sign of its order in L is unknown, if a symbol of the theory is equal
        to a layer time, or if ``cross`` is not a rescaled system.

    Examples
    --------
    >>> from derive import isotropic, mean_field
    >>> from derive.linear.propagators import cross_layer
    >>> from derive.depth.rescale import rescale
    >>> beta, beta0 = Symbol("beta", positive=True), Symbol("beta0", positive=True)
    >>> cross = rescale(cross_layer(mean_field(isotropic(data="population", branch=beta))), beta)
    >>> limit = layer_time(cross, Scaling({beta: beta0 * L**-S.Half}))
    >>> for x in limit.response("R_hu").rhs.args: print(x)
    DiracDelta(tau - tau_)*KroneckerDelta(s, t)
    Sum(beta0**2*R_gu(tau, tau_, s_, s)*R_hr(tau, tau, t, s_), (s_, s + 1, t))
    Sum(beta0**2*eta*gamma0*C_h(tau, t, s_)*R_gu(tau, tau_, s_, s), (s_, s + 1, t - 1))
    """
    require_type(cross, CrossLayer, "layer_time", RESCALED)
    require_free_layer_times(cross.theory)
    return _Limit(cross, scaling or Scaling()).result()


def infinite_depth(cross: CrossLayer, scaling: Scaling | None = None, order: int = 1) -> InfiniteDepth:
    """Expand a rescaled system (see :mod:`.rescale`) about infinite depth.

    Parameters
    ----------
    cross : CrossLayer
        The rescaled recursions over layers.
    scaling : Scaling, optional
        The dependence of symbols on L; by default symbols do not depend on L.
    order : int
        The highest order n of the series in ``L**power``; 0 gives the limit alone.

    Returns
    -------
    InfiniteDepth
        The series; its ``power`` is the largest power of L among the terms that the limit drops and 1/L.

    Raises
    ------
    NotApplicable
        If the limit does not exist, responses vanish in it (rescale by the branch multiplier), powers of L
        cannot be compared or are not integer powers of ``L**power``, an expression or a jump cannot be
        expanded in the inverse depth, or ``order`` is negative; also for what :func:`layer_time` refuses.

    Examples
    --------
    >>> from derive import mean_field
    >>> from derive.depth import cross_layer, rescale
    >>> from derive.program.networks.residual import depth_program
    >>> found = infinite_depth(rescale(cross_layer(mean_field(depth_program())), L**-S.Half))
    >>> found.power
    -1
    >>> found.coefficient("f", 1)
    Eq(first_f(t), first_R_xV(1, t))
    """
    require_type(cross, CrossLayer, "infinite_depth", RESCALED)
    require_free_layer_times(cross.theory)
    return _Expansion(aligned(cross), scaling or Scaling(), order).result()


def aligned(cross: CrossLayer) -> CrossLayer:
    """Renumber the layers of sources so that field and source at the same layer have equal layer arguments.

    A response that is used at such layers, for example ``X(ell, ell + 1)`` to the source of matrix ``ell +
    1``, then reads ``X(ell, ell)``. Raises :class:`NotApplicable` if one source needs two different shifts.
    """
    names = {f"R_{e.name}{p.name}": p.name for e in cross.theory.equations for p in cross.perturbed_sources}
    shifts: dict[str, Expr] = {}
    for e in (*cross.responses, *cross.correlations, *cross.scalars):
        for x in e.rhs.atoms(AppliedUndef):
            source = names.get(str(x.func))
            if source and len(x.args) >= 4 and x.args[0].has(ell) and x.args[1].has(ell):
                shift = ell - x.args[1]
                if shifts.setdefault(source, shift) != shift:
                    raise NotApplicable(
                        f"the equations contain responses to the source {source} at its layers "
                        f"{ell - shifts[source]} and {x.args[1]}, the latter in {x}; all responses to one "
                        "source must contain its layer with the same shift of ell"
                    )
    return relabelled(cross, {n: x for n, x in shifts.items() if x != 0}) if any(shifts.values()) else cross


# -- order 0 ---------------------------------------------------------------------------------------------


class _EquationTerms:
    """Equations between layers of a residual network, sorted into recursions and other equations."""

    def __init__(self, cross: CrossLayer, scaling: Scaling) -> None:
        """Sort the equations of responses into recursions over layers (``moving``) and others (``ends``).

        ``slots`` counts the layer arguments of each function, and ``moved`` are the names of the functions
        with a recursion. ``scaling`` is the dependence of symbols on L.
        """
        self.cross, self.scaling = cross, scaling
        self.slots = dict.fromkeys((str(e.lhs.func) for e in cross.scalars), 0) | layers_of(cross)
        self.moving = [recursion(e) for e in cross.responses if neighbour(e) is not None]
        self.ends = [e for e in cross.responses if neighbour(e) is None]
        self.moved = {str(e.lhs.func) for e in self.moving}

    def terms(self, e: Expr, extra: Expr = S.Zero) -> list[tuple[Expr, Expr]]:
        """Return pairs (p, rest) such that ``L**extra * e`` is the sum of ``L**p * rest`` over the pairs.

        In ``rest`` a sum over the layers k stands for the sum divided by L, because p counts it as one power.
        """
        pairs = []
        for x in Add.make_args(self.scaling(e).expand()):
            for y in addends(x) if isinstance(x, Sum | Integral) else (x,):
                order, factor = power(y)
                total = self.scaling(order + extra).expand()
                pairs.append((total if total.is_number else total.simplify(), factor))
        return pairs

    def at(self, lhs: Expr) -> Expr:
        """Return the function on the left-hand side of an equation at layer times in place of layers.

        The layer time is tau for ``ell + n``, ``tau_`` for ``k + n``, 1 for ``L + n`` and 0 for a number.
        """
        n = self.slots.get(str(lhs.func), 0)
        return lhs.func(*[place(x)[0] for x in lhs.args[:n]], *lhs.args[n:])


class _Limit(_EquationTerms):
    """Derivation of the equations in layer time: those between layers at leading order in the depth L."""

    def __init__(self, cross: CrossLayer, scaling: Scaling) -> None:
        """Sort the equations between layers, with the dependence of symbols on L that ``scaling`` gives."""
        super().__init__(cross, scaling)
        self.reader = LayerExpansion(self.slots)
        self.dropped: list[Dropped] = []

    def result(self) -> LayerTime:
        """Return the equations of the network in layer time, in the limit of infinite depth."""
        starts = [self.row(e) for e in self.ends]
        begun = {str(e.lhs.func): e.rhs for e in starts if e.lhs.args and e.lhs.args[0].is_number}
        rated = [(e, self.rate(e), self.step(e)) for e in self.moving]
        zero = _vanishing([*starts, *(Eq(e.lhs, a + b, evaluate=False) for e, a, b in rated)])

        def clean(e: Expr) -> Expr:
            """Return an expression with zero in place of the responses that vanish in the limit."""
            gone = {x: S.Zero for x in e.atoms(AppliedUndef) if str(x.func) in zero}
            return without_empty(e.xreplace(gone))

        def rows(items: Iterable[Eq]) -> tuple[Eq, ...]:
            """Return equations with zero in place of the responses that vanish in the limit."""
            return tuple(Eq(e.lhs, clean(e.rhs), evaluate=False) for e in items)

        alive = [(e, clean(a), clean(b)) for e, a, b in rated if str(e.lhs.func) not in zero]
        starts = [e for e in starts if str(e.lhs.func) not in zero]
        delta_ = DiracDelta(tau - tau_)
        integrals = [
            Eq(
                self.at(e.lhs),
                _Solution(e.direction, clean(begun.get(str(e.lhs.func), S.Zero)), step, rate, S.Zero).expr(),
                evaluate=False,
            )
            for e, rate, step in alive
        ]
        return LayerTime(
            single_site=tuple(self.single_site()),
            noise=tuple(self.noise()),
            responses=tuple(self.derivative(e, e.direction * (a + b * delta_)) for e, a, b in alive),
            starts=rows(starts),
            integrals=(*integrals, *rows(e for e in starts if str(e.lhs.func) not in self.moved)),
            correlations=rows(map(self.row, self.cross.correlations)),
            scalars=rows(map(self.row, self.cross.scalars)),
            dropped=tuple(self.dropped),
            vanishing=tuple(sorted(zero)),
        )

    def kept(self, lhs: Expr, e: Expr, extra: Expr = S.Zero, factor: Expr = S.One) -> Expr:
        """Return the part of ``L**extra * e`` that stays finite as L grows, as a function of layer time.

        ``e`` is in the equation of ``lhs``. Smaller terms, times ``factor``, are recorded in ``dropped``.
        Raises :class:`NotApplicable` if a term grows, or if it is unknown whether it grows.
        """
        total = S.Zero
        for order, rest in self.terms(e, extra):
            (value,) = self.reader.series(rest)
            if value == 0:
                continue
            if order == 0:
                total += self.with_limits_of_arguments(lhs, value)
            elif order.is_negative:
                self.dropped.append(Dropped(lhs, factor * value, order))
            elif order.is_positive:
                raise NotApplicable(
                    f"the equation of {lhs} has no limit: the term L**({order})*({value}) grows"
                )
            else:
                raise NotApplicable(
                    f"the equation of {lhs} has a term with the factor L**({order}), and whether it grows "
                    "with L is not known: the sign of the exponent depends on symbols"
                )
        return total

    def with_limits_of_arguments(self, lhs: Expr, e: Expr) -> Expr:
        """Return an expression in which arguments of functions that contain L have their limits.

        An example is ``dloss(t, f(t)/sqrt(L))``, whose limit is ``dloss(t, 0)``. ``e`` is in the equation of
        ``lhs``.
        """
        return e.replace(
            lambda x: isinstance(x, AppliedUndef) and any(a.has(L) for a in x.args),
            lambda x: x.func(*[self.kept(lhs, a) if a.has(L) else a for a in x.args]),
        )

    def row(self, e: Equation | Eq) -> Eq:
        """Return the limit of infinite depth of an equation that relates functions at one layer."""
        return Eq(self.at(e.lhs), self.kept(e.lhs, e.rhs), evaluate=False)

    def rate(self, e: LayerRecursion) -> Expr:
        """Return the rate of change of a response by layer time, from its recursion over layers, as L grows.

        It is L times the increment from one layer to the next, without the jump at the layer of the source.
        For a recursion towards lower layers it is minus the derivative by layer time.
        """
        return Add(*[self.kept(e.lhs, x, S.One, S(e.direction)) for x in e.smooth])

    def step(self, e: LayerRecursion) -> Expr:
        """Return the jump of a response at the layer of its source, in the limit of infinite depth.

        The jump is taken in the direction of the recursion, towards higher or lower layers.
        """
        once = e.direction * DiracDelta(tau - tau_)
        return Add(*[self.kept(e.lhs, x.xreplace({ell: k - d}), factor=once) for x, d in e.jumps])

    def derivative(self, e: LayerRecursion, rate: Expr) -> Eq:
        """Return the equation ``d X/d tau = rate`` for the function X on the left of a recursion."""
        return Eq(Derivative(self.at(e.lhs), tau), rate.expand(deep=False), evaluate=False)

    # -- single site -----------------------------------------------------------------------------------------

    def single_site(self) -> Iterator[Eq]:
        """Yield the single-site equations in layer time; recursions become differential equations."""
        for e in self.cross.theory.equations:
            terms = [x.rewrite(lambda y: self.named(self.cross.own(y))) for x in e.terms]
            whole = replace(e, terms=tuple(terms))
            if neighbour(whole) is None:
                yield Eq(self.at(e.lhs), self.kept(e.lhs, Add(*[x.expr for x in terms])), evaluate=False)
                continue
            moving = recursion(whole)
            yield self.derivative(moving, moving.direction * self.rate(moving))

    def noise(self) -> Iterator[Eq]:
        """Yield the covariances ``<u(tau, t) u(tau_, s)>`` of the Gaussian sources in layer time."""
        for u in self.cross.theory.sources:
            name, value = str(u.symbol.func), self.reader.series(self.cross.own(S(u.covariance)))[0]
            if name in self.singles and u.layers:
                pair = u.symbol.func(tau, *u.symbol.args[1:]) * u.symbol.func(tau_, *u.partner.args[1:])
                value = DiracDelta(tau - tau_) * value
            else:
                pair = self.named(u.symbol) * self.named(u.partner)
            yield Eq(Average(pair), value, evaluate=False)

    @cached_property
    def singles(self) -> dict[str, tuple[Expr, ...]]:
        """Layers such as 1 and L whose source is a function of its own, by the name of the family of sources.

        The sources of the other layers become white noise in layer time.
        """
        return {p.name: p.singles for p in self.cross.perturbed_sources if p.family is not None}

    def named(self, e: Expr) -> Expr:
        """Return an expression with the sources of layers written as functions of layer time.

        In the body of the network ``u(ell, t) = u(tau, t)/sqrt(L)``, where u(tau, t) is white noise in tau.
        Sources of single layers are functions of their own, such as ``u(1, t) = u_1(t)``.
        """

        def put(x: AppliedUndef) -> Expr:
            if x.args[0] in self.singles[str(x.func)]:
                return Function(f"{x.func}_{x.args[0]}")(*x.args[1:])
            return x * L**-S.Half

        return rewritten(e, self.singles, put)


def _vanishing(rows: list[Eq]) -> set[str]:
    """Return the names of the responses that are zero in the limit.

    They are the largest set of responses for which every term of each of their equations contains a response
    of the set. ``rows`` are the equations of all responses.
    """
    zero = {str(e.lhs.func) for e in rows}
    while True:
        alive = {
            str(e.lhs.func)
            for e in rows
            for x in Add.make_args(e.rhs)
            if x != 0 and not any(str(a.func) in zero for a in x.atoms(AppliedUndef))
        }
        if not alive & zero:
            return zero
        zero -= alive


# -- higher orders ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Solution:
    """Solution ``X(tau, tau_)`` of a recursion over layers in integrated form, at one order of the expansion.

    ``X = start(tau_) + [passed] step + integral of rate over the layers passed + local(tau, tau_)``. Layers
    are passed from 0 to tau for ``direction`` 1 and from 1 to tau for -1; ``[passed]`` is one if the layer
    ``tau_`` of the source is among them, else zero. ``local`` has the terms without integral and step, such
    as the Euler-Maclaurin corrections at the ends of the sum over layers.
    """

    direction: int
    start: Expr
    step: Expr
    rate: Expr
    local: Expr

    def expr(self) -> Expr:
        """Return ``X(tau, tau_)`` as an expression: start, jump, integral of the rate, and local part."""
        up = self.direction == 1
        passed, layers = Heaviside(tau - tau_ if up else tau_ - tau), (S.Zero, tau) if up else (tau, S.One)
        steps = Add(*[passed * x for x in Add.make_args(self.step.expand(deep=False))])
        path = Integral(self.rate.xreplace({tau: between}), (between, *layers)) if self.rate != 0 else S.Zero
        return self.start + steps + path + self.local

    def by_layer(self, reader: LayerExpansion) -> _Solution:
        """Return the derivative of the solution X by the layer time tau of the field.

        The layer of the source, tau = ``tau_``, where X jumps, is left out.

        ``reader`` differentiates the coefficients of a series by layer times.
        """
        local = self.direction * self.rate + reader.derivative(self.local, tau)
        return _Solution(self.direction, S.Zero, S.Zero, S.Zero, local)

    def by_source(self, reader: LayerExpansion) -> _Solution:
        """Return the derivative of the solution X by the layer time ``tau_`` of the source.

        The rate of X may jump at ``tau = tau_``; this point of its integral moves with ``tau_``, so that the
        difference of the rate on both sides is added to the jump of X. ``reader`` differentiates coefficients
        by layer times.
        """
        sides = [reader.on_sides(self.rate, x, tau_) for x in (BELOW, ABOVE)]
        start, step, rate, local = (
            reader.derivative(x, tau_) for x in (self.start, self.step, self.rate, self.local)
        )
        return _Solution(self.direction, start, step + sides[0] - sides[1], rate, local)


class _Expansion(_EquationTerms):
    """Derivation of the equations of the coefficients ``X_n`` in the series about infinite depth.

    Each coefficient up to an order has an equation, and so has each of its derivatives by layer time that
    occurs in an equation.
    """

    def __init__(self, cross: CrossLayer, scaling: Scaling, order: int) -> None:
        """Take the limit of infinite depth and find the power of L of the first correction.

        Raises :class:`NotApplicable` if the order is negative or responses vanish in the limit.
        """
        super().__init__(cross, scaling)
        if order < 0:
            raise NotApplicable(f"order = {order}: the order of the expansion must not be negative")
        self.order = order
        self.limit = _Limit(cross, scaling).result()
        if self.limit.vanishing:
            gone = ", ".join(self.limit.vanishing)
            raise NotApplicable(
                f"the responses {gone} vanish in the limit, and the first correction is derived only if all "
                "responses stay finite: rescale them by the branch multiplier or, if they are rescaled, let "
                "the learning rate fall with a smaller power of the depth"
            )
        self.cuts = cuts(self.moving, self.slots)
        self.unit = self.largest()
        steps = self.units(STEPS)
        self.reader = LayerExpansion(self.slots, self.cuts, order, steps)

    def result(self) -> InfiniteDepth:
        """Return the equations of all coefficients from order 0 to the order of the expansion.

        Raises NotApplicable if the equation of a correlation, or one without a recursion, is written at a
        shifted layer such as ``ell + 1``.
        """
        local_equations = [e for e in self.ends if str(e.lhs.func) not in self.moved]
        for e in (*local_equations, *self.cross.correlations):
            if self.slots[str(e.lhs.func)] and place(e.lhs.args[0])[1]:
                raise NotApplicable(
                    f"the equation of {e.lhs} is written at the shifted layer {e.lhs.args[0]}; the expansion "
                    "takes equations at the layers ell, 0 and L"
                )
        rows = (*local_equations, *self.cross.correlations, *self.cross.scalars)
        self.local = {str(e.lhs.func): (e.lhs, self.series([e.rhs])) for e in rows}
        starts = {str(e.lhs.func): self.series([e.rhs]) for e in self.ends}
        self.solved = {str(e.lhs.func): (e.lhs, self.solution(e, starts)) for e in self.moving}
        todo = [(n, m, 0, 0) for n in (*self.solved, *self.local) for m in range(1, self.order + 1)]
        equations: dict[str, tuple[str, Eq]] = {}
        while todo:
            name, m, i, j = todo.pop(0)
            whole = coefficient_name(name, m, (i, j))
            if whole in equations:
                continue
            lhs, rhs = self.row(name, m, i, j)
            at = self.at(lhs)
            equations[whole] = name, Eq(Function(whole)(*at.args), rhs, evaluate=False)
            read = (self.reader.made.get(str(x.func)) for x in sorted(rhs.atoms(AppliedUndef), key=str))
            todo += [x[:4] for x in read if x is not None and x[1:4] != (0, 0, 0)]
        kinds = dict.fromkeys((str(e.lhs.func) for e in self.cross.correlations), "correlations")
        kinds |= dict.fromkeys((str(e.lhs.func) for e in self.cross.scalars), "scalars")
        whole_system: dict[str, tuple[Eq, ...]] = {
            x: getattr(self.limit, x) for x in ("integrals", "correlations", "scalars")
        }
        for name, e in equations.values():
            whole_system[kinds.get(name, "integrals")] += (e,)
        return InfiniteDepth(self.limit, self.unit, self.order, replace(self.limit, **whole_system))

    # -- powers of L -----------------------------------------------------------------------------------------

    def largest(self) -> Expr:
        """Return the largest negative power of L in the equations, the exponent of the small parameter.

        The power -1, which the discrete layers add, is among those that are compared. Raises NotApplicable if
        symbols in the exponents decide which power is larger.
        """
        rows = [(e.rhs, S.Zero) for e in (*self.ends, *self.cross.correlations, *self.cross.scalars)]
        for e in self.moving:
            rows += [(x, S.One) for x in e.smooth] + [(x, S.Zero) for x, _ in e.jumps]
        leading = STEPS
        for order in {order for e, extra in rows for order, _ in self.terms(e, extra)} - {S.Zero}:
            gap = (order - leading).expand()
            if gap.is_positive:
                leading = order
            elif not gap.is_nonpositive:
                raise NotApplicable(
                    f"the largest correction at finite depth is not found: whether L**({order}) is larger "
                    f"than L**({leading}) depends on symbols in the exponents"
                )
        return leading

    def units(self, order: Expr) -> int | None:
        """Return n with ``L**order = L**(n p)``, where ``L**p`` is the parameter of the series.

        Returns None if n is larger than the order of the expansion. Raises :class:`NotApplicable` if a
        smaller n is not an integer.
        """
        count = (order / self.unit).simplify()
        if count.is_Integer:
            return int(count) if count <= self.order else None
        if (self.order * self.unit - order).expand().is_positive:
            return None
        raise NotApplicable(
            f"the equations contain the factor L**({order}), which is not an integer power of "
            f"L**({self.unit}); the series has integer powers of L**({self.unit}) only"
        )

    def series(self, items: Iterable[Expr], extra: Expr = S.Zero) -> PowerCoefficients:
        """Return the series of ``L**extra`` times the sum of the expressions ``items``, as coefficients.

        The series is in the small parameter, the power of L of the first correction to infinite depth.
        """
        total = self.reader.constant(S.Zero)
        for e in items:
            for order, rest in self.terms(e, extra):
                n = self.units(order)
                if n is not None:
                    shifted = (*(S.Zero,) * n, *self.reader.series(rest))[: self.order + 1]
                    total = self.reader.add(total, shifted)
        return total

    # -- equations -------------------------------------------------------------------------------------------

    def solution(self, e: LayerRecursion, starts: Mapping[str, PowerCoefficients]) -> list[_Solution]:
        """Return the solution of a recursion over layers at each order of the series about infinite depth.

        The sum over layers is an integral with Euler-Maclaurin corrections at its ends and at jumps.
        ``starts`` maps each function to the series of its initial value.
        """
        up, p, reader = e.direction == 1, e.shift, self.reader
        rate = self.series(e.smooth, S.One)
        step = self.reader.constant(S.Zero)
        for x, d in e.jumps:
            step = self.reader.add(step, self.series([x.xreplace({ell: k - d})]))
        lower, upper = ((S.Zero, e.low), (tau, 1 - p)) if up else ((tau, -p), (S.One, e.high + 1))
        local = reader.missed(rate, tau, lower, upper)
        firsts = crossings(e.smooth, self.slots, self.cuts)
        jump = reader.jump(rate, tau, tau_, firsts, (BELOW, ABOVE))
        whole = zip(starts[str(e.lhs.func)], reader.add(step, jump), rate, local, strict=True)
        return [_Solution(e.direction, *x) for x in whole]

    def row(self, name: str, m: int, i: int, j: int) -> tuple[Expr, Expr]:
        """Return (function, right-hand side) for a coefficient X_m of a function X, or its derivative.

        ``name`` is the name of X, and the function is X as it stands on the left of its equation between
        layers. The right-hand side is that of X_m, differentiated i times by the layer time tau of the field
        and j times by that of the source, ``tau_``.
        """
        if name in self.solved:
            lhs, solutions = self.solved[name]
            solution = solutions[m]
            for _ in range(i):
                solution = solution.by_layer(self.reader)
            for _ in range(j):
                solution = solution.by_source(self.reader)
            return lhs, solution.expr()
        lhs, series = self.local[name]
        return lhs, self.reader.derivatives(self.reader.derivatives(series[m], tau, i), tau_, j)


# -- diversity -------------------------------------------------------------------------------------------
#
# A field is the sum over all sources of its response times the source, so that <x(tau, t) x(tau_2, s)> has
# the form of the correlation at one layer, with each response at the layer of its own field. Covariances of
# sources do not depend on tau. Therefore the squared distance <(x(tau) - x(tau_2))**2> has that form too,
# with the increment of each response in place of the response. The squared distance is expanded in |tau -
# tau_2|: responses to the sources between the two layers, a fraction |tau - tau_2| of all sources, jump.
# Other increments are derivatives times |tau - tau_2|.


@dataclass(frozen=True, repr=False)
class Diversity(ConditionalResult):
    """Squared distance of neighbouring layers of a field, ``<(x(tau) - x(tau_2))**2>``.

    Parameters
    ----------
    two_point : Eq
        The correlation of the field at layer time tau and time t with the field at layer time tau_2 and time
        s.
    distance : Expr
        The squared distance of the layers tau and tau_2 at time t, in terms of responses.
    roughness : Expr
        The limit of the squared distance over ``|tau - tau_2|``; zero if ``power`` is 2.
    power : int
        The lowest power of ``|tau - tau_2|`` in the squared distance, 1 or 2.
    coefficient : Expr
        The coefficient of this power.
    """

    two_point: Eq
    distance: Expr
    roughness: Expr
    power: int
    coefficient: Expr

    @property
    def exponent(self) -> Expr:
        """The exponent kappa of depth2023 Def. 7.6: layers differ by about ``|tau - tau_2|**(1 - kappa)``."""
        return 1 - S(self.power) / 2

    def conditions(self) -> tuple[str, ...]:
        """Return what is derived about the distance of neighbouring layers, and what is assumed.

        Returns
        -------
        tuple of str
            One sentence per condition.
        """
        by = "the sources between two layers" if self.power == 1 else "derivatives of responses by layer time"
        told = f", {self.coefficient}," if self.power == 1 else ""
        return (
            f"derived: the squared distance of layers starts with the power {self.power} of |tau - tau_2|, "
            f"which comes from {by}",
            f"assumed: the coefficient of this power{told} is not zero",
        )

    def _repr_latex_(self) -> str:
        return aligned_latex((self.two_point,))


def diversity(limit: LayerTime, name: str) -> Diversity:
    """Return the squared distance between neighbouring layers of a field of the residual stream.

    Parameters
    ----------
    limit : LayerTime
        The equations in layer time.
    name : str
        The name of the field's correlation at one layer.

    Returns
    -------
    Diversity
        The distance and its leading power.

    Raises
    ------
    KeyError
        If there is no such correlation.
    NotApplicable
        If the correlation has no layer, if neighbouring layers do not differ up to second order in their
        distance, or if a factor in the correlation depends on the layer and is not a response.

    Examples
    --------
    >>> from derive import mean_field
    >>> from derive.depth import gamma_c_recursion, layer_time
    >>> from derive.program.networks.residual import depth_program
    >>> found = diversity(layer_time(gamma_c_recursion(mean_field(depth_program()))), "C_0")
    >>> found.roughness, found.power, found.exponent
    (C_0(tau, t, t), 1, 1/2)
    """
    e = limit.correlation(name)
    if not (e.lhs.args and e.lhs.args[0] == tau):
        raise NotApplicable(
            f"{e.lhs} is not the correlation function of a field at a layer time {tau}; the difference "
            "between layers is derived from such functions only"
        )
    reader = _Increments(limit)

    def later(x: Expr) -> bool:
        """Return whether an expression is a response at layer time tau of the field at the second time s."""
        return reader.is_answer(x) and next(y for y in x.args[1:] if y in (t, s)) == s

    both = e.rhs.replace(later, lambda x: x.func(tau_2, *x.args[1:]))
    two = e.lhs.func(tau, tau_2, *e.lhs.args[1:])
    # The samples of both fields of a correlation are all of its arguments except the layer time, which is
    # first, and the times t and s, which are last.
    data = e.lhs.args[1:-2]
    now = {s: t} | dict(zip(data[len(data) // 2 :], data, strict=False))
    here = e.rhs.xreplace(now)
    distance = here + here.xreplace({tau: tau_2}) - 2 * both.xreplace(now)
    series = reader.series(here)
    powers = sorted(n for n, x in series.items() if x != 0)
    if not powers or powers[0] > SECOND:
        raise NotApplicable(
            f"the difference between layers is not found: the squared difference of the field of {e.lhs} "
            "between two layer times vanishes up to second order in the distance of the layer times, and "
            "higher orders are not derived"
        )
    return Diversity(
        Eq(two, both, evaluate=False),
        distance,
        series.get(1, S.Zero),
        powers[0],
        series[powers[0]],
    )


SECOND = 2
"""Highest power of the distance of two layers: increments have first order, products of two the second."""


class _Increments:
    """Differences of responses between two layer times, as series in the distance of the two.

    A series is a dictionary from powers of the distance to coefficients. Replacing each response in the
    correlation of a field by its difference gives the squared distance of the field between two layers.
    """

    def __init__(self, limit: LayerTime) -> None:
        """Find the responses in the equations of a limit, their jumps, and those constant in layer time."""
        self.answers = {str(x.lhs.func) for x in limit.integrals}
        self.jumps = {str(x.lhs.func): (x.lhs, j) for x in limit.integrals if (j := _jump(x)) != 0}
        self.constant = {
            str(e.lhs.expr.func)
            for e in limit.responses
            if e.rhs.replace(DiracDelta, lambda *_: S.Zero).expand() == 0
        }

    def is_answer(self, x: Expr) -> bool:
        """Return whether an expression is a response of a field at layer time tau."""
        return isinstance(x, AppliedUndef) and str(x.func) in self.answers and x.args[0] == tau

    def series(self, e: Expr, between: bool = False) -> dict[int, Expr]:
        """Return an expression, with each response replaced by its difference, as a series in the distance.

        The distance is that of the two layer times between which the difference is taken. With ``between``
        the layer of the source lies between the two, so that responses jump. Raises :class:`NotApplicable`
        for another factor that depends on tau.
        """
        if isinstance(e, Add):
            total: dict[int, Expr] = {}
            for x in e.args:
                total = _added(total, self.series(x, between))
            return total
        if isinstance(e, Mul | Pow) and e.has(tau):
            product = {0: S.One}
            for x in factors(e):
                product = _times(product, self.series(x, between))
            return product
        if isinstance(e, Sum):
            terms = self.series(e.function, between).items()
            return {n: without_empty(evaluate_deltas(Sum(x, *e.limits))) for n, x in terms}
        if isinstance(e, Integral) and e.limits[0][0] == tau_:
            outside = {n: Integral(x, *e.limits) for n, x in self.series(e.function).items() if x != 0}
            inside = self.series(e.function, between=True).items()
            return _added(outside, {n + 1: x.subs(tau_, tau) for n, x in inside})
        if self.is_answer(e):
            return self.increment(e, between)
        if e.has(tau):
            raise NotApplicable(
                f"the difference between layers is not derived: the factor {e} depends on the layer time "
                f"{tau} and is not a response to a source; only responses may depend on the layer time"
            )
        return {0: e}

    def increment(self, x: AppliedUndef, between: bool) -> dict[int, Expr]:
        """Return the difference of one response between two layer times, to first order in their distance.

        The result maps the power 0 to the jump at the layer of the source, if that lies ``between`` the two
        layers, else to zero, and the power 1 to the derivative by layer time.
        """
        slope = S.Zero if str(x.func) in self.constant else Derivative(x, tau)
        lhs, jump = self.jumps.get(str(x.func), (x, S.Zero))
        if not (between and x.args[1] == tau_):
            jump = S.Zero
        return {0: jump.xreplace(dict(zip(lhs.args, x.args, strict=True))), 1: slope}


def _added(one: Mapping[int, Expr], other: Mapping[int, Expr]) -> dict[int, Expr]:
    """Return the sum of two series in one variable, dictionaries from powers to coefficients."""
    return {n: one.get(n, S.Zero) + other.get(n, S.Zero) for n in {**one, **other}}


def _times(one: Mapping[int, Expr], other: Mapping[int, Expr]) -> dict[int, Expr]:
    """Return the product of two series, dictionaries from powers to coefficients, up to power 2."""
    product: dict[int, Expr] = {}
    for n, x in one.items():
        for m, y in other.items():
            if n + m <= SECOND:
                product[n + m] = product.get(n + m, S.Zero) + x * y
    return product


def _jump(e: Eq) -> Expr:
    """Return the jump at ``tau = tau_`` of a response that is given as an integral equation.

    It is the coefficient of the step function of ``tau - tau_``, minus that of the step function of ``tau_ -
    tau``.
    """
    sides = ((Heaviside(tau - tau_), 1), (Heaviside(tau_ - tau), -1))
    return Add(*[sign * x.coeff(side) for x in Add.make_args(e.rhs) for side, sign in sides])
