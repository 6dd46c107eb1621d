"""The powers of L of a residual network that is multiplied by ``L^-alpha`` and trained with ``L^-gamma``, and
its first step in closed form.

Powers are linear forms in alpha and gamma, or maxima of such, counted in the derived theories: that of
linear layers, and that of layers ``MS(phi(W x))`` averaged over their own source.  The first step of linear
layers is solved for every depth: its rows are first-order recursions in the layer.  Answers to a source are
steps in the layer, correlations at the start grow by a factor q a layer, and everything else is driven by
these, so it is a polynomial in the layer times ``q^layer``.  Closed forms depend on the depth through ``z = L
(q - 1)``: at fixed z they have a limit as L grows, and z is 1 at alpha = 1/2 and tends to 0 above it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sympy import (
    Add,
    Dummy,
    Eq,
    Expr,
    Heaviside,
    KroneckerDelta,
    Mul,
    Pow,
    S,
    Symbol,
    exp,
    factor,
    powsimp,
    simplify,
    sqrt,
    summation,
)
from sympy.core.function import AppliedUndef

from derive.calculus.gaussian import GaussianAverage
from derive.calculus.symbols import L, ell
from derive.depth.balance import (
    ONE,
    STABLE,
    STEADY,
    Forms,
    Sizes,
    alpha,
    as_expression,
    counted,
    only,
    over_layers,
    together,
)
from derive.errors import NotApplicable
from derive.linear.propagators import cross_layer, k
from derive.scale.depth_steps import Row, at_all_steps, at_steps, changes, ladder, sizes
from derive.show.latex import aligned_latex
from derive.theory.theory import Theory

xi = Symbol("xi", real=True)
"""The input, the same at both steps."""
chi_0 = Symbol("chi_0", real=True)
"""The slope of the loss at the start."""
tau = Symbol("tau", positive=True)
"""A layer's place between 0 and 1."""
epsilon = Symbol("epsilon", positive=True)
"""A distance between layers, as a share of the depth."""
q = Symbol("q", positive=True)
"""By how much correlations at the start grow in a layer."""
z = Symbol("z", positive=True)
"""``L (q - 1)``."""
REMAINDER = 2
"""The order of Taylor's remainder of a smooth phi, which is what a linearised layer leaves out."""


class Shown:
    """A result whose expressions a notebook shows by their names."""

    def _repr_latex_(self) -> str:
        named = {**vars(self), **vars(self).get("exponents", {})}
        return aligned_latex(
            Eq(Symbol(rf"\mathrm{{{n.replace('_', ' ')}}}"), e, evaluate=False)
            for n, e in named.items()
            if isinstance(e, Expr)
        )


# -- counted -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DepthExponents(Shown):
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
    averaged: bool

    def conditions(self) -> tuple[str, ...]:
        """What is assumed, in words."""
        return (
            "the width goes to infinity before the depth, at a fixed number of steps",
            "powers are upper bounds; the closed form of the first step of linear layers attains them",
            "linearisation: phi is smooth, and a layer leaves out Taylor's remainder of second order, which "
            "layers agree on",
            *(
                ("each layer may be averaged over its own source (gamma > 0), its averages are bounded",)
                if self.averaged
                else ()
            ),
        )


