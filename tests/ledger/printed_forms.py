"""Printed and derived equations brought to one form, so that they can be compared."""

from __future__ import annotations

from sympy import Expr, Function, Heaviside, Integral, KroneckerDelta, S, Sum, Symbol, oo, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average, Response
from derive.calculus.sums import normal_form
from derive.program import L, ell, t
from derive.theory import Theory
from tests.ledger.claims import claimed

phi, h, z, g = (Function(x) for x in ("phi", "h", "z", "g"))


def printed(number: str) -> dict[str, Expr]:
    """Return the printed right-hand sides of an entry, as SymPy expressions."""
    return {k: sympify(v) for k, v in claimed("selfconsistent2023", number).items()}


def at(e: Expr, site: Expr) -> Expr:
    """Return a claim at the layer ``site``, with the values at the end layers."""
    return ended(sympify(e).subs(ell, site))


def ended(e: Expr) -> Expr:
    """Return the expression with A^0 = B^L = 0, Phi^0 = K_x and G^{L+1} = 1.

    The last one is the unit matrix between positions or channels.
    """

    def end(x: AppliedUndef) -> Expr:
        name, place, rest = str(x.func), x.args[0], x.args[1:]
        if (name, place) in (("A", 0), ("B", L)):
            return S.Zero
        if (name, place) == ("Phi", 0):
            return Function("K_x")(*rest[:-2])
        if (name, place) == ("G", L + 1):
            return KroneckerDelta(rest[1], rest[3]) if len(rest) == 6 else S.One
        return x

    return e.replace(lambda x: isinstance(x, AppliedUndef) and bool(x.args), end)


def same(printed: Expr, derived: Expr) -> bool:
    """Return whether both have the same canonical form."""
    return canonical(printed) == canonical(derived)


def canonical(e: Expr) -> Expr:
    """Return the form of an equation in which printed and derived ones are compared.

    g is written as z phi'(h), integrals end at t, averages and responses are the engine's.
    """
    e = sympify(e).replace(Heaviside, lambda *_: S.One)
    e = e.replace(Function("average"), Average).replace(
        Function("response"), lambda x, y: Average(Response(x, y))
    )
    e = e.replace(g, lambda *x: z(*x) * phi(_h(x)).diff(_h(x)))
    e = e.replace(
        lambda x: isinstance(x, Integral),
        lambda x: Integral(x.function, *[(i, a, t if b == oo else b) for i, a, b in map(tuple, x.limits)]),
    )
    return normal_form(e)


def _h(index: tuple[Expr, ...]) -> Expr:
    """Return the field h that g(layer, sample, ..., time) is a gradient of; h has no channel."""
    return h(*[x for x in index if str(x) not in ("c", "c_")])


def opened(e: Expr, *indices: Symbol) -> Expr:
    """Return ``e`` with its sums over ``indices``, whose bounds are integers, written out."""

    def out(x: Sum) -> Expr:
        own = [lim for lim in x.limits if lim[0] in indices]
        rest = [lim for lim in x.limits if lim[0] not in indices]
        body = Sum(x.function, *own).doit() if own else x.function
        return Sum(body, *rest) if rest else body

    return e.replace(lambda x: isinstance(x, Sum), out)


def covariance(theory: Theory, name: str, site: Expr) -> Expr:
    """Return the covariance of a source of a theory at a layer."""
    return next(
        x.covariance for x in theory.sources if str(x.symbol.func) == name and x.symbol.args[0] == site
    )


def numbered(e: Expr, name: str) -> Expr:
    """Return the expression with ``name(k)`` as a positive symbol, so that roots combine."""
    return e.replace(Function(name), lambda k: Symbol(f"{name}_{k}", positive=True))
