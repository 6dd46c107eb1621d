"""Entries of appendices E.2 and J to M, and the form in which their fields are compared."""

from __future__ import annotations

from sympy import Expr, Function, Integral, S, Sum, symbols, sympify

from derive.ledger import Entry, entries
from derive.program import L, P, alpha, ell, gamma0, mu, s, t
from tests.ledger.claims import build
from tests.ledger.printed_forms import phi

ENTRIES: dict[str, Entry] = {
    e.number: e for e in entries("selfconsistent2023") if e.number == "E.2" or e.number[0] in "JKLM"
}
NEXT = {"h": ell + 1, "z": ell}
ENDS = {"h": S.One, "z": L}
A, B, G, g, h, u, r, z = (Function(x) for x in ("A", "B", "G", "g", "h", "u", "r", "z"))
chi, xi, Delta, Phi = (Function(x) for x in ("chi", "xi", "Delta", "Phi"))
lam, beta, tau = symbols("lam beta tau", positive=True)


def printed(number: str) -> dict[str, Expr]:
    """Return the printed right-hand sides of an entry, as SymPy expressions."""
    return {k: sympify(v) for k, v in build(ENTRIES[number]).items()}


def past(body: Expr) -> Expr:
    """Return ``gamma0 int_0^t ds sum_alpha body``."""
    return gamma0 * Integral(Sum(body, (alpha, 1, P)), (s, 0, t))


def with_start(e: Expr, name: str) -> Expr:
    """Return a claim with chi or xi replaced by sources and responses of constant initial weights (D.44)."""
    if name == "h":
        value = u(ell, mu, t) + past(A(ell - 1, mu, alpha, t, s) * g(ell, alpha, s))
        return e.replace(chi, lambda *i: _at(value, *i))
    value = r(ell, mu, t) + past(B(ell, mu, alpha, t, s) * phi(h(ell, alpha, s)))
    return e.replace(xi, lambda *i: _at(value, *i))


def _at(value: Expr, site: Expr, sample: Expr, time: Expr) -> Expr:
    return value.subs({ell: site, mu: sample, t: time}, simultaneous=True)
