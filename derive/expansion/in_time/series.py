"""Linear expansion with every coefficient as an explicit function of t and s.

The input kernel is diagonal in its eigenbasis, so that a theory of many samples is one of a few modes. Within
an eigenspace only the component along the targets changes in time; the other directions are one further mode
without target. `LinearExpansion.in_time` is :func:`in_time`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import gcd, lcm
from typing import Any

from sympy import (
    QQ,
    ZZ,
    Add,
    Dummy,
    Expr,
    Float,
    Function,
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
from sympy.utilities.iterables import sift

from derive.calculus.symbols import L, P, converted, ell, gamma0, s, t
from derive.errors import NotApplicable, require_integer
from derive.expansion.errors import ErrorLaw
from derive.expansion.expansion import Expansion, printed
from derive.expansion.in_time.operators import (
    AtDepth,
    Exponentials,
    FromWords,
    Modes,
    ModeVector,
    OperatorValues,
    TimeErrorPowers,
)
from derive.expansion.operator_words import WORDS, LinearSeries, require_layer
from derive.show import latex, text


@dataclass(frozen=True)
class Mode:
    """Eigendirection of the input kernel, or several equivalent ones without a target.

    Parameters
    ----------
    eigenvalue : Expr
        Eigenvalue.
    target : Expr
        Projection of the targets on the direction.
    multiplicity : Expr
        Number of equivalent directions; more than one only without a target.
    """

    eigenvalue: Expr
    target: Expr
    multiplicity: Expr = S.One


def modes_of(
    eigenvalues: Sequence[Any], targets: Sequence[Any], multiplicities: Sequence[Any] | None = None
) -> tuple[Mode, ...]:
    """Return the modes of a kernel; equal eigenvalues are combined.

    Parameters
    ----------
    eigenvalues : Sequence[Any]
        Eigenvalues.
    targets : Sequence[Any]
        Projections of the target vector on the eigenvectors, or on the eigenspaces.
    multiplicities : Sequence[Any] | None, optional
        Number of eigenvectors of each eigenvalue; one by default.

    Returns
    -------
    tuple[Mode, ...]
        First one mode for each different eigenvalue, the direction of the targets in its eigenspace. Its
        target is the given one, or the length of several; it is 0 if all are 0. Then, for each eigenspace
        with more directions, one mode without target that stands for these.

    Raises
    ------
    ValueError
        If the lists have different lengths or are empty, a number is decimal, text or not real, an eigenvalue
        is negative, or a multiplicity is not a positive integer.

    Examples
    --------
    >>> for m in modes_of([2, 1, 2], [3, 1, 4]):
    ...     print(m.eigenvalue, m.target, m.multiplicity)
    2 5 1
    1 1 1
    2 0 1
    """
    values = [exact("eigenvalues", x) for x in eigenvalues]
    parts = [exact("targets", x) for x in targets]
    many = [1] * len(values) if multiplicities is None else multiplicities
    counts = [exact("multiplicities", m) for m in many]
    if not len(values) == len(parts) == len(counts) or not values:
        raise ValueError(
            f"there are {len(values)} eigenvalues, {len(parts)} targets and {len(counts)} multiplicities; "
            "give the same number of each, and at least one"
        )
    for x in values:
        if x.is_negative:
            raise ValueError(
                f"eigenvalues: {x} is negative; the eigenvalues of a kernel must not be negative"
            )
    for m in counts:
        if m.is_positive is False or m.is_integer is False:
            raise ValueError(
                f"multiplicities: {m} must be a positive integer or a symbol for a positive integer"
            )
    moving, still = [], []
    for x, ks in sift(range(len(values)), values.__getitem__).items():
        squares = [parts[k] for k in ks if parts[k] != 0]
        norm = squares[0] if len(squares) == 1 else sqrt(Add(*[y**2 for y in squares]))
        moving.append(Mode(x, norm))
        rest = Add(*[counts[k] for k in ks]) - 1
        if rest != 0:
            still.append(Mode(x, S.Zero, rest))
    return (*moving, *still)


def exact(name: str, x: Any) -> Expr:
    """Return a number given by the user as an exact SymPy expression.

    ``name`` is the argument to which it belongs. Raises ValueError for a decimal number, for text, and for a
    number that is not real.
    """
    if isinstance(x, str):
        raise ValueError(f"{name}: {x!r} is text; give a number or a SymPy expression, such as Symbol('a')")
    value = converted(x)
    if value.is_real is False or (not value.is_finite and value.is_number):
        raise ValueError(f"{name}: {x} is not a real number")
    if value.has(Float):
        example = x if value.is_Float else 0.5
        raise ValueError(
            f"{name}: {x} contains a decimal number; give exact numbers, such as Rational('{example}') for "
            f"{example}"
        )
    return value


@dataclass(frozen=True)
class Scales:
    """Units of time and of operators, and the exponentials of which the lazy error of each mode is a product.

    The lazy error is the error at gamma0 = 0. ``rates[k]`` is the eigenvalue of mode k times ``unit``, an
    element of ``field``. Exponential j is ``exp(exponents[j] clock t)`` in a flow and ``exponents[j]**t`` in
    steps. The lazy error of mode k is the product over j of exponential j to the power ``powers[k][j]``.
    ``names`` maps auxiliary symbols of the field to the expressions for which they stand. ``reference`` is
    the symbol in the eigenvalues that is set to 1 as the unit, or None.
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
    """Return the units in which the error of each mode at gamma0 = 0 is a product of few exponentials.

    This error decays by the rate ``weight * eigenvalue`` of the mode, or by that fraction in each step if
    ``discrete``. Raises NotApplicable if one step removes the error of a mode completely, and for an
    irrational eigenvalue together with symbols or, in steps, with an irrational ``weight``.
    """
    values = [m.eigenvalue for m in modes]
    irrational = [x for v in values for x in v.atoms(Pow, NumberSymbol) if x.is_number and not x.is_Rational]
    symbolic = any(v.free_symbols for v in values) or (discrete and not weight.is_Rational)
    if irrational and symbolic:
        raise NotApplicable(
            f"the eigenvalues contain the irrational number {irrational[0]}, and the rates contain "
            + ("symbols or an irrational learning rate" if discrete else "symbols")
            + ", so that it cannot be decided which rates are equal; give numbers for all eigenvalues"
            + (" and multiplicities, and rational numbers for depth and learning rate" if discrete else "")
        )
    values, scales = (_steps if discrete else _flow)(values, weight)
    field, rates = construct_domain(values, field=True, extension=True)
    decays = [field.one - x for x in rates] if discrete else [-x for x in rates]
    if discrete and (vanishing := [m for m, v in zip(modes, decays, strict=True) if not v]):
        raise NotApplicable(
            f"the lazy error of eigenvalue {vanishing[0].eigenvalue} vanishes after one step, and the "
            "series in time needs lazy errors that do not vanish; choose another learning rate"
        )
    powers, exponents = _generators(field, decays, rates, discrete)
    return Scales(field, tuple(rates), powers, exponents, **scales)


