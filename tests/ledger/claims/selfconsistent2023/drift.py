"""Two layers: the drift equation of the joint density (E.2)."""

from __future__ import annotations

from sympy import Basic, Derivative, Expr, Function, Sum, Symbol, sympify

from tests.ledger.claims.selfconsistent2023.nonlinear import K_x, e1, phi
from tests.ledger.claims.selfconsistent2023.notation import Delta, P, alpha, gamma0, mu, t

# The density is a function of one number h(mu) for each sample and of z.
z = Symbol("z", real=True)
h = Function("h")
p = Function("p")(h(mu), z, t)


def e2() -> dict[str, Basic]:
    """Return the printed equation (E.2): the velocity of the density, with errors and kernels as in (E.1).

    The last term has the printed second sum; ``z`` stands for each printed z_mu, as (E.1) has one z only.
    """
    samples, others = (mu, 1, P), (alpha, 1, P)
    bend: Expr = phi(h(mu)).diff(h(mu), 2)
    slope: Expr = phi(h(alpha)).diff(h(alpha))
    grown = -p * z * Sum(Delta(mu, t) * K_x(mu, mu) * bend, samples)
    pushed = Sum(K_x(mu, alpha) * Delta(alpha, t) * slope * z * Derivative(p, h(mu)), samples, others)
    risen = Sum(Delta(alpha, t) * phi(h(alpha)) * Derivative(p, z), samples, others)
    again = {k: v for k, v in e1().items() if k in ("dDelta", "Phi", "G")}
    return {"dp": grown - gamma0 * pushed - gamma0 * risen, **again}


def with_samples(e: Basic, samples: int) -> Expr:
    """Return the velocity of the density ``p(h1, .., hP, z, t)`` for a number of samples."""
    points = {h(k): Symbol(f"h{k}", real=True) for k in range(1, samples + 1)}
    density = Function("p")(*points, z, t)
    opened = sympify(e).subs(P, samples).doit().replace(Function("p"), lambda *_: density)
    return opened.xreplace(points).expand()


__all__ = ["e2", "with_samples"]
