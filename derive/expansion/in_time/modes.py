"""Eigenmodes of the data, the exact field in which their rates live, and how its elements are written out.

The input kernel is diagonal in its eigenbasis, so a theory of many samples is one of a few modes.  Within an
eigenspace only the direction of the targets moves; the others are one more mode, on which there is no target.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from math import gcd, lcm
from typing import Any

from sympy import (
    QQ,
    ZZ,
    Add,
    Dummy,
    Expr,
    Float,
    Integer,
    Mul,
    NumberSymbol,
    Poly,
    Pow,
    Rational,
    S,
    Symbol,
    cancel,
    construct_domain,
    exp,
    simplify,
    sqrt,
    sympify,
)
from sympy.polys.fields import FracElement
from sympy.polys.rings import PolyElement, PolyRing

from derive.errors import NotApplicable
from derive.expansion.in_time.exponentials import Exponentials, Powers, Vector


@dataclass(frozen=True)
class Mode:
    """An eigendirection of the input kernel, the projection of the targets on it, and how many directions of
    the same kind there are (more than one only without a target)."""

    eigenvalue: Expr
    target: Expr
    multiplicity: Expr = S.One


def modes_of(
    eigenvalues: Sequence[Any], targets: Sequence[Any], multiplicities: Sequence[Any] | None = None
) -> tuple[Mode, ...]:
    """The modes of a kernel with these eigenvalues; equal ones are put together.

    ``targets`` are the projections of the target vector on the eigenvectors (on the eigenspace, where
    ``multiplicities`` say that there is more than one).  Raises ValueError for lists of different lengths, an
    eigenvalue that is negative or a decimal number, a multiplicity that is not positive.

    >>> for m in modes_of([2, 1, 2], [3, 1, 4]):
    ...     print(m.eigenvalue, m.target, m.multiplicity)
    2 5 1
    1 1 1
    2 0 1
    """
    values = [exact("eigenvalues", x) for x in eigenvalues]
    parts = [exact("targets", x) for x in targets]
    counts = [
        exact("multiplicities", m) for m in ([1] * len(values) if multiplicities is None else multiplicities)
    ]
    if not len(values) == len(parts) == len(counts) or not values:
        raise ValueError(
            f"{len(values)} eigenvalues, {len(parts)} targets, {len(counts)} multiplicities: give as many"
        )
    for x in values:
        if x.is_negative:
            raise ValueError(f"eigenvalues: {x} is negative; a kernel has none below 0")
    for m in counts:
        if m.is_positive is False or m.is_integer is False:
            raise ValueError(f"multiplicities: {m} must be a positive integer or a symbol for one")
    together: dict[Expr, list[int]] = {}
    for k, x in enumerate(values):
        together.setdefault(x, []).append(k)
    moving, still = [], []
    for x, ks in together.items():
        squares = [parts[k] for k in ks if parts[k] != 0]
        norm = squares[0] if len(squares) == 1 else sqrt(Add(*[y**2 for y in squares]))
        moving.append(Mode(x, norm))
        rest = Add(*[counts[k] for k in ks]) - 1
        if rest != 0:
            still.append(Mode(x, S.Zero, rest))
    return (*moving, *still)


def exact(name: str, x: Any) -> Expr:
    """``x`` as an expression.  Raises ValueError for a decimal number and for text, never evaluated."""
    if isinstance(x, str):
        raise ValueError(f"{name}: {x!r} is text; give a number or a SymPy expression, such as Symbol('a')")
    value = sympify(x, strict=True)
    if value.is_real is False or (not value.is_finite and value.is_number):
        raise ValueError(f"{name}: {x} is no real number")
    if value.has(Float):
        raise ValueError(f"{name}: {x} is a decimal number; give an exact one, such as Rational('{x}')")
    return value


@dataclass(frozen=True)
class Scales:
    """What the entries of operators are measured in.

    ``rates[k]`` is the eigenvalue of mode k in units of ``1/unit``, in ``field``; time runs ``clock`` times
    as fast as t. The lazy error of mode k has the powers ``powers[k]`` of the exponentials with eigenvalues
    ``exponents``. ``names`` says what the field's symbols stand for; ``reference`` has been set to 1.
    """

    field: Any
    rates: tuple[Any, ...]
    powers: tuple[tuple[int, ...], ...]
    exponents: tuple[Any, ...]
    unit: Expr
    clock: Expr
    names: dict[Symbol, Expr]
    reference: Symbol | None = None


def scales_of(modes: Sequence[Mode], weight: Expr, discrete: bool) -> Scales:
    """The scales for an error that decays by ``weight * eigenvalue`` per unit time (or step).

    Raises NotApplicable when one step removes the lazy error of a mode (its geometric sums have ratio 0), and
    for an irrational number beside symbols.
    """
    values = [m.eigenvalue for m in modes]
    irrational = [x for v in values for x in v.atoms(Pow, NumberSymbol) if x.is_number and not x.is_Rational]
    symbolic = any(v.free_symbols for v in values) or (discrete and not weight.is_Rational)
    if irrational and symbolic:
        raise NotApplicable(
            f"{irrational[0]} beside symbols: resonances cannot be decided. Give numbers for all eigenvalues"
            + (", the depth and the learning rate" if discrete else "")
        )
    values, scales = (_steps if discrete else _flow)(values, weight)
    field, rates = construct_domain(values, field=True, extension=True)
    decays = [field.one - x for x in rates] if discrete else [-x for x in rates]
    if discrete and (gone := [m for m, v in zip(modes, decays, strict=True) if not v]):
        raise NotApplicable(
            f"the lazy error of eigenvalue {gone[0].eigenvalue} vanishes after one step, so its sums are no "
            "geometric ones: choose another learning rate"
        )
    powers, exponents = _generators(field, decays, rates, discrete)
    return Scales(field, tuple(rates), powers, exponents, **scales)


def _flow(values: list[Expr], weight: Expr) -> tuple[list[Expr], dict[str, Any]]:
    """Rates in units of one of the symbols, if all are homogeneous in them."""
    symbols = sorted({x for v in values for x in v.free_symbols}, key=str)
    for reference in symbols[:1]:
        others = [x for x in symbols if x != reference]
        scaled = {x: x * reference for x in others}
        ratios = [cancel(v.subs(scaled, simultaneous=True) / reference) for v in values]
        if not any(v.has(reference) for v in ratios):
            names = {x: x / reference for x in others}
            return ratios, {
                "unit": 1 / reference,
                "clock": weight * reference,
                "names": names,
                "reference": reference,
            }
    return values, {"unit": S.One, "clock": weight, "names": {}}


def _steps(values: list[Expr], weight: Expr) -> tuple[list[Expr], dict[str, Any]]:
    """Decays per step: letters for the remaining parts, where these are independent."""
    scales = {"unit": weight, "clock": S.One}
    if weight.is_Rational and not any(v.free_symbols for v in values):
        return [v * weight for v in values], {**scales, "names": {}}
    distinct = list(dict.fromkeys(v for v in values if v != 0))
    if len(distinct) == 1 or all(v.is_Symbol for v in distinct):
        kept = {v: Dummy("a" if len(distinct) == 1 else f"a{k}") for k, v in enumerate(distinct, 1)}
        names = {a: 1 - weight * v for v, a in kept.items()}
        return [1 - kept[v] if v != 0 else v for v in values], {**scales, "names": names}
    z = Dummy("z")
    return [v * z for v in values], {**scales, "names": {z: weight}}


def _generators(
    field: Any, decays: Sequence[Any], rates: Sequence[Any], discrete: bool
) -> tuple[tuple[tuple[int, ...], ...], tuple[Any, ...]]:
    """Exponentials of which the modes' are products: one if all rates are multiples of one number."""
    distinct = list(dict.fromkeys(v for v, x in zip(decays, rates, strict=True) if x))
    if not distinct:
        return tuple(() for _ in rates), ()
    if not discrete:
        ratios = [_rational(field, v / distinct[0]) for v in distinct]
        found = [r for r in ratios if r is not None]
        if len(found) == len(ratios):
            base = QQ(
                reduce(gcd, (int(r.numerator) for r in found)), lcm(*(int(r.denominator) for r in found))
            )
            step = distinct[0] * field.convert(base)
            multiple = {v: int(r / base) for v, r in zip(distinct, found, strict=True)}
            return tuple((multiple[v],) if x else (0,) for v, x in zip(decays, rates, strict=True)), (step,)
    place = {v: k for k, v in enumerate(distinct)}
    n = len(distinct)
    vectors = tuple(
        tuple(int(k == place[v]) for k in range(n)) if x else (0,) * n
        for v, x in zip(decays, rates, strict=True)
    )
    return vectors, tuple(distinct)


