"""Deep residual networks with a nonlinearity: each branch is small, so the residual stream stays Gaussian
(depth2023 Def. E.1).

``h^l = W^l x^{l-1}`` and ``x^l = x^{l-1} + L^-a MS(phi(h^l))`` with ``MS(v) = v - mean(v)``.  At leading
order in the branch ``h^l`` is its own source u, independent of the rest of its unit; what else enters it, and
what the unit's gradient knows of it, are small and kept to first order.  Averaged over u, a layer then acts
on the stream like a linear one, with Gaussian averages of phi and its derivatives as coefficients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sympy import Add, Derivative, Expr, Function, KroneckerDelta, Mul, Pow, S, Sum, Symbol, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average, Response, chain_rule
from derive.calculus.gaussian import GaussianAverage
from derive.errors import NotApplicable
from derive.program.networks.infinite_depth import half
from derive.program.program import Definition, Program
from derive.program.training import GradientDescent, Outer, TrainedMatrix
from derive.program.words import (
    Field,
    GaussianMatrix,
    GaussianVector,
    IndexRange,
    L,
    Mean,
    Population,
    ell,
    s,
    t,
)
from derive.theory import OrderParameter, Source, Term, Theory

phi = Function("phi")
e = Function("e")
"""The gradient on the stream, without what it knows of the layer's own source: Gaussian, independent of u."""
x_, y_ = Symbol("x_", real=True), Symbol("y_", real=True)


def nonlinear_program(depth: Expr | int = L, alpha: Expr = half, gamma: Expr = half) -> Program:
    """The residual network of depth2023 section 7 with one-layer blocks, frozen ends and one sample a step.

    ``b`` is the gradient in front of the nonlinearity, in units of the branch; the learning rate is L^-gamma.
    """
    blocks = sympify(depth)
    share, rate = blocks ** -sympify(alpha), blocks ** -sympify(gamma)
    stream = Population("stream", shared=True)
    x, h, b, dx = (Field(n, stream, layered=True) for n in ("x", "h", "b", "dx"))
    readout = Field("readout", stream)
    xi, f, chi, dloss = (Function(n) for n in ("xi", "f", "chi", "dloss"))
    inside = IndexRange(ell, S.One, blocks)
    W = GaussianMatrix("W", stream.at(ell), stream.at(ell - 1), index=inside)
    U, V = (GaussianVector(n, stream, source=n) for n in "UV")
    rule = GradientDescent(S.One)
    now = h(ell, t)
    slope = Derivative(phi(now), now)
    return Program(
        name="residual network with mean subtraction and frozen ends",
        rule=rule,
        fields=(x, h, b, dx, readout),
        definitions=(
            Definition(x(0, t), xi(t) * U.symbol),
            Definition(h(ell, t), W(ell) @ x(ell - 1, t), (inside,)),
            Definition(x(ell, t), x(ell - 1, t) + share * (phi(now) - Mean(phi(now))), (inside,)),
            Definition(readout(t), V.symbol),
            Definition(f(t), Mean(x(blocks, t) * readout(t))),
            Definition(chi(t), dloss(t, f(t))),
            Definition(dx(blocks, t), chi(t) * readout(t)),
            Definition(b(ell, t), slope * (dx(ell, t) - Mean(dx(ell, t))), (inside,)),
            Definition(dx(ell - 1, t), dx(ell, t) + share * (W(ell).T @ b(ell, t)), (inside,)),
        ),
        matrices=(TrainedMatrix(W, Outer(-rate, b(ell, t), x(ell - 1, t)), rule),),
        vectors=(U, V),
        scalars=("f", "chi"),
        constants=("xi", "dloss"),
        notation={x(ell, t): "C_x", dx(ell, t): "C_dx"},
        depth=blocks,
    )