def _flow(values: list[Expr], weight: Expr) -> tuple[list[Expr], dict[str, Any]]:
    """Return (rates, units) of the modes for continuous time, from their eigenvalues ``values``.

    ``units`` are the fields unit, clock, names and reference of :class:`Scales`. If all eigenvalues are
    homogeneous of degree one in their symbols, such as a and 2 b, the first symbol is the unit of the rates,
    and the other symbols in the rates stand for ratios to it. The error decays at ``weight`` times the
    eigenvalue.
    """
    symbols = sorted({x for v in values for x in v.free_symbols}, key=str)
    for one in symbols[:1]:
        scaled = {x: x * one for x in symbols if x != one}
        ratios = [cancel(v.subs(scaled, simultaneous=True) / one) for v in values]
        if not any(v.has(one) for v in ratios):
            names = {x: x / one for x in scaled}
            return ratios, {"unit": 1 / one, "clock": weight * one, "names": names, "reference": one}
    return values, {"unit": S.One, "clock": weight, "names": {}}


def _steps(values: list[Expr], weight: Expr) -> tuple[list[Expr], dict[str, Any]]:
    """Return (decays, units) of the modes for discrete time, from their eigenvalues ``values``.

    A decay is the fraction ``weight * eigenvalue`` of the error that one step removes. ``units`` are keyword
    arguments of :class:`Scales`: ``unit`` and ``clock``, in which operators and times are measured, and
    ``names`` of the symbols that are introduced. Without symbols the decays are numbers. If there is one
    nonzero eigenvalue, or if all are single symbols, the remaining fraction of each becomes a symbol;
    otherwise ``weight`` does.
    """
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
    """Return (powers, eigenvalues) of exponentials whose products are the lazy errors of the modes.

    A lazy error is the error of a mode at gamma0 = 0. ``decays`` are the eigenvalues of these errors, one for
    each mode: minus the decay rate, or the fraction that a step leaves if ``discrete``. Modes with 0 in
    ``rates`` do not decay; decays and rates are elements of ``field``. ``powers[k]`` are the powers for mode
    k, one for each exponential. In continuous time one exponential is enough if all rates are multiples of
    one number.
    """
    distinct = list(dict.fromkeys(v for v, x in zip(decays, rates, strict=True) if x))
    if not distinct:
        return tuple(() for _ in rates), ()
    if not discrete:
        ratios = [field.to_sympy(v / distinct[0]) for v in distinct]
        if all(r.is_Rational for r in ratios):
            base = Rational(gcd(*(r.p for r in ratios)), lcm(*(r.q for r in ratios)))
            step = distinct[0] * field.convert(QQ(base.p, base.q))
            multiple = {v: int(r / base) for v, r in zip(distinct, ratios, strict=True)}
            return tuple((multiple[v],) if x else (0,) for v, x in zip(decays, rates, strict=True)), (step,)
    eigenvalues = [v if x else None for v, x in zip(decays, rates, strict=True)]
    return tuple(tuple(int(w == v) for w in distinct) for v in eigenvalues), tuple(distinct)


