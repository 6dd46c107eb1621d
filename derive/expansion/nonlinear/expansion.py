"""The nonlinear theory expanded in gamma0, with the layer and the depth symbolic."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sympy import (
    Abs,
    Add,
    Eq,
    Expr,
    Function,
    Heaviside,
    Lambda,
    Max,
    Min,
    Mul,
    Piecewise,
    S,
    Sum,
    sign,
    sympify,
)
from sympy.core.function import AppliedUndef

from derive.errors import NotApplicable
from derive.expansion.nonlinear.fields import KERNELS, PAIR, Forest, OpaqueFields, samples_of
from derive.expansion.nonlinear.laws import OUTPUT, Law, order_parameters, solved_laws
from derive.expansion.nonlinear.reading import Kernel, Site, read
from derive.expansion.nonlinear.trees import CORRELATIONS, Piece, Static, Tensor, Terms, oriented
from derive.expansion.nonlinear.writing import Writer
from derive.program.words import L, P, alpha, ell, mu, s, t
from derive.theory import Theory

if TYPE_CHECKING:
    from derive.expansion.nonlinear.critical import AtCriticality
    from derive.expansion.nonlinear.depth import AtFixedPoint


KINKS = (Abs, Heaviside, Max, Min, Piecewise, sign)


@dataclass(frozen=True)
class NonlinearExpansion:
    """The order parameters of a nonlinear theory as power series in gamma0.

    Each is a sum of tensors, which depend on samples and the layer, times forests, which depend on time:
    iterated sums (integrals) of the error.  ``laws[tensor]`` is the tensor's recursion over layers, in which
    averages over the static sources of derivatives of phi stand; ``errors`` are the orders at which the error
    has a coefficient.  Compare selfconsistent2023 (P.9)-(P.26).
    """

    theory: Theory
    order: int
    site: Site
    laws: dict[Tensor, Law]
    errors: tuple[int, ...]

    @property
    def activation(self) -> Lambda:
        """phi, a function of one variable."""
        return self.site.activation

    def forests(self, name: str, n: int) -> tuple[Forest, ...]:
        """The forests of order n of an order parameter (or of ``f``)."""
        return tuple(x.shape for x in self.laws if (x.name, x.order) == (name, n))

    def coefficient(self, name: str, n: int, layer: Any = None) -> Expr:
        """The coefficient of gamma0^n at ``layer``: averages over static sources, kernels of the neighbours.

        ``name`` is an order parameter (``Phi``, ``G``, ``A``, ``B``), a kernel (``C``, ``D``: those of h and
        z), ``f``, ``Delta``, ``K`` (the tangent kernel) or ``loss``, the mean of Delta^2.  What is static has
        samples only, ``Phi0(ell, mu, alpha)``, and ``C0``, ``D0``, ``D0_now`` obey :meth:`recursions`;
        coefficients of higher order at other layers are functions of two times, ``Phi2(ell - 1, ...)``.
        ``v(alpha, beta, t)`` are iterated integrals of the error at order 0.

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
        self._check(n)
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
            return self._tangent(n)
        law = next((x for x in self.laws.values() if x.tensor.name == name), None)
        if law is None:
            known = sorted({x.name for x in self.laws} | {"Delta", "K", "loss"})
            raise KeyError(f"no series {name!r}; there are {', '.join(known)}")
        place = self._last if name == OUTPUT else layer - law.shift
        terms = self._opaque(n)[name]
        return self._writer(place).terms(terms, t, t if name == OUTPUT else s)

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
        known: set[int] = set(self.errors) | set(range(self.order + 1, n + 1))

        def shapes(kernel: str, k: int) -> list[Forest]:
            return list(self.forests(kernel, k)) or ([PAIR] if k > self.order else [])

        fields = OpaqueFields(self.site, n, shapes, known)
        writer = self._writer(layer)
        if name == "h":
            start = Function("u")(layer, mu, t) if n == 0 else S.Zero
            return start + writer.terms(fields.moved[n])
        if name == "z":
            return writer.terms(fields.z[n])
        if name in ("g", "phi"):
            return writer.terms(fields.of(name, n))
        raise KeyError(f"no field {name!r}; there are h, z, g, phi")

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
        self._check(n)
        found = []
        for x, law in self.laws.items():
            if x.order == n and oriented(x)[0] == x:
                writer = self._writer(self._last if x.name == OUTPUT else self.site.layer)
                samples = tuple(map(writer.sample, samples_of(x.shape)))
                bare = [Piece((), q.statics, q.averages) for q in law.terms]
                rhs = Add(
                    *[writer.numbers_of(q, c.coefficient) for q, c in zip(bare, law.terms, strict=True)]
                )
                found.append(Eq(writer.symbol(x, writer.layer + law.shift, samples), rhs, evaluate=False))
        return tuple(found)

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
        self._check(n)
        law = next(x for x in self.laws.values() if x.tensor.name == name)
        writer = self._writer(self._last if name == OUTPUT else self.site.layer - law.shift)
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
        from derive.expansion.nonlinear.critical import AtCriticality
        from derive.expansion.nonlinear.depth import AtFixedPoint

        if where == "fixed point":
            return AtFixedPoint(self, names=names)
        if where == "critical":
            return AtCriticality(self, names)
        raise ValueError(f"where = {where!r}: must be 'fixed point' or 'critical'")

    def render(self, format: str = "text") -> str:
        """The series as ``text`` or ``latex``.  Raises ValueError for another format."""
        from derive.expansion.nonlinear.printing import render

        return render(self, format)

    def _repr_latex_(self) -> str:
        return self.render("latex")

    def truncate(self, n: int) -> NonlinearExpansion:
        """The series up to gamma0^n only.  Raises IndexError beyond ``order``.

        >>> from sympy import Function
        >>> from derive.theory import mean_field
        >>> from derive.program import L, mlp
        >>> expand_nonlinear(mean_field(mlp(L, Function("phi"))), 2).truncate(0).order
        0
        """
        self._check(n)
        laws = {x: law for x, law in self.laws.items() if x.order <= n}
        return replace(self, order=n, laws=laws, errors=tuple(m for m in self.errors if m <= n))

    # -- parts -----------------------------------------------------------------------------------------

    def _check(self, n: int) -> None:
        if not 0 <= n <= self.order:
            raise IndexError(f"n = {n}: the series is known for orders 0 to {self.order}")

    @property
    def _last(self) -> Expr:
        return L if self.site.layer == ell else S.One

    def _writer(self, layer: Expr) -> Writer:
        numbers: dict[Tensor, int] = {}
        counts: dict[tuple[str, int], int] = {}
        for x in self.laws:
            if x.order and oriented(x)[0] == x:
                counts[x.name, x.order] = counts.get((x.name, x.order), 0) + 1
                numbers[x] = counts[x.name, x.order]
        return Writer(self.site, self.theory.program.rule, layer, numbers)

    def _opaque(self, n: int) -> dict[str, Terms]:
        def shapes(name: str, k: int) -> list[Forest]:
            return list(self.forests(name, k))

        return order_parameters(OpaqueFields(self.site, n + 1, shapes, set(self.errors)), n)

    def _kernel(self, name: str, n: int, layer: Expr) -> Expr:
        edges = self.site.h if name == "C" else self.site.z
        writer, total = self._writer(layer), S.Zero
        if n == 0:
            pieces = (
                Piece(f, (Static(Tensor(name, 0, f), 0, samples_of(f)),)) for f in self.forests(name, 0)
            )
            return Add(*[writer.piece(p, S.One) for p in pieces])
        for edge in edges:
            if not edge.memory:
                total += self._order_parameter(edge.kernel, n, layer)
                continue
            for m in self.errors:
                if m <= n:
                    body = Function(f"Delta{m}")(alpha, s) * self._order_parameter(edge.kernel, n - m, layer)
                    total += writer.weight(t, s) * body
        return total

    def _order_parameter(self, kernel: Kernel, n: int, layer: Expr) -> Expr:
        """As a function of two times, at order 0 of a correlation as it is."""
        at, name = sympify(layer + kernel.shift), kernel.name
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

    def _tangent(self, n: int) -> Expr:
        """The definition of the tangent kernel with its order parameters expanded."""
        correlations = {q.name for q in self.theory.correlations()}
        total: Expr = S.Zero
        for term in self.theory.observables[0].terms:
            body, limits = term.expr, ()
            if isinstance(body, Sum):
                body, limits = body.function, body.limits
            parts: list[Expr] = [S.One, *[S.Zero] * n]
            for x in Mul.make_args(body):
                name = str(x.func) if isinstance(x, AppliedUndef) else ""
                series = [x, *[S.Zero] * n]
                if name in correlations:
                    kernel = Kernel(name)
                    series = [self._order_parameter(kernel, k, x.args[0]) for k in range(n + 1)]
                parts = [Add(*[parts[j] * series[k - j] for j in range(k + 1)]) for k in range(n + 1)]
            if parts[n] != 0:
                total += Sum(parts[n], *limits) if limits else parts[n]
        return total


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
    laws, errors = solved_laws(site, order)
    return NonlinearExpansion(theory, order, site, laws, errors)


__all__ = ["NonlinearExpansion", "expand_nonlinear"]