def effective(theory: Theory) -> Theory:
    """The linear theory of the stream to which a theory of :func:`nonlinear_program` tends as L grows.

    ``V_mn(ell, t, s) = <phi^(m)(z_t) phi^(n)(z_s)>`` with z Gaussian of covariance ``C_x(ell - 1)`` and
    ``M_m(ell, t) = <phi^(m)(z_t)>``, both among its order parameters as typed Gaussian averages.
    Raises :class:`NotApplicable` for a theory without such layers.

    >>> from derive.theory import mean_field
    >>> found = effective(mean_field(nonlinear_program()))
    >>> for x in found.equation("x", ell).terms: print(x.expr)
    x(ell - 1, t)
    u(ell, t)/sqrt(L)
    Sum(R_xr(ell - 1, t, s)*V_11(ell, t, s)*dx(ell, s)/sqrt(L), (s, 0, t - 1))
    Sum(-C_x(ell - 1, t, s)*V_11(ell, t, s)*dx(ell, s)/L, (s, 0, t - 1))
    """
    return _Effective(theory).theory()


class _Effective:
    def __init__(self, theory: Theory) -> None:
        self.whole = theory
        self.averages: dict[str, OrderParameter] = {}
        try:
            row = theory.equation("h", ell)
            self.x, self.dx = theory.equation("x", ell), theory.equation("dx", ell - 1)
        except KeyError as error:
            raise NotApplicable(f"the theory has no nonlinear residual layers: {error}") from error
        source = next(y.expr for y in row.terms if y.kind == "source")
        self.u: type[Function] = source.func
        self.small = Add(*[y.expr for y in row.terms if y.kind != "source"])
        branch = next(y.expr for y in self.x.terms if y.expr.has(phi) and not y.expr.has(Average))
        self.share = branch / phi(row.lhs)
        self.covariance = next(v.covariance for v in theory.sources if v.symbol == source)

    # -- Gaussian averages of phi and its derivatives --------------------------------------------------------

    def mean(self, n: int, time: Expr) -> Expr:
        variance = self.covariance.xreplace({s: t})
        body = Derivative(phi(x_), (x_, n)) if n else phi(x_)
        return self.named(f"M_{n}", (time,), GaussianAverage(body, {(x_, x_): variance}))

    def pair(self, m: int, n: int, time: Expr, past: Expr) -> Expr:
        if m > n or (m == n and past == t):  # <x y> and <y x> are one average: t first, or the lower order
            m, n, time, past = n, m, past, time
        now, then = (self.covariance.xreplace(w) for w in ({s: t}, {t: s}))
        a, b = (Derivative(phi(v), (v, k)) if k else phi(v) for v, k in ((x_, m), (y_, n)))
        both = {(x_, x_): now, (x_, y_): self.covariance, (y_, y_): then}
        return self.named(f"V_{m}{n}", (time, past), GaussianAverage(a * b, both))

    def named(self, name: str, times: tuple[Expr, ...], value: Expr) -> Expr:
        symbol = Function(name)(ell, *(t, s)[: len(times)])
        inside = next(r for r in self.x.ranges if r.index == ell)
        self.averages.setdefault(name, OrderParameter(symbol, value, "correlation", (inside,)))
        return Function(name)(ell, *times)

    def averaged(self, body: Expr) -> Expr:
        """The average of an expression in ``phi^(n)(u(ell, .))`` and ``e(ell, .)``, two of each at most."""
        if isinstance(body, Add):
            return Add(*[self.averaged(y) for y in body.args])
        if isinstance(body, Sum):
            return body.func(self.averaged(body.function.expand()), *body.limits)
        if isinstance(body, Mul) and (sums := [y for y in body.args if isinstance(y, Sum)]):
            rest = Mul(*[y for y in body.args if y is not sums[0]])
            return self.averaged(Sum((rest * sums[0].function).expand(), *sums[0].limits))
        plain, slopes, gradients = S.One, [], []
        for y in Mul.make_args(body):
            base, power = (y.base, int(y.exp)) if isinstance(y, Pow) and y.exp.is_Integer else (y, 1)
            if isinstance(base, AppliedUndef) and base.func == e:
                gradients += [base.args[-1]] * power
            elif (order := _order(base, self.u)) is not None:
                slopes += [order] * power
            else:
                plain *= y
        if len(gradients) not in (0, 2):
            if len(gradients) == 1:
                return S.Zero
            raise NotApplicable(f"{body} has {len(gradients)} gradients")
        if gradients:
            plain *= Function("C_dx")(ell, *sorted(gradients, key=lambda y: y != t))
        if len(slopes) == 2:
            (m, a), (n, b) = slopes
            return plain * self.pair(m, n, a, b)
        if len(slopes) == 1:
            return plain * self.mean(*slopes[0])
        return plain

    # -- one layer -------------------------------------------------------------------------------------------

    def slope(self, n: int, time: Expr) -> Expr:
        z = self.u(ell, time)
        return Derivative(phi(z), (z, n)) if n else phi(z)

    def drift(self) -> Expr:
        """What enters h besides its source, to first order: b is ``phi'(u) e`` there."""
        return self.small.replace(
            lambda y: isinstance(y, AppliedUndef) and str(y.func) == "b",
            lambda y: self.slope(1, y.args[-1]) * e(ell, y.args[-1]),
        )

    def knows(self) -> Expr:
        """What the unit's gradient on the stream knows of its own u: its answer to the branch's output.

        Also within the step: dx contains x of the layers above, as soon as b answers u at equal time.
        """
        answer = Function("R_dxu")(ell, t, s)
        return Sum(answer * (self.slope(0, s) - self.mean(0, s)), (s, S.Zero, t))

    def gradient(self) -> Expr:
        """``b(ell, t)`` to first order."""
        first = self.slope(2, t) * e(ell, t) * self.drift() + self.slope(1, t) * self.knows()
        return self.slope(1, t) * e(ell, t) + first

    def response(self) -> tuple[list[tuple[Expr, Expr]], Expr]:
        """``<d b(t) / d u(s)>``: terms with the last s at which each is there, and what s = t alone has."""
        past = Symbol("s_1", **s.assumptions0)
        moved = chain_rule(self.gradient(), self.u(ell, past), frozenset({str(self.u)}), frozenset({"e"}))
        moved = moved.replace(lambda y: isinstance(y, Response), lambda _: S.Zero)
        each: dict[Expr, Expr] = {}
        instant = S.Zero
        for part in Add.make_args(moved.expand()):
            if part.has(KroneckerDelta) and not _inside_sum(part):
                instant += self.averaged(_struck(part))
            elif part != 0:
                last = max((y.limits[0][2] for y in part.atoms(Sum)), key=lambda y: y - t)
                value = self.averaged(_collapsed(part, past)).xreplace({past: s})
                each[last] = each.get(last, S.Zero) + value
        return [(y, last) for last, e in each.items() for y in Add.make_args(e) if y != 0], instant

    # -- the stream ------------------------------------------------------------------------------------------

    def theory(self) -> Theory:
        later, instant = self.response()
        forward = [
            Term.local(_joined(self.share * self.averaged_kernel(y)), "response", "W", "branch, averaged")
            for y in Add.make_args(self.small)
        ]
        x_terms = (
            Term.local(Function("x")(ell - 1, t), "definition", rule="as defined"),
            Term.local(self.share * self.u(ell, t), "source", "W", "fluctuation of the branch's output"),
            *forward,
        )
        kept, memory = [], []
        for y in self.dx.terms:
            if y.expr.has(Function("x")):
                memory.append(y)
            else:
                kept.append(y)
        below = Function("x")
        replaced = [Sum(self.share * p * below(ell - 1, s), (s, S.Zero, last)) for p, last in later]
        now = [_joined(self.share * p * below(ell - 1, t)) for p in Add.make_args(instant) if p != 0]
        overlaps = [self.overlap(y.expr) for y in memory if not y.expr.has(Function("R_bu"))]
        dx_terms = (
            *kept,
            *(
                Term.local(y, "response", "W", "gradient's answer to the branch, averaged")
                for y in (*replaced, *now)
            ),
            *(Term.local(y, "memory", "W", "update met by the vector") for y in overlaps),
        )
        equations = tuple(
            replace(q, terms=x_terms) if q is self.x else replace(q, terms=dx_terms) if q is self.dx else q
            for q in self.whole.equations
            if q.name not in ("h", "b")
        )
        orders = tuple(q for q in self.whole.order_parameters if q.name in ("C_x", "C_dx", "R_xr"))
        answer = Function("R_dxu")(ell, t, s)
        inside = self.x.ranges
        known = OrderParameter(
            answer, Average(Response(Function("dx")(ell, t), self.u(ell, s))), "response", inside, "past"
        )
        sources = tuple(self.source(v) for v in self.whole.sources)
        return replace(
            self.whole,
            equations=equations,
            sources=sources,
            order_parameters=(*orders, known, *self.averages.values()),
            reduction="small branches: layers averaged over their own sources",
        )

    def averaged_kernel(self, term: Expr) -> Expr:
        """A term of h, weighted by ``phi'(u(t))`` and averaged over u: dx itself stays."""
        body = term.function if isinstance(term, Sum) else term
        weight = self.pair(1, 1, t, s)
        inner = body.replace(
            lambda y: isinstance(y, AppliedUndef) and str(y.func) == "b",
            lambda y: weight * Function("dx")(*y.args),
        )
        return Sum(inner, *term.limits) if isinstance(term, Sum) else inner

    def overlap(self, term: Expr) -> Expr:
        """``<b(t) b(s)>`` at leading order."""
        return term.replace(
            lambda y: isinstance(y, AppliedUndef) and str(y.func) == "C_b",
            lambda y: self.pair(1, 1, t, s) * Function("C_dx")(ell, *y.args[1:]),
        )

    def source(self, v: Source) -> Source:
        if v.symbol.func == self.u:
            value = self.pair(0, 0, t, s) - self.mean(0, t) * self.mean(0, s)
            return replace(v, covariance=value)
        return replace(v, covariance=self.overlap(sympify(v.covariance)))