def samples_of(modes: Sequence[Mode]) -> Expr:
    """Return the number of samples, the sum of the multiplicities of the modes."""
    return simplify(Add(*[m.multiplicity for m in modes]))


@dataclass(frozen=True)
class ExpressionWriter:
    """Converter of exponential polynomials in time, with common factors, to SymPy expressions.

    ``functions`` is their ring and ``scales`` has the units of time. ``known`` maps parameters of the
    polynomials, such as targets, to the expressions for which they stand. ``feedback`` is the number c in the
    lazy output ``f_k = c rate_k int Delta_k``. Operators are written as a power of 1/c times a remainder.
    ``rates`` caches the exponents of exponentials.
    """

    functions: Exponentials
    scales: Scales
    feedback: Expr
    known: Mapping[Symbol, Expr]
    rates: dict[TimeErrorPowers, tuple[Expr, ...]] = field(default_factory=dict, compare=False, repr=False)

    def front(self, x: ModeVector) -> Expr:
        """Return the common factor of all entries of a vector or operator x over modes.

        It is ``U**x.unit / c**x.damping``, where eigenvalues are written as numbers divided by U, and c is
        ``feedback``.
        """
        return Mul(Pow(self.scales.unit, x.unit), Pow(self.feedback, -x.damping))

    def written(self, f: Mapping[TimeErrorPowers, PolyElement], front: Expr, now: Expr, past: Expr) -> Expr:
        """Return ``front`` times a function of two times as a SymPy expression in ``now`` and ``past``.

        ``f`` maps exponents (a, n_1, ...) of the powers ``s^a E_1(s)^n_1 ...`` of the earlier time to
        polynomials in powers of the later time. E_k are the exponentials.
        """
        out = []
        for last, g in f.items():
            for m, c in self.functions.parts(g).items():
                value = self.coefficient(c, front, m[0] + last[0])
                out.append(value * self.wave(m, now) * self.wave(last, past))
        return Add(*out)

    def wave(self, m: TimeErrorPowers, time: Expr) -> Expr:
        """Return ``time^a E_1(time)^n_1 ...`` as a SymPy expression, for the exponents m = (a, n_1, ...).

        E_k are the exponentials of the solution. The unit of time is put in the exponentials, and not in the
        power of time.
        """
        power = Pow(time, m[0])
        if not any(m[1:]):
            return power
        if not self.functions.discrete:
            # The time and all factors of the rate are in one product, because SymPy would multiply out a
            # number times a sum.
            return power * exp(Mul(*self.rate(m[1:]), time))
        waves = [
            Pow(Mul(*self.rate(tuple(int(j == k) for j in range(len(m) - 1)))), n * time)
            for k, n in enumerate(m[1:])
            if n
        ]
        return Mul(power, *waves)

    def rate(self, powers: TimeErrorPowers) -> tuple[Expr, ...]:
        """Return (number, factor, ...), whose product is the rate v of a product of exponentials.

        The exponentials to ``powers`` have the product ``exp(v time)``, or ``v^time`` in discrete time.
        """
        if powers not in self.rates:
            number, factors = self.factored(self.functions.ring(self.functions.eigenvalue(powers)))
            clock = Mul.make_args(Mul(self.scales.clock, *factors))
            self.rates[powers] = (number, *clock)
        return self.rates[powers]

    def coefficient(self, c: PolyElement, front: Expr, degree: int) -> Expr:
        """Return the factored coefficient of one term ``time^degree exp(...)`` as a SymPy expression.

        It is ``front * clock^degree * c``, where c is a polynomial that does not depend on time, and the time
        of the polynomials is ``clock`` times t.
        """
        number, factors = self.factored(c)
        value = Mul(number, front, Pow(self.scales.clock, degree), *factors)
        return value.xreplace(dict(self.known)) if self.known else value

    def factored(self, c: PolyElement, time: bool = False) -> tuple[Expr, list[Expr]]:
        """Return (number, factors) of a polynomial c whose coefficients may be rational functions.

        Factors are polynomials or inverse polynomials as SymPy expressions. With ``time``, c may depend on
        time; factors then contain the ring's symbols of t and of the exponentials.
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
        above: dict[TimeErrorPowers, Any] = {}
        for m, x in c.iterterms():
            for p, q in (x.numer * below.exquo(x.denom)).iterterms():
                above[(*m[first:], *p)] = QQ(q)
        left = (0,) * len(symbols)
        under = joint.from_dict({(*left, *p): QQ(q) for p, q in below.iterterms()})
        a, up = self.listed(joint.from_dict(above), 1)
        b, down = self.listed(under, -1)
        return a * b, [*up, *down]

    def listed(self, p: PolyElement, sign: int) -> tuple[Expr, list[Expr]]:
        """Return (number, factors) of a polynomial p, or of 1/p for ``sign`` -1, from its factorization."""
        number, factors = p.factor_list()
        exact_number = Rational(int(QQ(number).numerator), int(QQ(number).denominator))
        return Pow(exact_number, sign), [Pow(self.named(q.as_expr()), sign * k) for q, k in factors]

    def named(self, e: Expr) -> Expr:
        """Return an expression in auxiliary symbols of the coefficient field in terms of the user's symbols.

        If eigenvalues were divided by a reference eigenvalue, their ratios are written out.
        """
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


norm = Symbol("y", positive=True)
"""The length of the target vector."""
tau = Symbol("tau", nonnegative=True)
"""Time in units of the rates."""
SIDES = {"H": 2, "K": 2, "G": 0, "A": 1, "B": 1, "C": 1, "D": 1, "Delta": 1, "f": 1, "loss": 0}
"""Number of mode indices of each quantity."""


@dataclass(frozen=True, repr=False)
class InTime(Expansion):
    """Series in gamma0 of a linear theory, with coefficients that are explicit functions of time.

    The functions belong to the eigenmodes of the data, directions in the space of samples.

    Parameters
    ----------
    modes : tuple of Mode
        Modes by number: first one for each different eigenvalue, the direction of the targets in its
        eigenspace, then one for the other directions of each eigenspace that has more.
    order : int
        Highest order.
    depth : Expr
        Number of hidden layers.
    discrete : bool
        Whether times are steps. For the flow, A, B, C and D are densities in s.
    values : OperatorValues
        Operators as exponential polynomials.
    expressions : ExpressionWriter
        Writer of these as SymPy expressions.
    """

    modes: tuple[Mode, ...]
    order: int
    depth: Expr
    discrete: bool
    values: OperatorValues = field(repr=False, compare=False)
    expressions: ExpressionWriter = field(repr=False, compare=False)

    variable = gamma0

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the order parameters, kernels C and D, tangent kernel, error, output and loss."""
        return tuple(SIDES)

    def coefficient(
        self, name: str, n: int, *modes: int, layer: Any = ell, now: Expr = t, past: Expr = s
    ) -> Expr:
        """Return the coefficient of gamma0^n of a quantity as a function of time.

        Parameters
        ----------
        name : str
            At a layer, a correlation of fields (``H``) or of gradients (``G``), a response (``A``, ``B``)
            or a kernel (``C``, ``D``); the tangent kernel ``K``; or the error ``Delta``, the output ``f``
            or the ``loss`` at time ``now``.
        n : int
            Order.
        *modes : int
            Numbers of the modes, counted from 0: two for H and K, one for A, B, C, D, Delta and f, none for
            G and loss. Missing ones are 0.
        layer : Any, optional
            Layer, within the network. At an integer depth it must be given, an integer or L, for a quantity
            at a layer.
        now : Expr, optional
            First time.
        past : Expr, optional
            Second time. A, B, C and D hold for ``past < now``.

        Returns
        -------
        Expr
            Function of time.

        Raises
        ------
        KeyError
            If there is no quantity of that name.
        IndexError
            If ``n`` is negative or beyond the order, if a mode does not exist, or if too many are given.
        ValueError
            If the layer is symbolic at integer depth, or outside the network.
        """
        self.check_order(n)
        at = self._place(name, modes)
        if name == "loss":
            return self.loss(n, now)
        if name == "f":
            return (self.modes[at[0]].target if n == 0 else S.Zero) - self.Delta(n, at[0], now)
        if name == "Delta":
            return self.Delta(n, at[0], now)
        if name != "K":
            require_layer(self.values.algebra.closure, name, layer, self.depth)
        x = self.values.operator(name, n, layer)
        front = self.expressions.front(x) * (self.expressions.scales.clock if x.causal else 1)
        return self.expressions.written(x.at(*at), front, now, past)

    def _place(self, name: str, modes: tuple[int, ...]) -> tuple[int, int]:
        """Return the (row, column) of an operator's entry from the numbers of modes that the user gave.

        Missing numbers, and indices that the quantity ``name`` does not have, are 0. Raises KeyError for an
        unknown name and IndexError for a mode that does not exist or too many modes.
        """
        if name not in SIDES:
            raise self.unknown(name)
        if len(modes) > SIDES[name]:
            raise IndexError(f"the quantity {name} has {SIDES[name]} mode indices; {len(modes)} are given")
        for k in modes:
            self._check_mode(k)
        full = (*modes, *(0,) * (SIDES[name] - len(modes)))
        if SIDES[name] == 2:
            return full[0], full[1]
        one = full[0] if full else 0
        return (0, one) if name in ("B", "D") else (one, 0)

    def _check_mode(self, k: int) -> None:
        """Raise IndexError unless k is the number of a mode."""
        if k not in range(len(self.modes)):
            raise IndexError(f"mode {k} does not exist; there are modes 0 to {len(self.modes) - 1}")

    def Delta(self, n: int, mode: int = 0, now: Expr = t) -> Expr:
        """Return the coefficient of gamma0^n of the error along a mode.

        Parameters
        ----------
        n : int
            Order.
        mode : int, optional
            Number of the mode, counted from 0.
        now : Expr, optional
            Time.

        Returns
        -------
        Expr
            Function of time.

        Raises
        ------
        IndexError
            If ``n`` is negative or beyond the order, or if the mode does not exist.
        """
        self.check_order(n)
        self._check_mode(mode)
        return self._written(self.values.algebra.errors[n], mode, now)

    def drive(self, n: int, mode: int = 0, now: Expr = t) -> Expr:
        """Return the drive of the error at order n: ``dDelta_n/dt + rate Delta_n``.

        ``rate`` is the rate at which the lazy error of the mode decays, or the fraction that one step
        removes.

        Parameters
        ----------
        n : int
            Order.
        mode : int, optional
            Number of the mode, counted from 0.
        now : Expr, optional
            Time.

        Returns
        -------
        Expr
            Function of time; ``Delta_n(t + 1) - (1 - rate) Delta_n(t)`` in steps.

        Raises
        ------
        IndexError
            If ``n`` is negative or beyond the order, or if the mode does not exist.

        Examples
        --------
        >>> from derive.expansion import expand_linear
        >>> from derive import mean_field, mlp
        >>> expand_linear(mean_field(mlp(rule="flow", loss="sum")), 2).in_time(depth=1).drive(2)
        -y**3*exp(-2*t) + 2*y**3*exp(-4*t) - y**3*exp(-6*t)
        """
        self.check_order(n)
        self._check_mode(mode)
        f, v, scales = self.values.algebra.functions, self.values.algebra.errors[n], self.expressions.scales
        left = {k: f.difference(e) + e * f.ring(scales.rates[k]) for k, e in v.entries.items()}
        return scales.clock * self._written(replace(v, entries=left), mode, now)

    def _written(self, v: ModeVector, mode: int, now: Expr, count: Expr = S.One) -> Expr:
        """Return the function of time of one mode in a vector over modes, as a SymPy expression.

        It is divided by ``count``. ``now`` is the time, ``mode`` the number of the mode; the result is zero
        if the vector has no entry for it.
        """
        f = v.entries.get(mode)
        by_past_powers = {} if f is None else {self.values.algebra.functions.idle: f}
        return self.expressions.written(by_past_powers, self.expressions.front(v) / count, now, S.Zero)

    def loss(self, n: int, now: Expr = t) -> Expr:
        """Return the coefficient of gamma0^n of the mean squared error over samples.

        Parameters
        ----------
        n : int
            Order.
        now : Expr, optional
            Time.

        Returns
        -------
        Expr
            Function of time.

        Raises
        ------
        IndexError
            If ``n`` is negative or beyond the order.
        """
        return self._written(self.squared(n), 0, now, self.samples)

    @property
    def samples(self) -> Expr:
        """Number of samples of the data, each with an output and an error."""
        return samples_of(self.modes)

    def squared(self, n: int) -> ModeVector:
        """Return order n in gamma0 of the squared error, summed over all modes.

        Parameters
        ----------
        n : int
            Order.

        Returns
        -------
        ModeVector
            Function of time, as the entry 0 of a vector.

        Raises
        ------
        IndexError
            If ``n`` is negative or beyond the order.
        """
        self.check_order(n)
        errors, total = self.values.algebra.errors, ModeVector({})
        for u, v in ((errors[k], errors[n - k]) for k in range(n + 1)):
            for i in u.entries.keys() & v.entries.keys():
                square = ModeVector({0: u.entries[i] * v.entries[i]}, u.unit + v.unit, u.damping + v.damping)
                total = self.values.algebra.add(total, square)
        return total

    def conditions(self) -> tuple[str, ...]:
        """Return the assumption that symbols in the decay rates of the modes are generic.

        Generic means that two rates (or products of the fractions that a step leaves) are equal only if they
        are so for all values of the symbols. For rules in steps all symbols in these fractions count, such as
        the learning rate and the depth.

        Returns
        -------
        tuple[str, ...]
            One sentence that lists the symbols; empty if there are no symbols.
        """
        symbols = {x for m in self.modes for x in m.eigenvalue.free_symbols}
        if self.discrete:
            symbols |= {x for e in self.expressions.scales.names.values() for x in e.free_symbols}
        shown = ", ".join(sorted(map(str, symbols)))
        if not symbols:
            return ()
        verb = "are" if len(symbols) > 1 else "is"
        if self.discrete:
            return (
                f"{shown} {verb} generic: no product of the fractions that a step leaves of the errors is "
                "zero or equal to another one, unless it is so for all values of the symbols",
            )
        return (
            f"{shown} {verb} generic: two rates are equal only if they are so for all values of the symbols",
        )

    def render(self, format: str = "text") -> str:
        """Return the series of error and loss in time as text or LaTeX.

        Parameters
        ----------
        format : {"text", "latex"}
            Format.

        Returns
        -------
        str
            The series.

        Raises
        ------
        ValueError
            If the format is another one.
        """
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
    """Return the expansion of a linear theory as explicit functions of time.

    Parameters
    ----------
    expansion : LinearSeries
        Linear expansion.
    eigenvalues : Sequence[Any], optional
        Eigenvalues of the input kernel; by default those of whitened data, of any number of samples.
    targets : Sequence[Any] | None, optional
        Projections of the targets on the eigenvectors; by default the symbol y for one eigenvalue, which
        is the length of the target vector, and y1, y2, ... for several.
    multiplicities : Sequence[Any] | None, optional
        Number of eigenvectors of each eigenvalue; one by default, or the symbol P if neither targets nor
        multiplicities are given for one eigenvalue.
    depth : int | None, optional
        Integer depth, at which the equations of the closure are solved to any ``order``. By default layer
        and depth are symbols, and ``order`` is at most that of the expansion, and at most 8.
    order : int | None, optional
        Highest order; that of the expansion by default.
    constants : Mapping[Symbol, Any] | None, optional
        Values of symbols of the training rule, such as eta; symbols without a value stay symbols, and another
        key raises ValueError.

    Returns
    -------
    InTime
        Series in time.

    Raises
    ------
    ValueError
        If numbers are not exact or not possible, if ``depth`` is not that of a theory of integer depth, if
        the order is too high at symbolic depth, or if a key of ``constants`` is not a symbol of the training
        rule.
    NotApplicable
        If the weight of past updates depends on time (weight decay, momentum), if the error is not the target
        minus the output, if one step removes the lazy error of a mode completely, or if it cannot be decided
        which decay rates are equal, as for an irrational eigenvalue beside symbols.

    Notes
    -----
    All numbers are exact, so that resonances of rates are decided; symbols are assumed to be generic.

    Examples
    --------
    >>> from derive.expansion import expand_linear
    >>> from derive import mean_field, mlp
    >>> e = expand_linear(mean_field(mlp(rule="flow", loss="sum")), 2)
    >>> e.in_time(depth=1).Delta(0)
    y*exp(-2*t)
    >>> e.in_time(depth=1).Delta(2)
    -t*y**3*exp(-2*t) + 3*y**3*exp(-2*t)/4 - y**3*exp(-4*t) + y**3*exp(-6*t)/4
    """
    closure = expansion.closure
    order = require_integer("order", expansion.order if order is None else order, 0)
    depth = None if depth is None else require_integer("depth", depth, 1)
    if depth is None and order > expansion.written:
        raise ValueError(
            f"order = {order}: at symbolic depth the coefficients are known to order {expansion.written}; "
            f"expand to a higher order (at most {WORDS}), or give an integer depth"
        )
    own = closure.theory.program.depth
    if depth is not None and own.is_Integer and depth != own:
        raise ValueError(f"depth = {depth}: the theory has {own} layers: give this depth or none")
    law = ErrorLaw.of(closure.theory)
    if not law.affine or law.slope(1) != -1:
        raise NotApplicable(
            f"the error {law.body} is not the target minus the output, as the series in time requires"
        )
    if targets is None:
        targets = [norm] if len(eigenvalues) == 1 else [Symbol(f"y{k + 1}") for k in range(len(eigenvalues))]
        if multiplicities is None and len(eigenvalues) == 1:
            multiplicities = [P]
    modes = modes_of(eigenvalues, targets, multiplicities)
    discrete = bool(closure.theory.program.rule.discrete)
    layers = [L, ell] if depth is None else []

    weight = sympify(closure.theory.program.rule.memory(t, s)[1])
    given = {k: exact("constants", v) for k, v in (constants or {}).items()}
    if other := [k for k in given if k not in weight.free_symbols - {t, s, P}]:
        named = ", ".join(sorted(map(str, weight.free_symbols - {t, s, P}))) or "none"
        raise ValueError(
            f"constants: {other[0]!r} is not one of the symbols of the training rule for which a constant "
            f"can be given ({named}); take symbols with their assumptions from theory.symbols"
        )
    weight = weight.subs({P: samples_of(modes)} | given)
    if weight.has(t, s):
        raise NotApplicable(
            f"the weight {weight} of past updates depends on time; coefficients in time are derived only for "
            "rules with a constant weight"
        )

    def values_of(algebra: Modes) -> OperatorValues:
        """Return the evaluation of the theory's operators in an algebra of modes.

        It uses operator words at symbolic depth, and the closure's recursion over layers at an integer depth.
        """
        return FromWords(expansion, algebra) if depth is None else AtDepth(closure, depth, algebra)

    plain = Exponentials(QQ, [], discrete, layers)
    total = values_of(Modes(closure, plain, [QQ(1)])).feedback().as_expr()
    scales = scales_of(modes, weight * total, discrete)
    letters = {Symbol(f"y_{k}"): m.target for k, m in enumerate(modes) if not m.target.is_Rational}
    functions = Exponentials(scales.field, scales.exponents, discrete, [*letters, *layers])
    values = values_of(Modes(closure, functions, scales.rates, functions.number(total)))
    aims = [
        functions.number(m.target) if m.target.is_Rational else functions.parameters[Symbol(f"y_{k}")]
        for k, m in enumerate(modes)
    ]
    values.solve(aims, scales.powers, order)
    expressions = ExpressionWriter(functions, scales, total, letters)
    return InTime(modes, order, converted(L if depth is None else depth), discrete, values, expressions)


