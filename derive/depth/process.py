"""Stochastic process in layer time of a unit of a deep nonlinear residual network.

A layer adds ``branch W phi(h)`` to the residual stream h, and the gradient passes back through the same
matrix. With the branch multiplier ``beta0/sqrt(L)`` the source of a layer enters with ``L^-1/2``, as white
noise in ``tau = ell/L``, while memory and responses enter with ``1/L``, as drift. The module counts these
powers in a theory of symbolic depth and returns the stochastic differential equations; their Euler scheme
with n cells is the theory of n layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sympy import Add, Derivative, DiracDelta, Eq, Expr, Function, Integral, Rational, S, Sum, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average, Response
from derive.calculus.sums import addends, drawn_out, rewritten
from derive.calculus.symbols import L, ell
from derive.depth.balance import power
from derive.depth.infinite import WIDTH_FIRST, Dropped, Scaling
from derive.depth.layers import neighbour, place, tau, tau_
from derive.errors import NotApplicable
from derive.show.conditions import ConditionalResult
from derive.show.latex import aligned_latex
from derive.theory import Equation, OrderParameter, Theory

NOISE, DRIFT = Rational(-1, 2), S.NegativeOne
"""Powers of L with which white noise and drift enter a layer."""


@dataclass(frozen=True)
class LayerProcess(ConditionalResult):
    """Stochastic differential equations in layer time, with the averages that close them.

    Parameters
    ----------
    single_site : tuple of Eq
        Equations of fields in the body of the network, ``d h/d tau``, and of those at its two ends.
    noise : tuple of Eq
        Covariances of the Gaussian sources; those of the body are white in layer time.
    order_parameters, numbers : tuple of Eq
        Averages at a layer time, and the outputs, errors and tangent kernel.
    units : mapping of str to Expr
        The power of L by which each response is divided, so that it has a limit.
    dropped : tuple of Dropped
        Terms that vanish as L grows.
    """

    single_site: tuple[Eq, ...]
    noise: tuple[Eq, ...]
    order_parameters: tuple[Eq, ...]
    numbers: tuple[Eq, ...]
    units: Mapping[str, Expr]
    dropped: tuple[Dropped, ...]

    def field(self, name: str) -> Eq:
        """Return the equation of a field in layer time.

        Parameters
        ----------
        name : str
            The name of a field in the body of the network.

        Returns
        -------
        Eq
            The equation ``d field/d tau = ...``.

        Raises
        ------
        KeyError
            If there is no such field.
        """
        for e in self.single_site:
            if isinstance(e.lhs, Derivative) and str(e.lhs.expr.func) == name:
                return e
        raise KeyError(name)

    def conditions(self) -> tuple[str, ...]:
        """Return what is derived and what is assumed in the limit of infinite depth.

        Returns
        -------
        tuple of str
            One sentence per condition.
        """
        scheme = "the theory of n layers is the Euler scheme of these equations with n cells of layer time"
        same = f"derived: {scheme}" if not self.dropped else f"derived: {scheme}, apart from vanishing terms"
        units = ", ".join(f"{name} by {unit}" for name, unit in self.units.items())
        return (
            WIDTH_FIRST,
            "assumed: fields and kernels have limits as functions of layer time, of order one",
            *(
                [f"derived: responses have the power of L of their source and are divided by it: {units}"]
                if units
                else []
            ),
            same,
            "assumed: averages of the scheme have a series in 1/n, as those of smooth equations have",
        )

    def _repr_latex_(self) -> str:
        return aligned_latex((*self.single_site, *self.order_parameters, *self.numbers))


def layer_process(theory: Theory, scaling: Scaling) -> LayerProcess:
    """Return the process in layer time of a residual network whose depth goes to infinity.

    Parameters
    ----------
    theory : Theory
        The theory of a network of symbolic depth whose layers add branches to a residual stream.
    scaling : Scaling
        The dependence of symbols on the depth, such as ``{beta: beta0/sqrt(L)}``.

    Returns
    -------
    LayerProcess
        The equations, with their conditions.

    Raises
    ------
    NotApplicable
        If the theory has no residual stream, or a term grows with the depth.

    Examples
    --------
    >>> from sympy import Symbol, sqrt
    >>> from derive import mean_field, mlp
    >>> beta, beta0 = Symbol("beta", positive=True), Symbol("beta0", positive=True)
    >>> theory = mean_field(mlp(activation="tanh", branch=beta))
    >>> process = layer_process(theory, Scaling({beta: beta0/sqrt(L)}))
    >>> for x in process.field("h").rhs.args[:2]: print(x)
    beta0*u(tau, mu, t)
    Sum(beta0*gamma0*A(tau, mu, alpha, t, s)*g(tau, alpha, s), (alpha, 1, P), (s, 0, t - 1))
    >>> print(process.conditions()[3])
    derived: the theory of n layers is the Euler scheme of these equations with n cells of layer time
    """
    return _Process(theory, scaling).result()


class _Process:
    """Derivation of the equations in layer time: terms of a layer are divided by their powers of L."""

    def __init__(self, theory: Theory, scaling: Scaling) -> None:
        """Find residual streams, fields inside of a layer, sources, and the units of responses.

        Raises :class:`NotApplicable` if the theory has no residual stream.
        """
        self.theory, self.scaling = theory, scaling
        families = [e for e in theory.equations if e.layers is not None]
        self.streams = [e for e in families if neighbour(e) is not None]
        self.inner = {e.name: e for e in families if neighbour(e) is None}
        if not self.streams:
            raise NotApplicable(
                "no residual stream: no field of a layer is that of the neighbouring layer plus a branch"
            )
        self.sources = {str(u.symbol.func): u for u in theory.sources if u.symbol.args[0].has(ell)}
        layered = {str(q.symbol.func) for q in theory.order_parameters if q.symbol.args[0].has(ell)}
        self.layered = {*layered, *self.sources, *(e.name for e in families)}
        self.dropped: list[Dropped] = []
        added = [x for e in self.streams for x in self.terms(self.added(e))]
        self.units = {q.name: unit for q in theory.responses() if (unit := self.unit(q, added)) != 1}

    def result(self) -> LayerProcess:
        """Return the equations in layer time."""
        return LayerProcess(
            single_site=tuple(self.single_site()),
            noise=tuple(self.noise()),
            order_parameters=tuple(self.order_parameters()),
            numbers=tuple(self.numbers()),
            units=self.units,
            dropped=tuple(self.dropped),
        )

    # -- one layer ---------------------------------------------------------------------------------------

    def added(self, e: Equation) -> Expr:
        """Return the increment of a stream in one layer, with the fields inside of the layer eliminated."""
        near = neighbour(e)
        return self.unfolded(Add(*[x.expr for x in e.terms if x.expr != near]))

    def unfolded(self, e: Expr) -> Expr:
        """Return an expression with fields inside of a layer replaced by their right-hand sides."""

        def put(x: AppliedUndef) -> Expr:
            equation = self.inner[str(x.func)]
            if x.args[1:] != equation.lhs.args[1:] or not (x.args[0] - equation.lhs.args[0]).is_Integer:
                raise NotApplicable(f"{x} is used at another time or sample than that of its equation")
            return equation.rhs.xreplace({ell: ell + x.args[0] - equation.lhs.args[0]})

        while any(str(x.func) in self.inner for x in e.atoms(AppliedUndef)):
            e = rewritten(e, self.inner, put)
        return e

    def terms(self, e: Expr) -> list[tuple[Expr, Expr]]:
        """Return pairs ``(p, rest)``: the expression is the sum of ``L**p * rest`` over the pairs."""
        whole = drawn_out(self.scaling(e).expand(), lambda _: False).expand()
        return [power(y) for x in Add.make_args(whole) for y in addends(x)]

    def unit(self, q: OrderParameter, added: list[tuple[Expr, Expr]]) -> Expr:
        """Return the unit of a response: the power of L with which the perturbed source enters a stream.

        ``added`` holds the terms of the increments of all streams, as pairs of power of L and remaining
        factor.
        """
        pushed = {x.args[1].func for x in q.definition.atoms(Response)}
        orders = [order for order, rest in added if pushed & {x.func for x in rest.atoms(AppliedUndef)}]
        return L ** max(orders) if orders else S.One

    def in_units(self, e: Expr) -> Expr:
        """Return an expression with each response R written as its unit times R."""
        return rewritten(e, self.units, lambda x: self.units[str(x.func)] * x)

    def kept(self, lhs: Expr, e: Expr, least: Expr) -> Expr:
        """Return the prefactors of the terms of order ``L**least`` at layer times.

        Record smaller terms as dropped.

        In the increment of a stream (``least`` not 0) sources are compared with ``L**-1/2``, the order of
        white noise. ``lhs`` is the function whose equation this is. Raises :class:`NotApplicable` if a term
        grows.
        """
        total = S.Zero
        for order, rest in self.terms(self.in_units(e)):
            white = any(str(x.func) in self.sources for x in rest.atoms(AppliedUndef))
            gap = order - (NOISE if white and least != 0 else least)
            if gap == 0:
                total += self.at(rest)
            elif gap.is_negative:
                self.dropped.append(Dropped(lhs, self.at(rest), gap))
            else:
                raise NotApplicable(f"the equation of {lhs} has no limit: {rest} grows like L**({gap})")
        return total

    # -- at layer times ----------------------------------------------------------------------------------

    def at(self, e: Expr) -> Expr:
        """Return an expression with layer time tau in place of the layer ell of its functions."""

        def put(x: AppliedUndef) -> Expr:
            return x.func(place(x.args[0])[0], *x.args[1:])

        return rewritten(e, self.layered, put)

    def single_site(self) -> Iterator[Eq]:
        """Yield the equations of the residual streams, then those of the ends of the network."""
        for e in self.streams:
            near = neighbour(e)
            assert near is not None
            direction = e.lhs.args[0] - near.args[0]
            rate = direction * self.kept(e.lhs, self.added(e), DRIFT)
            yield Eq(Derivative(self.at(e.lhs), tau), rate.expand(deep=False), evaluate=False)
        for e in self.theory.equations:
            if e.layers is None:
                yield Eq(self.at(e.lhs), self.kept(e.lhs, self.named(e.rhs), S.Zero), evaluate=False)

    def named(self, e: Expr) -> Expr:
        """Return an expression with functions of their own for sources of single layers, such as ``u_1(t)``.

        Sources of the first and last layer are not white noise in layer time.
        """

        def put(x: AppliedUndef) -> Expr:
            single = x.args[0].is_Integer or x.args[0] == L
            return Function(f"{x.func}_{x.args[0]}")(*x.args[1:]) if single else x

        singles = {str(u.symbol.func) for u in self.theory.sources if not u.symbol.args[0].has(ell)}
        return rewritten(e, singles, put)

    def noise(self) -> Iterator[Eq]:
        """Yield the covariances ``<u(tau, t) u(tau_, s)>`` of the Gaussian sources in layer time."""
        for u in self.theory.sources:
            value = self.kept(u.symbol, sympify(u.covariance), S.Zero)
            if u.symbol.args[0].has(ell):
                pair = self.at(u.symbol) * u.partner.func(tau_, *u.partner.args[1:])
                value = DiracDelta(tau - tau_) * value
            else:
                pair = self.named(u.symbol * u.partner)
            yield Eq(Average(pair), value, evaluate=False)

    def order_parameters(self) -> Iterator[Eq]:
        """Yield the definitions of correlations at a layer time, and of responses divided by their units."""
        for q in self.theory.order_parameters:
            yield Eq(self.at(q.symbol), self.at(q.definition), evaluate=False)

    def numbers(self) -> Iterator[Eq]:
        """Yield outputs, errors and the tangent kernel; sums over layers become integrals over layer time."""
        for e in (*self.theory.scalars, *self.theory.observables):
            value = S.Zero
            for order, rest in self.terms(self.in_units(e.rhs)):
                layers = isinstance(rest, Sum) and rest.limits[0][0] == ell
                total = order + 1 if layers else order
                if total == 0:
                    body = Integral(self.at(rest.function), (tau, 0, 1)) if layers else self.at(rest)
                    value += body
                elif total.is_negative:
                    self.dropped.append(Dropped(e.lhs, self.at(rest), total))
                else:
                    raise NotApplicable(
                        f"the equation of {e.lhs} has no limit: {rest} grows like L**({total})"
                    )
            yield Eq(e.lhs, value, evaluate=False)