def _rational(field: Any, x: Any) -> Any:
    """``x`` as a rational number; None if it is none."""
    value = field.to_sympy(x)
    return QQ(value.p, value.q) if value.is_Rational else None


def samples_of(modes: Sequence[Mode]) -> Expr:
    """How many samples there are."""
    return simplify(Add(*[m.multiplicity for m in modes]))


@dataclass(frozen=True)
class Expressions:
    """Writes elements out.

    ``known`` says what parameters stand for; ``feedback`` is the number whose inverse powers operators carry.
    """

    functions: Exponentials
    scales: Scales
    feedback: Expr
    known: Mapping[Symbol, Expr]
    rates: dict[Powers, tuple[Expr, ...]] = field(default_factory=dict, compare=False, repr=False)

    def front(self, x: Vector) -> Expr:
        """``unit^unit feedback^-damping``."""
        return Mul(Pow(self.scales.unit, x.unit), Pow(self.feedback, -x.damping))

    def written(self, f: Mapping[Powers, PolyElement], front: Expr, now: Expr, past: Expr) -> Expr:
        """``front f(now, past)``, where f is given by the powers of (past, E(past))."""
        out = []
        for last, g in f.items():
            for m, c in self.functions.parts(g).items():
                value = self.coefficient(c, front, m[0] + last[0])
                out.append(value * self.wave(m, now) * self.wave(last, past))
        return Add(*out)

    def wave(self, m: Powers, time: Expr) -> Expr:
        """``time^a E(time)^n``, without the clock's factor of the power."""
        power = Pow(time, m[0])
        if not any(m[1:]):
            return power
        if not self.functions.discrete:
            # one product of all factors: SymPy distributes a number over a lone sum
            return power * exp(Mul(*self.rate(m[1:]), time))
        waves = [
            Pow(Mul(*self.rate(tuple(int(j == k) for j in range(len(m) - 1)))), n * time)
            for k, n in enumerate(m[1:])
            if n
        ]
        return Mul(power, *waves)

    def rate(self, powers: Powers) -> tuple[Expr, ...]:
        """The eigenvalue of ``E^powers`` in t, as factors."""
        if powers not in self.rates:
            number, factors = self.factored(self.functions.ring(self.functions.eigenvalue(powers)))
            clock = Mul.make_args(Mul(self.scales.clock, *factors))
            self.rates[powers] = (number, *clock)
        return self.rates[powers]

    def coefficient(self, c: PolyElement, front: Expr, degree: int) -> Expr:
        """``front clock^degree c``, factored; c is free of time."""
        number, factors = self.factored(c)
        value = Mul(number, front, Pow(self.scales.clock, degree), *factors)
        return value.xreplace(dict(self.known)) if self.known else value

    def factored(self, c: PolyElement, time: bool = False) -> tuple[Expr, list[Expr]]:
        """A number, and factors that are polynomials or inverse ones.

        With ``time`` c may depend on time; factors then contain the ring's letters for t and exponentials.
        """
        f = self.functions
        first = 0 if time else f.width
        symbols = list(f.ring.symbols[first:])
        if f.field in (QQ, ZZ):
            top = PolyRing(symbols or [Symbol("_")], QQ)
            pad = () if symbols else (0,)
            numerator = top.from_dict({(*m[first:], *pad): QQ(x) for m, x in c.iterterms()})
            return self.listed(numerator, 1)
        if not isinstance(next(iter(c.values())), FracElement):
            return Integer(1), [c.as_expr()]
        inner = f.field.field.ring
        below = inner.one
        for x in c.values():
            below = below.lcm(x.denom)
        joint = PolyRing([*symbols, *inner.symbols], QQ)
        above: dict[Powers, Any] = {}
        for m, x in c.iterterms():
            for p, q in (x.numer * below.exquo(x.denom)).iterterms():
                above[(*m[first:], *p)] = QQ(q)
        left = (0,) * len(symbols)
        under = joint.from_dict({(*left, *p): QQ(q) for p, q in below.iterterms()})
        a, up = self.listed(joint.from_dict(above), 1)
        b, down = self.listed(under, -1)
        return a * b, [*up, *down]

    def listed(self, p: PolyElement, sign: int) -> tuple[Expr, list[Expr]]:
        """The factors of a polynomial, each to the power ``sign``."""
        number, factors = p.factor_list()
        found = Rational(int(QQ(number).numerator), int(QQ(number).denominator))
        return Pow(found, sign), [Pow(self.named(q.as_expr()), sign * k) for q, k in factors]

    def named(self, e: Expr) -> Expr:
        """A polynomial with what the field's symbols stand for; ratios are cleared."""
        reference, names = self.scales.reference, self.scales.names
        if reference is None:
            return e.xreplace(names)
        gens = sorted(names, key=str)
        if not gens or not e.has(*gens):
            return e
        poly = Poly(e, *gens)
        top = poly.total_degree()
        whole = [c * Mul(*map(Pow, gens, m)) * reference ** (top - sum(m)) for m, c in poly.terms()]
        return Add(*whole) * reference**-top


__all__ = ["Expressions", "Mode", "Scales", "exact", "modes_of", "samples_of", "scales_of"]