# -- printing: letters for the symbols of formulas -----------------------------------------------------------


class _Letters:
    """Short symbols of printed series: tau for time in units of the rates, and e for each exponential."""

    def __init__(self, x: InTime) -> None:
        self.x = x
        functions, scales = x.expressions.functions, x.expressions.scales
        self.time = t if scales.clock == 1 else tau
        several = len(functions.eigenvalues) > 1
        self.waves = [Symbol(f"e_{k}" if several else "e") for k in range(1, len(functions.eigenvalues) + 1)]
        self.renamed: dict[Any, Any] = dict(
            zip(functions.ring.symbols, (self.time, *self.waves), strict=False)
        )
        # In discrete time, series contain dummy symbols if an eigenvalue contains symbols or the weight of an
        # update is not a rational number. There is a dummy for the fraction of the error that a step leaves,
        # one for each different nonzero eigenvalue, or one dummy for the weight. A printed symbol replaces
        # each dummy. `fixed` maps the printed symbols to the expressions that they stand for, to be printed
        # as definitions.
        self.fixed: dict[Any, Expr] = {}
        for a, meaning in scales.names.items():
            if isinstance(a, Dummy):
                name = a.name if len(a.name) == 1 else f"{a.name[0]}_{a.name[1:]}"
                self.renamed[a] = Symbol(name)
                self.fixed[self.renamed[a]] = meaning
        kept = {} if self.fixed else scales.names
        self.expressions = replace(x.expressions, scales=replace(scales, names=kept))

    def definitions(self) -> Iterator[tuple[Expr, Expr]]:
        """Yield (short symbol, meaning) for the symbols of the printed series, such as (e, exp(-tau))."""
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
        """Return ``front`` times an exponential polynomial f as one product in the short symbols."""
        expressions = self.expressions
        number, factors = expressions.factored(f, time=True)
        shown = [y.xreplace(self.renamed).xreplace(dict(expressions.known)) for y in factors]
        return Mul(number, front, *shown)

    def lines(self) -> Iterator[tuple[Expr, list[tuple[int, Expr]]]]:
        """Yield (left-hand side, orders) for the error of each mode that has a target, and for the loss.

        The error of mode k, counted from 0, is written ``Delta_(k+1)``, and without a number if only one mode
        has a target. ``orders`` is a list of pairs (n, coefficient of gamma0^n as a function of time),
        without those that vanish.
        """
        x, errors = self.x, self.x.values.algebra.errors[: self.x.order + 1]
        aims = [k for k, m in enumerate(x.modes) if m.target != 0]
        rows = [(f"Delta_{k + 1}" if len(aims) > 1 else "Delta", errors, k, S.One) for k in aims]
        rows.append(("loss", [x.squared(n) for n in range(x.order + 1)], 0, x.samples))
        for name, vectors, k, count in rows:
            known = [(n, v) for n, v in enumerate(vectors) if k in v.entries]
            orders = [(n, self.compact(v.entries[k], self.expressions.front(v) / count)) for n, v in known]
            yield Function(name)(t), orders


def _printed(x: InTime, format: str) -> str:
    """Return error and loss of a series as text or LaTeX, with the modes and the symbols in use."""
    letters, theory = _Letters(x), x.values.algebra.theory
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
    equations = [(left(e), [right(n, c) for n, c in orders]) for e, orders in letters.lines()]
    return printed(format, "\n".join(head), {"Letters": meanings, "Error and loss": equations})
