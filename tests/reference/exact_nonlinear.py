"""The mean-field equations of a perceptron with a cubic phi in exact fractions, as series in gamma0.

A reference that shares nothing with `derive`: fields are polynomials in the sources at all times, kernels
are their averages by pairings (Isserlis) over covariances that are themselves series, responses are
derivatives of polynomials.  The equations are those of selfconsistent2023, eqs. (8)-(11), in steps:

    h(t) = u(t) + sum_{s<t} [<d phi(h')(t)/dr'(s)> + eta gamma0 Delta(s) Phi'(t, s)] g(s)
    z(t) = r(t) + sum_{s<=t} <dg''(t)/du''(s)> phi(h(s)) + sum_{s<t} eta gamma0 Delta(s) G''(t, s) phi(h(s))

with g = phi'(h) z, one prime for the layer below, two for the layer above, and Delta = y - <z phi(h)>/gamma0
of the last layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from sympy import QQ, ring

Series = tuple[Fraction, ...]
"""Coefficients of gamma0^n."""


Cubic = tuple[tuple[int, int], tuple[int, int], tuple[int, int]]
"""Fractions a, b, c of phi = a h + b h**2 + c h**3."""

SINH: Cubic = ((1, 1), (0, 1), (1, 6))


@dataclass(frozen=True)
class Exact:
    """Series of the results: ``error[t][mu]``, and ``Phi[layer][t, s, mu, nu]`` with the first layer at 0.

    ``A`` and ``B`` are responses divided by gamma0.
    """

    error: list[list[Series]]
    Phi: list[dict[tuple[int, ...], Series]]
    G: list[dict[tuple[int, ...], Series]]
    A: list[dict[tuple[int, ...], Series]]
    B: list[dict[tuple[int, ...], Series]]


class _Layer:
    """One single-site process: a ring of polynomials in gamma0 and the sources, and their covariance."""

    def __init__(self, P: int, T: int, order: int, first: bool, last: bool, cubic: Cubic) -> None:
        self.cubic = [QQ(*c) for c in cubic]
        self.number: dict[tuple[str, int, int], int] = {}
        names: dict[str, int] = {}
        for x, m, t in _places(
            P, T
        ):  # sources of the ends do not move, and the last r is one for all samples
            name = f"u{m}" if x == "u" and first else "r" if x == "r" and last else f"{x}{m}_{t}"
            self.number[x, m, t] = names.setdefault(name, len(names))
        self.ring, self.gamma, *gens = ring(["gamma", *names], QQ)
        self.source = {place: gens[i] for place, i in self.number.items()}
        self.order, self.first, self.last = order, first, last
        self.covariance: dict[tuple[int, int], Series] = {}
        self.known: dict[tuple[int, ...], list[Any]] = {}
        self.h: dict[tuple[int, int], Any] = {}
        self.z: dict[tuple[int, int], Any] = {}
        self.phi: dict[tuple[int, int], Any] = {}
        self.slope: dict[tuple[int, int], Any] = {}
        self.g: dict[tuple[int, int], Any] = {}

    def cut(self, p: Any) -> Any:
        return self.ring.from_dict({m: c for m, c in p.items() if m[0] <= self.order})

    def times(self, p: Any, q: Any) -> Any:
        return self.cut(p * q)

    def polynomial(self, s: Sequence[Any]) -> Any:
        return sum((c * self.gamma**n for n, c in enumerate(s) if c), self.ring(0))

    def add(self, field: str, place: tuple[int, int], value: Any) -> None:
        if field == "h":
            one, two, three = self.cubic
            square = self.times(value, value)
            self.h[place], self.slope[place] = value, one + 2 * two * value + 3 * three * square
            self.phi[place] = one * value + two * square + three * self.times(square, value)
        else:
            self.z[place], self.g[place] = value, self.times(self.slope[place], value)

    def correlate(self, kind: str, a: tuple[int, int], b: tuple[int, int], value: Series) -> None:
        i, j = self.number[kind, *a], self.number[kind, *b]
        self.covariance[i, j] = self.covariance[j, i] = value

    def mean(self, p: Any) -> Series:
        total = [QQ(0)] * (self.order + 1)
        for m, c in p.items():
            for n, x in enumerate(self.moment(m[1:])):
                if m[0] + n <= self.order:
                    total[m[0] + n] += c * x
        return tuple(total)

    def moment(self, m: tuple[int, ...]) -> list[Any]:
        """Return the average of a monomial by Wick's theorem: its first factor is paired with each other."""
        if m in self.known:
            return self.known[m]
        i = next((i for i, k in enumerate(m) if k), None)
        total = [QQ(0)] * (self.order + 1)
        if i is None:
            total[0] = QQ(1)
        elif sum(m) % 2 == 0:
            rest = _lower(m, i)
            for j, k in enumerate(rest):
                cov = self.covariance.get((i, j)) if k else None
                if cov is not None and any(cov):
                    inner = self.moment(_lower(rest, j))
                    for a, x in enumerate(cov):
                        for b in range(self.order + 1 - a):
                            total[a + b] += k * x * inner[b]
        self.known[m] = total
        return total