def depth_exponents(theory: Theory) -> DepthExponents:
    """Count powers of L in the theory of a residual network, branches times ``L^-alpha``, rates ``L^-gamma``.

    Both are the symbols of :mod:`derive.depth.balance`.  A theory of nonlinear layers must be
    :func:`~derive.depth.nonlinear.effective`; its ``gain`` is that of the gradient, and ``stream`` is found
    for ``alpha + gamma >= 1``.  Linear layers have nothing to linearise: their ``linearisation`` is that of
    ``phi(h)`` in the place of h.  Raises :class:`NotApplicable` for a theory without residual layers.

    >>> from derive.depth.balance import gamma
    >>> from derive.program import depth_program
    >>> from derive.theory import mean_field
    >>> found = depth_exponents(mean_field(depth_program(alpha=alpha, gamma=gamma)))
    >>> found.gain, found.output, found.feature, found.linearisation
    (1 - 2*alpha, -alpha - gamma + 1, Max(-gamma, -alpha - gamma + 1), -alpha - 2*gamma + 1)
    >>> found.later["f"], found.later["C_x"]
    (-alpha - gamma + 1, 0)
    """
    net, cross = ladder(theory), cross_layer(theory)
    steps, two = at_steps(cross, 1), at_steps(cross, 2)
    averaged = any(x.definition.has(GaussianAverage) for x in theory.order_parameters)
    c, up = net.correlation, net.up.name
    stream, output, answer = f"D_{up}_1_1", f"{net.output}_1", f"R_{up}{net.readout}_1"
    start, gradients = f"{c}_0_0", f"{net.overlap}_0_0"
    forward = sizes(steps, STEADY, of=(output, answer, start, f"{c}_1_1", gradients))
    # averages of a smooth activation move as far as the correlations that they are functions of
    smooth = {"KE_1": (f"E_{up}_1", stream), "KD_1_1": (stream,)}
    moved = sizes(changes(steps), STABLE if averaged else STEADY, of=(stream, output), like=smooth)
    later = at_all_steps(two, STABLE)
    if not averaged:  # with averages of phi the second step has too many terms to be written out
        again = sizes(changes(two), STABLE)
        for name in (f"D_{up}_2_1", f"D_{up}_2_2"):
            _require(again, name, moved.exponents[stream])

    def kernels(*kinds: str) -> Forms:
        """What multiplies the first gradient in a layer's h."""
        found: list[Forms] = []
        for x in net.up.terms:
            if x.kind in kinds:
                y = counted(x.kernel)
                known = [forward.exponents.get(f"{n}_1_0", ONE) for n in y.functions]
                found.append(together(frozenset({y.power}), *known))
        return STEADY.largest(p for x in found for p in x)

    (branch,) = [frozenset({counted(x.coefficient).power}) for x in net.up.terms if x.kind == "source"]
    gradient, moves = _root(forward.exponents[gradients]), _root(moved.exponents[stream])
    bracket, update = kernels("response", "memory"), together(kernels("memory"), gradient)
    learnt = together(bracket, gradient)
    layers = [forward.size(x) for x in steps.row(start).terms if x.has(over_layers)]
    lost = together(branch, only(S.One), *[update] * REMAINDER)
    gains = forward.gains.get(start, forward.gains[gradients])

    def kept(*parts: Forms) -> Expr:
        return as_expression(STEADY.largest(p for x in parts for p in x))

    return DepthExponents(
        gain=kept(gains),
        output=kept(forward.exponents[output]),
        stream=kept(moves),
        bracket=kept(bracket),
        update=kept(update),
        preactivation=kept(_root(forward.exponents[f"{c}_1_1"]), learnt),
        feature=kept(moves, learnt),
        noise=kept(*map(_root, layers)),
        drift=kept(forward.exponents[answer]),
        linearisation=kept(lost),
        later={n: as_expression(f) for n, f in later.exponents.items() if f},
        averaged=averaged,
    )


def _require(found: Sizes, name: str, like: Forms) -> None:
    if not all(any(STABLE.below(p, r) for r in like) for p in found.exponents[name]):
        raise NotApplicable(f"{name} is larger than at the first step: L**({found.exponent(name)})")


def _root(forms: Forms) -> Forms:
    """The exponent of a root mean square."""
    return frozenset((a / 2, b / 2, c / 2) for a, b, c in forms)


# -- solved --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DepthFirstStep(Shown):
    """Functions of the layer ``ell``, of ``alpha``, ``gamma``, L, and of ``xi``, ``chi_0``.

    ``gain`` is q - 1.  ``start`` is ``<x_0 x_0>``, ``gradient`` ``<dx_0 dx_0>``; ``learnt`` is what
    multiplies the gradient dx_0 in the second forward pass, ``h_1 = u_1 + learnt dx_0``; ``moved`` is ``<x_1
    V>``, the part of the change of the stream that all layers agree on, and ``output`` that behind the last
    one, ``f_1 - f_0``.
    """

    gain: Expr
    start: Expr
    gradient: Expr
    learnt: Expr
    moved: Expr
    output: Expr

    def large(self, exact: Expr) -> Expr:
        """``exact`` at the layer ``tau L`` for large L, at fixed z.

        Raises :class:`NotApplicable` for an expression without one leading power.
        """
        e = exact.subs(ell, tau * L).xreplace({self.gain: z / L})
        # (1 + z/L)^(p L + r) tends to exp(p z)
        e = e.replace(
            lambda x: isinstance(x, Pow) and x.base == 1 + z / L, lambda x: exp(z * x.exp.expand().coeff(L))
        )
        found: dict[Expr, Expr] = {}
        for x in Add.make_args(e.expand(power_exp=False)):
            parts = [(y, y == L or (isinstance(y, Pow) and y.base == L)) for y in Mul.make_args(x)]
            power = Add(*[y.as_base_exp()[1] for y, own in parts if own])
            found[power] = found.get(power, S.Zero) + Mul(*[y for y, own in parts if not own])
        largest = [p for p in found if all((p - r).is_nonnegative for r in found)]
        if len(largest) != 1 or found[largest[0]].has(L, alpha):
            raise NotApplicable(f"{exact} has no one leading power of L at fixed {L * self.gain}")
        return L ** largest[0] * factor(found[largest[0]])


