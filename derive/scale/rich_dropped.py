"""Is the ansatz of rank one consistent?  What it leaves out, as powers of the singular value and of time.

Sources come from the random start.  Beside the field that they stand next to they are smaller by 1/sigma.
The part of them along the direction that the field has is constant in time, in units of the field below: a
start of sigma, which enters ``kappa``.  What is left adds to kernels, by the share 1/sigma^2.

Responses of inner layers are solved for, from the kept terms, with ``log sigma`` for time.  Their kernels are
smaller than the memory beside them by 1/sigma^2 at either of the two times, and so are felt at early times
mostly: their integral is a constant, a start of sigma again, and a smaller rest.

At the input end the kernel ``C_h0`` is not of rank one.  There powers are counted: iterating the first answer
changes no power.  A count says nothing of sums of many terms; that step is no proof.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from sympy import Eq, Expr, Function, S, Symbol, dsolve, expand, integrate, log, simplify
from sympy.core.function import AppliedUndef

from derive.errors import NotApplicable
from derive.program.words import ell, gamma0, s, t
from derive.scale.rich_ansatz import RankOne, a, b, rank_one, sigma
from derive.scale.rich_profiles import mode_sum
from derive.scale.rich_scaling import RichScaling, k
from derive.scale.rich_scaling import t as late

Pair = tuple[Expr, Expr]
"""Powers of t and of gamma0."""

now, then, first = (Symbol(x, positive=True) for x in ("sigma", "sigma_s", "sigma_0"))
"""The singular value at the time of an equation, at that of a memory, and at the start."""


@dataclass(frozen=True)
class Dropped:
    """A term that the ansatz leaves out, beside the term that it keeps.

    ``share`` is the ratio of the two as a function of ``sigma``, squared for sources, which add in squares;
    the part of a response that is constant in units of the field below is a start of sigma, and taken out:
    ``start``.  ``power`` and ``gamma_power`` are its powers of t and gamma0.  ``solved`` says whether the
    term was solved for; if not, its powers were counted.
    """

    term: Expr
    equation: Expr
    share: Expr
    start: Expr
    power: Expr
    gamma_power: Expr
    solved: bool


def dropped(found: RichScaling) -> tuple[Dropped, ...]:
    """Every term that was left out, with its size in the power law ``found`` (of hard tasks).

    Raises :class:`NotApplicable` for easy tasks, where sigma stops at a number and nothing but a large gamma0
    makes terms small.

    >>> from derive.scale.rich_scaling import rich_scaling
    >>> law = rich_scaling(2, "1/2")
    >>> sorted({(str(x.power), str(x.gamma_power)) for x in dropped(law)})
    [('-1/4', '-1')]
    """
    if found.growth == 0:
        raise NotApplicable("easy tasks: the kernel stops growing, so that no term gets smaller with time")
    return tuple(_Dropped(found).all())


@lru_cache(maxsize=1)
def inner_response() -> Expr:
    """A response of an inner layer over the memory kernel beside it, at times with ``sigma`` and ``sigma_s``.

    Both fields of the layer are followed after a push of one of them, in the kept terms alone.

    >>> print(inner_response())
    1/(2*sigma_s**2) + 1/(2*sigma**2)
    """
    one = rank_one()
    # h(ell) = gamma0 a(ell-1,t) int a(ell-1) g, g(ell) = gamma0 b(ell+1,t) int b(ell+1) h; y, z the integrals
    up, down = (_kernel(one, "h", ell + 1).subs(ell, ell - 1), _kernel(one, "g", ell))
    below, above = a(ell - 1, t), b(ell + 1, t)
    gains = simplify(up / (below * a(ell - 1, s))), simplify(down / (above * b(ell + 1, s)))
    square = one.rates[1].rhs / (2 * sigma(ell, t) ** 2)  # d log sigma / dt
    neighbours = {a(ell, t): sigma(ell, t) * below, b(ell, t): sigma(ell, t) * above}
    rates = [simplify(x * below * above / square.xreplace(neighbours)) for x in gains]
    if any(x.has(t) for x in rates):
        raise NotApplicable(f"the answers of a layer are not autonomous in log sigma: {rates}")
    x, y = Symbol("x", nonnegative=True), Function("y")
    motion = Eq(y(x).diff(x, 2), rates[0] * rates[1] * y(x))
    grown = dsolve(motion, y(x), ics={y(0): 1, y(x).diff(x).subs(x, 0): 0}).rhs
    return expand(simplify(grown.subs(x, log(now / then))) / (now * then))


def _kernel(one: RankOne, name: str, site: Expr) -> Expr:
    """The memory kernel of an equation, ansatz put in, without the field that it acts on."""
    e = one.theory.equation(name, site)
    (memory,) = [x.expr for x in e.terms if x.kind == "memory"]
    shapes = {x.lhs.func: x for x in one.ansatz}

    def put(x: AppliedUndef) -> Expr:
        shape = shapes[x.func]
        return shape.rhs.xreplace(dict(zip(shape.lhs.args, x.args, strict=True)))

    inside = memory.function.replace(lambda x: isinstance(x, AppliedUndef) and x.func in shapes, put)
    fields = [x for x in inside.atoms(AppliedUndef) if str(x.func) in ("h", "g")]
    return inside / fields[0]


class _Dropped:
    def __init__(self, found: RichScaling) -> None:
        self.law, self.one = found, found.reduced

        def powers(e: Expr) -> Pair:
            of_t, of_gamma = (simplify(x * e.diff(x) / e) for x in (late, gamma0))
            return of_t, of_gamma

        kernel = powers(found.named_kernel)
        self.sigma = tuple(x / (2 * found.depth) for x in kernel)
        self.b1 = tuple(x / 2 for x in kernel)
        self.clock = powers(found.named_clock)

    def all(self) -> list[Dropped]:
        out = []
        for e, x in self.one.dropped:
            if x.kind == "source":
                out.append(self.source(e.lhs, x.expr))
            elif e.ranges and e.name in ("h", "g"):
                out.append(self.response(e.lhs, x.expr))
                if e.name == "h":  # the family includes the response of the first layer
                    out.append(self.of_the_first_layer(e.lhs.subs(ell, 1), x.expr.subs(ell, 1)))
            else:
                out.append(self.at_the_input(e.lhs, x.expr))
        return out

    def sized(self, share: Expr) -> Pair:
        """Powers of t and gamma0 in a power of sigma."""
        power = simplify(now * share.diff(now) / share)
        return simplify(power * self.sigma[0]), simplify(power * self.sigma[1])

    def source(self, field: Expr, source: Expr) -> Dropped:
        """The variance of a source over the square of its field."""
        (own,) = [u for u in self.one.theory.sources if u.symbol == source]
        if own.covariance.has(Function("C_h0")):
            return self.input_source(field, source)
        shapes = {"C_h": a, "C_g": b}
        variance = S.One
        for x in own.covariance.atoms(AppliedUndef):
            variance = shapes[str(x.func)](x.args[0], t) ** 2
        size = {"h": a, "g": b}[str(field.func)](*field.args)
        relations = {x.lhs: x.rhs for x in self.one.layers}
        share = simplify(variance / size.xreplace(relations) ** 2)
        share = share.replace(sigma, lambda *_: now)
        return Dropped(source, field, share, 1 / now, *self.sized(share), True)

    def response(self, field: Expr, term: Expr) -> Dropped:
        """The integral of a response over that of the memory: a constant over sigma, and the rest."""
        whole = expand(integrate(inner_response(), (then, first, now)) / now)
        start = whole.coeff(1 / now) / now
        return Dropped(term, field, inner_response(), start, *self.sized(now**-2), True)

    # -- the input end, by counting --------------------------------------------------------------------------

    def count_C_h0(self) -> Pair:
        """Powers of t and gamma0 in ``C_h0(t,s)`` at times of one order: a sum over modes of squares."""
        eigen = k**-self.law.capacity
        weighed = k ** (-self.law.capacity * self.law.source - 1) * eigen
        power = simplify(-k * weighed.diff(k) / weighed)
        of_clock = mode_sum(power, self.law.capacity, S.One)[1]
        return simplify(of_clock * self.clock[0]), simplify(of_clock * self.clock[1])

    def over_a1(self) -> Pair:
        """``C_h0(t,t)`` over ``a(1,t)^2``, where ``gamma0 a(1) b(1)`` is the rate of ``sigma^2``."""
        kernel = self.count_C_h0()
        size = (2 * self.sigma[0] - 1 - self.b1[0], 2 * self.sigma[1] - 1 - self.b1[1])
        return simplify(kernel[0] - 2 * size[0]), simplify(kernel[1] - 2 * size[1])

    def input_source(self, field: Expr, source: Expr) -> Dropped:
        """The variance of u(1) over the square of h(1)."""
        powers = self.over_a1()
        return Dropped(source, field, self.as_share(powers), 1 / now, *powers, False)

    def of_the_first_layer(self, field: Expr, term: Expr) -> Dropped:
        """The response of h(1) to g(1), at first ``gamma0 C_h0``, beside ``gamma0 C_h(1)``."""
        self.iterated()
        powers = self.over_a1()
        return Dropped(term, field, self.as_share(powers), 1 / now, *powers, False)

    def at_the_input(self, field: Expr, term: Expr) -> Dropped:
        """The response of g(1) to h(1), at first ``gamma0 C_g(2)``, beside ``gamma0 C_g(1)``."""
        self.iterated()
        powers = simplify(-2 * self.sigma[0]), simplify(-2 * self.sigma[1])  # b(2)^2 over b(1)^2
        return Dropped(term, field, self.as_share(powers), 1 / now, *powers, False)

    def iterated(self) -> None:
        """Answers of answers, by ``gamma0 C_h0`` and ``gamma0 C_g(2)``, each integrated over time."""
        above = [x - y for x, y in zip(self.b1, self.sigma, strict=True)]  # b(2)
        again = [simplify(x + 2 * y + 2) for x, y in zip(self.count_C_h0(), above, strict=True)]
        if any(x != 0 for x in again):
            raise NotApplicable(f"answers of the first layer change by powers {again} when they are iterated")

    def as_share(self, powers: Pair) -> Expr:
        """A power of sigma, if both powers are of one."""
        share = simplify(powers[0] / self.sigma[0])
        if simplify(powers[1] - share * self.sigma[1]) != 0:
            raise NotApplicable(f"powers {powers} of t and gamma0 are not those of a power of sigma")
        return now**share


__all__ = ["Dropped", "dropped", "inner_response"]
