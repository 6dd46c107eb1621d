"""Deep residual networks with a nonlinearity and small branches, averaged to a linear theory of the stream.

``h^l = W^l x^{l-1}`` and ``x^l = x^{l-1} + L^-a o(h^l)`` with ``o`` of mean zero, such as ``MS(phi(h))``
(depth2023 Def. E.1). At leading order in the branch ``h^l`` is its own Gaussian source u, independent of the
rest of its unit; all other contributions to it, and the dependence of the unit's gradient on it, are kept to
first order. Averaged over u, a layer acts on the stream like a linear layer, with Gaussian averages of phi
and its derivatives as coefficients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from sympy import (
    Add,
    Derivative,
    Dummy,
    Eq,
    Expr,
    Function,
    KroneckerDelta,
    Mul,
    S,
    Sum,
    Symbol,
    cancel,
    factor,
    sympify,
)
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average, Response, chain_rule
from derive.calculus.gaussian import GaussianAverage
from derive.calculus.sums import (
    addends,
    drawn_out,
    evaluate_deltas,
    factors,
    opened,
    rewritten,
    unused,
)
from derive.calculus.symbols import ell, s, t
from derive.depth.layers import neighbour
from derive.errors import NotApplicable
from derive.program.nonlinear import require_linear_rules
from derive.show.conditions import ConditionalResult
from derive.show.latex import aligned_latex
from derive.theory.data import OrderParameter, Source, Term
from derive.theory.theory import Theory

e = Function("e")
"""The gradient on the stream without its dependence on the layer's source: Gaussian, independent of u."""
x_, y_ = Symbol("x_", real=True), Symbol("y_", real=True)
ASSUMED = (
    "small branches: h of a layer is its own source at leading order, its other terms are of first order",
    "the gradient on the stream is Gaussian, and depends on the layer's source only by its linear response",
    "products of two derivatives of phi, and of two gradients, are replaced by their averages",
)
"""The assumptions of :func:`effective`, stated in the theory's ``reduction``."""


def effective(theory: Theory, activation: Callable[[Expr], Expr] | None = None) -> Theory:
    """Return the linear theory of the stream of a nonlinear residual network as L grows.

    Each layer is averaged over the Gaussian source z of its inner field h. In the result ``u(ell, t)`` is a
    Gaussian source with the covariance of the branch's output o(z). The order parameters include the averages
    ``V_mn(ell, t, s) = <phi^(m)(z_t) phi^(n)(z_s)>`` and ``M_m(ell, t) = <phi^(m)(z_t)>`` that occur, where z
    has the covariance ``C_x(ell - 1)``. phi stays undefined unless ``activation`` is given, which replaces it
    as :func:`with_activation` does. The assumptions are the text ``reduction`` of the result. Raises
    :class:`NotApplicable` for a theory without such layers, for a rule nonlinear in gradients, if an average
    over z contains more than two derivatives of phi or more than two gradients, and for a branch whose output
    has a mean over the units. The mean of a branch ``phi(h)`` without mean subtraction is zero only for an
    odd ``activation``.

    >>> from derive import mean_field
    >>> from derive.program.networks.residual import nonlinear_program
    >>> found = effective(mean_field(nonlinear_program()))
    >>> for x in found.equation("x", ell).terms: print(x.expr)
    x(ell - 1, t)
    u(ell, t)/sqrt(L)
    Sum(R_xr(ell - 1, t, s)*V_11(ell, t, s)*dx(ell, s)/sqrt(L), (s, 0, t - 1))
    Sum(-C_x(ell - 1, t, s)*V_11(ell, t, s)*dx(ell, s)/L, (s, 0, t - 1))
    """
    require_linear_rules(theory.program, "the limit of infinite depth")
    averaged = _Effective(theory, activation).theory()
    return averaged if activation is None else with_activation(averaged, activation)


