"""Powers of the depth in the closed equations of a residual network, by dominant balance.

Every function of layer time is given a size ``L^e``.  A term of a recursion from layer to layer is added L
times, a sum over the layers of a source has L terms, a jump at one layer is added once.  An exponent is the
largest of those of its terms; with ``alpha`` and ``gamma`` symbols it is the maximum of linear forms in them,
of which those are kept that are largest somewhere in a :class:`Domain`.  Causality leaves loops within a step
only: a function that drives itself with gain ``L^p`` grows like ``exp(L^p)`` if p > 0, by a factor of order
one if p = 0, and the loop is lost if p < 0.

Sizes found in this way are upper bounds (the triangle inequality).  They are attained unless leading terms
cancel; that they do not is shown by the closed forms of the first step and by solved theories.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from sympy import Add, Expr, KroneckerDelta, Max, Mul, Pow, Rational, S, Symbol
from sympy.core.function import AppliedUndef

from derive.errors import NotApplicable
from derive.program.words import L
from derive.scale.depth_steps import Steps, over_layers

alpha = Symbol("alpha", real=True)
"""Branches are multiplied by ``L^-alpha``."""
gamma = Symbol("gamma", real=True)
"""Updates of a matrix are ``L^-gamma`` large."""

Form = tuple[Fraction, Fraction, Fraction]
"""``c + a alpha + b gamma`` as (c, a, b)."""
Forms = frozenset[Form]
ORDER_ONE: Form = (Fraction(0), Fraction(0), Fraction(0))
ONE: Forms = frozenset({ORDER_ONE})
NOTHING: Forms = frozenset()


@dataclass(frozen=True)
class Domain:
    """All ``corner + sum of positive multiples of rays``, points being (alpha, gamma)."""

    corner: tuple[Fraction, Fraction]
    rays: tuple[tuple[int, int], ...] = ()

    def below(self, p: Form, q: Form) -> bool:
        """Is p at most q everywhere?"""
        c, a, b = (y - x for x, y in zip(p, q, strict=True))
        here = c + a * self.corner[0] + b * self.corner[1]
        return here >= 0 and all(a * u + b * v >= 0 for u, v in self.rays)

    def largest(self, forms: Forms) -> Forms:
        """Without those that another one exceeds everywhere."""
        kept = list(forms)
        for p in forms:
            if any(q != p and self.below(p, q) for q in kept):
                kept.remove(p)
        return frozenset(kept)


_half = Fraction(1, 2)
STEADY = Domain((_half, Fraction(0)), ((1, 0), (0, 1), (0, -1)))
"""``alpha >= 1/2``, any gamma."""
STABLE = Domain((_half, _half), ((0, 1), (1, -1)))
"""``alpha >= 1/2`` and ``alpha + gamma >= 1``."""


@dataclass(frozen=True)
class Sizes:
    """Exponents of all functions, and the gains of loops: how each function drives itself within a step."""

    exponents: Mapping[str, Forms]
    gains: Mapping[str, Forms]
    domain: Domain

    def exponent(self, name: str) -> Expr:
        """The power of L of a function; minus infinity if it is zero.  Raises KeyError.

        >>> Sizes({"f_1": frozenset({form_of(1 - alpha - gamma)})}, {}, STEADY).exponent("f_1")
        -alpha - gamma + 1
        """
        return as_expression(self.exponents[name])


def as_expression(forms: Forms) -> Expr:
    """The maximum of linear forms in alpha and gamma."""
    return Max(*[Rational(c) + Rational(a) * alpha + Rational(b) * gamma for c, a, b in forms])


def form_of(exponent: Expr) -> Form:
    """A power of L as a linear form.  Raises :class:`NotApplicable` for any other expression.

    >>> form_of(1 - 2 * alpha)
    (Fraction(1, 1), Fraction(-2, 1), Fraction(0, 1))
    """
    e = exponent.expand()
    found = e.coeff(alpha), e.coeff(gamma)
    rest = (e - found[0] * alpha - found[1] * gamma).expand()
    if not (rest.is_Rational and all(x.is_Rational for x in found)):
        raise NotApplicable(f"L**({exponent}) is no power in alpha and gamma with rational coefficients")
    return Fraction(str(rest)), Fraction(str(found[0])), Fraction(str(found[1]))


def together(*parts: Forms) -> Forms:
    """The exponent of a product: maxima added."""
    total = ONE
    for part in parts:
        total = frozenset((p[0] + q[0], p[1] + q[1], p[2] + q[2]) for p in total for q in part)
    return total


@dataclass(frozen=True)
class Counted:
    """A term: the power of L in front, with what sums over layers add, and its functions."""

    power: Form
    functions: tuple[str, ...]


def counted(term: Expr, recursion: bool) -> Counted:
    """Read a term of a row.  In a recursion it is added at L layers, unless a delta says at which one.

    >>> from sympy import Function
    >>> from derive.program.words import ell
    >>> counted(Function("R")(ell) ** 2 * over_layers / L**alpha, recursion=False)
    Counted(power=(Fraction(1, 1), Fraction(-1, 1), Fraction(0, 1)), functions=('R', 'R'))
    """
    power, functions = S.One if recursion and not term.has(KroneckerDelta) else S.Zero, []
    for x in Mul.make_args(term):
        base, exponent = (x.base, x.exp) if isinstance(x, Pow) else (x, S.One)
        if base in (L, over_layers):
            power += exponent
        elif isinstance(base, AppliedUndef) and not any(isinstance(y, AppliedUndef) for y in base.args):
            if not (exponent.is_Integer and exponent.is_positive):
                raise NotApplicable(f"{x} is no power of a function that could be counted")
            functions += [str(base.func)] * int(exponent)
        elif isinstance(base, Add) and base.has(L):
            raise NotApplicable(f"{x} is no power of L")
    return Counted(form_of(power), tuple(functions))


@dataclass
class _Balance:
    domain: Domain
    terms: dict[str, list[Counted]] = field(default_factory=dict)
    found: dict[str, Forms] = field(default_factory=dict)

    def size(self, x: Counted, without: int | None = None) -> Forms:
        parts = [self.found.get(n, ONE) for i, n in enumerate(x.functions) if i != without]
        return together(frozenset({x.power}), *parts)

    def settled(self) -> Sizes:
        self.found = dict.fromkeys(self.terms, NOTHING)
        for _ in range(2 * len(self.terms) + 2):
            before = dict(self.found)
            for name, terms in self.terms.items():
                self.found[name] = self.domain.largest(frozenset().union(*[self.size(x) for x in terms]))
            if self.found == before:
                return Sizes(self.found, dict(self.loops()), self.domain)
            for name, gain in self.loops():
                if not all(self.domain.below(p, q) for p in gain for q in ONE):
                    raise NotApplicable(
                        f"{name} drives itself with gain L**({as_expression(gain)}): somewhere that is large"
                    )
        changing = sorted(n for n in self.found if self.found[n] != before[n])
        raise NotApplicable(f"{', '.join(changing)} drive each other and grow faster than any power of L")

    def edges(self, name: str) -> Iterator[tuple[str, Forms]]:
        """What drives ``name``, and with which gain."""
        for x in self.terms[name]:
            for i, n in enumerate(x.functions):
                if n in self.terms and (gain := self.size(x, i)):
                    yield n, gain

    def loops(self) -> Iterator[tuple[str, Forms]]:
        """The gain with which a function drives itself, directly or through one other function."""
        edges = {n: list(self.edges(n)) for n in self.terms}
        for name, own in edges.items():
            gains = [g for n, g in own if n == name]
            gains += [together(g, h) for n, g in own if n != name for m, h in edges[n] if m == name]
            if total := frozenset().union(*gains):
                yield name, self.domain.largest(total)


def sizes(
    steps: Steps,
    domain: Domain = STEADY,
    of: Iterable[str] = (),
    like: Mapping[str, tuple[str, ...]] | None = None,
) -> Sizes:
    """The power of L of every function of ``steps``; if ``of`` has names, of these and what they rest on.

    Names without a row (the slope of the loss, averages of an activation) are of order one, those in ``like``
    as large as the largest of the functions given for them.  Raises :class:`NotApplicable` if a function
    drives itself in ``domain`` with a positive power of L.

    >>> from derive.scale.depth_steps import at_steps
    >>> from derive.theory import mean_field
    >>> from derive.depth import cross_layer
    >>> from derive.program import depth_program
    >>> steps = at_steps(cross_layer(mean_field(depth_program(alpha=alpha, gamma=gamma))), 1)
    >>> found = sizes(steps)
    >>> found.exponent("f_1"), as_expression(found.gains["C_x_0_0"])
    (-alpha - gamma + 1, 1 - 2*alpha)
    """
    balance = _Balance(domain)
    for r in steps.rows:
        own = balance.terms.setdefault(r.name, [])
        own += [counted(x, r.neighbour != 0) for x in r.terms]
    for name, others in (like or {}).items():
        balance.terms[name] = [Counted(ORDER_ONE, (x,)) for x in others]
    if todo := list(of):
        balance.terms = {n: balance.terms[n] for n in _needed(balance.terms, todo)}
    return balance.settled()


def _needed(terms: Mapping[str, list[Counted]], todo: list[str]) -> list[str]:
    found: dict[str, None] = {}
    while todo:
        name = todo.pop()
        if name in terms and name not in found:
            found[name] = None
            todo += [n for x in terms[name] for n in x.functions]
    return list(found)


def at_all_steps(steps: Steps, domain: Domain) -> Sizes:
    """Exponents that hold at all times: functions that differ in their times only count as one, those at
    equal times (``R_xu(t, t)``, which jumps) apart.

    ``steps`` must have the times 0, 1, 2, where every order of the three times that a term can have occurs.
    Raises :class:`NotApplicable` for fewer, and as :func:`sizes`.
    """
    if steps.last < 2:
        raise NotApplicable(f"times 0 .. {steps.last} do not show every order of three times; 0 .. 2 do")
    balance = _Balance(domain)
    for r in steps.rows:
        own = balance.terms.setdefault(steps.kinds[r.name], [])
        for x in r.terms:
            y = counted(x, r.neighbour != 0)
            y = Counted(y.power, tuple(steps.kinds.get(n, n) for n in y.functions))
            if y not in own:
                own.append(y)
    return balance.settled()
