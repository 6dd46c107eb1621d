"""Printed equations of any activation as those of linear networks, in which g and its sources have no sample.

Phi becomes H, and responses of the features to r are those to all samples together.
"""

from __future__ import annotations

from collections.abc import Callable

from sympy import Expr, Function, Sum, sympify

from derive.calculus.symbols import P, alpha, mu

_RESPONSE = Function("response")
_SAMPLES: dict[str, tuple[int, ...]] = {
    **{name: (1,) for name in ("h", "u", "u_eps", "g", "z", "r", "r_eps")},
    **{name: (1, 2) for name in ("H", "G", "A", "A_eps", "B", "B_eps")},
    "Delta": (0,),
}
"""The places of the samples among the indices that are printed."""
_LEFT_OUT: dict[str, tuple[int, ...]] = {
    **{name: (1,) for name in ("g", "z", "r", "r_eps")},
    **{name: (2,) for name in ("A", "A_eps")},
    **{name: (1,) for name in ("B", "B_eps")},
    "G": (1, 2),
}
"""The places of those that functions of linear networks do not have."""


def linear_form(e: Expr) -> Expr:
    """Return a printed right-hand side for phi(h) = h.

    Raises ValueError for a sample other than mu and alpha.
    """
    e = sympify(e).replace(Function("phi"), lambda h: h).replace(Function("Phi"), Function("H"))
    e = e.replace(_RESPONSE, _of_all_samples)
    for name in _SAMPLES:
        e = e.replace(Function(name), _without_samples(name))
    return e.replace(Function("z"), Function("g"))


def _without_samples(name: str) -> Callable[..., Expr]:
    def kept(*index: Expr) -> Expr:
        if any(index[n] not in (mu, alpha) for n in _SAMPLES[name]):
            raise ValueError(f"{name}{index} belongs to samples other than mu and alpha")
        gone = _LEFT_OUT.get(name, ())
        found: Expr = Function(name)(*[x for n, x in enumerate(index) if n not in gone])
        return found

    return kept


def _of_all_samples(field: Expr, source: Expr) -> Expr:
    """Return the response of h summed over samples of the source, because g is the same for each."""
    response: Expr = _RESPONSE(field, source)
    if str(field.func) == "h" and str(source.func) in ("u", "u_eps"):
        return Sum(response, (alpha, 1, P))
    return response


__all__ = ["linear_form"]
