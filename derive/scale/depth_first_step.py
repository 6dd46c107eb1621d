"""The first step of the linear residual network with frozen ends, in closed form for every depth.

The derived rows of :mod:`.depth_steps` are first-order recursions in the layer.  Answers to a source are
steps in the layer, correlations at the start grow by ``q = 1 + L^(-2 alpha)`` a layer, and everything else is
driven by these, so it is a polynomial in the layer times ``q^layer``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from sympy import Add, Dummy, Expr, Heaviside, KroneckerDelta, S, Symbol, powsimp, simplify, summation
from sympy.core.function import AppliedUndef

from derive.depth import cross_layer
from derive.errors import NotApplicable
from derive.linear.propagators import k
from derive.program.networks.infinite_depth import depth_program
from derive.program.words import L, ell
from derive.scale.depth_counting import alpha, gamma
from derive.scale.depth_steps import Row, Steps, at_steps, over_layers
from derive.theory import mean_field

xi = Symbol("xi", real=True)
"""The input, the same at both steps."""
chi_0 = Symbol("chi_0", real=True)
"""The slope of the loss at the start."""
q = Symbol("q", positive=True)
"""``1 + L^(-2 alpha)``."""
growth = 1 + L ** (-2 * alpha)


@dataclass(frozen=True)
class DepthFirstStep:
    """Functions of the layer ``ell``, of ``alpha``, ``gamma``, L, and of ``xi``, ``chi_0``.

    ``start`` is ``<x_0 x_0>``, ``gradient`` ``<dx_0 dx_0>``; ``learnt`` is what multiplies the gradient dx_0
    in the second forward pass, ``h_1 = u_1 + learnt dx_0``; ``moved`` is ``<x_1 V>``, the part of the
    change of the stream that all layers agree on, and ``output`` that behind the last one, ``f_1 - f_0``.
    """

    start: Expr
    gradient: Expr
    learnt: Expr
    moved: Expr
    output: Expr


@lru_cache(maxsize=1)
def depth_first_step() -> DepthFirstStep:
    """Solve the derived rows of the first step.

    >>> found = depth_first_step()
    >>> found.start, found.output
    (xi**2*(1 + L**(-2*alpha))**ell, -L**(-alpha - gamma + 1)*chi_0*xi**2*(1 + L**(-2*alpha))**(L - 1))
    """
    theory = mean_field(depth_program(alpha=alpha, gamma=gamma))
    return _First(at_steps(cross_layer(theory), 1)).result()


class _First:
    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self.known: dict[str, Expr] = {}

    def result(self) -> DepthFirstStep:
        self.jump("R_xu_0_0")
        self.jump("R_dxr_0_0")
        self.constants()
        self.known["R_xu_1_1"] = self.same("R_xu_1_1", "R_xu_0_0")
        start = self.grown("C_x_0_0")
        gradient = self.grown("C_dx_0_0")
        self.grown("C_x_1_0")
        learnt = self.bracket("R_xr_1_0")
        moved = self.summed("R_xV_1", learnt)
        return DepthFirstStep(*map(_plain, (start, gradient, learnt, moved, moved.subs(ell, L))))

    # -- reading -----------------------------------------------------------------------------------------

    def put(self, e: Expr) -> Expr:
        """Functions that are known put in, at their layers."""

        def value(x: AppliedUndef) -> Expr:
            found = self.known[str(x.func)]
            places = dict(zip((ell, k), x.args, strict=False))
            return found.subs(places, simultaneous=True)

        e = e.replace(lambda x: isinstance(x, AppliedUndef) and str(x.func) in self.known, value)
        return e.replace(lambda x: isinstance(x, AppliedUndef) and str(x.func) == "chi_0", lambda _: chi_0)

    def row(self, name: str) -> Row:
        return self.steps.row(name)

    def constants(self) -> None:
        """Functions that nothing drives: what they are at their end."""
        changed = True
        while changed:
            changed = False
            for r in self.steps.rows:
                if r.name in self.known or not r.symbol.args or r.neighbour == 0:
                    continue
                if all(self.put(x) == 0 for x in r.terms):
                    first = next(y for y in self.steps.rows if y.name == r.name and y.neighbour == 0)
                    self.known[r.name] = self.put(first.rhs)
                    changed = True

    def jump(self, name: str) -> None:
        """An answer that jumps at the layer of its source: a step."""
        (term,) = self.row(name).terms
        (delta,) = term.atoms(KroneckerDelta)
        up = self.row(name).symbol.args[0] == ell
        self.known[name] = term / delta * Heaviside(ell - k if up else k - ell, 1)

    def same(self, name: str, other: str) -> Expr:
        if self.row(name).terms != self.row(other).terms:
            raise NotApplicable(f"{name} does not obey the equation of {other}")
        return self.known[other]

    # -- solving -----------------------------------------------------------------------------------------

    def grown(self, name: str) -> Expr:
        """A correlation ``C(ell) = c + sum over k of g C(k -+ 1)``, one step function deep."""
        r = self.row(name)
        terms = [self.put(x) for x in r.terms]
        sums = Add(*[x / over_layers for x in terms if x.has(over_layers)])
        constant = Add(*[x for x in terms if not x.has(over_layers)])
        own = [a for a in sums.atoms(AppliedUndef) if str(a.func) == name]
        if len(own) != 1 or sums.atoms(AppliedUndef) != set(own) or constant.has(ell):
            raise NotApplicable(f"{name} is no sum of its own values: {terms}")
        gain = sums.coeff(own[0]).replace(lambda x: isinstance(x, Heaviside), lambda _: S.One)
        if (gain + 1 - growth).expand() != 0:
            raise NotApplicable(f"{name} grows by {gain} a layer")
        up = own[0].args[0] == k - 1
        value = constant * q ** (ell if up else L - ell)
        self.known[name] = value
        return value

    def bracket(self, name: str) -> Expr:
        """What is in front of dx in a layer: ``S(ell) - L^-gamma C``, S answering the layer's own r.

        ``name(ell, k)`` grows by the same for all k above ell, so that S obeys a recursion in ell alone.
        """
        r = self.row(name)
        own = Dummy("S")
        inside = [self.put(x).replace(lambda y: isinstance(y, Heaviside), lambda _: S.One) for x in r.terms]
        added = Add(*inside).replace(
            lambda y: isinstance(y, AppliedUndef) and str(y.func) == name, lambda _: own
        )
        if added.has(k) or added.atoms(AppliedUndef):
            raise NotApplicable(f"what {name} gains from layer to layer is not the same for all sources")
        factor = added.coeff(own)  # S(ell + 1) = S(ell) + added, S(1) = 0
        gain, rest = _in_q(1 + factor), added.subs(own, 0)
        m = Dummy("m", integer=True, positive=True)
        driven = powsimp((rest.subs(ell, m) * gain ** (-m)).expand())
        value = gain ** (ell - 1) * simplify(summation(driven, (m, 1, ell - 1)))
        return simplify(value + rest / factor)

    def summed(self, name: str, bracket: Expr) -> Expr:
        """An answer that is driven by the bracket and by what is known."""
        r = self.row(name)
        terms = [self.put(x) for x in r.terms]
        slope = [x.coeff(a) for x in terms for a in x.atoms(AppliedUndef) if str(a.func) == "R_xr_1_0"]
        (factor,) = slope
        body = powsimp((bracket * factor).expand().subs(ell, (m := Dummy("m", integer=True))))
        return simplify(summation(body, (m, 1, ell)))


def _in_q(e: Expr) -> Expr:
    return q if (e - growth).expand() == 0 else e


def _plain(e: Expr) -> Expr:
    return powsimp(simplify(e.subs(L ** (-2 * alpha), q - 1)).subs(q, growth))