def with_activation(theory: Theory, function: Callable[[Expr], Expr]) -> Theory:
    """The same with phi given: its averages are done where they have a closed form.

    >>> from derive.theory import mean_field
    >>> found = with_activation(effective(mean_field(nonlinear_program())), lambda z: z + z**2)
    >>> found.order_parameter("V_11").definition
    4*C_x(ell - 1, t, s) + 1
    """

    def put(q: OrderParameter) -> OrderParameter:
        if not isinstance(q.definition, GaussianAverage):
            return q
        body = q.definition.body.replace(phi, function).doit()
        return replace(
            q, definition=GaussianAverage(body, q.definition.variables, q.definition.matrix).doit()
        )

    return replace(theory, order_parameters=tuple(put(q) for q in theory.order_parameters))


def _order(y: Expr, u: type[Function]) -> tuple[int, Expr] | None:
    """The order of the derivative of phi, and the time at which it is taken."""
    if isinstance(y, AppliedUndef) and y.func == phi and y.args[0].func == u:
        return 0, y.args[0].args[-1]
    if isinstance(y, Derivative) and y.expr.func == phi and y.expr.args[0].func == u:
        return y.derivative_count, y.expr.args[0].args[-1]
    return None


def _inside_sum(y: Expr) -> bool:
    return any(z.function.has(KroneckerDelta) for z in y.atoms(Sum))


def _struck(y: Expr) -> Expr:
    """Without its Kronecker deltas (which are 1 there)."""
    return y.replace(lambda z: isinstance(z, KroneckerDelta), lambda _: S.One)


def _collapsed(part: Expr, past: Symbol) -> Expr:
    """Sums over time with a delta at ``past``, done."""

    def put(y: Sum) -> Expr:
        if not y.function.has(KroneckerDelta):
            return y
        ((index, *_),) = y.limits
        return _struck(y.function).xreplace({index: past})

    return part.replace(lambda y: isinstance(y, Sum), put)


def _joined(y: Expr) -> Expr:
    """A factor moved into the sum that it multiplies."""
    if isinstance(y, Mul) and (sums := [z for z in y.args if isinstance(z, Sum)]):
        rest = Mul(*[z for z in y.args if z is not sums[0]])
        return Sum(rest * sums[0].function, *sums[0].limits)
    return y
