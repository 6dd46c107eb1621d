"""The nonlinear theory expanded in gamma0, with the layer and the depth symbolic."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from sympy import (
    Abs,
    Add,
    DiracDelta,
    Eq,
    Expr,
    Function,
    Heaviside,
    KroneckerDelta,
    Lambda,
    Max,
    Min,
    Piecewise,
    S,
    Sum,
    Symbol,
    sign,
    sympify,
)

from derive.calculus.symbols import L, P, alpha, ell, gamma0, mu, s, t
from derive.errors import NotApplicable
from derive.expansion.expansion import Expansion, printed
from derive.expansion.nonlinear.depth import AtCriticality, AtFixedPoint
from derive.expansion.nonlinear.site import Neighbour, Summand, read
from derive.expansion.nonlinear.trees import (
    CORRELATIONS,
    KERNELS,
    OUTPUT,
    PAIR,
    Forest,
    Laws,
    OpaqueFields,
    Piece,
    Tensor,
    coefficient,
    order_parameters,
    oriented,
    samples_of,
    solved_laws,
)
from derive.expansion.nonlinear.writing import Writer
from derive.show import latex, text
from derive.theory import Theory

KINKS = (Abs, Heaviside, Max, Min, Piecewise, sign)


EARLIER = Heaviside(t - s, 0)
"""One at s < t, else zero: it stands in responses, and goes without saying where they are printed."""


@dataclass(frozen=True)
class NonlinearExpansion(Laws, Expansion):
    """The order parameters of a nonlinear theory as power series in gamma0.

    Each is a sum of tensors, which depend on samples and the layer, times forests, which depend on time:
    iterated sums (integrals) of the error.  ``laws[tensor]`` is the tensor's recursion over layers, in which
    averages over the static sources of derivatives of phi stand; ``errors`` are the orders at which the error
    has a coefficient.  Compare selfconsistent2023 (P.9)-(P.26).
    """

    theory: Theory

    @property
    def variable(self) -> Symbol:
        """gamma0."""
        return gamma0

    @property
    def names(self) -> tuple[str, ...]:
        """Order parameters, the kernels C and D, ``f``, ``Delta``, ``K`` and ``loss``."""
        return (*sorted({x.name for x in self.laws}), "Delta", "K", "loss")

    @property
    def activation(self) -> Lambda:
        """phi, a function of one variable."""
        return self.site.activation

    def coefficient(self, name: str, n: int, layer: Any = None) -> Expr:
        """The coefficient of gamma0^n at ``layer``: averages over static sources, kernels of the neighbours.

        ``name`` is an order parameter (``Phi``, ``G``, ``A``, ``B``), a kernel (``C``, ``D``: those of h and
        z), ``f``, ``Delta``, ``K`` (the tangent kernel) or ``loss``, the mean of Delta^2.  What is static has
        samples only, ``Phi0(ell, mu, alpha)``, and ``C0``, ``D0``, ``D0_now`` obey :meth:`recursions`;
        coefficients of higher order at other layers are functions of two times, ``Phi2(ell - 1, ...)``.
        ``v(alpha, beta, t)`` are iterated integrals of the error at order 0, ``v_since(.., t, s)`` from s on.
        Responses and kernels are zero at s > t: ``Heaviside(t - s, 0)`` stands in them.

        Raises KeyError for an unknown name and IndexError beyond ``order``.

        >>> from sympy import Function
        >>> from derive.theory import mean_field
        >>> from derive.program import L, mlp
        >>> series = expand_nonlinear(mean_field(mlp(L, Function("phi"), "flow")), 2)
        >>> series.coefficient("Phi", 0)
        <phi(u(ell, alpha))*phi(u(ell, mu))>_{u(ell, mu),u(ell, alpha)}
        >>> series.coefficient("Phi", 1), series.coefficient("K", 1)
        (0, 0)
        """
        self.check_order(n)
        layer = self.site.layer if layer is None else sympify(layer)
        if name in KERNELS:
            return self._kernel(name, n, layer)
        if name == "Delta":
            start = Function("y")(mu) if n == 0 else S.Zero
            return start - self.coefficient(OUTPUT, n)
        if name == "loss":
            products = (self._error(k) * self._error(n - k) for k in range(n + 1))
            return Add(*[Sum(x, (mu, 1, P)) / P for x in products if x != 0])
        if name == "K":
            return tangent_kernel(self.site.tangent, n, self._order_parameter)
        law = next((x for x in self.laws.values() if x.tensor.name == name), None)
        if law is None:
            raise self.unknown(name)
        fields = OpaqueFields(self.site, n + 1, self._shapes, set(self.errors))
        writer = self.writer(self._last if name == OUTPUT else layer - law.shift)
        found = writer.terms(order_parameters(fields, n)[name], t, t if name == OUTPUT else s)
        return _causal(found) if name in ("A", "B") else found

    def field(self, name: str, n: int, layer: Any = None) -> Expr:
        """The coefficient of gamma0^n of a field, ``h``, ``z``, ``g`` or ``phi`` (of h), at mu and t.

        In terms of the sources u and r at all times, and of the kernels C and D, as in selfconsistent2023
        (P.9).  Raises KeyError for another name, ValueError for a negative order.  Orders beyond those of
        the series are there too; no kernel that they contain is then known to vanish.

        >>> from sympy import Function
        >>> from derive.theory import mean_field
        >>> from derive.program import L, mlp
        >>> series = expand_nonlinear(mean_field(mlp(L, Function("phi"), "flow")), 0)
        >>> series.field("h", 0), series.field("z", 0)
        (u(ell, mu, t), r(ell, mu, t))
        """
        if n < 0:
            raise ValueError(f"n = {n}: must be 0 or more")
        layer = self.site.layer if layer is None else sympify(layer)
        fields, writer = self.fields(n), self.writer(layer)
        if name == "h":
            start = Function("u")(layer, mu, t) if n == 0 else S.Zero
            return start + writer.terms(fields.moved[n])
        if name == "z":
            return writer.terms(fields.z[n])
        if name in ("g", "phi"):
            return writer.terms(fields.of(name, n))
        raise KeyError(f"no field {name!r}; there are h, z, g, phi")

    def fields(self, n: int) -> OpaqueFields:
        """The fields of one layer up to order n as trees."""
        known = set(self.errors) | set(range(self.order + 1, n + 1))

        def shapes(kernel: str, k: int) -> list[Forest]:
            return self._shapes(kernel, k) or ([PAIR] if k > self.order else [])

        return OpaqueFields(self.site, n, shapes, known)

    def recursions(self, n: int = 0) -> tuple[Eq, ...]:
        """The tensors of order n with their recursions over layers, written at layer ``ell``.

        ``Phi2_1`` is what multiplies the first of :meth:`factors` of Phi at order 2, and so on.

        >>> from sympy import Function
        >>> from derive.theory import mean_field
        >>> from derive.program import L, mlp
        >>> series = expand_nonlinear(mean_field(mlp(L, Function("phi"), "flow")), 0)
        >>> print(next(e for e in series.recursions() if e.lhs.func.__name__ == "C0").rhs)
        A0(ell - 1, mu, alpha) + Phi0(ell - 1, alpha, mu)
        """
        self.check_order(n)
        found = []
        for x in self.tensors(n):
            law, writer = self.laws[x], self.writer(self._last if x.name == OUTPUT else self.site.layer)
            samples = tuple(map(writer.sample, samples_of(x.shape)))
            rhs = Add(*[writer.number(p, c) for p, c in law.terms.items()])
            found.append(Eq(writer.symbol(x, writer.layer + law.shift, samples), rhs, evaluate=False))
        return tuple(found)

    def tensors(self, n: int) -> tuple[Tensor, ...]:
        """The tensors of order n, one of two that say the same."""
        return tuple(x for x in self.laws if x.order == n and oriented(x)[0] == x)

    def factors(self, name: str, n: int) -> tuple[tuple[Expr, Expr], ...]:
        """An order parameter as a sum of tensors times functions of time: pairs of both.

        Samples but mu and alpha are summed over.

        >>> from sympy import Function
        >>> from derive.theory import mean_field
        >>> from derive.program import L, mlp
        >>> series = expand_nonlinear(mean_field(mlp(L, Function("phi"), "flow")), 2)
        >>> for pair in series.factors("Phi", 2)[:2]: print(pair)
        (Phi2_1(ell, alpha, mu, beta, beta_), v(beta, beta_, t))
        (Phi2_2(ell, alpha, mu, beta, beta_), v(beta, t)*v(beta_, t))
        """
        self.check_order(n)
        law = next(x for x in self.laws.values() if x.tensor.name == name)
        writer = self.writer(self._last if name == OUTPUT else self.site.layer - law.shift)
        found = []
        for forest in self.forests(name, n):
            x = Tensor(name, n, forest)
            same, places = oriented(x)
            samples = tuple(writer.sample(samples_of(forest)[i]) for i in places)
            tensor = writer.symbol(same, writer.layer + law.shift, samples)
            found.append((tensor, writer.time(Piece(forest), t, t if name == OUTPUT else s)))
        return tuple(found)

    def depth_dependence(
        self, where: str = "fixed point", names: tuple[str, ...] = ("Phi", "G")
    ) -> AtFixedPoint | AtCriticality:
        """The recursions over layers solved for one sample, with ell and L symbolic.

        ``"fixed point"``: the sample's variance is the same at each layer; exact, for any phi.
        ``"critical"``: phi known, odd, of slope 1 and bent down at zero; the leading powers of ell and L.
        ``names`` are the order parameters wanted, and ``f``.  Raises ValueError for another place.

        >>> from sympy import tanh
        >>> from derive.theory import mean_field
        >>> from derive.program import L, mlp
        >>> series = expand_nonlinear(mean_field(mlp(L, tanh)), 0)
        >>> series.depth_dependence("critical").tangent(0)  # order 0 of the tangent kernel, in the limit
        1/2
        >>> series.depth_dependence().tangent(0)  # x = <phi'^2>
        q*x*x**L/(x - 1) - q/(x - 1)
        """
        if where == "fixed point":
            return AtFixedPoint(self, names=names)
        if where == "critical":
            return AtCriticality(self, names)
        raise ValueError(f"where = {where!r}: must be 'fixed point' or 'critical'")

    def render(self, format: str = "text") -> str:
        """The series as ``text`` or ``latex``.  Raises ValueError for another format."""
        shown, program = _Shown(self, format == "latex"), self.theory.program
        head = (
            f"Expansion in γ₀ to order {self.order}: {program.name}, {program.depth} hidden layers, "
            f"φ(x) = {self.activation.expr}\n\n{LEGEND}"
        )
        blocks = {"Fields": shown.fields(), "Static": shown.static(), "Coefficients": shown.coefficients()}
        return printed(format, head, blocks)

    def truncate(self, n: int) -> NonlinearExpansion:
        """The series up to gamma0^n only.  Raises IndexError beyond ``order``.

        >>> from sympy import Function
        >>> from derive.theory import mean_field
        >>> from derive.program import L, mlp
        >>> expand_nonlinear(mean_field(mlp(L, Function("phi"))), 2).truncate(0).order
        0
        """
        self.check_order(n)
        laws = {x: law for x, law in self.laws.items() if x.order <= n}
        return replace(self, order=n, laws=laws, errors=tuple(m for m in self.errors if m <= n))

    # -- parts -----------------------------------------------------------------------------------------

    @property
    def _last(self) -> Expr:
        return L if self.site.layer == ell else S.One

    def writer(self, layer: Expr) -> Writer:
        """Writes terms at a layer."""
        numbers: dict[Tensor, int] = {}
        for x in (x for n in range(1, self.order + 1) for x in self.tensors(n)):
            numbers[x] = 1 + sum((y.name, y.order) == (x.name, x.order) for y in numbers)
        return Writer(self.site, layer, numbers)

    def _shapes(self, name: str, n: int) -> list[Forest]:
        return list(self.forests(name, n))

    def _kernel(self, name: str, n: int, layer: Expr) -> Expr:
        writer = self.writer(layer)
        if n == 0:
            return _causal(writer.terms(coefficient(Neighbour(name), 0, self._shapes)))
        total = S.Zero
        for edge in self.site.edges(name):
            at = sympify(layer + edge.kernel.shift)
            if not edge.memory:
                total += self._order_parameter(edge.kernel, n, at)
                continue
            for m in self.errors:
                if m <= n:
                    body = Function(f"Delta{m}")(alpha, s) * self._order_parameter(edge.kernel, n - m, at)
                    total += EARLIER * writer.weight(t, s) * body
        return total

    def _order_parameter(self, kernel: Neighbour, n: int, at: Expr) -> Expr:
        """As a function of two times, at order 0 of a correlation as it is."""
        name = kernel.name
        if kernel.given:
            value = S.One if name == "1" else Function(name)(mu, alpha)
            return value if n == 0 else S.Zero
        base = self.site.bases.get((name, at))
        if base is not None:
            return base if n == 0 else S.Zero
        if n == 0 and name in CORRELATIONS:
            return Function(f"{name}0")(at, *sorted((mu, alpha), key=str))
        return Function(f"{name}{n}")(at, mu, alpha, t, s) if self.forests(name, n) else S.Zero

    def _error(self, n: int) -> Expr:
        return Function(f"Delta{n}")(mu, t) if n in self.errors else S.Zero


def expand_nonlinear(theory: Theory, order: int = 2) -> NonlinearExpansion:
    """Expand a theory with a nonlinearity in gamma0 up to ``order``.

    phi may be a symbol, ``Function("phi")``, or known; the averages then hold for a phi with as many
    derivatives as they name.  Odd orders are computed and vanish.  A phi with a kink has order 0 only: units
    that cross it add terms of order ``|gamma0|``.

    Raises :class:`~derive.errors.NotApplicable` for a theory of another form (the
    reason says which part), ValueError for a negative order.

    >>> from sympy import Function
    >>> from derive.theory import mean_field
    >>> from derive.program import L, mlp
    >>> series = expand_nonlinear(mean_field(mlp(L, Function("phi"))), 2)
    >>> series.errors, [len(series.forests("Phi", n)) for n in range(3)]
    ((0, 2), [1, 0, 5])
    """
    if order < 0:
        raise ValueError(f"order = {order}: must be 0 or more")
    site = read(theory)
    if order > 0 and site.activation.expr.has(*KINKS):
        raise NotApplicable(
            f"phi = {site.activation.expr} has a kink, which units within gamma0 of it cross: G, the tangent "
            "kernel and the loss have a term of order |gamma0|, no Taylor series gives it; order 0 exists, "
            "for the next ones see expand_kinks"
        )
    found = solved_laws(site, order)
    return NonlinearExpansion(site, order, found.laws, found.errors, theory)


def _causal(e: Expr) -> Expr:
    """A response at s < t, and what there is of it at equal times."""
    before, now = e.as_independent(KroneckerDelta(s, t), DiracDelta(t - s), as_Add=True)
    return Add(*[EARLIER * x for x in Add.make_args(before)], now)


def tangent_kernel(
    summands: Iterable[Summand], n: int, order_parameter: Callable[[Neighbour, int, Expr], Expr]
) -> Expr:
    """Order n of the tangent kernel: its definition with the coefficients of its order parameters put in."""
    total: Expr = S.Zero
    for x in summands:
        parts: list[Expr] = [x.given, *[S.Zero] * n]
        for name, at in x.factors:
            series = [order_parameter(Neighbour(name), k, at) for k in range(n + 1)]
            parts = [Add(*[parts[j] * series[k - j] for j in range(k + 1)]) for k in range(n + 1)]
        if parts[n] != 0:
            total += Sum(parts[n], x.layers.limits) if x.layers else parts[n]
    return total


# -- printing ------------------------------------------------------------------------------------------------

LONGEST = 45
"""An entry with more terms than this is counted, not printed."""

LEGEND = """\
[X]_n is the coefficient of γ₀ⁿ.  u and r are the sources at γ₀ = 0, which rest; averages are
over them.  C₀, D₀ stand beside Δ^(0) and an update's weight in the kernels of h and z, D̄₀
is what D has at equal times.  v_αβ..(t) are iterated integrals of Δ^(0), or sums."""


class _Shown:
    """The coefficients as strings, in the papers' notation."""

    def __init__(self, expansion: NonlinearExpansion, latex: bool) -> None:
        self.x, self.latex, self.orders = expansion, latex, range(expansion.order + 1)
        self.names = {f"Delta{n}": rf"\Delta^{{({n})}}" for n in self.orders} | {"K_x": "K^x"}
        self.names |= {f"D{n}_now": rf"\bar{{D}}_{{{n}}}" for n in self.orders}
        for base, shown in (("beta", r"\beta"), ("t", "t")):
            self.names |= {base + "_" * k: shown + "'" * k for k in range(1, 9)}

    def show(self, e: Expr) -> str:
        """An expression."""
        return (latex if self.latex else text)(e, self.x.theory, self.names)

    def label(self, name: str, n: int, rest: tuple[Expr, ...]) -> str:
        """``[X]_n``."""
        whole = self.show(Function(name)(*(() if name in ("K", "Delta") else (ell,)), *rest))
        return rf"\left[{whole}\right]_{{{n}}}" if self.latex else f"[{whole}]_{n}"

    def terms(self, e: Expr) -> list[str]:
        """A sum, the shortest terms first."""
        terms = Add.make_args(e.subs(EARLIER, 1).replace(Function("v_since"), Function("v")))
        if len(terms) > LONGEST:
            return [rf"\text{{{len(terms)} terms}}" if self.latex else f"{len(terms)} terms"]
        return [self.show(x) for x in sorted(terms, key=lambda x: (len(str(x)), str(x)))]

    def fields(self) -> Iterator[tuple[str, list[str]]]:
        """The fields as far as the kernels at this order need them."""
        for name in ("h", "z", "g"):
            for n in self.orders:
                yield self.label(name, n, (mu, t)), self.terms(self.x.field(name, n))

    def static(self) -> Iterator[tuple[str, list[str]]]:
        """The recursions over layers of what does not depend on time."""
        for tensor, e in zip(self.x.tensors(0), self.x.recursions(0), strict=True):
            if tensor.name != OUTPUT:
                yield self.show(e.lhs), self.terms(e.rhs)

    def coefficients(self) -> Iterator[tuple[str, list[str]]]:
        """The order parameters, the tangent kernel and the error."""
        for name in ("Phi", "G", "A", "B", "K", "Delta"):
            if name in ("A", "B") and not self.x.forests(name, 0):
                continue
            for n in self.orders:
                rest = (mu, t) if name == "Delta" else (mu, alpha, t, s)
                yield self.label(name, n, rest), self.terms(self.x.coefficient(name, n))


__all__ = ["NonlinearExpansion", "expand_nonlinear", "tangent_kernel"]