def depth_first_step(theory: Theory) -> DepthFirstStep:
    """Solve the derived rows of the first step of linear residual layers.

    Raises :class:`NotApplicable` for a theory whose rows are no such recursions.

    >>> from derive.depth.balance import gamma
    >>> from derive.program import depth_program
    >>> from derive.theory import mean_field
    >>> found = depth_first_step(mean_field(depth_program(alpha=alpha, gamma=gamma)))
    >>> found.start, found.output
    (xi**2*(1 + L**(-2*alpha))**ell, -L**(-alpha - gamma + 1)*chi_0*xi**2*(1 + L**(-2*alpha))**(L - 1))
    """
    return _First(theory).result()


class _First:
    def __init__(self, theory: Theory) -> None:
        self.net = ladder(theory)
        self.steps = at_steps(cross_layer(theory), 1)
        self.known: dict[str, Expr] = {}
        self.gain: Expr | None = None

    def result(self) -> DepthFirstStep:
        net, up = self.net, self.net.up.name
        forth, back = f"R_{up}{net.source}", f"R_{net.down.name}{net.back}"
        self.jump(f"{forth}_0_0")
        self.jump(f"{back}_0_0")
        self.constants()
        self.known[f"{forth}_1_1"] = self.same(f"{forth}_1_1", f"{forth}_0_0")
        start = self.grown(f"{net.correlation}_0_0")
        gradient = self.grown(f"{net.overlap}_0_0")
        self.grown(f"{net.correlation}_1_0")
        driver = f"R_{up}{net.back}_1_0"
        learnt = self.bracket(driver)
        moved = self.summed(f"R_{up}{net.readout}_1", driver, learnt)
        assert self.gain is not None
        gain = self.gain
        found = (start, gradient, learnt, moved, moved.subs(ell, L))
        return DepthFirstStep(
            gain, *[powsimp(simplify(x.subs(gain, q - 1)).subs(q, 1 + gain)) for x in found]
        )

    # -- reading ---------------------------------------------------------------------------------------------

    def put(self, e: Expr) -> Expr:
        """Functions that are known put in, at their layers."""

        def value(x: AppliedUndef) -> Expr:
            places = dict(zip((ell, k), x.args, strict=False))
            return self.known[str(x.func)].subs(places, simultaneous=True)

        e = e.replace(lambda x: isinstance(x, AppliedUndef) and str(x.func) in self.known, value)
        return e.replace(lambda x: isinstance(x, AppliedUndef) and str(x.func) == chi_0.name, lambda _: chi_0)

    def row(self, name: str) -> Row:
        return self.steps.row(name)

    def constants(self) -> None:
        """Functions that nothing drives: what they are at their end."""
        before = -1
        while before != len(self.known):
            before = len(self.known)
            for r in self.steps.rows:
                if r.name in self.known or not r.symbol.args or r.neighbour == 0:
                    continue
                if all(self.put(x) == 0 for x in r.terms):
                    end = next(y for y in self.steps.named(r.name) if y.neighbour == 0)
                    self.known[r.name] = self.put(end.rhs)

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

    # -- solving ---------------------------------------------------------------------------------------------

    def grown(self, name: str) -> Expr:
        """A correlation ``C(ell) = c + sum over k on one side of g C(k -+ 1)``: ``c (1 + g)^ell``."""
        terms = [self.put(x) for x in self.row(name).terms]
        sums = Add(*[x / over_layers for x in terms if x.has(over_layers)])
        constant = Add(*[x for x in terms if not x.has(over_layers)])
        own = [a for a in sums.atoms(AppliedUndef) if str(a.func) == name]
        if len(own) != 1 or sums.atoms(AppliedUndef) != set(own) or constant.has(ell):
            raise NotApplicable(f"{name} is no sum of its own values: {terms}")
        gain = sums.coeff(own[0]).replace(lambda x: isinstance(x, Heaviside), lambda _: S.One)
        self.gain = gain if self.gain is None else self.gain
        if gain.has(ell, k) or (gain - self.gain).expand() != 0:
            raise NotApplicable(f"{name} grows by {gain} a layer, and another by {self.gain}")
        value = constant * q ** (ell if own[0].args[0] == k - 1 else L - ell)
        self.known[name] = value
        return value

    def bracket(self, name: str) -> Expr:
        """What is in front of dx in a layer: ``S(ell)`` and the update, S answering the layer's own r.

        ``name(ell, k)`` grows by the same for all k above ell, so that S obeys a recursion in ell alone:
        ``S(ell + 1) = (1 + f) S(ell) + g(ell)``, ``S(1) = 0``.  What the layer adds is ``f S + g``.
        """
        own, m = Dummy("S"), Dummy("m", integer=True, positive=True)
        added = Add(*[self.put(x) for x in self.row(name).terms])
        added = added.replace(lambda y: isinstance(y, Heaviside), lambda _: S.One)
        added = added.replace(lambda y: isinstance(y, AppliedUndef) and str(y.func) == name, lambda _: own)
        if added.has(k) or added.atoms(AppliedUndef):
            raise NotApplicable(f"what {name} gains from layer to layer is not the same for all sources")
        share, rest = added.coeff(own), added.subs(own, 0)
        growth = q if (share - self.gain).expand() == 0 else 1 + share
        driven = powsimp((rest.subs(ell, m) * growth ** (-m)).expand())
        value = growth ** (ell - 1) * simplify(summation(driven, (m, 1, ell - 1)))
        return simplify(value + rest / share)

    def summed(self, name: str, driver: str, bracket: Expr) -> Expr:
        """An answer that is driven by the bracket and by what is known."""
        terms = [self.put(x) for x in self.row(name).terms]
        (share,) = [x.coeff(a) for x in terms for a in x.atoms(AppliedUndef) if str(a.func) == driver]
        m = Dummy("m", integer=True)
        return simplify(summation(powsimp((bracket * share).expand().subs(ell, m)), (m, 1, ell)))


