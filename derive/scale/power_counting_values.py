"""What is known of a vector or a number when only powers of the width N are counted.

A vector is a sum of parts.  A part has entries of order ``N^power`` and is odd, even or neither under the
change of sign of each Gaussian source of the conditioning rule.  Sources are independent and symmetric, so
the mean over the units of a part that is odd under one of them vanishes: what is left of it is of order
``n^(-1/2)``, the central limit theorem.  Other means are taken to be of order one, the law of large numbers.
A number is a sum of parts that are odd under nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from sympy import Add, Expr, Mul, Pow, Rational, S, Symbol, expand_power_base

from derive.errors import NotApplicable

N = Symbol("N", positive=True)
"""The width, where a program shows its powers."""
HALF = Rational(1, 2)


class Grows(NotApplicable):
    """A field grows with the width inside a function that makes no power of it."""


Generator = tuple[object, ...]
"""A Gaussian source: a vector parameter; or a matrix, the direction in which it is used, and what the vector
that it met is odd under (sources of vectors that do not overlap are independent)."""


@dataclass(frozen=True)
class Part:
    """Entries of order ``N^power``, odd under the sources ``odd``, neither even nor odd under ``mixed``.

    ``order`` counts the updates that the part is due to, 0 for what is there without training (2 stands for
    more as well), and ``owed`` names their weights where that is asked for.  ``chance`` says that a mean in
    it vanishes; of an ``unknown`` part no mean is taken to vanish.

    >>> u, r = ("W", 1, False), ("W", 1, True)
    >>> h = Part(S.Zero, frozenset({u}))
    >>> (h * h).vanishes, (h * Part(S.Zero, frozenset({r}))).vanishes
    (False, True)
    """

    power: Expr = S.Zero
    odd: frozenset[Generator] = frozenset()
    mixed: frozenset[Generator] = frozenset()
    owed: frozenset[str] = frozenset()
    order: int = 0
    chance: bool = False
    unknown: bool = False

    @property
    def vanishes(self) -> bool:
        """Is its mean zero?"""
        return bool(self.odd) and not self.unknown

    def __mul__(self, other: Part) -> Part:
        mixed = self.mixed | other.mixed
        return Part(
            (self.power + other.power).expand(),
            (self.odd ^ other.odd) - mixed,
            mixed,
            self.owed | other.owed,
            self.order + other.order,
            self.chance or other.chance,
            self.unknown or other.unknown,
        ).settled()

    def settled(self) -> Part:
        """Beyond the first order in the updates no parity is kept: an upper bound."""
        if self.order < 2:
            return self
        return Part(self.power, owed=self.owed, order=2, chance=self.chance, unknown=True)

    def at(self, power: Expr) -> Part:
        """The same part with another power."""
        return replace(self, power=power)

    def times(self, power: Expr) -> Part:
        """The same part, multiplied by a power of N."""
        return replace(self, power=(self.power + power).expand())

    def due_to(self, weight: str | None) -> Part:
        """The same part after it has gone through an update, of this weight if that matters."""
        owed = self.owed if weight is None else self.owed | {weight}
        return replace(self, owed=owed, order=self.order + 1).settled()

    def mean(self, size: Expr) -> Part:
        """The mean over ``N^size`` units."""
        power = self.power - size / 2 if self.vanishes else self.power
        return Part(power, owed=self.owed, order=self.order, chance=self.chance or self.vanishes)


Parts = tuple[Part, ...]
NOTHING: Parts = ()


def combined(parts: Iterable[Part]) -> Parts:
    """The sum: of parts that differ in nothing but the power, those that another exceeds are left out."""
    kept: dict[Part, list[Expr]] = {}
    for p in parts:
        forms = kept.setdefault(p.at(S.Zero), [])
        gaps = [(p.power - x).expand() for x in forms]
        if any(g.is_number and g <= 0 for g in gaps):
            continue
        forms[:] = [x for x, g in zip(forms, gaps, strict=True) if not (g.is_number and g > 0)]
        forms.append(p.power)
    return tuple(p.at(x) for p, forms in kept.items() for x in forms)


def product(*factors: Parts) -> Parts:
    """The product, entry by entry."""
    found: Parts = (Part(),)
    for parts in factors:
        found = combined(p * x for p in found for x in parts)
    return found


def top(parts: Iterable[Part]) -> Expr | None:
    """The largest power, a ``Max`` where numbers are not known; None of nothing."""
    from sympy import Max

    forms = [p.power for p in combined(p.__class__(p.power) for p in parts)]
    return None if not forms else forms[0] if len(forms) == 1 else Max(*forms)


def powers(number: Expr) -> tuple[Expr, ...]:
    """The powers of N in a number: one for each term.

    >>> a = Symbol("a")
    >>> powers(3 * N ** (1 - a) * Symbol("eta")), powers(1 + 2 * N)
    ((1 - a,), (0, 1))
    """
    if not number.has(N):
        return (S.Zero,)
    if isinstance(number, Add):
        return tuple(dict.fromkeys(x for term in number.args for x in powers(term)))
    if isinstance(number, Mul):
        found: tuple[Expr, ...] = (S.Zero,)
        for factor in number.args:
            found = tuple((x + y).expand() for x in found for y in powers(factor))
        return found
    plain = expand_power_base(number, force=True)
    if plain != number:
        return powers(plain)
    if number == N:
        return (S.One,)
    if isinstance(number, Pow) and not number.exp.is_number and number.base == N:
        return (number.exp.expand(),)
    if isinstance(number, Pow) and number.exp.is_number:
        own = powers(number.base)
        if len(own) == 1:
            return ((own[0] * number.exp).expand(),)
    raise NotApplicable(f"{number}: the width N may enter by its powers only")
