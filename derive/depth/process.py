"""Stochastic process in layer time of the units of a deep nonlinear residual network.

A block adds a branch to the residual stream h, such as ``branch W phi(h)`` or attention and a perceptron, and
the gradient passes back through the same matrices. With the branch multiplier ``beta0/sqrt(L)`` the source of
a layer enters with ``L^-1/2``, as white noise in ``tau = ell/L``, while memory and responses enter with
``1/L``, as drift. Fields within a block are functionals of the stream at their layer time. The module counts
these powers in a theory of symbolic depth (:mod:`.block_sizes`) and returns the stochastic differential
equations; their Euler scheme with n cells is the theory of n layers, apart from terms that vanish.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sympy import (
    Add,
    Derivative,
    DiracDelta,
    Eq,
    Expr,
    Function,
    Integral,
    Mul,
    Piecewise,
    Pow,
    S,
    Sum,
    sympify,
)
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average
from derive.calculus.sums import addends, drawn_out, rewritten
from derive.calculus.symbols import L, ell
from derive.depth.balance import power
from derive.depth.block_sizes import ABSENT, WHITE, BlockSizes
from derive.depth.infinite import WIDTH_FIRST, Dropped, Scaling
from derive.depth.layers import place, require_free_layer_times, tau, tau_
from derive.errors import NotApplicable
from derive.show.conditions import ConditionalResult
from derive.show.latex import aligned_latex
from derive.theory import Equation, Source, Theory

DRIFT = S.NegativeOne
"""Power of L of what a layer adds to the stream, with sources written as white noise times ``L^-1/2``."""


@dataclass(frozen=True, repr=False)
class LayerProcess(ConditionalResult):
    """Stochastic differential equations in layer time, with the averages that close them.

    A block is one layer of the stack: it reads the residual stream and adds a branch to it. ``L**e`` below
    stands for the power of the depth by which a quantity is divided, so that its limit is of order one.

    Parameters
    ----------
    single_site : tuple of Eq
        Equations ``d h/d tau = ...`` of the fields of the residual stream, and the equations of the
        fields at the two ends of the network.
    noise : tuple of Eq
        Covariances of the Gaussian sources. The covariance of a source that enters the stream contains
        ``DiracDelta(tau - tau_)``: it is white noise in layer time.
    order_parameters, numbers : tuple of Eq
        Averages at a layer time; and the outputs, errors, tangent kernel and the scalars that each block
        has.
    units : mapping of str to Expr
        ``L**e`` by the name of each response in the equations; responses with e = 0 are left out.
    dropped : tuple of Dropped
        Terms that vanish as L grows.
    inner : tuple of Eq
        Equations of fields within a block, functionals of the stream at the same layer time. A term with
        a negative power of L is kept if a response or average whose leading terms vanish comes from it.
    sizes : mapping of str to Expr
        ``L**e`` by the name of each other quantity of a block with e not 0. White noise is divided by
        ``1/sqrt(L)`` in addition.
    vanishing : mapping of str to Expr
        Scalars of a block that vanish like ``L**e``, by name; no other equation of the limit contains
        them.
    same : mapping of str to str
        Fields that differ from the stream only by branches within a block, with the name of the field of
        the stream that replaces them in the limit.
    """

    single_site: tuple[Eq, ...]
    noise: tuple[Eq, ...]
    order_parameters: tuple[Eq, ...]
    numbers: tuple[Eq, ...]
    units: Mapping[str, Expr]
    dropped: tuple[Dropped, ...]
    inner: tuple[Eq, ...] = ()
    sizes: Mapping[str, Expr] = dataclasses.field(default_factory=dict)
    vanishing: Mapping[str, Expr] = dataclasses.field(default_factory=dict)
    same: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def field(self, name: str) -> Eq:
        """Return the equation of a field in layer time.

        Parameters
        ----------
        name : str
            The name of a field of the stream, or of a field within a block.

        Returns
        -------
        Eq
            The equation ``d field/d tau = ...``, or that of the field within a block.

        Raises
        ------
        KeyError
            If there is no such field. Fields at the two ends of the network raise it too: they are in
            ``single_site`` only. So do fields in ``same``: their equation has the name of the stream.
        """
        for e in self.single_site:
            if isinstance(e.lhs, Derivative) and str(e.lhs.expr.func) == name:
                return e
        for e in self.inner:
            if str(e.lhs.func) == name:
                return e
        raise KeyError(f"no equation in layer time of a field {name}")

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
            *self._of_blocks(),
            "assumed: averages of the scheme have a series in 1/n, as those of smooth equations have",
        )

    def _of_blocks(self) -> Iterator[str]:
        """Yield the conditions about quantities within a block, as sentences.

        There is one sentence for each of the members ``same``, ``sizes``, ``vanishing`` and ``inner`` of the
        process that is not empty.
        """
        if self.same:
            told = ", ".join(f"{x} = {y}" for x, y in self.same.items())
            yield f"derived: fields of the stream within a block are one in the limit: {told}"
        if self.sizes:
            told = ", ".join(f"{name} by {unit}" for name, unit in self.sizes.items())
            yield f"derived: quantities of a block are divided by their powers of L: {told}"
        if self.vanishing:
            told = ", ".join(f"{name} like {unit}" for name, unit in self.vanishing.items())
            yield f"derived: these vanish, and the limit does not contain them: {told}"
        if self.inner:
            yield "assumed: terms of the same power of L do not cancel, beyond sources of mean zero"

    def _repr_latex_(self) -> str:
        return aligned_latex((*self.single_site, *self.inner, *self.order_parameters, *self.numbers))


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
        If the theory has no residual stream, a term grows with the depth, a source of a block enters the
        stream after a nonlinear function, without a matrix in between, or a symbol of the theory is equal to
        a layer time.

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
    require_free_layer_times(theory)
    return _Process(theory, scaling).result()


class _Process:
    """Derivation of the equations in layer time: each term is kept or dropped by its power of L."""

    def __init__(self, theory: Theory, scaling: Scaling) -> None:
        """Count the powers of L of all quantities, and collect the names of those that have a layer."""
        self.theory, self.scaling = theory, scaling
        self.blocks = BlockSizes(theory, scaling)
        powers = self.blocks.orders
        layered = {str(q.symbol.func) for q in theory.order_parameters if q.symbol.args[0].has(ell)}
        layered |= {e.name for e in theory.scalars if e.layers is not None}
        self.layered = {*layered, *self.blocks.layered, *self.blocks.inner, *self.blocks.members}
        self.orders = {n: x.power for n, x in powers.items() if n in self.layered and x.power != ABSENT}
        self.absent = {n for n, x in powers.items() if n in self.layered and x.power == ABSENT}
        white = {n: self.orders.get(n, S.Zero) - WHITE for n in self.blocks.white}
        self.responses = {q.name: self.orders[q.name] for q in theory.responses() if q.name in self.orders}
        self.noise_units = {n: x for n, x in white.items() if x != 0}
        self.dropped: list[Dropped] = []
        self.marks: set[tuple[str, int]] = set()
        self.expanded: dict[Expr, list[tuple[Expr, Expr]]] = {}

    def result(self) -> LayerProcess:
        """Return the equations in layer time, of the quantities that the limit contains."""
        needed = self.needed()
        self.dropped = []
        inner = tuple(self.inner_equation(n) for n in self.blocks.inner if n in needed)
        units = {n: L**x for n, x in self.responses.items() if n in needed and x != 0}
        away = {n: L ** self.orders[n] for n in self.vanishing(needed)}
        limit = LayerProcess(
            single_site=tuple(self.single_site()),
            noise=tuple(self.covariance(u) for u in self.theory.sources if self.is_needed(u, needed)),
            order_parameters=tuple(
                Eq(self.at(q.symbol), self.at(q.definition), evaluate=False)
                for q in self.theory.order_parameters
                if q.name in needed
            ),
            numbers=(
                *self.numbers(),
                *(self.number(e) for e in self.block_numbers() if e.name in needed),
            ),
            units=units,
            dropped=(),
            inner=inner,
            sizes={n: L**x for n, x in self.sized(needed).items() if x != 0},
            vanishing=away,
            same={m: x for m, x in self.blocks.members.items() if m != x},
        )
        return dataclasses.replace(limit, dropped=tuple(dict.fromkeys(self.dropped)))

    # -- quantities that the limit contains --------------------------------------------------------------

    def needed(self) -> set[str]:
        """Return the names of the quantities with a layer that occur in the equations of the limit.

        The search begins with the streams, the ends, outputs, errors and tangent kernel, and follows the
        equation of each quantity that it meets. It also marks terms that are kept although they are smaller
        than others in their equation, because a response or average whose leading terms vanish comes from
        them. A marked term may stand in an equation that was read before, so that the search is repeated
        until no more terms are marked.
        """
        ends = [u for u in self.theory.sources if not u.symbol.args[0].has(ell)]
        while True:
            marked, names = set(self.marks), set[str]()
            met = [*self.single_site(), *self.numbers(), *map(self.covariance, ends)]
            waiting = [n for e in met for n in self.functions(e.rhs)]
            while waiting:
                name = waiting.pop()
                if name not in names and name in self.layered:
                    names.add(name)
                    waiting += [n for e in self.statements(name) for n in self.functions(e)]
            if self.marks == marked:
                return names

    def functions(self, e: Expr) -> Iterator[str]:
        """Yield the names of the functions with arguments in an expression of the limit.

        Fields and sources of a block that are taken at an end of the network, and not at tau, are left out.
        """
        return (str(x.func) for x in e.atoms(AppliedUndef) if x.args[:1] and not self.blocks.at_end(x, tau))

    def statements(self, name: str) -> Iterator[Expr]:
        """Yield the right-hand sides of the equations in the limit of the quantity ``name`` of a block.

        If it is an average or a scalar, add to ``marks`` the smaller terms of field equations from which its
        size comes; these terms are then kept.
        """
        if name in self.blocks.inner:
            yield self.inner_equation(name).rhs
        if name in self.blocks.layered:
            yield self.covariance(self.blocks.layered[name]).rhs
        if name in self.blocks.parameters:
            self.marks |= self.blocks.orders[name].marks
            yield self.at(self.blocks.parameters[name].definition)
        if name in self.blocks.numbers:
            self.marks |= self.blocks.orders[name].marks
            yield self.number(self.blocks.numbers[name]).rhs

    def is_needed(self, u: Source, needed: set[str]) -> bool:
        """Return whether a source is that of a single layer, or has its name in ``needed``."""
        return not u.symbol.args[0].has(ell) or str(u.symbol.func) in needed

    def sized(self, needed: set[str]) -> dict[str, Expr]:
        """Return the exponent e of the size ``L**e`` of each needed quantity of a block, by its name.

        Responses are left out. For a source that is white noise in layer time, e does not contain the factor
        ``1/sqrt(L)`` of white noise.
        """
        names = [n for n in self.orders if n in needed and n not in self.responses]
        return {
            n: self.noise_units.get(n, S.Zero) if n in self.blocks.white else self.orders[n] for n in names
        }

    def block_numbers(self) -> list[Equation]:
        """Return the equations of the scalars that each block has: those with a layer index."""
        return [e for e in self.theory.scalars if e.layers is not None]

    def vanishing(self, needed: set[str]) -> list[str]:
        """Return the names of scalars of a block that vanish as L grows and are not in ``needed``."""
        names = [e.name for e in self.block_numbers() if e.name not in needed and e.name in self.orders]
        return [n for n in names if self.orders[n].is_negative]

    # -- powers of L -------------------------------------------------------------------------------------

    def terms(self, e: Expr) -> list[tuple[Expr, Expr]]:
        """Return pairs ``(p, rest)``: the expression at large L is the sum of ``L**p * rest`` over the pairs.

        The scaling is put in, and each quantity X of a block is replaced by ``L**e X``, see :meth:`in_units`.
        """
        if e not in self.expanded:
            whole = drawn_out(self.in_units(self.scaling(e)).expand(), lambda _: False).expand()
            self.expanded[e] = [power(y) for x in Add.make_args(whole) for y in addends(x) if y != 0]
        return self.expanded[e]

    def in_units(self, e: Expr) -> Expr:
        """Return an expression in which each quantity X of a block of order e in L is replaced by ``L**e X``.

        In the arguments of known functions such as tanh, outside of averages, quantities that vanish as L
        grows are set to zero. An average becomes a sum of averages of products, each with the power of L that
        was counted for it.
        """
        if isinstance(e, Average):
            return Add(*[self.average_in_units(x) for x in Add.make_args(e.body.expand())])
        if isinstance(e, AppliedUndef):
            return self.unit(e)
        if isinstance(e, Sum | Integral):
            inner = self.in_units(e.function)
            if isinstance(e, Sum) and inner.is_number:
                return inner * Mul(*[upper - lower + 1 for _, lower, upper in e.limits])
            return e.func(inner, *e.limits)
        if isinstance(e, Add | Mul | Pow):
            return e.func(*[self.in_units(x) for x in e.args])
        is_function = isinstance(e, Function) and not isinstance(e, Piecewise)
        return e.func(*[self.leading(x) for x in e.args]) if is_function and e.args else e

    def unit(self, e: AppliedUndef) -> Expr:
        """Return ``L**e X`` for a quantity X of a block that is of order e in L, and zero if X is zero.

        A quantity at an end of the network, or without a layer, is returned unchanged.
        """
        name = str(e.func)
        if self.blocks.at_end(e) or name not in self.layered:
            return e
        return S.Zero if name in self.absent else L ** self.orders[name] * e

    def average_in_units(self, body: Expr) -> Expr:
        """Return ``L**e`` times the average of one product, with the power e of L counted for it.

        The result is zero if the average vanishes at all orders. Smaller terms from which the average comes
        are marked, so that they are kept.
        """
        order = self.blocks.average(body)
        self.marks |= order.marks
        return S.Zero if order.power == ABSENT else L**order.power * Average(body)

    def leading(self, e: Expr) -> Expr:
        """Return ``e``, the argument of a function, with zero for quantities in it that vanish as L grows."""

        def put(x: AppliedUndef) -> Expr:
            small = str(x.func) in self.absent or self.orders.get(str(x.func), S.Zero).is_negative
            return S.Zero if small and not self.blocks.at_end(x) else x

        return rewritten(e, self.layered, put)

    def kept(self, lhs: Expr, e: Expr, least: Expr, key: tuple[str, int] | None = None) -> Expr:
        """Return the terms of order ``L**least`` of ``e`` at layer times, divided by ``L**least``.

        ``e`` is the right-hand side of the equation of ``lhs``, or a part of it: with ``key = (name, i)`` the
        term number i of the equation of the field ``name``. Smaller terms are recorded as dropped; if ``key``
        is in ``marks`` they are kept with their remaining power of L, because a response or average comes
        from them. Raises NotApplicable for a larger term.
        """
        total = S.Zero
        for order, rest in sorted(self.terms(e), key=lambda x: -x[0]):
            gap = order - least
            if gap == 0 or (key in self.marks and gap.is_negative):
                total += L**gap * self.at(rest)
            elif gap.is_negative:
                self.dropped.append(Dropped(lhs, self.at(rest), gap))
            else:
                raise NotApplicable(
                    f"the equation of {lhs} has no limit of infinite depth: the contribution of {rest} grows "
                    f"like L**({gap})"
                )
        return total

    # -- at layer times ----------------------------------------------------------------------------------

    def at(self, e: Expr) -> Expr:
        """Return an expression with layer times for layers: ``tau`` for ell, 1 for L and 0 for a number.

        All fields of one stream get the same name.
        """

        def put(x: AppliedUndef) -> Expr:
            name = self.blocks.members.get(str(x.func), str(x.func))
            return Function(name)(place(x.args[0])[0], *x.args[1:])

        return rewritten(e, self.layered, put)

    def single_site(self) -> Iterator[Eq]:
        """Yield the equations of the residual streams, then those of the ends of the network."""
        for x in self.blocks.streams:
            lhs = x.equation.lhs
            added = self.blocks.added[x.equation.name]
            self.require_linear(lhs, added)
            rate = (lhs.args[0] - x.near.args[0]) * self.kept(lhs, added, DRIFT)
            yield Eq(Derivative(self.at(lhs), tau), rate.expand(deep=False), evaluate=False)
        for e in self.theory.equations:
            if e.layers is None:
                yield Eq(self.at(e.lhs), self.kept(e.lhs, self.named(e.rhs), S.Zero), evaluate=False)

    def require_linear(self, lhs: Expr, added: Expr) -> None:
        """Raise NotApplicable unless each term of an increment is linear in the sources of its block.

        ``added`` is what one layer adds to the field ``lhs`` of the stream; terms without sources pass.
        """
        for _, x in self.terms(added):
            if self.blocks.degree(x) > 1:
                raise NotApplicable(
                    f"the limit of the equation of {lhs} is not known: {x} is a nonlinear function of the "
                    "sources of one block and is added to the stream without a matrix in between"
                )

    def inner_equation(self, name: str) -> Eq:
        """Return the equation of a field within a block at layer time, divided by the field's power of L."""
        e = self.blocks.inner[name]
        least = self.orders.get(name, S.Zero)
        rhs = Add(*[self.kept(e.lhs, x.expr, least, (name, i)) for i, x in enumerate(e.terms)])
        return Eq(self.at(e.lhs), rhs, evaluate=False)

    def named(self, e: Expr) -> Expr:
        """Return an expression with ``u_1(t)`` in place of ``u(1, t)``, for all sources of single layers.

        Sources of the first and last layer are not white noise in layer time.
        """

        def put(x: AppliedUndef) -> Expr:
            single = x.args[0].is_Integer or x.args[0] == L
            return Function(f"{x.func}_{x.args[0]}")(*x.args[1:]) if single else x

        singles = {str(u.symbol.func) for u in self.theory.sources if not u.symbol.args[0].has(ell)}
        return rewritten(e, singles, put)

    def covariance(self, u: Source) -> Eq:
        """Return the equation ``<u u> = ...`` of the covariance of a source.

        Both sides are divided by their power of L. The right-hand side contains ``DiracDelta(tau - tau_)`` if
        the source is one of a block and enters the stream.
        """
        name, value = str(u.symbol.func), sympify(u.covariance)
        if not u.symbol.args[0].has(ell):
            pair = self.named(u.symbol * u.partner)
            return Eq(Average(pair), self.kept(u.symbol, value, S.Zero), evaluate=False)
        white = name in self.blocks.white
        least = 2 * (self.orders.get(name, S.Zero) - (WHITE if white else S.Zero))
        value = self.kept(u.symbol, value, least)
        there = tau_ if white else tau
        pair = self.at(u.symbol) * u.partner.func(there, *u.partner.args[1:])
        return Eq(Average(pair), DiracDelta(tau - tau_) * value if white else value, evaluate=False)

    def number(self, e: Equation) -> Eq:
        """Return the equation of a scalar of a block at layer time, divided by the scalar's power of L."""
        value = self.kept(e.lhs, e.rhs, self.orders.get(e.name, S.Zero))
        return Eq(self.at(e.lhs), value, evaluate=False)

    def numbers(self) -> Iterator[Eq]:
        """Yield the equations of scalars without a layer and of the tangent kernel, at leading order in L.

        Sums over layers become L times integrals over layer time. Smaller terms are recorded as dropped;
        raises NotApplicable for a term that grows with L.
        """
        singles = [e for e in self.theory.scalars if e.layers is None]
        for e in (*singles, *self.theory.observables):
            value = S.Zero
            for order, rest in self.terms(e.rhs):
                layers = isinstance(rest, Sum) and rest.limits[0][0] == ell
                total = order + 1 if layers else order
                if total == 0:
                    body = Integral(self.at(rest.function), (tau, 0, 1)) if layers else self.at(rest)
                    value += body
                elif total.is_negative:
                    self.dropped.append(Dropped(e.lhs, self.at(rest), total))
                else:
                    raise NotApplicable(
                        f"the equation of {e.lhs} has no limit of infinite depth: the contribution of {rest} "
                        f"grows like L**({total})"
                    )
            yield Eq(e.lhs, value, evaluate=False)
