"""The powers of L of a residual network that is multiplied by ``L^-alpha`` and trained with ``L^-gamma``.

All of them are linear forms in alpha and gamma, or maxima of such, found by :mod:`.depth_counting` from the
derived theories: that of linear layers, and that of layers ``MS(phi(W x))`` averaged over their own source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from sympy import Expr, Integer, Sum

from derive.depth import cross_layer
from derive.depth.nonlinear import effective
from derive.errors import NotApplicable
from derive.program.networks.infinite_depth import depth_program, nonlinear_program
from derive.program.words import ell
from derive.scale.depth_changes import changes
from derive.scale.depth_counting import (
    STABLE,
    STEADY,
    Counted,
    Form,
    Forms,
    Sizes,
    alpha,
    as_expression,
    at_all_steps,
    counted,
    form_of,
    gamma,
    sizes,
    together,
)
from derive.scale.depth_steps import at_steps
from derive.theory import Theory, mean_field

LAYERS = ("linear", "nonlinear")


@dataclass(frozen=True)
class DepthExponents:
    """Powers of L for ``alpha >= 1/2``, in the first step; ``later`` has those at all steps where they stay.

    ``gain``: what the stream at the start adds to its own variance, in all layers together (it grows like
    ``exp(L^gain)`` if that is positive).  ``output``: of f_t - f_0.  ``stream``: of x_t - x_0.  ``bracket``:
    of what multiplies a gradient in h_t.  ``update``: of (W_t - W_0) x_t.  ``preactivation``: of h_t, and
    ``feature`` of h_t - h_0.  ``noise``, ``drift``: of x at layers that are a share of the depth apart, what
    independent layers add and what they agree on.  ``linearisation``: of what is lost in x if every layer is
    made linear in the change of its weights.  All are of root mean squares.
    """

    gain: Expr
    output: Expr
    stream: Expr
    bracket: Expr
    update: Expr
    preactivation: Expr
    feature: Expr
    noise: Expr
    drift: Expr
    linearisation: Expr
    later: Mapping[str, Expr]


@lru_cache(maxsize=2)
def depth_exponents(layers: str = "linear") -> DepthExponents:
    """Count powers of L in the derived theory of networks with linear or nonlinear layers.

    Linear layers have nothing to linearise; their ``linearisation`` is that of the nonlinear ones.  The
    theory of nonlinear ones is averaged over each layer's own source, which holds for gamma > 0, and its
    averages count as of order one (bounded phi); their ``gain`` is then that of the gradient, and ``stream``
    is found for ``alpha + gamma >= 1``.

    >>> found = depth_exponents()
    >>> found.gain, found.output, found.feature, found.linearisation
    (1 - 2*alpha, -alpha - gamma + 1, Max(-gamma, -alpha - gamma + 1), -alpha - 2*gamma + 1)
    >>> found.later["f"], found.later["C_x"]
    (-alpha - gamma + 1, 0)
    """
    if layers not in LAYERS:
        raise NotApplicable(f"layers = {layers!r} are not known; {' and '.join(map(repr, LAYERS))} are")
    whole = mean_field(nonlinear_program(alpha=alpha, gamma=gamma))
    theory = mean_field(depth_program(alpha=alpha, gamma=gamma)) if layers == "linear" else effective(whole)
    return _Exponents(theory, whole).result()


class _Exponents:
    def __init__(self, theory: Theory, whole: Theory) -> None:
        self.whole = whole
        self.linear = theory.program is not whole.program
        cross = cross_layer(theory)
        self.steps = at_steps(cross, 1)
        self.two = at_steps(cross, 2)

    def result(self) -> DepthExponents:
        steps = self.steps
        forward = sizes(steps, STEADY, of=("f_1", "C_x_0_0", "C_x_1_1", "C_dx_0_0"))
        where = STEADY if self.linear else STABLE
        moved = sizes(changes(steps), where, of=("D_x_1_1", "f_1"), like=SMOOTH)
        later = at_all_steps(self.two, STABLE)
        if self.linear:  # with averages of phi the second step has too many terms to be written out
            again = sizes(changes(self.two), STABLE)
            for name in ("D_x_2_1", "D_x_2_2"):
                self.require(again, name, moved.exponents["D_x_1_1"])
        branch = self.branch()
        size = _root(forward.exponents["C_x_1_1"])
        start = _root(forward.exponents["C_x_0_0"])
        gradient = _root(forward.exponents["C_dx_0_0"])
        stream = _root(moved.exponents["D_x_1_1"])
        bracket = self.bracket(forward, branch)
        learnt = together(bracket, gradient)
        update = self.update(forward)
        gains = forward.gains["C_x_0_0"] if "C_x_0_0" in forward.gains else forward.gains["C_dx_0_0"]
        noise = _root(together(branch, branch, _only(1), start, start))
        drift = together(branch, _only(1), learnt)
        error = together(branch, _only(1), update, update)
        shown = {n: as_expression(f) for n, f in later.exponents.items() if f}

        def kept(*parts: Forms) -> Expr:
            return as_expression(STEADY.largest(frozenset().union(*parts)))

        return DepthExponents(
            gain=kept(gains),
            output=kept(forward.exponents["f_1"]),
            stream=kept(stream),
            bracket=kept(bracket),
            update=kept(update),
            preactivation=kept(size, learnt),
            feature=kept(stream, learnt),
            noise=kept(noise),
            drift=kept(drift),
            linearisation=kept(error),
            later=shown,
        )

    def require(self, found: Sizes, name: str, like: Forms) -> None:
        if not all(any(STABLE.below(p, r) for r in like) for p in found.exponents[name]):
            raise NotApplicable(f"{name} is larger than at the first step: L**({found.exponent(name)})")

    def branch(self) -> Forms:
        """The power with which a layer's own source enters the stream."""
        (jump,) = self.steps.row("R_xu_0_0").terms
        return frozenset({counted(jump, recursion=True).power})

    def bracket(self, found: Sizes, branch: Forms) -> Forms:
        """What multiplies the first gradient in a layer's h, from the answer of the stream to V."""
        total: set[Form] = set()
        for term in self.steps.row("R_xV_1").terms:
            x = counted(term, recursion=False)
            others = [n for n in x.functions if n != "R_dxV_0"]
            total |= together(frozenset({x.power}), *[found.exponents.get(n, _only(0)) for n in others])
        inverse = frozenset((-a, -b, -c) for a, b, c in branch)
        return STEADY.largest(together(frozenset(total), inverse))

    def update(self, found: Sizes) -> Forms:
        """``(W_1 - W_0) x_1``: what an h of a nonlinear layer remembers of the updates."""
        (memory,) = [x.expr for x in self.whole.equation("h", ell).terms if x.kind == "memory"]
        body = memory.function if isinstance(memory, Sum) else memory
        x: Counted = counted(body, recursion=False)
        parts = [found.exponents["C_x_1_0"] if n == "C_x" else _only(0) for n in x.functions]
        return together(frozenset({x.power}), *parts)


SMOOTH = {"KE_1": ("E_x_1", "D_x_1_1"), "KD_1_1": ("D_x_1_1",)}
"""Averages of a smooth activation move as far as the correlations that they are functions of."""


def _only(number: int) -> Forms:
    return frozenset({form_of(Integer(number))})


def _root(forms: Forms) -> Forms:
    """The exponent of a root mean square."""
    return frozenset((a / 2, b / 2, c / 2) for a, b, c in forms)


__all__ = ["LAYERS", "DepthExponents", "depth_exponents"]