class _Effective:
    """Average of the theory of nonlinear residual layers over the Gaussian source of each layer.

    The result is a linear theory of the residual stream x and its gradient dx.
    """

    def __init__(self, theory: Theory, activation: Callable[[Expr], Expr] | None = None) -> None:
        """Find the stream x, its gradient dx, the inner field h and its gradient b of a theory.

        ``activation`` is phi as a function of an expression, or None if it is not known. Raises
        :class:`NotApplicable` if the equations are not those of such a residual layer, or if the output of a
        branch has a mean over the units.
        """
        self.whole = theory
        self.averages: dict[str, OrderParameter] = {}
        families = [q for q in theory.equations if q.layers]
        stream = {q.lhs.args[0] - near.args[0]: q for q in families if (near := neighbour(q)) is not None}
        inner = [q for q in families if neighbour(q) is None]
        with_source = [q for q in inner if any(x.kind == "source" for x in q.terms)]
        without_source = [q for q in inner if q not in with_source]
        if not (
            set(stream) == {1, -1}
            and len(with_source) == len(without_source) == 1
            and with_source[0].rhs.has(without_source[0].lhs.func)
        ):
            raise NotApplicable(
                "the theory has no nonlinear residual layers, which consist of a forward stream, a "
                "backward stream, and in the branch one field with a Gaussian source and the gradient of "
                "this field"
            )
        self.x, self.dx, self.h, self.b = stream[1], stream[-1], with_source[0], without_source[0]
        self.u: type[Function] = next(y.field.func for y in self.h.terms if y.kind == "source")
        self.covariance = next(v.covariance for v in theory.sources if v.symbol.func == self.u)
        branch = [y.expr for y in self.x.terms if y.expr != neighbour(self.x)]
        self.phi = self.undefined_function(branch)
        self.share = branch[0].as_independent(AppliedUndef)[0]
        self.above = self.dx.lhs.func(ell, t)
        self.answer = Function(f"R_{self.dx.name}{self.u}")
        self.output = self.leading(Add(*branch) / self.share)
        self.require_no_drift(activation)

    def undefined_function(self, branch: list[Expr]) -> type[AppliedUndef]:
        """Return the undefined function phi of the inner field h through which alone h enters the branch.

        ``branch`` are the terms of the stream's equation that the branch adds. Raises NotApplicable for a
        known function of h, for several functions, and for a function of more than h.
        """
        bodies = [*branch, self.b.rhs]
        names = {a for x in bodies for a in x.atoms(AppliedUndef) if a.func == self.h.lhs.func}
        functions = {a for x in bodies for a in x.atoms(AppliedUndef) if set(a.args) & names}
        derivatives = {y for x in bodies for y in x.atoms(Derivative) if y.expr in functions}
        known = dict.fromkeys((*functions, *derivatives), Dummy())
        kinds: set[type[AppliedUndef]] = {a.func for a in functions if len(a.args) == 1}
        if len(kinds) != 1 or any(x.xreplace(known).has(self.h.lhs.func) for x in bodies):
            raise NotApplicable(
                f"the branch of layer ell is {Add(*branch)}: it must contain {self.h.lhs}, and only as the "
                f"argument of one undefined function, such as phi({self.h.lhs}); the form of this function "
                "is given as the option activation"
            )
        return kinds.pop()

    def over_source(self, body: Expr, activation: Callable[[Expr], Expr] | None) -> Expr:
        """Return the average of an expression over the Gaussian source z of a layer at time t.

        The expression contains ``phi(z)`` and derivatives, in which ``activation`` replaces phi. An odd
        function of z without the undefined phi has the average zero.
        """
        source = Dummy("z", real=True)
        body = body.xreplace({self.u(ell, t): source})
        if activation is not None:
            body = body.replace(self.phi, activation).doit()
        if not body.has(self.phi) and (body + body.xreplace({source: -source})).expand() == 0:
            return S.Zero
        z = unused(x_, body.free_symbols)
        return GaussianAverage(body.xreplace({source: z}), {(z, z): self.covariance.xreplace({s: t})}).doit()

    def require_no_drift(self, activation: Callable[[Expr], Expr] | None) -> None:
        """Raise NotApplicable unless the output of a branch has mean zero over the units.

        A mean is the same in all layers, so that L branches add a drift of order ``share L`` to the stream.
        """
        known = Dummy()
        output = self.output.replace(Function("M_0"), lambda *_: known).expand()
        mean = self.over_source(output.xreplace({known: S.Zero}), activation)
        mean += output.coeff(known) * self.over_source(self.phi(self.u(ell, t)), activation)
        if cancel(mean) != 0:
            raise NotApplicable(
                f"the output {self.output} of the branch of layer ell must have mean zero over the units, "
                f"but it has the mean {mean}: the stream then drifts from layer to layer, and the limit of "
                "infinite depth does not contain a drift. Use fields without an index of samples and "
                "subtract the mean in the branch, as phi(h) - Mean(phi(h)), or "
                + ("give" if activation is None else "choose")
                + " an odd activation, such as tanh"
            )

    # -- Gaussian averages of phi and its derivatives ----------------------------------------------------

    def mean(self, n: int, time: Expr) -> Expr:
        """Return the average ``M_n(ell, time) = <phi^(n)(z_time)>`` over the Gaussian field z of layer ell.

        phi^(n) is the derivative of order n. The definition is added to the order parameters.
        """
        variance = self.covariance.xreplace({s: t})
        body = Derivative(self.phi(x_), (x_, n)) if n else self.phi(x_)
        return self.named(f"M_{n}", (time,), GaussianAverage(body, {(x_, x_): variance}))

    def pair(self, m: int, n: int, time: Expr, past: Expr) -> Expr:
        """Return ``V_mn = <phi^(m)(z_time) phi^(n)(z_past)>``, an average over the Gaussian z of layer ell.

        phi^(m) is the derivative of order m. For m > n, and for m = n if ``past`` is t, the equal average
        ``V_nm(ell, past, time)`` is returned. The definition is added to the order parameters.
        """
        # V_mn(time, past) is the average of the derivatives of phi of orders m and n at two times, and equals
        # V_nm(past, time). The factor with the lower order is written first. For equal orders, a factor at
        # time t is written first.
        if m > n or (m == n and past == t):
            m, n, time, past = n, m, past, time
        now, then = (self.covariance.xreplace(w) for w in ({s: t}, {t: s}))
        a, b = (Derivative(self.phi(v), (v, k)) if k else self.phi(v) for v, k in ((x_, m), (y_, n)))
        both = {(x_, x_): now, (x_, y_): self.covariance, (y_, y_): then}
        return self.named(f"V_{m}{n}", (time, past), GaussianAverage(a * b, both))

    def named(self, name: str, times: tuple[Expr, ...], value: Expr) -> Expr:
        """Add the Gaussian average ``value`` to the order parameters as ``name``; return it at ``times``.

        ``times`` has one time, or two. ``value`` is the definition of ``name(ell, t)``, or of ``name(ell, t,
        s)``; the result is the function ``name`` of ell and ``times``.
        """
        symbol = Function(name)(ell, *(t, s)[: len(times)])
        inside = next(r for r in self.x.ranges if r.index == ell)
        self.averages.setdefault(name, OrderParameter(symbol, value, "correlation", (inside,)))
        return Function(name)(ell, *times)

    @cached_property
    def gradients(self) -> Expr:
        """Order parameter ``<dx(ell, t) dx(ell, s)>``, the covariance of the gradient dx on the stream.

        Raises NotApplicable if the theory has no such order parameter.
        """
        pair = self.above * self.above.xreplace({t: s})
        matching = [q for q in self.whole.correlations() if q.definition == Average(pair)]
        if not matching:
            raise NotApplicable(
                f"the theory has no order parameter <{pair}>, the covariance of the gradient on the stream"
            )
        return matching[0].symbol

    def averaged(self, body: Expr) -> Expr:
        """Return the average over the source u and the gradient e of layer ell of an expression.

        The expression is a polynomial in ``phi^(n)(u(ell, .))`` and ``e(ell, .)``, also under sums over
        times.
        """
        total = S.Zero
        for y in addends(drawn_out(body.expand(), lambda _: False)):
            inside, limits = opened(y)
            for z in Add.make_args(inside.expand()):
                value = self.product(z)
                if value != 0:
                    total += Sum(value, *[lim for lim, _ in limits]) if limits else value
        return total

    def product(self, body: Expr) -> Expr:
        """Return the average of one product over the Gaussian source u and the gradient e of a layer.

        Factors are derivatives of ``phi(u)``, including phi itself, gradients e, and others that are not
        averaged. A product with a single gradient averages to zero. Raises NotApplicable for more than two
        derivatives of phi, or more than two gradients.
        """
        plain, slopes, gradients = S.One, [], []
        for y in factors(body):
            if isinstance(y, AppliedUndef) and y.func == e:
                gradients.append(y.args[-1])
            elif (order := self.order(y)) is not None:
                slopes.append(order)
            else:
                plain *= y
        if len(gradients) > 2 or len(slopes) > 2:
            raise NotApplicable(
                f"the average of {body} must contain at most two factors that are phi or a derivative of "
                f"phi, and at most two gradients {e}"
            )
        if len(gradients) == 1:
            return S.Zero
        if gradients:
            now, then = sorted(gradients, key=lambda y: y != t)
            plain *= self.gradients.xreplace({t: now, s: then})
        if len(slopes) == 2:
            (m, a), (n, b) = slopes
            return plain * self.pair(m, n, a, b)
        return plain * self.mean(*slopes[0]) if slopes else plain

    def order(self, y: Expr) -> tuple[int, Expr] | None:
        """Return (n, time) if y is the n-th derivative of ``phi(u(ell, time))``, otherwise None."""
        body, n = (y.expr, y.derivative_count) if isinstance(y, Derivative) else (y, 0)
        if isinstance(body, AppliedUndef) and body.func == self.phi and body.args[0].func == self.u:
            return n, body.args[0].args[-1]
        return None

    # -- one layer ---------------------------------------------------------------------------------------

    def leading(self, body: Expr) -> Expr:
        """Replace in an expression the inner field h by its source u and the stream's gradient dx by e.

        The gradient b of the inner field is replaced by its expression in u and e. This is the leading order
        in the branch. Averages in the expression are carried out.
        """
        body = body.replace(lambda y: isinstance(y, Average), lambda y: self.averaged(self.leading(y.body)))
        names = {self.h.lhs.func: self.u, self.dx.lhs.func: e}

        def put(y: AppliedUndef) -> Expr:
            if y.func == self.b.lhs.func:
                return self.leading(self.b.rhs.xreplace({t: y.args[-1]}))
            return names[y.func](*y.args)

        return rewritten(body, {*map(str, names), self.b.name}, put)

    def slope(self, body: Expr, by: AppliedUndef) -> Expr:
        """Return the derivative of an expression by ``by``, the source u or gradient e of a layer."""
        mark = Dummy()
        return body.xreplace({by: mark}).diff(mark).xreplace({mark: by})

    @cached_property
    def gradient(self) -> Expr:
        """The gradient ``b(ell, t)`` with respect to h, to first order in the strength of the branch.

        It contains b at h = u, the source of the layer; its change by all other terms of h; and its change by
        the response of dx, the gradient on the stream, to u. That response is present at equal time too,
        because dx contains x of the layers above.
        """
        first = self.leading(self.b.rhs)
        drift = Add(*[self.leading(y.expr) for y in self.h.terms if y.kind != "source"])
        known = Sum(self.answer(ell, t, s) * self.output.xreplace({t: s}), (s, S.Zero, t))
        by_h, by_dx = (self.slope(first, y(ell, t)) for y in (self.u, e))
        return first + by_h * drift + by_dx * known

    def response(self) -> tuple[list[tuple[Expr, Expr]], Expr]:
        """Return the averaged response ``<d b(t) / d u(s)>`` of the gradient b to the source u of its layer.

        The first result is a list of pairs (term, last): the term, a function of t and s, is part of the
        response for all s from 0 to ``last``. The second result is the coefficient of the Kronecker delta of
        t and s.
        """
        past = Symbol("s_1", **s.assumptions0)
        moved = chain_rule(self.gradient, self.u(ell, past), frozenset({str(self.u)}), frozenset({"e"}))
        moved = moved.replace(lambda y: isinstance(y, Response), lambda _: S.Zero)
        each: dict[Expr, Expr] = {}
        instant = S.Zero
        for part in Add.make_args(moved.expand()):
            outside = [y for y in Mul.make_args(part) if isinstance(y, KroneckerDelta)]
            if outside:
                instant += self.averaged(part.xreplace(dict.fromkeys(outside, S.One)))
            elif part != 0:
                last = max((y.limits[0][2] for y in part.atoms(Sum)), key=lambda y: y - t)
                value = self.averaged(evaluate_deltas(part, lambda *_: S.One)).xreplace({past: s})
                each[last] = each.get(last, S.Zero) + value
        return [(y, last) for last, z in each.items() for y in Add.make_args(z) if y != 0], instant

    # -- the stream --------------------------------------------------------------------------------------

    def theory(self) -> Theory:
        """Return the linear theory of the residual stream, without the inner fields of the layers.

        Order parameters that are averages of inner fields are left out, and the averages of phi are added.
        """
        stream = {self.x.lhs: self.forward(), self.dx.lhs: self.backward()}
        others = (q for q in self.whole.equations if q not in (self.h, self.b))
        equations = tuple(replace(q, terms=tuple(stream.get(q.lhs, q.terms))) for q in others)
        inner = {self.h.name, self.b.name}
        kept = [q for q in self.whole.order_parameters if not inner & _names(q.definition)]
        source = self.u(ell, s)
        known = OrderParameter(
            self.answer(ell, t, s), Average(Response(self.above, source)), "response", self.x.ranges, "past"
        )
        output = self.output

        def covariance(v: Source) -> Expr:
            """Return the covariance of a source in the averaged theory.

            For the source u of a layer it is the covariance of the branch's output at h = u; for other
            sources it is that of the theory, with averages of inner fields at leading order.
            """
            if v.symbol.func == self.u:
                return self.averaged(output * output.xreplace({t: s}))
            return self.known(sympify(v.covariance))

        sources = tuple(replace(v, covariance=covariance(v)) for v in self.whole.sources)
        return replace(
            self.whole,
            equations=equations,
            sources=sources,
            order_parameters=(*kept, known, *self.averages.values()),
            reduction="; ".join(ASSUMED),
        )

    def forward(self) -> Iterator[Term]:
        """Yield the terms of ``x(ell) = x(ell - 1) + share (u + sum of averaged kernels)``.

        ``share`` is the constant in front of the branch. u is here a source with the covariance of the
        branch's output o. A kernel that multiplies b(s) in the equation of h is multiplied by ``<o'(u_t) d
        b(s)/d e(s)>`` and applied to the gradient dx(s) of the stream.
        """
        yield next(y for y in self.x.terms if y.expr == neighbour(self.x))
        rise = self.slope(self.output, self.u(ell, t))
        back = self.slope(self.leading(self.b.rhs), e(ell, t)).xreplace({t: s})
        matrix = next(y.matrix for y in self.h.terms if y.kind == "source")
        yield Term(
            "source", self.u(ell, t), self.share, matrix=matrix, rule="fluctuation of the branch's output"
        )
        for y in self.h.terms:
            if y.kind != "source":
                field = self.above.xreplace({t: y.field.args[-1]})
                kernel = y.kernel * self.averaged(rise * back)
                yield replace(
                    y.times(self.share),
                    field=field,
                    kernel=kernel,
                    rule=f"{y.rule}, averaged over the branch",
                )

    def backward(self) -> Iterator[Term]:
        """Yield the terms in the equation of the gradient dx on the stream, averaged over a layer's source.

        With b the gradient of the inner field and u its source, kernels of response terms are averages of ``d
        b(t)/d u(s)``, those of memory terms averages of ``b(t) b(s)``.
        """
        later, instant = self.response()
        for y in self.dx.terms:
            if y.kind not in ("response", "memory"):
                yield y
        for y in self.dx.terms:
            rule = f"{y.rule}, averaged over the branch"
            if y.kind == "response":
                for kernel, last in later:
                    reach = "past" if last == t else "strict"
                    yield replace(y, kernel=kernel, reach=reach, rule=rule)
                now = y.field.xreplace({s: t})
                for kernel in Add.make_args(instant):
                    yield replace(y, field=now, kernel=kernel, reach="", rule=rule)
            elif y.kind == "memory":
                yield replace(y, kernel=self.known(y.kernel), rule=rule)

    def known(self, body: Expr) -> Expr:
        """Replace order parameters that average h or b, such as ``<b(t) b(s)>``, by their leading order.

        h is the inner field of a layer and b its gradient; at leading order h is the Gaussian source of the
        layer.
        """
        inner = {self.h.name, self.b.name}
        by_name = {q.name: q for q in self.whole.correlations() if inner & _names(q.definition)}

        def value(y: AppliedUndef) -> Expr:
            return self.leading(by_name[str(y.func)].definition).xreplace({ell: y.args[0]})

        return rewritten(body, by_name, value)


