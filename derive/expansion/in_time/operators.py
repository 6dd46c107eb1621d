"""Exponential polynomials in time, operators between them, and the solution for the error.

**Functions** are exponential polynomials with exact coefficients: sums of ``c t^a E_1(t)^n_1 E_2(t)^n_2
...``. Either time is continuous and E_k is ``exp(v_k t)``, or it counts steps and E_k is ``v_k^t``: an
eigenfunction of the derivative, or of the step forward, with eigenvalue v_k. Integrals and sums solve
``(advance - v) u = f`` term by term and do not leave this class. Where f itself grows with the eigenvalue v
(a resonance) the solution has one more power of t; this is decided exactly in the field of the v_k.

**Operators** act in the eigenmodes of the data. At any depth they are given by operator words, and at an
integer depth by the recursion of the closure. Both give the output for given errors; the error is then the
solution of a linear Volterra equation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import comb
from typing import Any, TypeVar

from sympy import Add, Expr, Symbol, sympify, transpose
from sympy.polys.rings import PolyElement, PolyRing

from derive.calculus.recurrences import particular
from derive.calculus.sums import gathered
from derive.calculus.symbols import ell
from derive.errors import NotApplicable
from derive.expansion.operator_words import LinearSeries, Memory, Recursion, letters, terms
from derive.linear.closure import LinearClosure
from derive.linear.operators import J

TimeErrorPowers = tuple[int, ...]
"""The powers of (t, E_1, E_2, ...) in a term."""

Image = dict[TimeErrorPowers, Any]
"""Image of one term under a linear map: powers with coefficients in the field."""


class Exponentials:
    """Exponential polynomials of one time with exact coefficients.

    Parameters
    ----------
    field : sympy field
        Field of the coefficients.
    eigenvalues : Sequence[Any]
        Eigenvalues v_k of the exponentials.
    discrete : bool
        Whether time counts steps.
    parameters : Sequence[Symbol]
        Further polynomial variables.

    Examples
    --------
    >>> from sympy import QQ
    >>> x = Exponentials(QQ, [QQ(-1)], discrete=False)
    >>> t, E = x.ring.gens
    >>> x.integral(E), x.integral(t * E)  # E = exp(-t)
    (-E1 + 1, -t*E1 - E1 + 1)
    >>> x.solve(E, (1,), x.ring.one)  # u' = -u + E, u(0) = 1
    t*E1 + E1
    """

    def __init__(
        self, field: Any, eigenvalues: Sequence[Any], discrete: bool, parameters: Sequence[Symbol] = ()
    ) -> None:
        self.field, self.discrete = field, discrete
        self.eigenvalues = tuple(field.convert(v) for v in eigenvalues)
        names = ["t", *(f"E{k}" for k in range(1, len(self.eigenvalues) + 1))]
        self.ring = PolyRing([*(Symbol(x) for x in names), *parameters], field)
        self.one, self.zero = self.ring.one, self.ring.zero
        self.width = len(names)
        self.idle: TimeErrorPowers = (0,) * self.width
        self.parameters = dict(zip(parameters, self.ring.gens[self.width :], strict=True))
        self._values: dict[TimeErrorPowers, Any] = {}
        self._maps: dict[tuple[str, TimeErrorPowers], dict[TimeErrorPowers, Image]] = {}

    def exponential(self, powers: Sequence[int]) -> PolyElement:
        """Return a product of powers of the exponentials, ``E_1(t)^n_1 E_2(t)^n_2 ...``.

        E_k(t) is ``exp(v_k t)``, or ``v_k^t`` if time counts steps, where v_k are the given eigenvalues.

        Parameters
        ----------
        powers : Sequence[int]
            Exponents (n_1, n_2, ...), one for each eigenvalue.

        Returns
        -------
        PolyElement
            The product, a polynomial in the symbols of t and of the exponentials.
        """
        return self.term((0, *powers))

    def term(self, powers: TimeErrorPowers) -> PolyElement:
        """Return a power of time times powers of the exponentials, ``t^a E_1(t)^n_1 E_2(t)^n_2 ...``.

        E_k(t) is ``exp(v_k t)``, or ``v_k^t`` if time counts steps, where v_k are the given eigenvalues.

        Parameters
        ----------
        powers : TimeErrorPowers
            Exponents (a, n_1, n_2, ...).

        Returns
        -------
        PolyElement
            The term, a polynomial in the symbols of t and of the exponentials.
        """
        rest = (0,) * (self.ring.ngens - self.width)
        return self.ring.from_dict({(*powers, *rest): self.field.one})

    def eigenvalue(self, powers: Sequence[int]) -> Any:
        """Return the eigenvalue of ``E_1^n_1 E_2^n_2 ...`` under the derivative, or under the step forward.

        The exponentials are E_k(t) = exp(v_k t) with the derivative as operator, so that the eigenvalues v_k
        add up. If time counts steps, they are v_k^t with the step t to t + 1, so that the eigenvalues
        multiply.

        Parameters
        ----------
        powers : Sequence[int]
            Exponents (n_1, n_2, ...), one for each exponential.

        Returns
        -------
        field element
            Sum of n_k v_k, or product of v_k^n_k if time counts steps.
        """
        key = tuple(powers)
        if key not in self._values:
            value = self.field.one if self.discrete else self.field.zero
            for v, n in zip(self.eigenvalues, key, strict=True):
                value = value * v**n if self.discrete else value + v * n
            self._values[key] = value
        return self._values[key]

    def number(self, c: Any) -> PolyElement:
        """Convert a polynomial in the given parameters from SymPy; it does not depend on time.

        Parameters
        ----------
        c : Expr
            Polynomial in the symbols of :attr:`parameters` with numbers as coefficients.

        Returns
        -------
        PolyElement
            The same polynomial in the ring of exponential polynomials.
        """
        out = self.zero
        for part in Add.make_args(sympify(c).expand()):
            number, rest = part.as_coeff_Mul()
            value = self.ring(self.field.from_sympy(number))
            for base, power in rest.as_powers_dict().items():
                if base != 1:
                    value = value * self.parameters[base] ** int(power)
            out += value
        return out

    # -- linear maps -----------------------------------------------------------------------------------

    def integral(self, f: PolyElement) -> PolyElement:
        """Return the integral of a function f of time from 0 to t; in steps, the sum from 0 to t - 1.

        Parameters
        ----------
        f : PolyElement
            Exponential polynomial in t.

        Returns
        -------
        PolyElement
            Its integral or sum, as a function of t.
        """
        return self._mapped("solve", self.idle[1:], f, self._solved)

    def solve(self, f: PolyElement, powers: Sequence[int], start: PolyElement) -> PolyElement:
        """Solve ``du/dt = v u + f`` with a given initial value; in steps, ``u(t+1) = v u(t) + f(t)``.

        Parameters
        ----------
        f : PolyElement
            Right-hand side, an exponential polynomial in t.
        powers : Sequence[int]
            Exponents (n_1, n_2, ...) of the product of exponentials that solves the equation with f = 0; they
            define v.
        start : PolyElement
            Initial value u(0), which does not depend on t.

        Returns
        -------
        PolyElement
            The solution u as a function of t.
        """
        key = tuple(powers)
        return self._mapped("solve", key, f, self._solved) + start * self.exponential(key)

    def difference(self, f: PolyElement) -> PolyElement:
        """Return the derivative of a function f of time; in steps, ``f(t+1) - f(t)``.

        Parameters
        ----------
        f : PolyElement
            Exponential polynomial in t.

        Returns
        -------
        PolyElement
            Its derivative or difference.
        """
        return self._mapped("difference", self.idle[1:], f, self._difference)

    def volterra(self, drive: PolyElement, rate: Any, powers: Sequence[int]) -> PolyElement:
        """Solve the linear Volterra equation ``u(t) = drive(t) - rate * (integral of u from 0 to t)``.

        In steps the integral is a sum from 0 to t - 1. ``rate`` must agree with ``powers``, from which the
        solution is computed.

        Parameters
        ----------
        drive : PolyElement
            Known function of time.
        rate : field element
            Factor of the integral.
        powers : Sequence[int]
            Exponents (n_1, n_2, ...) of the product of exponentials that solves the equation for the
            drive 1. Its eigenvalue is ``-rate``, or ``1 - rate`` in steps.

        Returns
        -------
        PolyElement
            The solution u as a function of t.
        """
        return self.solve(self.difference(drive), powers, self.at_start(drive))

    def vanishes(self, f: PolyElement) -> bool:
        """Return whether an exponential polynomial is zero at all times.

        Products of exponentials with the same eigenvalue are the same function, such as ``E^2`` and 1 for
        ``E = (-1)^t``.

        Parameters
        ----------
        f : PolyElement
            Exponential polynomial in t.

        Returns
        -------
        bool
            True if all coefficients vanish.
        """
        parts = (((m[0], self.eigenvalue(m[1:])), c) for m, c in self.parts(f).items())
        total: dict[tuple[int, Any], PolyElement] = {}
        for key, c in parts:
            total[key] = total.get(key, self.zero) + c
        return not any(total.values())

    def at_start(self, f: PolyElement) -> PolyElement:
        """Return the value of a function of time at t = 0.

        Parameters
        ----------
        f : PolyElement
            Exponential polynomial in t.

        Returns
        -------
        PolyElement
            The value f(0), a polynomial in the parameters.
        """
        kept = (((*self.idle, *m[self.width :]), c) for m, c in f.iterterms() if m[0] == 0)
        return self.ring.from_dict(gathered(kept))

    def parts(self, f: PolyElement) -> dict[TimeErrorPowers, PolyElement]:
        """Return the coefficient of each ``t^a E_1(t)^n_1 E_2(t)^n_2 ...`` in an exponential polynomial.

        Parameters
        ----------
        f : PolyElement
            Exponential polynomial in t, with exponentials E_k.

        Returns
        -------
        dict[TimeErrorPowers, PolyElement]
            Coefficients by the exponents (a, n_1, n_2, ...); they contain the parameters and not t.
        """
        coefficients: dict[TimeErrorPowers, dict[TimeErrorPowers, Any]] = {}
        for m, c in f.iterterms():
            coefficients.setdefault(m[: self.width], {})[(*self.idle, *m[self.width :])] = c
        return {k: self.ring.from_dict(x) for k, x in coefficients.items()}

    def _mapped(
        self,
        name: str,
        key: TimeErrorPowers,
        f: PolyElement,
        image: Callable[[TimeErrorPowers, TimeErrorPowers], Image],
    ) -> PolyElement:
        """Apply a linear map to an exponential polynomial f, term by term.

        ``image(powers, key)`` returns the image of the term ``t^a E_1^n_1 ...`` with exponents ``powers``, as
        a dictionary from exponents to coefficients. Images are cached by the ``name`` of the map, its
        argument ``key``, and the exponents.
        """
        known = self._maps.setdefault((name, key), {})
        parts = [(m[: self.width], m[self.width :], c) for m, c in f.iterterms()]
        for time in {time for time, *_ in parts} - set(known):
            known[time] = image(time, key)
        moved = (((*p, *rest), c * d) for time, rest, c in parts for p, d in known[time].items())
        return self.ring.from_dict(gathered(moved))

    # -- one term --------------------------------------------------------------------------------------

    def _solved(self, term: TimeErrorPowers, powers: TimeErrorPowers) -> Image:
        """Solve ``du/dt = v u + t^a E^n`` with u(0) = 0; in steps, ``u(t+1) = v u(t) + t^a E^n``.

        ``term`` has the exponents (a, n_1, ...) of the right-hand side, where ``E^n`` is a product of powers
        of the exponentials. v is the eigenvalue of the product of exponentials with exponents ``powers[0]``,
        ``powers[1]``, and so on. The solution is returned as a dictionary from exponents to coefficients.
        """
        degree, exponents = term[0], term[1:]
        w = self.eigenvalue(exponents)
        gap = w - self.eigenvalue(powers)
        solution = particular(degree, gap, lambda i, j: self._moved(i, j, w), self.field.one)
        out: Image = {(j, *exponents): c for j, c in enumerate(solution) if c}
        if solution[0]:
            home = (0, *powers)
            out[home] = out.get(home, self.field.zero) - solution[0]
        return {p: c for p, c in out.items() if c}

    def _moved(self, i: int, j: int, w: Any) -> Any:
        """Return a coefficient of the derivative of ``t^i exp(w t)``, or of ``t^i w^t`` shifted by one step.

        It is the coefficient of the same exponential times ``t^j``, for a power j lower than i. In steps the
        shifted function is ``(t + 1)^i w^(t + 1)``.
        """
        if self.discrete:
            return w * self.field.convert(comb(i, j))
        return self.field.convert(i) if j == i - 1 else self.field.zero

    def _difference(self, term: TimeErrorPowers, _: TimeErrorPowers) -> Image:
        """Return the derivative of ``t^a E_1^n_1 ...`` in time; in steps, its difference ``f(t+1) - f(t)``.

        ``term`` has the exponents (a, n_1, ...). The second argument is not used. The result is a dictionary
        from exponents to coefficients.
        """
        degree, exponents = term[0], term[1:]
        w = self.eigenvalue(exponents)
        out = {(j, *exponents): self._moved(degree, j, w) for j in range(degree)}
        out[term] = w - self.field.one if self.discrete else w
        return {p: c for p, c in out.items() if c}


@dataclass(frozen=True)
class ModeVector:
    """One function of time for each eigenmode of the data, with common factors taken out.

    The function of mode k is ``entries[k] * U**unit / c**damping``. Eigenvalues of the data are written as
    numbers divided by U, and c is the factor with which the error enters its own equation, ``feedback`` of
    :class:`Modes`. The entries are exponential polynomials.
    """

    entries: dict[Any, PolyElement]
    unit: int = 0
    damping: int = 0

    @property
    def kind(self) -> tuple[Any, ...]:
        """The tuple ``(unit,)``, where ``unit`` is the power of the common factor U of the vector.

        Only vectors with equal ``kind`` can be added.
        """
        return (self.unit,)


@dataclass(frozen=True)
class ModeKernel(ModeVector):
    """Operator in the eigenmodes of the data: a function of two times (t, s) for each pair of modes.

    ``entries[row, column, powers]`` is a function of t, and multiplies ``s^a E_1(s)^n_1 ...`` with the
    exponents ``powers``; the sum over powers is the kernel of these two modes. Rows and columns are numbers
    of modes, or 0 if the operator has no sample index there. If ``causal``, the kernel holds for s < t and is
    zero otherwise. If ``flipped``, the operator is the transpose of the one with these entries. ``unit`` and
    ``damping`` are powers of common factors as in :class:`ModeVector`.
    """

    causal: bool = True
    flipped: bool = False

    @property
    def kind(self) -> tuple[Any, ...]:
        """The tuple (unit, causal, flipped); only kernels with equal ``kind`` can be added.

        ``unit`` is the power of the common factor U; the others say whether the kernel vanishes for s >= t,
        and whether it is stored as its transpose.
        """
        return self.unit, self.causal, self.flipped

    def at(self, row: int, column: int) -> dict[TimeErrorPowers, PolyElement]:
        """Return the kernel of one pair of modes: functions of t by the powers of the other time s.

        The kernel is the sum over exponents (a, n_1, ...) of the functions of t, each times ``s^a E_1(s)^n_1
        ...``, where E_k are the exponentials in time.
        """
        return {m: f for (i, j, m), f in self.entries.items() if (i, j) == (row, column)}


@dataclass(frozen=True)
class Multiple:
    """The operator ``number`` times the identity, in the eigenmodes of the data.

    All other operators are kernels of two times (:class:`ModeKernel`). ``number`` does not depend on time.
    """

    number: PolyElement


ModeVectorLike = TypeVar("ModeVectorLike", bound=ModeVector)
ModeOperator = ModeKernel | Multiple
ZERO = ModeKernel({}, causal=False)


class Modes:
    """Algebra of the operators of a linear theory in the eigenmodes of the data.

    Operators are matrices over modes whose entries are exponential polynomials of two times. ``errors[n]`` is
    order n in gamma0 of the error of each mode, as far as it is solved; ``rates`` are the eigenvalues of the
    data in their unit, one for each mode. ``closure`` are the operator equations of the theory, and
    ``functions`` the ring of the exponential polynomials. ``feedback`` is the factor c in the lazy output
    ``f_k = c rate_k int Delta_k``; powers of 1/c are taken out of operators. It is 1 by default.
    """

    def __init__(
        self,
        closure: LinearClosure,
        functions: Exponentials,
        rates: Sequence[Any],
        feedback: PolyElement | None = None,
    ) -> None:
        self.closure, self.theory = closure, closure.theory
        self.functions, self.rates = functions, rates
        self.feedback = functions.one if feedback is None else feedback
        self.errors: list[ModeVector] = []
        self.rows = {k.name: bool(k.rows) for k in closure.kernels}
        self.data = {e.rhs for e in closure.base if e.rhs not in (0, J)}

    # -- operations of the recursion ------------------------------------------------------------------

    def identity(self, c: Expr | int) -> ModeOperator:
        """Return the identity operator times c, a number or a polynomial in the symbolic parameters."""
        return Multiple(self.functions.number(c))

    def constant(self, x: Expr) -> ModeKernel:
        """Return the operator of a kernel that does not depend on time: 1 (x = J), or that of the data.

        The kernel of the data is diagonal in the modes, with the eigenvalues ``rates``. Raises NotApplicable
        for any other x, and for the kernel of the data if the theory has several.
        """
        f = self.functions
        if x == J:
            return ModeKernel({(0, 0, f.idle): f.one}, causal=False)
        if x not in self.data or len(self.data) != 1:
            raise NotApplicable(
                f"the eigenvalues of the constant operator {x} are not known: eigenvalues are given for the "
                "kernel of the data only, and the theory must have exactly one kernel of the data; it has "
                f"{len(self.data)}"
            )
        entries = {(k, k, f.idle): f.ring(rate) for k, rate in enumerate(self.rates) if rate}
        return ModeKernel(entries, unit=-1, causal=False)

    def sum(self, parts: Sequence[ModeOperator]) -> ModeOperator | None:
        """Return the sum of operators; None if there are none, or if multiples of the identity cancel.

        Raises NotApplicable for the sum of a multiple of the identity and a kernel of two times.
        """
        operators = [x for x in parts if isinstance(x, ModeKernel)]
        total = sum((x.number for x in parts if isinstance(x, Multiple)), self.functions.zero)
        if operators and len(operators) < len(parts):
            raise NotApplicable(
                "at one order in gamma0 an operator is a multiple of the identity plus a kernel of two "
                "times; the sum of these two is not supported"
            )
        if operators:
            return self.add(*operators)
        return Multiple(total) if total else None

    def times(self, a: ModeOperator, b: ModeOperator) -> ModeOperator:
        """Return the operator product ``a b``, in this order: a sum over modes and an integral over time."""
        if isinstance(a, ModeKernel) and isinstance(b, ModeKernel):
            return self.product(a, b)
        if isinstance(a, ModeKernel):
            a, b = b, a  # put the multiple of the identity first: it commutes with every operator
        assert isinstance(a, Multiple)
        return Multiple(a.number * b.number) if isinstance(b, Multiple) else self.scale(a.number, b)

    def transpose(self, x: ModeOperator) -> ModeOperator:
        """Return the transpose of an operator: rows and columns, and the two times, exchanged."""
        return x if isinstance(x, Multiple) else self.flipped(x)

    def flipped(self, x: ModeKernel) -> ModeKernel:
        """Return the transpose of a kernel: rows and columns, and the two times, exchanged."""
        if x.causal:
            return replace(x, flipped=not x.flipped)
        turned = (
            ((j, i, last), c * self.functions.term(m))
            for (i, j, m), f in x.entries.items()
            for last, c in self.functions.parts(f).items()
        )
        return replace(x, entries=gathered(turned))

    def entrywise(self, a: ModeOperator, b: ModeOperator) -> ModeKernel:
        """Return the product of two operators entry by entry, at the same two times.

        The first operator, ``a``, has no mode indices, so that it multiplies all pairs of modes of ``b``.
        """
        assert isinstance(a, ModeKernel)
        assert isinstance(b, ModeKernel)
        both = (
            ((i, j, _times(m, n)), f * g)
            for (_, _, m), f in a.entries.items()
            for (i, j, n), g in b.entries.items()
        )
        return ModeKernel(gathered(both), a.unit + b.unit, a.damping + b.damping, False)

    def orders(self, n: int) -> Iterable[int]:
        """Return the orders in gamma0, from 0 to n, at which the error has already been solved."""
        return range(min(n + 1, len(self.errors)))

    def remembered(self, kernel: str, order: int, body: ModeOperator) -> ModeKernel:
        """Return the memory of a correlation X in a kernel: X times the error, as part of an update.

        X is the operator ``body``, and ``order`` the order in gamma0 of the error. If the kernel of the
        theory with the name ``kernel`` has a mode index on its left (such as C), the result has the rows i
        ``sum_j X_ij(t, s) error_j(s)`` and one column. Otherwise it has one row, with the columns j ``X(t, s)
        error_j(s)``. The powers ``unit`` and ``damping`` of its common factors are those of X and of the
        error, plus one for the weight of an update.
        """
        assert isinstance(body, ModeKernel)
        rows, error = self.rows[kernel], self.errors[order]
        parts = {k: self.functions.parts(e) for k, e in error.entries.items()}
        kept = (
            ((i if rows else 0, 0 if rows else k, _times(m, p)), f * c)
            for (i, j, m), f in body.entries.items()
            for k, of in parts.items()
            if not rows or k == j
            for p, c in of.items()
        )
        return ModeKernel(gathered(kept), body.unit + error.unit + 1, body.damping + error.damping + 1)

    # -- sums and products -----------------------------------------------------------------------------

    def scale(self, c: PolyElement, x: ModeVectorLike) -> ModeVectorLike:
        """Return a vector or an operator x times c, a polynomial in the parameters without time."""
        return x if c == self.functions.one else replace(x, entries={k: f * c for k, f in x.entries.items()})

    def add(self, *xs: ModeVectorLike) -> ModeVectorLike:
        """Return the sum of vectors over modes, or of operators.

        A term has a common factor ``1/c**damping``, where c is ``feedback``, the factor in the lazy output
        ``f_k = c rate_k int Delta_k``; all terms are first brought to the largest ``damping``. Raises
        NotApplicable if terms that are not zero have different powers of the unit of eigenvalues, or if only
        some of them are causal or transposed.
        """
        live = [x for x in xs if x.entries] or [xs[0]]
        if len(kinds := {x.kind for x in live}) > 1:
            raise NotApplicable(
                "the terms of a sum must agree in the power of the unit of eigenvalues, in being causal "
                f"and in being transposed; their triples (power, causal, transposed) are {sorted(kinds)}"
            )
        top = max(x.damping for x in live)
        out: list[tuple[Any, PolyElement]] = []
        for damping in {x.damping for x in live}:
            alike = gathered(pair for x in live if x.damping == damping for pair in x.entries.items())
            lift = self.feedback ** (top - damping)
            out += [(key, f if damping == top else f * lift) for key, f in alike.items()]
        return replace(live[0], entries=gathered(out), damping=top)

    def product(self, a: ModeKernel, b: ModeKernel) -> ModeKernel:
        """Return the operator product ``(a b)(t, s) = sum_k int a_ik(t, r) b_kj(r, s) dr``, k over modes.

        There are two cases. If b is not a transpose, ``a`` must be causal and not a transpose; r runs from 0,
        or from s if b is causal, to t. If b is a transpose (``flipped``), ``a`` must be a transpose or not
        causal; r runs from 0, or from t if ``a`` is a transpose, to s. Raises NotApplicable for other
        factors, because the integration time is then unbounded. In discrete time the integral is a sum.
        """
        if b.flipped and (a.flipped or not a.causal):
            return self.flipped(self.product(self.flipped(b), self.flipped(a)))
        if not a.causal or a.flipped or b.flipped:
            raise NotApplicable(
                "a product of operators is not evaluated: the first factor must be causal and not "
                "transposed if the second factor is not transposed, and transposed or not causal if it is, "
                "because the time of the integral between the two factors is unbounded otherwise"
            )
        x = self.functions

        def parts() -> Iterator[tuple[Any, PolyElement]]:
            """Yield ((row, column, exponents of the powers of s), function of t), summands of the product."""
            for (i, k, m), left in a.entries.items():
                for (k_, j, last), right in b.entries.items():
                    if k == k_:
                        inner = x.term(m) * right
                        whole = x.integral(inner)
                        yield (i, j, last), left * whole
                        # A causal second operator b vanishes at times before s (in steps, also at s), so that
                        # the product is an integral from s to t: the part from 0 to s is subtracted from the
                        # integral from 0 to t (in steps, the sum up to and including s).
                        if b.causal:
                            early = x.parts(whole + inner if x.discrete else whole).items()
                            yield from (((i, j, _times(p, last)), -(left * c)) for p, c in early)

        return ModeKernel(gathered(parts()), a.unit + b.unit, a.damping + b.damping, b.causal)

    def equal_times(self, x: ModeKernel) -> ModeVector:
        """Return the values at s = t of an operator with one column, as a vector over its rows."""
        now = ((i, f * self.functions.term(m)) for (i, _, m), f in x.entries.items())
        return ModeVector(gathered(now), x.unit, x.damping)

    def reduced(self, v: ModeVector) -> ModeVector:
        """Return the same vector with the lowest possible power of its common factor ``1/feedback``.

        The polynomial ``feedback`` is divided out of all entries as long as this leaves no remainder; each
        division lowers the power ``damping`` by one. If ``feedback`` is a number, nothing is changed.
        """
        damping, entries = v.damping, v.entries
        while damping > 0 and entries and not self.feedback.is_ground:
            halves = {i: f.div(self.feedback) for i, f in entries.items()}
            if any(rest for _, rest in halves.values()):
                break
            entries, damping = {i: q for i, (q, _) in halves.items()}, damping - 1
        return ModeVector(entries, v.unit, damping)


def _times(a: TimeErrorPowers, b: TimeErrorPowers) -> TimeErrorPowers:
    """Return the exponents of the product of two terms ``t^a E_1^n_1 ...``: the sums of their exponents."""
    return tuple(x + y for x, y in zip(a, b, strict=True))


# -- values, and the error ---------------------------------------------------------------------------------


class OperatorValues(ABC):
    """Base class of evaluations of a linear theory's operators and output, order by order in gamma0.

    Values are exponential polynomials in time in the eigenmodes of the data, which ``algebra`` multiplies and
    integrates. They use the orders of the error in ``algebra.errors`` that are solved so far; :meth:`solve`
    finds the next ones.
    """

    def __init__(self, algebra: Modes) -> None:
        self.algebra = algebra

    @abstractmethod
    def operator(self, name: str, n: int, layer: Any) -> ModeKernel:
        """Return order n in gamma0 of an operator of the theory at a layer, as a kernel of two times.

        ``name`` is that of an order parameter or of a kernel, such as ``H`` or ``C``, or ``K`` for the
        tangent kernel, which does not depend on ``layer``.
        """

    @abstractmethod
    def output(self, n: int) -> ModeVector:
        """Return order n in gamma0 of the network's output, as one function of time for each mode.

        Terms with orders of the error that are not yet solved are left out.
        """

    @abstractmethod
    def forget(self, n: int) -> None:
        """Delete cached values that depend on order n in gamma0 of the error, which has just been solved.

        A subclass that caches only final values keeps them.
        """

    def solve(self, targets: Sequence[PolyElement], powers: Sequence[TimeErrorPowers], order: int) -> None:
        """Find the error up to an order in gamma0; at each order it obeys a linear Volterra equation in time.

        The equation is driven by the targets and by the part of the output that lower orders of the error
        give. ``powers[k]`` are the exponents of the exponentials in the error of mode k at gamma0 = 0. Each
        order is appended to ``algebra.errors`` and then substituted in the output. Raises NotApplicable if
        output and error do not add up to the targets, or if the output at gamma0 = 0 has a part without the
        error.
        """
        a, f = self.algebra, self.algebra.functions
        for n in range(order + 1):
            rest = self.output(n)
            drive = {k: -g for k, g in rest.entries.items()}
            if n == 0:
                if drive:
                    raise NotApplicable(
                        "the output at gamma0 = 0 has a part that does not depend on the error; this part "
                        "must be zero"
                    )
                drive = {k: y for k, y in enumerate(targets) if y}
            errors = ((k, f.volterra(g, a.rates[k], powers[k])) for k, g in drive.items())
            a.errors.append(a.reduced(ModeVector(gathered(errors), rest.unit, rest.damping)))
            self.forget(n)
            self.check(targets, n)

    def check(self, targets: Sequence[PolyElement], n: int) -> None:
        """Raise NotApplicable unless error plus output, both of order n, equal the targets at that order.

        The targets contribute at order 0 only. The comparison is exact.
        """
        a, zero = self.algebra, self.algebra.functions.zero
        vectors = (self.output(n), a.errors[n])
        top = max(v.damping for v in vectors)
        for k, y in enumerate(targets):
            total = y * a.feedback**top if n == 0 else zero
            for v in vectors:
                total -= v.entries.get(k, zero) * a.feedback ** (top - v.damping)
            if not self.algebra.functions.vanishes(total):
                raise NotApplicable(
                    f"error plus output do not equal the target of mode {k} at order {n} in gamma0: the "
                    "linear equations of the error at all orders must have the same kernel, and may differ "
                    "in their inhomogeneous term only"
                )

    def feedback(self) -> PolyElement:
        """Return the factor c in the output at gamma0 = 0, ``f_k(t) = c rate_k int_0^t Delta_k``.

        f_k is the output and Delta_k the error of mode k, and rate_k its eigenvalue. A trial error is
        appended as order 0, so that none may be solved before, and the ``feedback`` of the algebra must be 1.
        Raises NotApplicable if f has another form, if c differs between modes, if c is zero, and if all
        eigenvalues are zero.
        """
        f = self.algebra.functions
        trial = f.one + f.ring.gens[0] * 3
        self.algebra.errors.append(ModeVector(dict.fromkeys(range(len(self.algebra.rates)), trial)))
        out = self.output(0)
        quotients = []
        for k, rate in enumerate(self.algebra.rates):
            once = f.integral(trial) * rate
            q, rest = out.entries.get(k, f.zero).div(once) if rate else (None, out.entries.get(k, f.zero))
            if rest:
                raise NotApplicable(
                    f"the output of mode {k} at gamma0 = 0 is not the eigenvalue times a factor times the "
                    "integral of the error from time 0 to t, as the series in time requires"
                )
            if q is not None:
                quotients.append(q)
        if not quotients or any(q != quotients[0] for q in quotients) or not quotients[0]:
            raise NotApplicable(
                "the ratios of the output at gamma0 = 0 to the eigenvalue times the integral of the error "
                f"are {quotients}, for modes of nonzero eigenvalue; the ratios must be equal and not zero"
            )
        return quotients[0]


class AtDepth(OperatorValues):
    """Operators of a closure in eigenmodes of the data, in exact arithmetic, at an integer depth.

    They are computed by recursion over the layers, from the equations of the closure.
    """

    def __init__(self, closure: LinearClosure, depth: int, algebra: Modes) -> None:
        super().__init__(algebra)
        self.recursion: Recursion[ModeOperator] = Recursion(closure, algebra, depth)

    def forget(self, n: int) -> None:
        """Delete cached values of order n and beyond, because the error of order n has just been found."""
        self.recursion.forget(n)

    def operator(self, name: str, n: int, layer: Any) -> ModeKernel:
        """Return order n in gamma0 of an operator of the theory at a layer, as a kernel of two times.

        ``name`` is that of an order parameter or of a kernel, such as ``H`` or ``C``, or ``K`` for the
        tangent kernel, which does not depend on ``layer``. The layer of the others is an integer or L; raises
        ValueError for a symbolic one.
        """
        place = self.recursion.placed(layer)
        if name != "K" and not place.is_Integer:
            raise ValueError(
                f"layer = {layer}: must be an integer or L, because the depth is {self.recursion.depth}"
            )
        kernel = self.recursion.tangent(n) if name == "K" else self.recursion.at(name, place, n)
        assert not isinstance(kernel, Multiple)
        return kernel or ZERO

    def output(self, n: int) -> ModeVector:
        """Return order n in gamma0 of the network's output, as one function of time for each mode.

        Terms with orders of the error that are not yet solved are left out.
        """
        kernel = self.recursion.output(n)
        assert not isinstance(kernel, Multiple)
        return self.algebra.equal_times(kernel or ZERO)


class FromWords(OperatorValues):
    """Operators in eigenmodes of the data, computed from operator words.

    Layer and depth may be symbols.
    """

    def __init__(self, series: LinearSeries, algebra: Modes) -> None:
        super().__init__(algebra)
        self.series = series
        self.known: dict[tuple[Expr, ...], ModeKernel] = {}
        self.outputs: dict[int, tuple[ModeVector, list[tuple[Expr, Expr]]]] = {}

    def operator(self, name: str, n: int, layer: Any) -> ModeKernel:
        """Return order n in gamma0 of an operator of the theory at a layer, as a kernel of two times.

        It is a sum of operator words, each evaluated as a product of kernels. ``name`` is that of an order
        parameter or of a kernel, such as ``H`` or ``C``, or ``K`` for the tangent kernel, which does not
        depend on ``layer``.
        """
        a = self.algebra
        if name == "K":
            products = [(c, a.entrywise(self.word(g), self.word(h))) for c, g, h in self.series.tangent[n]]
        else:
            words = terms(self.series.words[name][n].subs(ell, layer).expand())
            products = [(c, self.word(w)) for c, w in words]
        return a.add(ZERO, *[a.scale(a.functions.number(c), x) for c, x in products])

    def output(self, n: int) -> ModeVector:
        """Return order n in gamma0 of the network's output, as one function of time for each mode.

        Operator words that contain an order of the error that is not yet solved are left out.
        """
        # Operator words that contain only solved orders of the error give a part of the output that does not
        # change any more. `outputs` keeps this part as a vector at equal times, which has far fewer terms
        # than the operators, together with the words that are not computed yet (`pending`).
        known_part, pending = self.outputs.get(n) or (ModeVector({}), terms(self.series.output[n]))
        ready = [(c, w) for c, w in pending if self.errors_known(letters(w))]
        a = self.algebra
        parts = [a.scale(a.functions.number(c), a.equal_times(self.word(w))) for c, w in ready]
        self.outputs[n] = a.add(known_part, *parts), [x for x in pending if x not in ready]
        return self.outputs[n][0]

    def forget(self, n: int) -> None:
        """Do nothing, because only operator words whose orders of the error are solved have been cached."""

    def errors_known(self, ls: Sequence[Expr]) -> bool:
        """Return whether every order of the error that occurs in a product of kernels has been solved.

        ``ls`` are the kernels (letters of an operator word).
        """
        return all(x.order < len(self.algebra.errors) for y in ls for x in y.atoms(Memory))

    def word(self, w: Expr) -> ModeKernel:
        """Return an operator word as an operator in the modes: the product of its kernels (letters)."""
        return self.product(tuple(letters(w)))

    def product(self, ls: tuple[Expr, ...]) -> ModeKernel:
        """Return the product of kernels (letters of an operator word), from the cache if possible."""
        if ls in self.known:
            return self.known[ls]
        value = self.letter(ls[0])
        if value.causal and not value.flipped:
            value = self.algebra.product(value, self.product(ls[1:])) if ls[1:] else value
        else:
            # The first letter of the word is a constant kernel K or a transpose, and the letters to its right
            # are transposes, as in the word K a^T b^T. Such a word is multiplied from the left: first K a^T,
            # then its product with b^T. The method `product` of the algebra accepts two cases. If the second
            # operator is a transpose, the first must be a transpose or not causal. If not, the first must be
            # causal and not a transpose.
            for x in ls[1:]:
                value = self.algebra.product(value, self.letter(x))
        if self.errors_known(ls):
            self.known[ls] = value
        return value

    def letter(self, x: Expr) -> ModeKernel:
        """Return one kernel (letter of an operator word) as an operator in the modes.

        A letter is a constant kernel, the memory of a correlation (the correlation times the error), or the
        transpose of a memory. It is zero if its order of the error is not yet solved.
        """
        if isinstance(x, transpose):
            return self.algebra.flipped(self.letter(x.args[0]))
        if not isinstance(x, Memory):
            return self.algebra.constant(x)
        if (x,) in self.known:
            return self.known[x,]
        errors = x.order < len(self.algebra.errors)
        return self.algebra.remembered(x.kernel, x.order, self.word(x.body)) if errors else ModeKernel({})
