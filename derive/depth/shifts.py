"""Equations between layers to first order in 1/L: neighbouring layers by Taylor, sums over layers by
Euler and Maclaurin.

A function of the layers is ``X(ell, k) = X(tau, tau_) + L**order * first_X(tau, tau_) + ...`` at
``tau = ell/L``, ``tau_ = k/L``.  It is smooth on either side of ``ell = k``; ``cuts`` says that ``ell >=
k + cut`` is above.
``slope_X`` is its derivative by tau, ``X_above`` and ``X_below`` its values at ``tau_ = tau``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sympy import Add, Dummy, Expr, Function, Integral, KroneckerDelta, Mul, Pow, Rational, S, Sum
from sympy.core.function import AppliedUndef

from derive.depth.layer_time import direction, neighbour
from derive.depth.powers import tau, tau_
from derive.errors import NotApplicable
from derive.linear.system import k
from derive.program.words import L, ell
from derive.theory.theory import Equation

HALF = Rational(1, 2)
FIRST, SLOPE = "first_", "slope_"
SIDES = ("_below", "_above")


@dataclass(frozen=True)
class Parts:
    """``limit + L**order * linear + shift / L`` of an expression."""

    limit: Expr
    linear: Expr = S.Zero
    shift: Expr = S.Zero

    def each(self, fun: Callable[[Expr], Expr]) -> Parts:
        """The same with ``fun`` applied to all three."""
        return Parts(fun(self.limit), fun(self.linear), fun(self.shift))


@dataclass(frozen=True)
class Reader:
    """Expands expressions; ``slots`` counts the layers among the arguments of each unknown function."""

    slots: Mapping[str, int]
    cuts: Mapping[str, int]

    def parts(self, e: Expr) -> Parts:
        """``e`` in three parts; powers of L are taken out before.

        >>> from sympy import Symbol
        >>> t, X, C = Symbol("t"), Function("X"), Function("C")
        >>> Reader({"X": 2, "C": 1}, {"X": 0}).parts(C(ell - 1, t) * X(ell, ell, t)).shift
        -X_above(tau, t)*slope_C(tau, t)
        """
        if isinstance(e, Sum):
            return self.sum(e)
        if isinstance(e, AppliedUndef):
            return self.function(e)
        if isinstance(e, Add):
            found = [self.parts(x) for x in e.args]
            return Parts(*(Add(*[getattr(x, n) for x in found]) for n in ("limit", "linear", "shift")))
        if isinstance(e, Pow) and e.exp.is_Integer and e.exp > 0 and e.base.has(AppliedUndef):
            return self.product([self.parts(e.base)] * int(e.exp))
        if isinstance(e, Mul):
            return self.product([self.parts(x) for x in e.args])
        if e.has(AppliedUndef, ell, k):
            raise NotApplicable(f"{e} has no expansion in the inverse depth")
        return Parts(e)

    @staticmethod
    def product(factors: list[Parts]) -> Parts:
        """Leibniz."""
        whole = [x.limit for x in factors]
        found = []
        for name in ("linear", "shift"):
            found.append(
                Add(*[Mul(*whole[:i], getattr(x, name), *whole[i + 1 :]) for i, x in enumerate(factors)])
            )
        return Parts(Mul(*whole), *found)

    # -- functions -------------------------------------------------------------------------------------------

    def function(self, e: AppliedUndef) -> Parts:
        name = str(e.func)
        inner = [x for x in e.args if x.has(AppliedUndef)]
        if inner:
            return self.given(e, inner)
        if name not in self.slots:
            return Parts(e)
        n = self.slots[name]
        places = [_place(x) for x in e.args[:n]]
        if any(offset for _, offset in places[1:]):
            raise NotApplicable(f"{e}: the second layer must stand without a shift")
        at, rest, suffix = tuple(x for x, _ in places), e.args[n:], ""
        if n == 2 and at[0] == at[1]:
            suffix, at = SIDES[places[0][1] >= places[1][1] + self.cuts[name]], at[:1]
        offset = places[0][1] if n else 0
        value, first, slope = (
            Function(f"{before}{name}{suffix}")(*at, *rest) for before in ("", FIRST, SLOPE)
        )
        return Parts(value, first, offset * slope)

    def given(self, e: AppliedUndef, inner: list[Expr]) -> Parts:
        """A given function of a scalar: its derivative by the scalar is ``d`` and its name."""
        if len(inner) > 1 or e.args[-1] != inner[0]:
            raise NotApplicable(f"{e}: only the last argument may be a function")
        moved = self.parts(inner[0])
        slope = Function(f"d{e.func}")(*e.args[:-1], moved.limit)
        return Parts(e.func(*e.args[:-1], moved.limit), slope * moved.linear, slope * moved.shift)

    # -- sums over layers ------------------------------------------------------------------------------------

    def sum(self, e: Sum) -> Parts:
        """Over times as it is; over the layer of a source an integral and what it misses."""
        over = [x for x in e.limits if x[0] == k]
        rest = [x for x in e.limits if x[0] != k]
        inside = self.parts(e.function)
        if over:
            ((_, low, high),) = over
            inside = self.layers(e.function, inside, int(low), int(high - L))
        if not rest:
            return inside
        return inside.each(lambda x: _spread(x, rest))

    def layers(self, body: Expr, f: Parts, low: int, high: int) -> Parts:
        """``sum over k from low to L + high, over L``."""
        found = f.each(lambda x: Integral(x, (tau_, S.Zero, S.One)) if x != 0 else S.Zero)
        first, last = (self.at_layer(f.limit, tau_, x) for x in (S.Zero, S.One))
        ends = (HALF - low) * first + (HALF + high) * last
        # k counts as above up to ell + a - cut
        firsts = {n: a - self.cuts[n] + 1 for n, a in self.crossing(body, low, high)}
        return Parts(found.limit, found.linear, found.shift + ends + self.jump(f.limit, firsts, "k"))

    def crossing(self, body: Expr, low: int, high: int) -> list[tuple[str, int]]:
        """Functions of (ell + a, k) in a summand over k, and a."""
        found = []
        for x in sorted(body.atoms(AppliedUndef), key=str):
            name = str(x.func)
            if self.slots.get(name) != 2 or x.args[1] != k:
                continue
            at, a = _place(x.args[0])
            if at == tau:
                found.append((name, a))
            elif (at == 0 and a - self.cuts[name] >= low) or (at == 1 and a - self.cuts[name] < high):
                raise NotApplicable(f"{x} changes sides within a sum over k")
        return found

    def at_layer(self, e: Expr, where: Expr, value: Expr) -> Expr:
        """``e`` at an end of layer time; a function at twice the same end is on the side that there is."""

        def put(x: AppliedUndef) -> Expr:
            return Function(f"{x.func}{SIDES[int(value)]}")(*x.args[1:])

        return e.xreplace({where: value}).replace(
            lambda x: (
                isinstance(x, AppliedUndef) and x.args[:2] == (value, value) and self.slots.get(_bare(x)) == 2
            ),
            put,
        )

    def jump(self, f: Expr, firsts: Mapping[str, int], index: str) -> Expr:
        """What a jump of the summand adds: the sum over ``index`` goes from one side to the other.

        ``firsts`` says for each function how far behind the other layer its second side begins.
        """
        if not firsts:
            return S.Zero
        sides = ("_above", "_below") if index == "k" else ("_below", "_above")
        place = tau if index == "k" else tau_
        start = min(firsts.values())

        def at(shift: int) -> Expr:
            """The summand where the index is ``shift`` behind."""
            return _on_sides(f, {n: sides[shift >= c] for n, c in firsts.items()}, place)

        before, after = at(start - 1), at(max(firsts.values()))
        total = (start - HALF) * (before - after)
        return total + Add(*[at(j) - after for j in range(start, max(firsts.values()))])


def on_side(e: Expr, side: str, names: Mapping[str, int], place: Expr) -> Expr:
    """Functions of both layers at ``tau_ = tau``, all on one side (``"_above"`` or ``"_below"``)."""
    return _on_sides(e, {n: side for n, slots in names.items() if slots == 2}, place)


def _on_sides(e: Expr, sides: Mapping[str, str], place: Expr) -> Expr:
    def put(x: AppliedUndef) -> Expr:
        return Function(f"{x.func}{sides[_bare(x)]}")(place, *x.args[2:])

    found = e.replace(
        lambda x: isinstance(x, AppliedUndef) and _bare(x) in sides and x.args[:2] == (tau, tau_),
        put,
    )
    return found.xreplace({tau: place, tau_: place})


def _bare(x: AppliedUndef) -> str:
    return str(x.func).removeprefix(FIRST).removeprefix(SLOPE)


def _place(layer: Expr) -> tuple[Expr, int]:
    """The layer time of a layer, and how many layers it is away from there."""
    for base, at in ((ell, tau), (k, tau_), (L, S.One)):
        if layer.has(base):
            return at, int(layer - base)
    return S.Zero, int(layer)


def _spread(e: Expr, limits: list[Expr]) -> Expr:
    """A sum over times of each term."""
    if e == 0:
        return S.Zero
    return Add(*[Sum(x, *limits) for x in Add.make_args(e.expand(deep=False))])


def power(e: Expr) -> tuple[Expr, Expr]:
    """The power of L in a product, through sums (a sum over layers counts as L), and the rest.

    >>> from sympy.abc import x
    >>> power(Sum(x / L, (k, 1, L)))
    (0, Sum(x, (k, 1, L)))
    """
    if isinstance(e, Sum):
        order, inner = power(e.function)
        return order + sum(1 for x in e.limits if x[0] == k), e.func(inner, *e.limits)
    if isinstance(e, Pow) and e.base == L:
        return e.exp, S.One
    if e == L:
        return S.One, S.One
    if isinstance(e, Mul):
        found = [power(x) for x in e.args]
        return Add(*[x for x, _ in found]), Mul(*[x for _, x in found])
    return S.Zero, e


def delta(e: Expr) -> tuple[Expr, int] | None:
    """``coefficient * delta(k, ell + d)`` as its coefficient and d; None if ``e`` has no such factor."""
    found = [x for x in e.atoms(KroneckerDelta) if x.has(ell) and x.has(k)]
    if not found:
        return None
    (x,) = found
    other = x.args[0] if x.args[1] == k else x.args[1]
    mark = Dummy()
    return e.xreplace({x: mark}).coeff(mark), int(other - ell)


class Cuts:
    """Where each function of two layers goes from one side to the other, from its recursion."""

    def __init__(self, moving: list[Equation], slots: Mapping[str, int]) -> None:
        self.found: dict[str, int] = {}
        rows = [e for e in moving if slots[str(e.lhs.func)] == 2]
        while len(self.found) < len(rows):
            before = len(self.found)
            for e in rows:
                name = str(e.lhs.func)
                if name not in self.found and (cut := self.cut(e, slots)) is not None:
                    self.found[name] = cut
            if len(self.found) == before:
                for e in rows:  # smooth everywhere: any place will do
                    self.found.setdefault(str(e.lhs.func), 0)
        for e in rows:
            self.check(e, slots)

    def cut(self, e: Equation, slots: Mapping[str, int]) -> int | None:
        p, up = int(e.lhs.args[0] - ell), direction(e) == 1
        for x in e.terms:
            if (found := delta(x.expr)) is not None:
                own = next(r for r in e.ranges if r.index == k)
                inside = next(r for r in e.ranges if r.index == ell)
                if (own.lower - inside.lower, own.upper - inside.upper) != (found[1], found[1]):
                    raise NotApplicable(f"{e.lhs} has sources that enter at no layer of its recursion")
                return p - found[1] + (0 if up else 1)
        firsts = crossings([x.expr for x in e.terms if x.expr != neighbour(e)], slots, self.found)
        return p + min(firsts.values()) if firsts else None

    def check(self, e: Equation, slots: Mapping[str, int]) -> None:
        """Where the function changes sides, its own jump and those of its summands must come together."""
        name, p = str(e.lhs.func), int(e.lhs.args[0] - ell)
        firsts = crossings([x.expr for x in e.terms if x.expr != neighbour(e)], slots, self.found)
        for c in firsts.values():
            if self.found[name] - p - c not in ((0, -1) if direction(e) == 1 else (0, 1)):
                raise NotApplicable(f"{e.lhs} jumps at another layer than what drives it")


def crossings(added: list[Expr], slots: Mapping[str, int], cuts: Mapping[str, int]) -> dict[str, int]:
    """Functions of (ell + a, k) in the terms: from which ``ell - k`` on they are above."""
    found: dict[str, int] = {}
    for e in added:
        for x in e.atoms(AppliedUndef):
            name = str(x.func)
            if slots.get(name) == 2 and x.args[1] == k and name in cuts:
                found[name] = min(found.get(name, 99), cuts[name] - int(x.args[0] - ell))
    return found