def _names(body: Expr) -> set[str]:
    """Return the names of the undefined functions in an expression."""
    return {str(y.func) for y in body.atoms(AppliedUndef)}


def with_activation(theory: Theory, function: Callable[[Expr], Expr]) -> Theory:
    """Return the theory with ``function`` in place of phi in its Gaussian averages.

    The theory is one that :func:`effective` returns: phi occurs in the definitions of its order parameters.
    Averages with a closed form are evaluated, others stay unevaluated. A theory without Gaussian averages is
    returned unchanged.

    >>> from derive import mean_field
    >>> from derive.program.networks.residual import nonlinear_program
    >>> found = with_activation(effective(mean_field(nonlinear_program())), lambda z: z + z**2)
    >>> found.order_parameter("V_11").definition
    4*C_x(ell - 1, t, s) + 1
    """

    def put(q: OrderParameter) -> OrderParameter:
        if not isinstance(q.definition, GaussianAverage):
            return q
        # Dummies stand for the variables of the average, because the given `function` may contain symbols of
        # the same names.
        bound = {x: Dummy(x.name, **x.assumptions0) for x in q.definition.variables}
        body = q.definition.body.xreplace(bound)
        for phi in {a.func for a in body.atoms(AppliedUndef) if {*a.args} <= {*bound.values()}}:
            body = body.replace(phi, function).doit()
        taken = body.free_symbols - {*bound.values()}
        names = {bound[x]: unused(x, taken) for x in q.definition.variables}
        variables = tuple(names.values())
        return replace(
            q, definition=GaussianAverage(body.xreplace(names), variables, q.definition.matrix).doit()
        )

    return replace(theory, order_parameters=tuple(put(q) for q in theory.order_parameters))


