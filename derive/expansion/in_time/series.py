"""The linear expansion with time written out: every coefficient an explicit function of t and s."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sympy import QQ, Dummy, Expr, Function, Mul, S, Symbol, exp, sympify

from derive.calculus.symbols import L, P, ell, gamma0, s, t
from derive.expansion.expansion import Expansion, printed
from derive.expansion.in_time.exponentials import Algebra, Exponentials, Vector
from derive.expansion.in_time.modes import Expressions, Mode, exact, modes_of, samples_of, scales_of
from derive.expansion.in_time.values import AtDepth, FromWords, Values, feedback, memory_weight, solved
from derive.expansion.words import LinearSeries
from derive.show import latex, text

norm = Symbol("y", positive=True)
"""The length of the target vector."""
tau = Symbol("tau", nonnegative=True)
"""Time in units of the rates."""
SIDES = {"H": 2, "K": 2, "G": 0, "A": 1, "B": 1, "C": 1, "D": 1, "Delta": 1, "f": 1, "loss": 0}
"""How many modes an entry has."""


@dataclass(frozen=True)
class InTime(Expansion):
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

    @property
    def variable(self) -> Symbol:
        """gamma0."""
        return gamma0

    @property
    def names(self) -> tuple[str, ...]:
        """The order parameters, the tangent kernel, error, output and loss."""
        return tuple(SIDES)

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
        self.check_order(n)
        at = self._place(name, modes)
        if name == "loss":
            return self.loss(n, now)
        if name in ("Delta", "f"):
            return self.Delta(n, at[0], now) if name == "Delta" else self._output(n, at[0], now)
        x = self.values.tangent(n) if name == "K" else self.values.operator(name, n, layer)
        front = self.expressions.front(x) * (self.expressions.scales.clock if x.causal else 1)
        return self.expressions.written(x.at(*at), front, now, past)

    def _place(self, name: str, modes: tuple[int, ...]) -> tuple[int, int]:
        """Row and column."""
        if name not in SIDES:
            raise self.unknown(name)
        if len(modes) > SIDES[name]:
            raise IndexError(f"{name} has {SIDES[name]} mode indices; {len(modes)} are given")
        for k in modes:
            if not 0 <= k < len(self.modes):
                raise IndexError(f"mode {k}: there are modes 0 to {len(self.modes) - 1}")
        full = (*modes, *(0,) * (SIDES[name] - len(modes)))
        if SIDES[name] == 2:
            return full[0], full[1]
        one = full[0] if full else 0
        return (0, one) if name in ("B", "D") else (one, 0)

    def Delta(self, n: int, mode: int = 0, now: Expr = t) -> Expr:
        """The coefficient of gamma0^n of the error along a mode."""
        return self._written(self._error(n), mode, now)

    def _written(self, v: Vector, mode: int, now: Expr, count: Expr = S.One) -> Expr:
        f = v.entries.get(mode)
        found = {} if f is None else {self.values.algebra.functions.idle: f}
        return self.expressions.written(found, self.expressions.front(v) / count, now, S.Zero)

    def _output(self, n: int, mode: int, now: Expr) -> Expr:
        start = self.modes[mode].target if n == 0 else S.Zero
        return start - self.Delta(n, mode, now)

    def _error(self, n: int) -> Vector:
        self.check_order(n)
        return self.values.errors[n]

    def loss(self, n: int, now: Expr = t) -> Expr:
        """The coefficient of gamma0^n of the mean over samples of the squared error."""
        return self._written(self.squared(n), 0, now, self.samples)

    @property
    def samples(self) -> Expr:
        """How many samples there are."""
        return samples_of(self.modes)

    def squared(self, n: int) -> Vector:
        """Order n of the sum of squared errors, as the one entry of a vector."""
        pairs = [(self._error(k), self._error(n - k)) for k in range(n + 1)]
        parts = [
            Vector({0: f * v.entries[i]}, u.unit + v.unit, u.damping + v.damping)
            for u, v in pairs
            for i, f in u.entries.items()
            if i in v.entries
        ]
        return self.values.algebra.add(Vector({}), *parts)

    def conditions(self) -> tuple[str, ...]:
        """What was assumed: symbols among the eigenvalues are generic, so that no rates resonate."""
        symbols = {x for m in self.modes for x in m.eigenvalue.free_symbols}
        shown = ", ".join(sorted(map(str, symbols)))
        return (f"{shown} generic: rates resonate only where they do for all values",) if symbols else ()

    def truncate(self, n: int) -> InTime:
        """The series up to gamma0^n only.  Raises IndexError beyond ``order``."""
        self.check_order(n)
        return replace(self, order=n)

    def render(self, format: str = "text") -> str:
        """Error and loss as ``text`` or ``latex``.  Raises ValueError for another format."""
        return _printed(self, format)


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


# -- printing: letters for what formulas are made of --------------------------------------------------------


class _Letters:
    """What formulas are written in: the time in units of the rates, one letter for each exponential."""

    def __init__(self, x: InTime) -> None:
        self.x = x
        functions, scales = x.expressions.functions, x.expressions.scales
        self.time = t if scales.clock == 1 else tau
        several = len(functions.eigenvalues) > 1
        self.waves = [Symbol(f"e_{k}" if several else "e") for k in range(1, len(functions.eigenvalues) + 1)]
        self.renamed: dict[Any, Any] = dict(
            zip(functions.ring.symbols, (self.time, *self.waves), strict=False)
        )
        # letters of the field that stay letters: those of decays per step
        self.fixed: dict[Any, Expr] = {}
        for a, meaning in scales.names.items():
            if isinstance(a, Dummy):
                name = a.name if len(a.name) == 1 else f"{a.name[0]}_{a.name[1:]}"
                self.renamed[a] = Symbol(name)
                self.fixed[self.renamed[a]] = meaning
        kept = {} if self.fixed else scales.names
        self.expressions = replace(x.expressions, scales=replace(scales, names=kept))

    def definitions(self) -> Iterator[tuple[Expr, Expr]]:
        """Each letter and what it stands for."""
        expressions = self.expressions
        if self.time == tau:
            yield tau, Mul(expressions.scales.clock, t)
        yield from self.fixed.items()
        for k, e in enumerate(self.waves):
            powers = tuple(int(j == k) for j in range(len(self.waves)))
            number, factors = expressions.factored(
                expressions.functions.ring(expressions.functions.eigenvalue(powers))
            )
            value = Mul(number, *factors).xreplace(self.renamed)
            yield e, value**self.time if self.x.discrete else exp(value * self.time)

    def compact(self, f: Any, front: Expr) -> Expr:
        """A function as one product."""
        expressions = self.expressions
        number, factors = expressions.factored(f, time=True)
        shown = [y.xreplace(self.renamed).xreplace(dict(expressions.known)) for y in factors]
        return Mul(number, front, *shown)

    def lines(self) -> Iterator[tuple[Expr, list[tuple[int, Expr]]]]:
        """The error along each mode that has a target, and the loss; orders that do not vanish."""
        x, errors = self.x, self.x.values.errors[: self.x.order + 1]
        aims = [k for k, m in enumerate(x.modes) if m.target != 0]
        rows = [(f"Delta_{k + 1}" if len(aims) > 1 else "Delta", errors, k, S.One) for k in aims]
        rows.append(("loss", [x.squared(n) for n in range(x.order + 1)], 0, x.samples))
        for name, vectors, k, count in rows:
            known = [(n, v) for n, v in enumerate(vectors) if k in v.entries]
            found = [(n, self.compact(v.entries[k], self.expressions.front(v) / count)) for n, v in known]
            yield Function(name)(t), found


def _printed(x: InTime, format: str) -> str:
    letters, theory = _Letters(x), x.values.closure.theory
    show = latex if format == "latex" else text
    brackets = (r"\left[", r"\right]") if format == "latex" else ("[", "]")
    head = [f"In time, to order {x.order} in γ₀: a linear network of depth {x.depth}", ""]
    for k, m in enumerate(x.modes):
        target, count = text(m.target, theory), text(m.multiplicity, theory)
        kind = f"no target, {count} directions" if m.target == 0 else f"target {target}"
        head.append(f"    mode {k}: eigenvalue {text(m.eigenvalue, theory)}, {kind}")

    def left(e: Expr) -> str:
        mean = format == "latex" and str(e.func) == "loss"
        return r"\left\langle \Delta^2 \right\rangle(t)" if mean else show(e, theory)

    def right(n: int, e: Expr) -> str:
        body = show(e, theory)
        return f"{show(gamma0**n, theory)} {brackets[0]}{body}{brackets[1]}" if n else body

    meanings = [(show(a, theory), [show(b, theory)]) for a, b in letters.definitions()]
    found = [(left(e), [right(n, c) for n, c in orders]) for e, orders in letters.lines()]
    return printed(format, "\n".join(head), {"Letters": meanings, "Error and loss": found})


__all__ = ["InTime", "in_time"]
