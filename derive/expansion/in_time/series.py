"""The expansion with time written out: every coefficient an explicit function of t and s."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from sympy import QQ, Expr, S, Symbol, sympify

from derive.expansion.in_time.at_depth import AtDepth
from derive.expansion.in_time.exponentials import Exponentials
from derive.expansion.in_time.expressions import Expressions
from derive.expansion.in_time.from_words import FromWords
from derive.expansion.in_time.modes import Mode, exact, modes_of, samples_of, scales_of
from derive.expansion.in_time.operators import Algebra, Vector
from derive.expansion.in_time.values import Values, feedback, memory_weight, solved
from derive.expansion.words import LinearSeries
from derive.program.words import L, P, ell, s, t

if TYPE_CHECKING:
    from derive.calculus.series import PowerSeries

norm = Symbol("y", positive=True)
"""The length of the target vector."""


@dataclass(frozen=True)
class InTime:
    """The series of a linear theory in the eigenmodes of the data; coefficients are functions of time.

    ``modes`` says which mode has which number: first one for each different eigenvalue, along the targets,
    then one for the other directions of each eigenspace.  For the flow, A, B, C and D are densities in s.
    """

    modes: tuple[Mode, ...]
    order: int
    depth: Expr
    discrete: bool
    values: Values = field(repr=False, compare=False)
    expressions: Expressions = field(repr=False, compare=False)

    def coefficient(
        self, name: str, n: int, *modes: int, layer: Any = ell, now: Expr = t, past: Expr = s
    ) -> Expr:
        """The coefficient of gamma0^n of ``H``, ``G``, ``A``, ``B``, ``C`` or ``D`` at a layer, of the
        tangent kernel ``K``, or of ``Delta``, ``f`` and ``loss`` at time ``now``.

        ``modes`` are the numbers of the modes: two for H and K, one for A, B, C, D, Delta and f; those
        left out are 0.  A, B, C and D are meant for ``past < now``.  Raises KeyError for an unknown
        name, IndexError beyond ``order`` or for a mode that there is not, ValueError for a symbolic layer at
        integer depth.
        """
        if not 0 <= n <= self.order:
            raise IndexError(f"n = {n}: the series is known for orders 0 to {self.order}")
        at = self._place(name, modes)
        if name == "loss":
            return self.loss(n, now)
        if name in ("Delta", "f"):
            return self.Delta(n, at[0], now) if name == "Delta" else self._output(n, at[0], now)
        x = self.values.tangent(n) if name == "K" else self.values.operator(name, n, layer)
        front = self.expressions.factor_of(x.unit, x.damping)
        if x.causal:
            front *= self.expressions.scales.clock
        f = x.entries.get((at[0], at[1]))
        return S.Zero if f is None else self.expressions.two_times(f, front, now, past)

    def _place(self, name: str, modes: tuple[int, ...]) -> tuple[int, int]:
        """Row and column."""
        sides = {"H": 2, "K": 2, "G": 0, "A": 1, "B": 1, "C": 1, "D": 1, "Delta": 1, "f": 1, "loss": 0}
        if name not in sides:
            raise KeyError(f"no series {name!r}; there are {', '.join(sides)}")
        if len(modes) > sides[name]:
            raise IndexError(f"{name} has {sides[name]} mode indices; {len(modes)} are given")
        for k in modes:
            if not 0 <= k < len(self.modes):
                raise IndexError(f"mode {k}: there are modes 0 to {len(self.modes) - 1}")
        full = (*modes, *(0,) * (sides[name] - len(modes)))
        if sides[name] == 2:
            return full[0], full[1]
        one = full[0] if full else 0
        return (0, one) if name in ("B", "D") else (one, 0)

    def Delta(self, n: int, mode: int = 0, now: Expr = t) -> Expr:
        """The coefficient of gamma0^n of the error along a mode."""
        v = self._error(n)
        f = v.entries.get(mode)
        front = self.expressions.factor_of(v.unit, v.damping)
        return S.Zero if f is None else self.expressions.one_time(f, front, now)

    def _output(self, n: int, mode: int, now: Expr) -> Expr:
        start = self.modes[mode].target if n == 0 else S.Zero
        return start - self.Delta(n, mode, now)

    def _error(self, n: int) -> Vector:
        if not 0 <= n <= self.order:
            raise IndexError(f"n = {n}: the series is known for orders 0 to {self.order}")
        return self.values.errors[n]

    def loss(self, n: int, now: Expr = t) -> Expr:
        """The coefficient of gamma0^n of the mean over samples of the squared error."""
        total, unit, damping = self.squared(n)
        front = self.expressions.factor_of(unit, damping) / self.samples
        return self.expressions.one_time(total, front, now)

    @property
    def samples(self) -> Expr:
        """How many samples there are."""
        return samples_of(self.modes)

    def squared(self, n: int) -> tuple[Any, int, int]:
        """Order n of the sum of squared errors: an element, its unit and its damping."""
        a = self.values.algebra
        terms = [
            (x.damping + y.damping, x.unit + y.unit, x.entries[i] * y.entries[i])
            for x, y in ((self._error(k), self._error(n - k)) for k in range(n + 1))
            for i in x.entries
            if i in y.entries
        ]
        if not terms:
            return a.functions.zero, 0, 0
        top = max(d for d, _, _ in terms)
        return sum((f * a.feedback ** (top - d) for d, _, f in terms), a.functions.zero), terms[0][1], top

    def series(self, name: str, *modes: int, layer: Any = ell, now: Expr = t, past: Expr = s) -> PowerSeries:
        """All coefficients as a power series in gamma0."""
        from derive.calculus.series import PowerSeries

        found = [
            self.coefficient(name, n, *modes, layer=layer, now=now, past=past) for n in range(self.order + 1)
        ]
        return PowerSeries(tuple(found))

    def truncate(self, n: int) -> InTime:
        """The series up to gamma0^n only.  Raises IndexError beyond ``order``."""
        if not 0 <= n <= self.order:
            raise IndexError(f"n = {n}: the series is known for orders 0 to {self.order}")
        return replace(self, order=n)

    def render(self, format: str = "text") -> str:
        """Error and loss as ``text`` or ``latex``.  Raises ValueError for another format."""
        from derive.expansion.in_time.printing import render

        return render(self, format)

    def _repr_latex_(self) -> str:
        return self.render("latex")


def in_time(
    expansion: LinearSeries,
    eigenvalues: Sequence[Any] = (1,),
    targets: Sequence[Any] | None = None,
    multiplicities: Sequence[Any] | None = None,
    *,
    depth: int | None = None,
    order: int | None = None,
    constants: Mapping[Symbol, Any] | None = None,
) -> InTime:
    """The expansion for a kernel with these eigenvalues, as functions of time.

    See :meth:`~derive.expansion.linear.LinearExpansion.in_time`.
    """
    closure = expansion.closure
    if depth is None and order is not None and order > expansion.order:
        raise ValueError(
            f"order = {order}: at any depth the words are known to order {expansion.order}; "
            "expand further, or give a depth"
        )
    if order is not None and order < 0:
        raise ValueError(f"order = {order}: must be 0 or more")
    if depth is not None and depth < 1:
        raise ValueError(f"depth = {depth}: must be 1 or more")
    if targets is None:
        targets = [norm] if len(eigenvalues) == 1 else [Symbol(f"y{k + 1}") for k in range(len(eigenvalues))]
        if multiplicities is None and len(eigenvalues) == 1:
            multiplicities = [P]
    modes = modes_of(eigenvalues, targets, multiplicities)
    order = expansion.order if order is None else order
    discrete = bool(closure.theory.program.rule.discrete)
    layers = [L, ell] if depth is None else []

    def route(algebra: Algebra, rates: Sequence[Any]) -> Values:
        if depth is None:
            return FromWords(expansion, algebra, rates)
        return AtDepth(closure, depth, algebra, rates)

    known = {P: samples_of(modes)} | {k: exact("constants", v) for k, v in (constants or {}).items()}
    weight = memory_weight(closure, known)
    plain = Exponentials(QQ, [], discrete, layers)
    number = feedback(route(Algebra(plain), [QQ(1)]))
    total = number.as_expr()
    scales = scales_of(modes, weight * total, discrete)
    letters = {Symbol(f"y_{k}"): m.target for k, m in enumerate(modes) if not m.target.is_Rational}
    functions = Exponentials(scales.field, scales.exponents, discrete, [*letters, *layers])
    algebra = Algebra(functions, _lifted(number, functions, len(layers)))
    values = route(algebra, scales.rates)
    aims = [
        functions.ring(scales.field.from_sympy(m.target))
        if m.target.is_Rational
        else functions.parameters[Symbol(f"y_{k}")]
        for k, m in enumerate(modes)
    ]
    solved(values, aims, scales.powers, order)
    expressions = Expressions(functions, scales, total, letters)
    return InTime(
        modes, order, sympify(L if depth is None else depth, strict=True), discrete, values, expressions
    )


def _lifted(number: Any, functions: Exponentials, layers: int) -> Any:
    """A polynomial in the layers, in the ring of ``functions``."""
    pad = (0,) * (functions.ring.ngens - layers)
    found = {(*pad, *m[len(m) - layers :]): c for m, c in number.iterterms()}
    return functions.ring.from_dict({m: functions.field.convert(c, QQ) for m, c in found.items()})


__all__ = ["InTime", "in_time"]