@dataclass(frozen=True, repr=False)
class BranchDiversity(ConditionalResult):
    """Difference of neighbouring branches of a deep nonlinear residual network.

    Parameters
    ----------
    roughness : Expr
        Variance of a branch's output, ``<o(h)^2>``. For a branch multiplier ``1/sqrt(L)`` the square
        distance of the stream at two close layer times is ``<(x(tau + dtau) - x(tau))^2> = roughness *
        dtau``.
    alignment : Expr
        Cosine between the gradients ``b`` of two neighbouring branches; ``<phi'>^2/<phi'^2>`` for the
        branch ``o = phi(h)`` minus its mean.
    """

    roughness: Expr
    alignment: Expr

    def conditions(self) -> tuple[str, ...]:
        """Return the assumptions about branches and gradients under which roughness and alignment hold.

        Returns
        -------
        tuple of str
            Two sentences that begin with "assumed:": one on the branches, one on the gradient of the stream.
        """
        return (
            "assumed: branches are small, so that h of a layer is Gaussian and independent of other layers",
            "assumed: the gradient on the stream is the same in close layers, and independent of their h",
        )

    def _repr_latex_(self) -> str:
        names = Symbol("roughness"), Symbol("alignment")
        return aligned_latex(map(Eq, names, (self.roughness, self.alignment)))