def _places(P: int, T: int) -> list[tuple[str, int, int]]:
    return [(x, m, t) for x in "ur" for m in range(P) for t in range(T)]


def _lower(m: tuple[int, ...], i: int) -> tuple[int, ...]:
    return (*m[:i], m[i] - 1, *m[i + 1 :])


def solve(  # noqa: C901, PLR0912 (one recursion in the order of its equations)
    K: Sequence[Sequence[Any]], y: Sequence[Any], eta: Any, steps: int, depth: int, cubic: Cubic = SINH
) -> Exact:
    """Return all order parameters up to gamma0^2, for the loss summed over samples.

    ``K`` is the kernel of the inputs (P, P), ``y`` the targets (P,), ``eta`` the learning rate.
    """
    order = 2
    P, T, n = len(y), steps + 1, order + 1
    layers = [_Layer(P, T, n, i == 0, i == depth - 1, cubic) for i in range(depth)]
    one = (QQ(1), *[QQ(0)] * n)
    both = [(m, t) for t in range(T) for m in range(P)]
    for a in both:
        for b in both:
            layers[0].correlate("u", a, b, (QQ(K[a[0]][b[0]]), *[QQ(0)] * n))
            layers[-1].correlate("r", a, b, one)
    delta: dict[tuple[int, int], Series] = {}
    phis: list[dict[Any, Series]] = [{} for _ in range(depth + 1)]
    gs: list[dict[Any, Series]] = [{} for _ in range(depth + 2)]
    responses: list[dict[Any, Series]] = [{} for _ in range(depth + 1)]
    backward: list[dict[Any, Series]] = [{} for _ in range(depth + 2)]
    for a in both:
        for b in both:
            phis[0][a, b] = (QQ(K[a[0]][b[0]]), *[QQ(0)] * n)
            gs[depth + 1][a, b] = one

    def drive(layer: _Layer, a: Any, b: Any, kernel: Series) -> Any:
        force = layer.times(layer.polynomial(delta[b]), layer.polynomial(kernel))
        return layer.times(eta * layer.gamma, force)

    for t in range(T):
        now, past = [(m, t) for m in range(P)], [b for b in both if b[1] < t]
        for i, layer in enumerate(layers):
            for a in now:
                value = layer.source["u", *a]
                for b in past:
                    weight = drive(layer, a, b, phis[i][a, b]) + layer.polynomial(
                        responses[i].get((a, b), ())
                    )
                    value += layer.times(weight, layer.g[b])
                layer.add("h", a, value)
            _correlations(layer, layer.phi, phis[i + 1], now, layers[i + 1 :][:1], "u")
            for a in now:
                for b in [] if layer.last else past:
                    responses[i + 1][a, b] = layer.mean(layer.phi[a].diff(layer.source["r", *b]))
        for i, layer in reversed(list(enumerate(layers))):
            for a in now:
                value = layer.source["r", *a]
                for b in [*past, *now]:
                    weight = layer.polynomial(backward[i + 2].get((a, b), ()))
                    if b[1] < t:
                        weight += drive(layer, a, b, gs[i + 2][a, b])
                    value += layer.times(weight, layer.phi[b])
                layer.add("z", a, value)
            _correlations(layer, layer.g, gs[i + 1], now, layers[i - 1 : i] if i else [], "r")
            for a in now:
                for b in [] if layer.first else [*past, *now]:
                    backward[i + 1][a, b] = layer.mean(layer.g[a].diff(layer.source["u", *b]))
        last = layers[-1]
        for m, _ in now:
            output = last.mean(last.times(last.z[m, t], last.phi[m, t]))
            assert output[0] == 0
            delta[m, t] = (QQ(y[m]) - output[1], *[-c for c in output[2:]], QQ(0))
    return Exact(
        [[_fractions(delta[m, t], order) for m in range(P)] for t in range(T)],
        [_table(phis[i], order) for i in range(1, depth + 1)],
        [_table(gs[i], order) for i in range(1, depth + 1)],
        [_table(responses[i], order, 1) for i in range(1, depth)],
        [_table(backward[i], order, 1) for i in range(2, depth + 1)],
    )


def _correlations(
    layer: _Layer,
    field: dict[Any, Any],
    kernel: dict[Any, Series],
    now: Any,
    other: Sequence[_Layer],
    kind: str,
) -> None:
    """Fill a kernel up to the present time; it is also the covariance of the sources of neighbour layers."""
    for a in now:
        for b in field:
            if b[1] <= a[1]:
                value = layer.mean(layer.times(field[a], field[b]))
                kernel[a, b] = kernel[b, a] = value
                for neighbour in other:
                    neighbour.correlate(kind, a, b, value)


def _fractions(s: Series, order: int, shift: int = 0) -> Series:
    assert not any(s[:shift])
    return tuple(Fraction(int(c.numerator), int(c.denominator)) for c in s[shift : order + 1 + shift])


def _table(kernel: dict[Any, Series], order: int, shift: int = 0) -> dict[tuple[int, ...], Series]:
    return {(a[1], b[1], a[0], b[0]): _fractions(s, order, shift) for (a, b), s in kernel.items()}
