"""The linear theory expanded in gamma0, with the layer and the depth symbolic.

At each order the closure is a recursion in the layer, X(ell) = X(ell -+ 1) + words with coefficients polynomial in
ell and L.  Summing the polynomials solves it.  Nothing about parity is assumed: odd orders are computed and vanish.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sympy import Add, Expr, Indexed, Mul, S, Sum, Symbol, factor, summation, sympify
from sympy.core.function import AppliedUndef

from derive.expansion.series import Ring
from derive.expansion.words import Memory, letters, remembered, terms
from derive.meanfield.reductions.linear_closure import LinearClosure, linear_closure
from derive.meanfield.reductions.operators import J, operator
from derive.meanfield.reductions.projection import NotApplicable
from derive.meanfield.theory import Theory
from derive.program.expressions import ell, gamma0, mu


@dataclass(frozen=True)
class LinearExpansion:
    """The order parameters of a linear theory as power series in gamma0.

    ``series[X][n]`` is the coefficient of gamma0^n of the operator X (``H``, ``G``, ``A``, ``B``, and the kernels
    ``C``, ``D``) at layer ``ell``: a sum of operator words with coefficients polynomial in ell and L.  ``output[n]`` is
    the operator whose entries at equal times are f at that order; ``tangent[n]`` the tangent kernel as products, entry
    by entry, of a word of G and a word of H.  ``Memory`` letters carry the error's own coefficients.
    """

    closure: LinearClosure
    order: int
    series: dict[str, list[Expr]]
    output: list[Expr]
    tangent: list[list[tuple[Expr, Expr, Expr]]]

    def coefficient(self, name: str, n: int, layer: Expr | int = ell) -> Expr:
        """The coefficient of gamma0^n in the operator ``name`` at ``layer``.  Raises KeyError for an unknown name.

        >>> from derive.meanfield import mean_field
        >>> from derive.program import mlp
        >>> e = expand_linear(mean_field(mlp(rule="flow")), 2)
        >>> e.coefficient("C", 0)
        ell*C0[K_x]
        """
        value = self.series[name][n]
        return value.subs(ell, layer) if layer is not ell else value

    def render(self, format: str = "text") -> str:
        """The series as text or LaTeX."""
        from derive.expansion.printing import render

        return render(self, format)

    def _repr_latex_(self) -> str:
        return self.render("latex")


def expand_linear(theory: Theory, order: int = 2) -> LinearExpansion:
    """Expand a linear theory (of a family of layers) in gamma0 up to ``order``.

    Raises :class:`~derive.meanfield.reductions.projection.NotApplicable` when the closure is no first-order recursion in
    the layer, ValueError for a negative order.
    """
    if order < 0:
        raise ValueError(f"order = {order}: must be 0 or more")
    return _Expansion(linear_closure(theory), order).expand()


@dataclass
class _Expansion:
    closure: LinearClosure
    order: int
    series: dict[str, list[Expr]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.closure.layers is None:
            raise NotApplicable("the expansion needs a family of layers: derive the theory at symbolic depth")
        self.first, self.last = self.closure.layers.lower, self.closure.layers.upper
        self.base: dict[str, tuple[Expr, Expr]] = {}
        for e in self.closure.base:
            name, place = str(e.lhs.args[0]), e.lhs.args[1]
            self.base[name] = (place, e.rhs)
        self.symmetric = frozenset({J, *[v for _, v in self.base.values() if v != 0]})
        self.laws = {str(e.lhs.args[0]): (e.lhs, e.rhs) for e in (*self.closure.covariances, *self.closure.responses)}
        self.kernels = {str(k.operator.args[0]): k for k in self.closure.kernels if k.operator.has(ell)}

    def expand(self) -> LinearExpansion:
        names = [*self.laws, *self.kernels]
        self.series = {x: [] for x in names}
        correlations = [x for x in self.laws if self.base[x][1] != 0]
        for n in range(self.order + 1):
            for x in correlations:
                self.series[x].append(self.correlation(x, n))
            for x in self.kernels:
                self.series[x].append(self.kernel(x, n))
            for x in self.laws:
                if x not in correlations:
                    self.series[x].append(self.response(x, n))
        output = [self.output(n) for n in range(self.order + 1)]
        tangent = [self.tangent(n) for n in range(self.order + 1)]
        return self.without_idle_errors(LinearExpansion(self.closure, self.order, self.series, output, tangent))

    # -- one order of one operator -----------------------------------------------------------------------------------

    def order_n(self, e: Expr, n: int) -> Expr:
        """The coefficient of gamma0^n, with a placeholder for every operator that is not known at that order yet."""

        def series(x: Indexed) -> list[Expr]:
            name, site = str(x.args[0]), x.args[1]
            found = [c.subs(ell, site) for c in self.series[name][: n + 1]]
            if len(found) < n + 1:
                found.append(operator(f"next_{name}", site))
            return found

        return Ring(gamma0, n, self.symmetric).evaluate(e, series)[n]

    def correlation(self, name: str, n: int) -> Expr:
        """``X(ell) = X(ell -+ 1) + known``: sum the known part from the end where X is given."""
        lhs, rhs = self.laws[name]
        place, value = self.base[name]
        rise = self.order_n(rhs, n)
        step, rest = self.split(rise, name, lhs)
        start = value if n == 0 else S.Zero
        return start + self.summed(rest, step, place)

    def kernel(self, name: str, n: int) -> Expr:
        """A kernel follows its response from layer to layer, and remembers the correlation of the layer before."""
        k = self.kernels[name]
        step = S.Zero
        gain = S.Zero
        place = S.Zero
        for part in Add.make_args(k.definition):
            atom = self.tensor(part)
            x, site = str(atom.func), atom.args[0]
            if part == atom:  # the response of the neighbouring layer, at this order: that layer's kernel and more
                lhs, rhs = self.laws[x]
                shift = site - lhs.args[1]
                value = self.order_n(rhs, n).subs(ell, ell + shift) if shift != 0 else self.order_n(rhs, n)
                step, rest = self.split(value, name, operator(name, ell))
                gain += rest
                place = self.base[x][0] + (ell - site)
            else:
                gain += Add(
                    *[remembered(name, j, self.series[x][n - j].subs(ell, site)) for j in range(n + 1)]
                )
        if step == 0:
            return gain.expand()
        return self.summed(gain, step, place + step)  # beyond the end there is neither response nor memory

    def response(self, name: str, n: int) -> Expr:
        """Given by the kernels of its layer."""
        lhs, rhs = self.laws[name]
        value = self.order_n(rhs, n)
        return value.subs(ell, ell + (ell - lhs.args[1])).expand()

    def output(self, n: int) -> Expr:
        """f at order n: the average it is made of carries one power of the scale more."""
        average = self.closure.outputs[0]
        ring = Ring(gamma0, n + 1, self.symmetric)

        def series(x: Indexed) -> list[Expr]:
            found = [c.subs(ell, x.args[1]) for c in self.series[str(x.args[0])][: n + 2]]
            return found + [operator("beyond")] * (n + 2 - len(found))

        value = ring.evaluate(average.rhs, series)[n + 1]
        if value.has(operator("beyond")):
            raise NotApplicable(f"{average.lhs} does not carry a factor {gamma0}")
        return value

    def tangent(self, n: int) -> list[tuple[Expr, Expr, Expr]]:
        """The tangent kernel: products of words, entry by entry, summed over the layers."""
        observables = self.closure.theory.observables
        if not observables:
            return []
        found: dict[tuple[Expr, Expr], Expr] = {}
        for layer, lower, upper, pair in self._products(observables[0].rhs):
            series = [self.tensor_series(a) for a in pair]
            while len(series) < 2:
                series.insert(0, [J, *[S.Zero] * self.order])
            for k in range(n + 1):
                for c1, w1 in terms(series[0][k]):
                    for c2, w2 in terms(series[1][n - k]):
                        value = c1 * c2
                        total = summation(value, (layer, lower, upper)) if layer is not None else value
                        found[w1, w2] = found.get((w1, w2), S.Zero) + total
        return [(factor(c), a, b) for (a, b), c in found.items() if c.expand() != 0]

    @staticmethod
    def _products(e: Expr) -> list[tuple[Symbol | None, Expr, Expr, list[AppliedUndef]]]:
        """The addends: layer index and limits, if summed over layers, and the tensors, those with samples last."""
        out: list[tuple[Symbol | None, Expr, Expr, list[AppliedUndef]]] = []
        for part in Add.make_args(e):
            body, limits = (part.function, part.limits[0]) if isinstance(part, Sum) else (part, (None, S.Zero, S.Zero))
            atoms = [a for a in Mul.make_args(body) if isinstance(a, AppliedUndef)]
            out.append((*limits, sorted(atoms, key=lambda a: bool(a.has(mu)))))
        return out

    def tensor_series(self, a: AppliedUndef) -> list[Expr]:
        name = str(a.func)
        if name in self.series:
            return [c.subs(ell, a.args[0]) for c in self.series[name]]
        return [operator(name), *[S.Zero] * self.order]

    # -- helpers -----------------------------------------------------------------------------------------------------

    def tensor(self, part: Expr) -> AppliedUndef:
        """The order parameter in a term of a kernel's definition."""
        found = [a for a in part.atoms(AppliedUndef) if str(a.func) in self.laws]
        if len(found) != 1:
            raise NotApplicable(f"{part} must contain one order parameter; it contains {found or 'none'}")
        return found[0]

    def split(self, e: Expr, name: str, lhs: Expr) -> tuple[Expr, Expr]:
        """``e = next_name(ell + step) + rest``: the step, and the rest, which must be known."""
        step: Expr = S.Zero
        rest = S.Zero
        for c, w in terms(e):
            placeholders = [x for x in letters(w) if isinstance(x, Indexed) and str(x.args[0]).startswith("next_")]
            if not placeholders:
                rest += c * w
                continue
            x = placeholders[0]
            if len(letters(w)) != 1 or c != 1 or str(x.args[0]) != f"next_{name}":
                raise NotApplicable(f"{lhs} depends on {w} at the same order")
            step = x.args[1] - ell
        return step, rest

    def summed(self, e: Expr, step: Expr, place: Expr) -> Expr:
        """Solve ``X(ell) = X(ell + step) + e(ell)`` with X = 0 at ``place``, word by word."""
        if step not in (1, -1):
            raise NotApplicable(f"a recursion over {step} layers")
        k = Symbol("k", integer=True)
        total = S.Zero
        for c, w in terms(e):
            body = c.subs(ell, k)
            limits = (k, place + 1, ell) if step == -1 else (k, ell, place - 1)
            total += factor(summation(body, limits)) * w
        return total

    def without_idle_errors(self, e: LinearExpansion) -> LinearExpansion:
        """An order at which the error's equation is homogeneous has no error; drop its letters everywhere."""
        for n in range(1, self.order + 1):
            driven = any(not has_error(w, n) for _, w in terms(e.output[n]))
            if driven:
                continue

            def clear(x: Expr, n: int = n) -> Expr:
                return sympify(Add(*[c * w for c, w in terms(x) if not has_error(w, n)]))

            e = LinearExpansion(
                e.closure,
                e.order,
                {k: [clear(x) for x in v] for k, v in e.series.items()},
                [clear(x) for x in e.output],
                [[t for t in ts if not has_error(t[1], n) and not has_error(t[2], n)] for ts in e.tangent],
            )
        return e


def has_error(word: Expr, n: int) -> bool:
    """Does a word contain the error's coefficient of order n?"""
    return any(x.order == n for x in word.atoms(Memory))


__all__ = ["LinearExpansion", "expand_linear"]