def branch_diversity(theory: Theory, activation: Callable[[Expr], Expr] | None = None) -> BranchDiversity:
    """Return the roughness of the stream and the alignment of the gradients of neighbouring branches.

    Layers are independent at leading order, so that the product of the gradients of two branches averages to
    the square of their mean derivative ``d b/d e``, times ``<e^2>`` of the gradient on the stream.

    Parameters
    ----------
    theory : Theory
        The theory of a network with nonlinear residual layers: the argument of :func:`effective`, not its
        result.
    activation : callable, optional
        phi as a function of an expression; without it averages stay unevaluated.

    Returns
    -------
    BranchDiversity
        Both quantities at time t in layer ``ell``.

    Raises
    ------
    NotApplicable
        If the theory has no nonlinear residual layers, or if the output of a branch has a mean over the
        units, as ``phi(h)`` without mean subtraction has unless ``activation`` is odd.

    Examples
    --------
    >>> from sympy import Abs, Max
    >>> from derive import mean_field
    >>> from derive.program.networks.residual import nonlinear_program
    >>> theory = mean_field(nonlinear_program())
    >>> [branch_diversity(theory, phi).alignment for phi in (lambda z: z, lambda z: Max(z, 0), Abs)]
    [1, 1/2, 0]
    """
    layer = _Effective(theory, activation)
    mean = Dummy()
    output = layer.output.replace(Function("M_0"), lambda *_: mean)
    slope = layer.slope(layer.leading(layer.b.rhs), e(ell, t))
    first, second = (layer.over_source(slope**n, activation) for n in (1, 2))
    rough = layer.over_source((output**2).expand(), activation)
    rough = rough.xreplace({mean: layer.over_source(layer.phi(layer.u(ell, t)), activation)})
    return BranchDiversity(factor(rough), factor(cancel(first**2 / second)))