# -- said ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Statement(Shown):
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


def order_in(e: Expr, small: Symbol) -> int:
    """The first power of a small symbol in an expression.

    >>> order_in(exp(epsilon) - 1 - epsilon, epsilon)
    2
    """
    found = 0
    while e.subs(small, 0) == 0:
        e, found = e.diff(small), found + 1
    return found


def statements(p: DepthExponents, first: DepthFirstStep) -> tuple[Statement, ...]:
    """What the exponents say, one statement a quantity, with the first step exactly."""
    ahead = {ell: (tau + epsilon) * L}, {ell: tau * L}
    window, drift = (e.subs(ahead[0]) - e.subs(ahead[1]) for e in (first.start, first.moved))
    near = [epsilon ** order_in(first.large(x), epsilon) for x in (window, drift)]
    square = "closed form of the derived recursion in the layer"
    power = "power counting at all steps; the closed form of the first step attains it"

    rows: tuple[tuple[str, str, Expr, Expr | None, str], ...] = (
        (
            "stream at the start",
            r"\langle x_0^L x_0^L\rangle",
            S.Zero,
            first.start.subs(ell, L),
            f"{square}; a layer adds {first.gain} of what it gets, which is {powsimp(L * first.gain)} in all",
        ),
        ("output", "f_1 - f_0", p.output, first.output, power),
        (
            "stream",
            r"\langle (x_1^{\tau L} - x_0^{\tau L}) V\rangle",
            p.stream,
            first.moved,
            f"{power}; its square is a part of <(x_1 - x_0)^2>, whose other parts are squares too",
        ),
        (
            "preactivation",
            r"h_1^{\tau L} - u_1^{\tau L} = (\cdot)\,\delta x_0^{\tau L}",
            p.bracket,
            first.learnt,
            f"{power}; independent of u_1, so that <h_1^2> is the sum of both",
        ),
        (
            "features",
            r"h_1^{\tau L} - h_0^{\tau L}",
            p.feature,
            None,
            "its two independent parts: the stream's change, and what multiplies the gradient",
        ),
        (
            "diversity, noise",
            r"\langle (x_0^{(\tau + \epsilon) L} - x_0^{\tau L})^2\rangle",
            p.noise,
            window,
            f"{square}; independent layers add variances, so the root goes like {sqrt(near[0])}",
        ),
        (
            "diversity, drift",
            r"\langle (x_1^{(\tau + \epsilon) L} - x_1^{\tau L}) V\rangle",
            p.drift,
            drift,
            f"{power}; layers agree on it, so it goes like {near[1]}",
        ),
        (
            "linearisation",
            r"\sum_\ell L^{-\alpha}[\phi(W_t x_t) - \phi(W_0 x_t) - \phi'(W_0 x_t)(W_t - W_0) x_t]",
            p.linearisation,
            None,
            "memory of the updates in h of the nonlinear theory, squared (phi smooth), summed over layers",
        ),
    )
    return tuple(
        Statement(name, quantity, exponent, exact, None if exact is None else first.large(exact), how)
        for name, quantity, exponent, exact, how in rows
    )
