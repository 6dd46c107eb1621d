"""The first step of training in closed form (linear2025 appendix D.2).

At times 0 and 1 the order parameters of a layer follow from those of the next one.  These recursions are read
off the derived equations and solved in the layer; the solution is put back into the equations of both ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from sympy import (
    Add,
    Dummy,
    Expr,
    Function,
    Integer,
    Matrix,
    Mul,
    Poly,
    S,
    Symbol,
    cancel,
    degree,
    factor,
    fraction,
    prime,
)
from sympy.core.function import AppliedUndef
from sympy.utilities.iterables import strongly_connected_components

from derive.calculus.recurrences import Z_L, Recursions, Z, n, q
from derive.errors import NotApplicable
from derive.program.words import L, ell, eta
from derive.scale.unrolled import Unrolled
from derive.theory.theory import Theory

Key = tuple[str, tuple[Expr, ...]]
"""A family of order parameters: its name and two integer times."""
Needs = tuple[Expr, dict[Key, set[Expr]]]
"""A value at layer n, and the families in it with their layers minus n."""


@dataclass(frozen=True)
class FirstStep:
    """The correlation function ``C_v`` before and after the first step, and what it is made of.

    ``values`` holds order parameters at integer times, families as functions of the layer ``ell``.  Where q
    occurs it stands for ``root``, an eigenvalue of the recursion, and ``parameter``, a pair, has been written
    in terms of it; elsewhere both are None.
    """

    theory: Theory
    before: Expr
    after: Expr
    values: Mapping[Expr, Expr]
    root: Expr | None = None
    parameter: tuple[Symbol, Expr] | None = None

    @cached_property
    def growth_factor(self) -> Expr:
        """``C_v(1)/C_v(0)``: the test loss without label noise after the step, over that before."""
        growth = self.after / self.before
        if self.degree != 2:
            return growth
        return Add(*[factor(c) * eta**k for (k,), c in Poly(growth, eta).terms()])

    @cached_property
    def degree(self) -> int | None:
        """The power of the rate that the growth goes with; None if it is no polynomial in it."""
        growth = self.after / self.before
        if self.root is not None or not growth.is_polynomial(eta):
            return None
        others = sorted(growth.free_symbols - {eta}, key=str) + sorted(growth.atoms(AppliedUndef), key=str)
        anyhow = {x: Integer(prime(i)) for i, x in enumerate(others, 3)}
        return int(degree(cancel(growth.xreplace(anyhow)), eta))

    def explicit(self, e: Expr) -> Expr:
        """``e`` with what q is put in for it."""
        return e if self.root is None else e.xreplace({q: self.root})

    @cached_property
    def critical_learning_rate(self) -> Expr:
        """The rate above which the first step raises the loss.

        Raises :class:`NotApplicable` where it is no rational function: see :func:`smallest_rate`.
        """
        if self.degree is None:
            raise NotApplicable("the critical rate has no closed form: the loss is no polynomial in the rate")
        if self.degree != 2:
            raise NotApplicable(f"the critical rate is a root of a polynomial of degree {self.degree - 1}")
        rest = _moves(self.growth_factor, eta)
        slope, constant = rest.all_coeffs()
        return factor(-constant / slope)


def first_step(theory: Theory, name: str = "C_v") -> FirstStep:
    """Evaluate a linear theory in exact steps at times 0 and 1; its depth is ``L`` or a number.

    ``name`` is the correlation function whose growth is asked for.  Raises :class:`NotApplicable` for a flow,
    several outputs, modes, and layers whose recursion has no closed form.

    >>> from derive.theory import mean_field
    >>> from derive.program import isotropic
    >>> step = first_step(mean_field(isotropic(data="online", center=True)))
    >>> step.growth_factor
    -2*eta*(L + 1) + 1 + eta**2*(L + 1)*(alpha_B + 1)*(2*L**2 + 6*L*nu + L + 6*nu)/(6*alpha_B*nu)
    >>> step.critical_learning_rate
    12*alpha_B*nu/((alpha_B + 1)*(2*L**2 + 6*L*nu + L + 6*nu))
    """
    depth = theory.program.depth
    return _Step(theory.at_depth(int(depth)) if depth.is_Integer else theory).result(name)


def smallest_rate(growth: Expr, rate: Symbol) -> float | None:
    """The smallest positive ``rate`` with ``growth = 1``, every other symbol being an exact number; None if
    none.

    >>> from sympy.abc import x
    >>> smallest_rate((1 - 3 * x) ** 2, x)
    0.6666666666666666
    """
    found = [x for x in _moves(growth, rate).nroots(n=20, maxsteps=500) if x.is_real and x > 0]
    return float(min(found)) if found else None


def _moves(growth: Expr, rate: Symbol) -> Poly:
    """A polynomial in the rate that is zero where the loss stays as it is, rate zero taken out."""
    found = Poly(fraction(cancel(growth - 1))[0], rate)
    if found.nth(0) != 0:
        raise NotApplicable("the loss moves without training")
    return found.exquo(Poly(rate, rate))


class _Step:
    def __init__(self, theory: Theory) -> None:
        self.theory, self.read = theory, Unrolled(theory)
        self.recursions = Recursions()
        self.families: dict[Key, Expr] = {}
        self.numbers: dict[Expr, Expr] = {}

    def result(self, name: str) -> FirstStep:
        head = self.theory.order_parameter(name).symbol
        if len(head.args) != 2:
            raise NotApplicable(f"{name} has the index {head.args[0]}: the first step is that of one output")
        if L in self.theory.program.depth.free_symbols and any(
            f.layered and f.population.shared for f in self.theory.program.fields
        ):
            raise NotApplicable(
                "all layers of a residual network are the same units: give its depth as a number"
            )
        before, after = (self.number(head.func(Integer(k), Integer(k))) for k in (0, 1))
        values = {a: self.shown(x) for a, x in self.numbers.items()}
        values |= {_called(k, ell): self.shown(x) for k, x in self.families.items()}
        root, parameter = self.recursions.root, self.recursions.parameter
        return FirstStep(self.theory, self.shown(before), self.shown(after), values, root, parameter)

    def shown(self, e: Expr) -> Expr:
        """In ell, L and q, with the meaning of the names that were kept."""
        names = sorted((a for a in e.atoms(AppliedUndef) if a in self.numbers), key=str)
        if not names:
            return factor(e).xreplace({n: ell, Z: q**ell, Z_L: q**L})
        meaning = [self.shown(self.numbers[a]) for a in names]
        parts = Poly(e, *names).terms()
        return Add(
            *[Mul(self.shown(c), *[x**k for x, k in zip(meaning, ks, strict=True)]) for ks, c in parts]
        )

    # -- numbers ---------------------------------------------------------------------------------------

    def number(self, a: AppliedUndef) -> Expr:
        """An order parameter that is of no family."""
        if a not in self.numbers:
            self.numbers[a] = self.put(self.read.value(a))
        return self.numbers[a]

    def put(self, e: Expr) -> Expr:
        """``e`` with every order parameter in it in closed form; sums of symbols keep their names."""
        found = {}
        for a in e.atoms(AppliedUndef):
            if str(a.func) in self.read.layered:
                found[a] = self.member(a)
            elif str(a.func) in self.read.names:
                value = self.number(a)
                keep = fraction(value)[0].is_Add and len(value.free_symbols) > 1
                found[a] = a if keep else value
        return self.recursions.settled(e.xreplace(found))

    # -- families --------------------------------------------------------------------------------------

    def member(self, a: AppliedUndef) -> Expr:
        """An order parameter of a family, at layer ``n + i``, ``L + i`` or a number."""
        key = (str(a.func), a.args[1:])
        if key not in self.families:
            found = self.reached(key)
            for group in _groups(found):
                self.solve(group, found)
        return _at(self.families[key], a.args[0])

    def reached(self, key: Key) -> dict[Key, Needs]:
        """Every family not yet solved that this one rests on."""
        found: dict[Key, Needs] = {}
        todo = [key]
        while todo:
            k = todo.pop()
            if k not in found and k not in self.families:
                found[k] = self.needs(self.read.value(_called(k, n)))
                todo += found[k][1]
        return found

    def needs(self, e: Expr) -> Needs:
        found: dict[Key, set[Expr]] = {}
        for a in e.atoms(AppliedUndef):
            if str(a.func) in self.read.layered:
                found.setdefault((str(a.func), a.args[1:]), set()).add(a.args[0] - n)
        return e, found

    def solve(self, group: list[Key], steps: dict[Key, Needs]) -> None:
        """Families that rest on each other and on known ones."""
        shifts = {x for k in group for d, layers in steps[k][1].items() if d in group for x in layers}
        if not shifts:
            self.families[group[0]] = self.put(steps[group[0]][0])
            return self.check(group)
        if shifts not in ({S.One}, {S.NegativeOne}):
            raise NotApplicable(f"{group[0][0]} of a layer depends on those of layers on either side")
        shift = int(shifts.pop())
        unknown = {_called(k, n + shift): Dummy(f"y{i}") for i, k in enumerate(group)}
        rows = [self.put(steps[k][0].xreplace(unknown)) for k in group]
        meant = {y: a for a, y in unknown.items()}
        reduced = {k: self.needs(row.xreplace(meant)) for k, row in zip(group, rows, strict=True)}
        parts = _groups(reduced)
        if len(parts) > 1:  # what couples them is zero
            for part in parts:
                self.solve(part, reduced)
            return None
        M = Matrix([[row.diff(y) for y in meant] for row in rows])
        if M.has(*meant):
            raise NotApplicable(f"{group[0][0]} of a layer is not linear in that of the next one")
        rest = [row.xreplace(dict.fromkeys(meant, S.Zero)) for row in rows]
        site, at = (L, (L, Z_L)) if shift == 1 else (S.One, (S.One, q))
        start = [self.put(self.read.value(_called(k, site))) for k in group]
        solved = self.recursions.solve(M, rest, shift, start, at)
        self.families |= dict(zip(group, solved, strict=True))
        return self.check(group)

    def check(self, group: list[Key]) -> None:
        """The closed form at either end is what the equations of that end give."""
        for k in group:
            for site in (S.One, L):
                theirs = self.put(self.read.value(_called(k, site)))
                if self.recursions.settled(_at(self.families[k], site) - theirs) != 0:
                    raise NotApplicable(f"{k[0]} of layer {site} does not continue its family")


def _called(key: Key, layer: Expr) -> AppliedUndef:
    return Function(key[0])(layer, *key[1])


def _at(e: Expr, layer: Expr) -> Expr:
    """A closed form in n at another layer."""
    shift, of = layer.as_coeff_Add()
    return e.xreplace({n: layer, Z: {n: Z, L: Z_L, S.Zero: S.One}[of] * q**shift})


def _groups(steps: dict[Key, Needs]) -> list[list[Key]]:
    """Families that rest on each other, those that others rest on first."""
    edges: Iterable[tuple[Key, Key]] = [(a, b) for a, (_, bs) in steps.items() for b in bs if b in steps]
    return [sorted(c, key=str) for c in strongly_connected_components((list(steps), edges))]
