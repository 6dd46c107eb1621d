"""Order by order, the closure of a linear theory is a recursion in the layer; summing polynomials solves it.

Each operator obeys X(ell) = X(ell -+ 1) + words, with coefficients polynomial in ell and L.  Nothing about
parity is assumed: odd orders are computed like even ones, and vanish.
"""

from __future__ import annotations

from functools import lru_cache

from sympy import Add, Expr, Indexed, Integral, Mul, S, Symbol
from sympy import Sum as SymSum
from sympy.core.function import AppliedUndef

from derive.calculus.polynomials import Polynomials
from derive.errors import NotApplicable
from derive.expansion.series import Ring, Series, Sum, Word, total
from derive.expansion.words import Memory
from derive.linear.closure import LinearClosure
from derive.linear.operators import J, operator
from derive.program.words import ell, gamma0, mu

UNKNOWN = "next_"


class Recursion:
    """The series of every operator, found order by order.

    ``series[X][n]`` is the coefficient of gamma0^n of X at layer ``ell``; ``outputs[n]`` that of f;
    ``tangents[n]`` maps pairs (word of G, word of H) to their coefficient in the tangent kernel.
    Raises :class:`NotApplicable` when the closure is no first-order recursion in the layer.
    """

    def __init__(self, closure: LinearClosure, order: int) -> None:
        if closure.layers is None:
            raise NotApplicable("the expansion needs a family of layers: derive the theory at symbolic depth")
        self.closure, self.order = closure, order
        self.base = {str(e.lhs.args[0]): (e.lhs.args[1], e.rhs) for e in closure.base}
        self.symmetric = frozenset({J, *(v for _, v in self.base.values() if v != 0)})
        laws = (*closure.covariances, *closure.responses)
        self.laws = {str(e.lhs.args[0]): (e.lhs, e.rhs) for e in laws}
        self.kernels = {str(k.operator.args[0]): k for k in closure.kernels if k.operator.has(ell)}
        self.numbers = Polynomials(_symbols(closure))
        self.flipped: dict[Expr, Expr] = {}
        self.idle: set[int] = set()
        self.at: dict[tuple[str, int, Expr], Sum] = {}
        self.series: dict[str, Series] = {x: [] for x in (*self.laws, *self.kernels)}
        self.outputs: Series = []
        self.tangents: list[dict[tuple[Word, Word], object]] = []
        for n in range(order + 1):
            self.advance(n)

    def advance(self, n: int) -> None:
        """One more order of everything."""
        correlations = [x for x in self.laws if self.base.get(x, (0, 0))[1] != 0]
        for x in correlations:
            self.series[x].append(self.correlation(x, n))
        for x in self.kernels:
            self.series[x].append(self.kernel(x, n))
        for x in self.laws:
            if x not in correlations:
                self.series[x].append(self.response(x, n))
        self.outputs.append(self.output(n))
        if n > 0 and all(has_error(w, n) for w in self.outputs[n]):
            # the error at this order obeys a homogeneous Volterra equation, so there is none
            self.idle.add(n)
            for found in (*self.series.values(), self.outputs):
                found[n] = {w: c for w, c in found[n].items() if not has_error(w, n)}
            self.at.clear()
        self.tangents.append(self.tangent(n))

    # -- one order of one operator ---------------------------------------------------------------------

    def ring(self, order: int) -> Ring:
        """Series up to ``order``."""
        return Ring(gamma0, order, self.symmetric, self.numbers, self.flipped)

    def placed(self, name: str, n: int, site: Expr) -> Sum:
        """A known coefficient at another layer."""
        if (name, n, site) not in self.at:
            self.at[name, n, site] = self.ring(0).moved(self.series[name][n], site)
        return self.at[name, n, site]

    def order_n(self, e: Expr, n: int) -> Sum:
        """The coefficient of gamma0^n, with a placeholder for each operator not known at that order yet."""
        ring = self.ring(n)

        def series(x: Indexed) -> Series:
            name, site = str(x.args[0]), x.args[1]
            found = [self.placed(name, k, site) for k in range(min(n + 1, len(self.series[name])))]
            if len(found) < n + 1:
                found.append(ring.word(operator(UNKNOWN + name, site)))
            return found

        return ring.evaluate(e, series)[n]

    def correlation(self, name: str, n: int) -> Sum:
        """``X(ell) = X(ell -+ 1) + known``: sum the known part from the end where X is given."""
        lhs, rhs = self.laws[name]
        place, value = self.base[name]
        step, rest = self.split(self.order_n(rhs, n), name, lhs)
        start = self.ring(0).word(value) if n == 0 else {}
        return total(start, self.summed(rest, step, place))

    def kernel(self, name: str, n: int) -> Sum:
        """A kernel follows a response from layer to layer, and remembers the correlation of the last one."""
        step, place = S.Zero, S.Zero
        gains: list[Sum] = []
        for part in Add.make_args(self.kernels[name].definition):
            atom = self.order_parameter(part)
            x, site = str(atom.func), atom.args[0]
            if part == atom:  # the response of the neighbouring layer: that layer's kernel and more
                lhs, rhs = self.laws[x]
                shifted = rhs.subs(ell, ell + site - lhs.args[1])
                step, rest = self.split(self.order_n(shifted, n), name, operator(name, ell))
                gains.append(rest)
                place = self.base[x][0] + (ell - site)
            else:
                orders = [j for j in range(n + 1) if j not in self.idle]
                gains += [remembered(name, j, self.placed(x, n - j, site)) for j in orders]
        gain = total(*gains)
        # beyond the end there is neither response nor memory
        return gain if step == 0 else self.summed(gain, step, place + step)

    def response(self, name: str, n: int) -> Sum:
        """Given by the kernels of its layer."""
        lhs, rhs = self.laws[name]
        return self.order_n(rhs.subs(ell, ell + (ell - lhs.args[1])), n)

    def output(self, n: int) -> Sum:
        """f at order n: the average it is made of carries one power of the scale more."""
        average = self.closure.outputs[0]
        ring = self.ring(n + 1)
        beyond = operator("beyond")

        def series(x: Indexed) -> Series:
            known = [self.placed(str(x.args[0]), k, x.args[1]) for k in range(n + 1)]
            return [*known, ring.word(beyond)]

        found = ring.evaluate(average.rhs, series)[n + 1]
        if any(beyond in w for w in found):
            raise NotApplicable(f"{average.lhs} does not carry a factor {gamma0}")
        return found

    def tangent(self, n: int) -> dict[tuple[Word, Word], object]:
        """The tangent kernel: products of words, entry by entry, summed over the layers."""
        found: dict[tuple[Word, Word], object] = {}
        for limits, a, b in layer_products(self.closure):
            for k in range(n + 1):
                for v, c in self.tensor(a, k).items():
                    for w, d in self.tensor(b, n - k).items():
                        value = c * d
                        if limits is not None:
                            value = self.numbers.summed(value, *limits)
                        found[v, w] = found.get((v, w), self.numbers.zero) + value
        return {pair: c for pair, c in found.items() if c}

    def tensor(self, a: AppliedUndef | None, n: int) -> Sum:
        """Order n of a factor of the tangent kernel; None stands for the kernel that is 1."""
        if a is not None and str(a.func) in self.series:
            return self.placed(str(a.func), n, a.args[0])
        constant = J if a is None else operator(str(a.func))
        return self.ring(0).word(constant) if n == 0 else {}

    # -- recursions ------------------------------------------------------------------------------------

    def order_parameter(self, part: Expr) -> AppliedUndef:
        """The order parameter in a term of a kernel's definition."""
        found = [a for a in part.atoms(AppliedUndef) if str(a.func) in self.laws]
        if len(found) != 1:
            raise NotApplicable(f"{part} must contain one order parameter; it contains {found or 'none'}")
        return found[0]

    def split(self, e: Sum, name: str, lhs: Expr) -> tuple[Expr, Sum]:
        """``e = X(ell + step) + rest`` for X the unknown ``name``: the step, and the rest, all known."""
        step: Expr = S.Zero
        rest: Sum = {}
        for w, c in e.items():
            if not any(isinstance(x, Indexed) for x in w):
                rest[w] = c
            elif len(w) == 1 and c == 1 and str(w[0].args[0]) == UNKNOWN + name:
                step = w[0].args[1] - ell
            else:
                raise NotApplicable(f"{lhs} depends on {Mul(*w)} at the same order")
        return step, rest

    def summed(self, e: Sum, step: Expr, place: Expr) -> Sum:
        """Solve ``X(ell) = X(ell + step) + e(ell)`` with X = 0 at ``place``, word by word."""
        if step not in (1, -1):
            raise NotApplicable(f"a recursion over {step} layers")
        limits = (place + 1, ell) if step == -1 else (ell, place - 1)
        sums = {w: self.numbers.summed(c, *limits) for w, c in e.items()}
        return {w: c for w, c in sums.items() if c}


