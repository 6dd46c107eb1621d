"""What the depth exponents say of a residual network, one statement a quantity, with the first step exactly.

Closed forms depend on the depth through ``z = L^(1 - 2 alpha)``: at fixed z they have a limit as L grows, and
z is 1 at alpha = 1/2 and tends to 0 above it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from sympy import Add, Expr, Mul, Pow, S, Symbol, exp, factor

from derive.errors import NotApplicable
from derive.program.words import L, ell
from derive.scale.depth_counting import alpha
from derive.scale.depth_exponents import DepthExponents, depth_exponents
from derive.scale.depth_first_step import depth_first_step

tau = Symbol("tau", positive=True)
"""A layer's place between 0 and 1."""
epsilon = Symbol("epsilon", positive=True)
"""A distance between layers, as a share of the depth."""
z = Symbol("z", positive=True)
"""``L^(1 - 2 alpha)``."""


@dataclass(frozen=True)
class Statement:
    """A quantity (in LaTeX), the power of L of its root mean square, and how that is known.

    ``exact`` is its value, or a part of it that no other part can cancel, in the first step of a linear
    network of any depth; ``leading`` the same for large L and ``alpha >= 1/2``, with ``z = L^(1 - 2 alpha)``
    kept.  Both are None where nothing is known but the power.
    """

    name: str
    quantity: str
    exponent: Expr
    exact: Expr | None
    leading: Expr | None
    how: str


@lru_cache(maxsize=1)
def statements() -> tuple[Statement, ...]:
    """All of them, with alpha and gamma symbols.

    >>> found = {x.name: x for x in statements()}
    >>> found["output"].exponent, found["output"].leading
    (-alpha - gamma + 1, -L**(-alpha - gamma + 1)*chi_0*xi**2*exp(z))
    >>> found["stream at the start"].leading, found["diversity, noise"].leading
    (xi**2*exp(z), xi**2*(exp(epsilon*z) - 1)*exp(tau*z))
    """
    p: DepthExponents = depth_exponents()
    first = depth_first_step()
    window = first.start.subs(ell, (tau + epsilon) * L) - first.start.subs(ell, tau * L)
    drift = first.moved.subs(ell, (tau + epsilon) * L) - first.moved.subs(ell, tau * L)
    square = "closed form of the derived recursion in the layer"
    power = "power counting at all steps; the closed form of the first step attains it"
    return (
        _statement(
            "stream at the start",
            r"\langle x_0^L x_0^L\rangle",
            S.Zero,
            first.start.subs(ell, L),
            f"{square}; a layer adds L^(-2 alpha) of what it gets, which is L^(1 - 2 alpha) in all",
        ),
        _statement("output", "f_1 - f_0", p.output, first.output, power),
        _statement(
            "stream",
            r"\langle (x_1^{\tau L} - x_0^{\tau L}) V\rangle",
            p.stream,
            first.moved,
            f"{power}; its square is a part of <(x_1 - x_0)^2>, whose other parts are squares too",
        ),
        _statement(
            "preactivation",
            r"h_1^{\tau L} - u_1^{\tau L} = (\cdot)\,\delta x_0^{\tau L}",
            p.bracket,
            first.learnt,
            f"{power}; independent of u_1, so that <h_1^2> is the sum of both",
        ),
        Statement(
            "features",
            r"h_1^{\tau L} - h_0^{\tau L}",
            p.feature,
            None,
            None,
            "its two independent parts: the stream's change, and what multiplies the gradient",
        ),
        _statement(
            "diversity, noise",
            r"\langle (x_0^{(\tau + \epsilon) L} - x_0^{\tau L})^2\rangle",
            p.noise,
            window,
            f"{square}; independent layers add variances, so the root goes like sqrt(epsilon)",
        ),
        _statement(
            "diversity, drift",
            r"\langle (x_1^{(\tau + \epsilon) L} - x_1^{\tau L}) V\rangle",
            p.drift,
            drift,
            f"{power}; layers agree on it, so it goes like epsilon",
        ),
        Statement(
            "linearisation",
            r"\sum_\ell L^{-\alpha}[\phi(W_t x_t) - \phi(W_0 x_t) - \phi'(W_0 x_t)(W_t - W_0) x_t]",
            p.linearisation,
            None,
            None,
            "memory of the updates in h of the nonlinear theory, squared (phi smooth), summed over layers",
        ),
    )


def _statement(name: str, quantity: str, exponent: Expr, exact: Expr, how: str) -> Statement:
    return Statement(name, quantity, exponent, exact, large_depth(exact), how)


def large_depth(exact: Expr) -> Expr:
    """``exact`` at the layer ``tau L`` for large L, at fixed ``z = L^(1 - 2 alpha)``.

    >>> large_depth(L * (1 + L ** (-2 * alpha)) ** ell)
    L*exp(tau*z)

    Raises :class:`NotApplicable` for an expression without one leading power.
    """
    e = exact.subs(ell, tau * L).xreplace({L ** (-2 * alpha): z / L})
    # (1 + z/L)^(p L + r) tends to exp(p z)
    e = e.replace(
        lambda x: isinstance(x, Pow) and x.base == 1 + z / L, lambda x: exp(z * x.exp.expand().coeff(L))
    )
    sizes: dict[Expr, Expr] = {}
    for x in Add.make_args(e.expand(power_exp=False)):
        parts = [(y, y == L or (isinstance(y, Pow) and y.base == L)) for y in Mul.make_args(x)]
        power = Add(*[y.as_base_exp()[1] for y, own in parts if own])
        sizes[power] = sizes.get(power, S.Zero) + Mul(*[y for y, own in parts if not own])
    largest = [p for p in sizes if all((p - q).is_nonnegative for q in sizes)]
    if len(largest) != 1 or sizes[largest[0]].has(L, alpha):
        raise NotApplicable(f"{exact} has no one leading power of L at fixed L^(1 - 2 alpha)")
    return L ** largest[0] * factor(sizes[largest[0]])
