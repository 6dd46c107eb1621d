"""The disorder average: what is left of a Gaussian matrix in the exponent (selfconsistent2023 D.25, D.26).

A matrix enters through ``-i sum_rc M_rc X_rc`` with

    X_rc = sum_i chihat_i^r a_i^c + sum_j b_j^r xihat_j^c

(sums over uses, samples and times).  With entries of variance s2/N (covariance c(t, s) s2/N if they change
in time), correlated by tau with their transposes, the average is
``exp(-(s2/2N) sum_rc (X_rc^2 + tau X_rc X_cr))``; the square is expanded into products of inner products.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import Any, cast

from sympy import Add, Expr, Integer, KroneckerDelta, Symbol, default_sort_key, sympify

from derive.program.words import IndexRange, s, t
from derive.theory.names import primed_apart
from derive.theory.path_integral.fields import Entry, Inner, Leg, N, over
from derive.theory.path_integral.weights import covariance, parameter_covariance


@dataclass(frozen=True)
class Pairing:
    """``-(strength/2N) sum first second``: two legs of one matrix, ``a`` at time t and ``b`` at time s."""

    strength: Expr
    a: Leg
    b: Leg
    other: Leg  # b at the time t
    first: Inner
    second: Inner

    @property
    def limits(self) -> tuple[IndexRange, ...]:
        """Layer and sample indices summed over, and members of a family that act together."""
        return (*self.a.limits, *self.b.ranges, *self.a.use.summed)

    @property
    def ratios(self) -> tuple[Expr, Expr]:
        """Units over N where ``first`` and where ``second`` live: the matrix's rows and columns."""
        use = self.a.use
        rows, cols = (use.acts_on, use.gives) if use.transposed else (use.gives, use.acts_on)
        return sympify(rows.ratio), sympify(cols.ratio)

    @property
    def sources(self) -> bool:
        """Hatted with hatted, vector with vector: a covariance (else a pair of responses)."""
        return set(self.first.vectors) in ({self.a.hat, self.b.hat}, {self.a.body, self.b.body})

    def exponent(self, discrete: bool) -> Expr:
        """The contribution to the exponent."""
        return over(-self.strength / (2 * N) * self.first * self.second, self.limits, (t, s), discrete)


def pairings(legs: tuple[Leg, ...]) -> Iterator[Pairing]:
    """The square of the exponent linear in the matrices, term by term.

    Legs of different matrices do not meet.  A pair of different legs comes twice in the square.
    """
    for a, other in combinations_with_replacement(legs, 2):
        if not a.use.meets(other.use) or covariance(a.use) == 0:
            continue
        m, b = a.use.matrix, other.past(a.use.indices)
        strength = Integer(1 if a is other else 2) * m.variance * folded(a)
        rows, cols = _names(a)
        yield Pairing(strength, a, b, other, Inner(rows, a.row, b.row), Inner(cols, a.col, b.col))
        if m.symmetry != 0:
            yield Pairing(
                strength * m.symmetry, a, b, other, Inner(rows, a.row, b.col), Inner(cols, a.col, b.row)
            )


class Entries(Expr):
    """``Entries(W, t, s)``: the covariance of an entry of the random part of W at two times, kept folded."""

    is_commutative = True

    def __new__(cls, matrix: Any, time: Any, past: Any) -> Entries:
        first, second = sorted((sympify(time), sympify(past)), key=default_sort_key)
        return cast(Entries, Expr.__new__(cls, Symbol(str(matrix)), first, second))

    def _latex(self, printer: Any, *_: Any) -> str:
        times = ", ".join(printer._print(x) for x in self.args[1:])
        return rf"c_{{{self.args[0]}}}\left({times}\right)"

    def _sympystr(self, printer: Any, *_: Any) -> str:
        return f"c_{self.args[0]}({printer._print(self.args[1])}, {printer._print(self.args[2])})"


def folded(leg: Leg) -> Expr:
    """The covariance in time of the leg's matrix, folded unless it is a number or a delta."""
    value = covariance(leg.use)
    if value.is_number or value.has(KroneckerDelta):
        return value
    return Entries(leg.use.matrix.name, t, s)


def unfolded(e: Expr, legs: tuple[Leg, ...]) -> Expr:
    """``e`` with folded covariances in time written out."""
    if not e.has(Entries):
        return e
    values = {x.use.matrix.name: x.use for x in legs}
    return e.replace(
        lambda x: isinstance(x, Entries), lambda x: covariance(values[str(x.args[0])], x.args[1], x.args[2])
    )


def _names(leg: Leg) -> tuple[str, str]:
    m = leg.use.matrix
    return m.rows.name, m.cols.name


def parameter_pairings(
    entries: tuple[Entry, ...],
) -> Iterator[tuple[Expr, Entry, Entry, tuple[IndexRange, ...]]]:
    """Pairs of uses of one vector parameter, with ``-(strength/2) hat hat`` in the exponent."""
    for a, other in combinations_with_replacement(entries, 2):
        if a.use.meets(other.use):
            b = other.past(a.use.indices)
            names = {i: primed_apart(i, a.use.indices) for i in other.use.indices}
            strength = (1 if a is other else 2) * parameter_covariance(a.use, other.use, names)
            yield strength, a, b, (*a.limits, *(r for r in b.limits if r not in a.limits))


def average_exponent(legs: tuple[Leg, ...], entries: tuple[Entry, ...], discrete: bool) -> Expr:
    """The whole exponent after averaging over all random weights, in inner products."""
    found = [p.exponent(discrete) for p in pairings(legs)]
    for strength, a, b, limits in parameter_pairings(entries):
        found.append(over(-strength / 2 * Inner(a.home, a.hat, b.hat), limits, (t, s), discrete))
    return Add(*found)