@lru_cache(maxsize=100_000)
def memory(kernel: str, order: int, word: Word) -> Memory:
    """The letter that remembers a word."""
    return Memory(kernel, order, Mul(*word))


def remembered(kernel: str, order: int, e: Sum) -> Sum:
    """The memory of a sum of words, by linearity."""
    return {(memory(kernel, order, w),): c for w, c in e.items()}


@lru_cache(maxsize=100_000)
def _orders(letter: Expr) -> frozenset[int]:
    return frozenset(x.order for x in letter.atoms(Memory))


def has_error(word: Word, n: int) -> bool:
    """Does a word contain the error's coefficient of order n?"""
    return any(n in _orders(x) for x in word)


def _symbols(closure: LinearClosure) -> set[Symbol]:
    """What coefficients may depend on, besides the layer."""
    laws = (*closure.covariances, *closure.responses, *closure.base, *closure.outputs)
    found = {x for e in laws for x in e.free_symbols if x.is_commutative is True and x.is_Symbol}
    assert closure.layers is not None
    return {*found, *closure.layers.upper.free_symbols} - {gamma0, ell}


Product = tuple[tuple[Expr, Expr] | None, AppliedUndef | None, AppliedUndef]


def layer_products(closure: LinearClosure) -> list[Product]:
    """The tangent kernel's addends: limits of the layer, if summed over, and two factors, entry by entry.

    The factor with samples is last; None stands for the kernel that is 1.  Empty without a tangent kernel.
    """
    observables = closure.theory.observables
    out: list[Product] = []
    for part in Add.make_args(observables[0].rhs) if observables else ():
        if isinstance(part, Integral):
            raise NotApplicable(f"{part} is no product of order parameters")
        body, limits = (part.function, part.limits[0][1:]) if isinstance(part, SymSum) else (part, None)
        atoms = [a for a in Mul.make_args(body) if isinstance(a, AppliedUndef)]
        *first, last = sorted(atoms, key=lambda a: bool(a.has(mu)))
        out.append((None if limits is None else tuple(limits), first[0] if first else None, last))
    return out


__all__ = ["Recursion", "has_error", "layer_products", "remembered"]
