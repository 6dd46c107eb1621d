"""Exponential polynomials with exact coefficients: functions of time that integrals and sums do not leave.

A function is a sum of ``c t^a E_1(t)^n_1 E_2(t)^n_2 ...``. Either time is continuous and E_k an exponential
function ``exp(v_k t)``, or it counts steps and E_k is ``v_k^t``: an eigenfunction of the derivative, or of
the step forward, with eigenvalue v_k. Everything else follows from solving ``(advance - v) u = f`` term by
term. Where f itself grows with the eigenvalue v (a resonance) the solution has one more power of t; this is
decided in the field of the v_k, exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from math import comb
from typing import Any

from sympy import Symbol
from sympy.polys.rings import PolyElement, PolyRing

Powers = tuple[int, ...]
"""The powers of (t, E_1, E_2, ...) in a term."""

Image = dict[Powers, Any]
"""What a linear map makes of one term: powers with coefficients in the field."""


class Exponentials:
    """Functions of one time over ``field``, with further ``parameters`` as polynomial variables.

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
        self.width = len(names)
        self.idle: Powers = (0,) * self.width
        self.parameters = dict(zip(parameters, self.ring.gens[self.width :], strict=True))
        self._values: dict[Powers, Any] = {}
        self._maps: dict[tuple[str, Powers], dict[Powers, Image]] = {}

    @cached_property
    def one(self) -> PolyElement:
        """The constant 1."""
        return self.ring.one

    @cached_property
    def zero(self) -> PolyElement:
        """The constant 0."""
        return self.ring.zero

    def exponential(self, powers: Sequence[int]) -> PolyElement:
        """``E_1^n_1 E_2^n_2 ...``."""
        return self.term((0, *powers))

    def term(self, powers: Powers) -> PolyElement:
        """``t^a E_1^n_1 ...``."""
        rest = (0,) * (self.ring.ngens - self.width)
        return self.ring.from_dict({(*powers, *rest): self.field.one})

    def eigenvalue(self, powers: Sequence[int]) -> Any:
        """The eigenvalue of ``E_1^n_1 E_2^n_2 ...``."""
        key = tuple(powers)
        if key not in self._values:
            value = self.field.one if self.discrete else self.field.zero
            for v, n in zip(self.eigenvalues, key, strict=True):
                value = value * v**n if self.discrete else value + v * n
            self._values[key] = value
        return self._values[key]

    # -- linear maps -----------------------------------------------------------------------------------

    def integral(self, f: PolyElement) -> PolyElement:
        """The integral of f from 0 to t; in steps, the sum of ``f(0), ..., f(t-1)``."""
        return self._mapped("solve", self.idle[1:], f, self._solved)

    def solve(self, f: PolyElement, powers: Sequence[int], start: PolyElement) -> PolyElement:
        """``advance u = v u + f`` with ``u(0) = start`` (free of t), v the eigenvalue of E^powers."""
        key = tuple(powers)
        return self._mapped("solve", key, f, self._solved) + start * self.exponential(key)

    def difference(self, f: PolyElement) -> PolyElement:
        """The derivative of f; in steps, ``f(t+1) - f(t)``."""
        return self._mapped("difference", self.idle[1:], f, self._difference)

    def volterra(self, drive: PolyElement, rate: Any, powers: Sequence[int]) -> PolyElement:
        """``u = drive - rate * integral(u)``; E^powers is its solution for a drive of 1."""
        return self.solve(self.difference(drive), powers, self.at_start(drive))

    def at_start(self, f: PolyElement) -> PolyElement:
        """The value at t = 0."""
        out: dict[Powers, Any] = {}
        for m, c in f.iterterms():
            if m[0] == 0:
                key = (*self.idle, *m[self.width :])
                out[key] = out[key] + c if key in out else c
        return self._element(out)

    def parts(self, f: PolyElement) -> dict[Powers, PolyElement]:
        """The coefficient, free of t, of every ``t^a E^n`` in f."""
        found: dict[Powers, dict[Powers, Any]] = {}
        for m, c in f.iterterms():
            found.setdefault(m[: self.width], {})[(*self.idle, *m[self.width :])] = c
        return {k: self.ring.from_dict(x) for k, x in found.items()}

    def _mapped(
        self, name: str, key: Powers, f: PolyElement, image: Callable[[Powers, Powers], Image]
    ) -> PolyElement:
        known = self._maps.setdefault((name, key), {})
        out: dict[Powers, Any] = {}
        for m, c in f.iterterms():
            time, rest = m[: self.width], m[self.width :]
            if time not in known:
                known[time] = image(time, key)
            for p, d in known[time].items():
                k = (*p, *rest)
                out[k] = out[k] + c * d if k in out else c * d
        return self._element(out)

    def _element(self, found: Mapping[Powers, Any]) -> PolyElement:
        return self.ring.from_dict({m: c for m, c in found.items() if c})

    # -- one term --------------------------------------------------------------------------------------

    def _solved(self, term: Powers, powers: Powers) -> Image:
        """``(advance - v) u = t^a E^n`` with u(0) = 0."""
        degree, exponents = term[0], term[1:]
        w = self.eigenvalue(exponents)
        found = self._particular(degree, w, w - self.eigenvalue(powers))
        out: Image = {(j, *exponents): c for j, c in found.items() if c}
        if found.get(0):
            home = (0, *powers)
            out[home] = out.get(home, self.field.zero) - found[0]
        return {p: c for p, c in out.items() if c}

    def _particular(self, degree: int, w: Any, gap: Any) -> dict[int, Any]:
        """A polynomial p with ``advance(p w^t) - v p w^t = t^degree w^t``, where ``gap = w - v``."""
        field = self.field
        resonant = not gap
        top = degree + 1 if resonant else degree
        p: dict[int, Any] = {}
        for j in range(top, -1, -1):
            # the coefficient of t^j (of t^(j-1) at a resonance) on both sides
            row = j - 1 if resonant else j
            if row < 0:
                break
            left = field.one if row == degree else field.zero
            for i in range(j + 1, top + 1):
                left = left - p[i] * self._moved(i, row, w)
            p[j] = left / (self._moved(j, row, w) if resonant else gap)
        return p

    def _moved(self, i: int, j: int, w: Any) -> Any:
        """The coefficient of t^j, j < i, in ``advance(t^i w^t) / w^t``."""
        if self.discrete:
            return w * self.field.convert(comb(i, j))
        return self.field.convert(i) if j == i - 1 else self.field.zero

    def _difference(self, term: Powers, _: Powers) -> Image:
        degree, exponents = term[0], term[1:]
        w = self.eigenvalue(exponents)
        out = {(j, *exponents): self._moved(degree, j, w) for j in range(degree)}
        out[term] = w - self.field.one if self.discrete else w
        return {p: c for p, c in out.items() if c}


__all__ = ["Exponentials", "Powers"]
