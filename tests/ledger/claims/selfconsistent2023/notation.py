"""Symbols and functions that the printed formulas are written with."""

from __future__ import annotations

from sympy import Function, Symbol

from derive.calculus.symbols import L, P, alpha, ell, gamma0, mu, s, t

nu = Symbol("nu", integer=True, positive=True)
beta = Symbol("beta", integer=True, positive=True)

Kx = Function("Kx")  # Kx(mu, alpha): Gram matrix of the inputs
H = Function("H")  # H(ell, mu, alpha, t, s)
G = Function("G")  # G(ell, t, s)
A = Function("A")  # A(ell, mu, alpha, t, s)
B = Function("B")  # B(ell, alpha, t, s)
h = Function("h")  # h(ell, mu, t)
g = Function("g")  # g(ell, t)
u = Function("u")  # u(ell, mu, t)
r = Function("r")  # r(ell, t)
Delta = Function("Delta")  # Delta(mu, t)

__all__ = [
    "A",
    "B",
    "Delta",
    "G",
    "H",
    "Kx",
    "L",
    "P",
    "alpha",
    "beta",
    "ell",
    "g",
    "gamma0",
    "h",
    "mu",
    "nu",
    "r",
    "s",
    "t",
    "u",
]
