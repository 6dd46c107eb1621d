"""Depth parametrisations: what residual networks do with branches times ``L^-alpha`` and updates of size
``L^-gamma`` (depth2023 section 7), for exact numbers or symbols, and the learning rates that go with them.

Every flag is the sign of an exponent that is derived from the network's theory (:mod:`.depth_exponents`); the
first step in closed form stands beside it.

Conventions.  Width to infinity, then L, at a fixed number of steps; frozen input and output vectors; smooth
phi.  gamma is that of the *effective* rate (depth2023 Def. 6.1): updates enter a layer's h with ``L^-gamma``.
The rate ``eta L^-c`` that a rule needs for it follows from the power of L with which its updates enter the
derived equation of a layer.  In a network of width one all of an update's effect has a closed form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import TypeAlias

from sympy import (
    Add,
    Dummy,
    Expr,
    Matrix,
    Max,
    Mul,
    Rational,
    S,
    Symbol,
    SympifyError,
    exp,
    factorial,
    ff,
    integrate,
    limit,
    log,
    oo,
    pi,
    powsimp,
    sign,
    solve,
    sqrt,
)

from derive.calculus.symbols import L, ell, exact
from derive.depth.balance import alpha as alpha_
from derive.depth.balance import as_expression, only, power
from derive.depth.balance import gamma as gamma_
from derive.errors import NotApplicable
from derive.program.program import Program
from derive.program.training import Outer, TrainedMatrix
from derive.program.words import Product
from derive.scale.depth_exponents import (
    DepthExponents,
    DepthFirstStep,
    Shown,
    Statement,
    depth_exponents,
    depth_first_step,
    epsilon,
    order_in,
    statements,
    z,
)
from derive.theory import mean_field
from derive.theory.theory import Theory

Number: TypeAlias = int | float | str | Fraction | Expr
DIGITS = 40
"""The longest number that is read from text."""
RULES: Mapping[str, Callable[[Expr], Expr]] = {"sgd": lambda g: g, "sign": sign}
"""What a rule makes of a gradient: itself, or the sign of every entry (Adam without memory)."""
c = Symbol("c", real=True)
"""Learning rates are ``eta L^-c``."""
x_0, chi = Symbol("x_0", real=True), Symbol("chi", real=True, nonzero=True)
"""Width one: the input, and the slope of the loss at the output."""


@dataclass(frozen=True)
class DepthClass(Shown):
    """The classification of one (alpha, gamma); names as in depth2023, Def. 7.2-7.7.

    ``stable_in_training``: changes of the stream and the output stay bounded (Claim 7.2); Def. 7.2 asks for
    those of h too, which is ``faithful_in_training``: h is then of order one.  ``diversity`` is kappa: layers
    that are a share epsilon of the depth apart differ by ``epsilon^(1 - kappa)`` after a step of training, or
    None, if the difference vanishes or grows with L.  ``exponents`` are powers of L of root mean squares;
    infinite where they grow faster.  The learning rate of ``rule`` is ``eta L^-rate``.  ``conditions`` says
    what is assumed.
    """

    alpha: Expr
    gamma: Expr
    rule: str
    rate: Expr
    region: str
    stable_at_init: bool
    stable_in_training: bool
    nontrivial: bool
    faithful_at_init: bool
    faithful_in_training: bool
    feature_learning: bool
    diversity: Expr | None
    layerwise_linear: bool
    exponents: dict[str, Expr]
    statements: tuple[Statement, ...]
    conditions: tuple[str, ...]

    @property
    def redundant(self) -> bool:
        """Do close layers have the same features (kappa = 0)?"""
        return self.diversity == 0

    def as_json(self) -> dict[str, object]:
        """Strings, booleans and lists of these; expressions as SymPy prints them."""
        flags = {n: v for n, v in vars(self).items() if isinstance(v, bool)}
        return {
            "alpha": str(self.alpha),
            "gamma": str(self.gamma),
            "rule": self.rule,
            "learning_rate": str(L**-self.rate),
            "regime": self.region,
            **flags,
            "redundant": self.redundant,
            "diversity": _text(self.diversity),
            "exponents": {n: str(e) for n, e in self.exponents.items()},
            "conditions": list(self.conditions),
            "statements": [{n: _text(v) for n, v in vars(x).items()} for x in self.statements],
        }


def _text(e: Expr | str | None) -> str | None:
    return None if e is None else str(e)


class DepthParametrization:
    """What the theory of a residual network says of branches times ``L^-alpha`` and updates ``L^-gamma``.

    ``theory`` is that of linear layers, with the symbols alpha and gamma of :mod:`derive.depth.balance`.
    Exponents and the first step are derived when they are asked for.

    >>> from derive.program import depth_program
    >>> found = DepthParametrization(mean_field(depth_program(alpha=alpha_, gamma=gamma_)))
    >>> best = found.classify("1/2", "1/2")
    >>> best.region, best.diversity, best.feature_learning, best.rate, best.exponents["output"]
    ('depth-muP', 1/2, True, 0, 0)
    >>> found.optimal("sign")
    (1/2, 1/2, -1/2)
    """

    def __init__(self, theory: Theory) -> None:
        self.theory = theory
        self._powers: dict[str, Expr] = {}

    def update_power(self, rule: str = "sgd") -> Expr:
        """The gamma of a rule with learning rate ``eta L^-c``, see :func:`update_power`."""
        if rule not in self._powers:
            self._powers[rule] = update_power(self.theory.program, rule)
        return self._powers[rule]

    @cached_property
    def exponents(self) -> DepthExponents:
        """The powers of L, with alpha and gamma symbols."""
        return depth_exponents(self.theory)

    @cached_property
    def first_step(self) -> DepthFirstStep:
        """The first step in closed form, for every depth."""
        return depth_first_step(self.theory)

    @cached_property
    def statements(self) -> tuple[Statement, ...]:
        """One statement a quantity, with alpha and gamma symbols."""
        return statements(self.exponents, self.first_step)

    def classify(self, alpha: Number, gamma: Number, rule: str = "sgd") -> DepthClass:
        """Classify branches times ``L^-alpha`` and updates of size ``L^-gamma``.

        Numbers are taken exactly (``"1/3"``, ``0.1`` is one tenth); symbols need assumptions that decide
        every sign, like ``1/2 + Symbol("e", positive=True)``.  Raises :class:`NotApplicable`, naming the
        value and what would do, for anything else.
        """
        _check(rule)
        return _Point(self, _number("alpha", alpha), _number("gamma", gamma)).classified(rule)

    def optimal(self, rule: str = "sgd") -> tuple[Expr, Expr, Expr]:
        """(alpha, gamma, power of the learning rate's L) of the one class that is stable, nontrivial,
        faithful, learns features and keeps layers different: ``noise`` and ``output`` of order one.
        """
        _check(rule)
        p = self.exponents
        (found,) = solve([p.noise, p.output], [alpha_, gamma_], dict=True)
        return found[alpha_], found[gamma_], -self.rate(rule).subs(found)

    def rate(self, rule: str = "sgd") -> Expr:
        """The c of a learning rate ``eta L^-c`` with which updates enter h with ``L^-gamma``."""
        (found,) = solve(self.update_power(rule) - gamma_, c)
        return found

    def largest_rate(self, rule: str = "sgd") -> Expr:
        """The c of the largest rate ``eta L^-c`` at which the output stays of order one, for alpha >= 1/2."""
        output = self.exponents.output.subs(gamma_, self.update_power(rule))
        (found,) = solve(output, c)
        return found

    @cached_property
    def kappas(self) -> tuple[Expr, Expr]:
        """One minus the power of epsilon in the root of what layers add each, and in what they share."""
        noise, drift = (
            order_in(x.leading, epsilon)
            for x in self.statements
            if x.leading is not None and x.leading.has(epsilon)
        )
        return 1 - Rational(noise, 2), 1 - Rational(drift)


@dataclass(frozen=True)
class _Point:
    """One (alpha, gamma)."""

    of: DepthParametrization
    a: Expr
    g: Expr

    def at(self, e: Expr) -> Expr:
        return e.subs({alpha_: self.a, gamma_: self.g}, simultaneous=True)

    def sign(self, e: Expr) -> int:
        """-1, 0 or 1; of a maximum the largest."""
        e = self.at(e).expand()
        if isinstance(e, Max):
            return max(self.sign(x) for x in e.args)
        if e.is_zero or e.is_positive or e.is_negative:
            return int(bool(e.is_positive)) - int(bool(e.is_negative))
        named = (("alpha", self.a), ("gamma", self.g))
        where = ", ".join(f"{n} = {v}" for n, v in named if v.free_symbols & e.free_symbols)
        raise NotApplicable(
            f"{where}: is {e} negative, zero or positive?  Give exact numbers, or symbols with assumptions "
            "that decide it"
        )

    def classified(self, rule: str) -> DepthClass:
        p = self.of.exponents
        names = ("output", "stream", "bracket", "preactivation", "feature", "noise", "drift", "linearisation")
        stable = self.sign(p.gain) <= 0
        # otherwise the closed form of f_1 has the factor q^(L - 1), which exceeds every power
        found = {n: self.at(getattr(p, n)) if stable else S.Infinity for n in names}
        size = {n: self.sign(getattr(p, n)) if stable else 1 for n in names}
        kappa: Expr | None = None
        if size["output"] <= 0 and 0 in (size["noise"], size["drift"]):
            kappa = self.of.kappas[0 if size["noise"] == 0 else 1]
        region = "depth-muP" if kappa else "redundant"
        if size["preactivation"] != 0:
            region = "unfaithful"
        if size["output"] != 0:
            region = "unstable in training" if size["output"] > 0 else "trivial"
        return DepthClass(
            alpha=self.a,
            gamma=self.g,
            rule=rule,
            rate=self.at(self.of.rate(rule)),
            region=region if stable else "unstable at initialisation",
            stable_at_init=stable,
            stable_in_training=size["output"] <= 0,
            nontrivial=size["output"] >= 0,
            faithful_at_init=stable,
            faithful_in_training=size["preactivation"] == 0,
            feature_learning=size["feature"] == 0,
            diversity=kappa,
            # ``o(1/L)`` in each layer is a sum over layers that vanishes
            layerwise_linear=size["linearisation"] < 0,
            exponents=found,
            statements=tuple(map(self.stated, self.of.statements)),
            conditions=p.conditions(),
        )

    def stated(self, x: Statement) -> Statement:
        """A statement at these exponents, with ``z = L (q - 1)`` replaced by its limit."""
        exact_ = None if x.exact is None else self.at(x.exact)
        gain = self.sign(self.of.exponents.gain)
        if gain > 0:
            return replace(x, exponent=S.Infinity, exact=exact_, leading=None)
        leading = x.leading
        if leading is not None:
            leading = self.at(leading.subs(z, 1) if gain == 0 else self.small(leading))
        return replace(x, exponent=self.at(x.exponent), exact=exact_, leading=leading)

    def small(self, e: Expr) -> Expr:
        """The first term of an expression in a small z."""
        found = e.subs(z, 0)
        return (e.diff(z).subs(z, 0) * L * self.of.first_step.gain).expand() if found == 0 else found


def _number(name: str, value: Number) -> Expr:
    """An exponent: a rational number, or a real expression without L."""
    try:
        text = str(value)
        plain = len(text) <= DIGITS and set(text) <= set("0123456789+-./ ")
        if isinstance(value, bool) or not (plain or isinstance(value, Expr)):
            raise ValueError
        found = exact(name, value)
        if found.has(L) or found.is_real is False or (found.is_number and not found.is_Rational):
            raise ValueError
        return found
    except (ValueError, TypeError, SympifyError):
        wanted = "an integer, a fraction like 1/2, a decimal number, or a real SymPy expression"
        raise NotApplicable(f"{name} = {value!r} is no exponent: {wanted} is") from None


# -- learning rates ------------------------------------------------------------------------------------------


def update_power(program: Program, rule: str = "sgd") -> Expr:
    """The gamma of a rule with learning rate ``eta L^-c``: updates enter a layer's h with ``L^-gamma``.

    Read off the theory of ``program``, with linear residual layers and rate ``L^-gamma``, trained by the rule
    itself: the gradient of a weight has the factor of its branch, which gradient descent keeps and signs do
    not.  Raises :class:`NotApplicable` for another rule or program.

    >>> from derive.program import depth_program
    >>> program = depth_program(alpha=alpha_, gamma=gamma_)
    >>> update_power(program, "sgd"), update_power(program, "sign")
    (alpha + c, c)
    """
    theory = mean_field(trained_by(program, rule))
    name = _residual(program)[0]
    (memory,) = [x for x in theory.equation(name, ell).terms if x.kind == "memory"]
    return -power(memory.kernel)[0]


def trained_by(program: Program, rule: str) -> Program:
    """A linear residual network trained by a rule as it stands, with learning rate ``L^-c`` for ``L^-gamma``.

    >>> from derive.program import depth_program
    >>> (W,) = trained_by(depth_program(alpha=alpha_, gamma=gamma_), "sign").matrices
    >>> W.update.coefficient, W.update.left
    (-1/L**c, sign(dx(ell, t)))
    """
    _check(rule)
    share = _residual(program)[1]
    (W,) = program.matrices
    if not isinstance(W, TrainedMatrix) or not isinstance(W.update, Outer):
        raise NotApplicable(f"{W} is not trained by outer products")
    rate = W.update.coefficient.subs(gamma_, c)
    # of one sample: the gradient has rank one, and so has what an entrywise power of it makes of it
    made = RULES[rule]
    update = replace(
        W.update, coefficient=rate * made(share), left=made(W.update.left), right=made(W.update.right)
    )
    return replace(program, matrices=(replace(W, update=update),))


def _residual(program: Program) -> tuple[str, Expr]:
    """The stream of a residual network, and what multiplies a layer's product with its matrix."""
    for d in program.definitions:
        for x in Add.make_args(d.rhs):
            products = [y for y in Mul.make_args(x) if isinstance(y, Product)]
            if d.lhs.args and d.lhs.args[0] == ell and len(products) == 1 and len(Add.make_args(d.rhs)) > 1:
                return str(d.lhs.func), x / products[0]
    raise NotApplicable("the program has no residual layer: x(ell) = x(ell - 1) + c * (W(ell) @ x(ell - 1))")


def _check(rule: str) -> None:
    if rule not in RULES:
        raise NotApplicable(f"rule = {rule!r} is not known; {' and '.join(map(repr, RULES))} are")


@dataclass(frozen=True)
class FirstUpdate(Shown):
    """Width one, one step at rate eta: ``x_1^L = x_0^L - eta L^-alpha A_L + O(eta^2)``.

    ``square`` is ``E A_L^2`` for every L; ``leading`` what it is for large L and alpha > 1/2, to be
    multiplied by ``at_half`` at alpha = 1/2; ``rate`` is the c at which ``eta L^(-alpha - c) A_L`` is of
    order one.
    """

    rule: str
    square: Expr
    leading: Expr
    at_half: Expr
    rate: Expr


def first_update(program: Program, rule: str = "sgd") -> FirstUpdate:
    """``E A_L^2`` at fixed slope chi of the loss, from the product of independent layers at width one.

    A layer is the factor ``y = 1 + b W`` with the branch b of ``program``.  With M the product of all factors
    but one, ``dx^L/dW = b M x_0``, and the update is ``rule(chi b M x_0)``: the layer adds ``|M x_0|^p
    rule(chi b)`` to A_L, p being one more than the degree of the rule.  So ``P = prod |y|^p`` and ``A = sum
    over layers of P without its factor`` go from layer to layer as ``P |y|^p`` and ``A |y|^p + P``, and ``(E
    P^2, E P A, E A^2)`` is multiplied by a matrix ``m_2 + N`` with ``N^3 = 0``, whose powers are a binomial
    sum.  Raises :class:`NotApplicable` for another rule.

    >>> from derive.program import depth_program
    >>> program = depth_program(alpha=alpha_, gamma=gamma_)
    >>> found = first_update(program, "sgd")
    >>> found.leading, found.at_half, found.rate
    (L**(2 - 2*alpha)*chi**2*x_0**4, exp(6), 1 - 2*alpha)
    >>> signs = first_update(program, "sign")
    >>> signs.leading, signs.at_half, signs.rate
    (L**2*x_0**2, E, 1 - alpha)
    """
    _check(rule)
    share, made = _residual(program)[1], RULES[rule]
    degree = 1 + int(log(made(S(2)) / made(S.One), 2))
    constant = (x_0**degree * made(chi) * made(share)) ** 2
    one, two = Dummy("m_1", positive=True), Dummy("m_2", positive=True)
    N = Matrix([[0, 0, 0], [one, 0, 0], [1, 2 * one, 0]])
    count = Add(*[ff(L, j) / factorial(j) * two ** (L - j) * (N**j)[2, 0] for j in range(3)])
    moments = {one: _moment(degree, share), two: _moment(2 * degree, share)}
    square = constant * count.subs(moments)
    # factors to the power L tend to one for alpha > 1/2
    leading = powsimp(constant * count.subs({one: 1, two: 1}).expand())
    at_half = exp(limit((L * (moments[two] - 1)).subs(alpha_, Rational(1, 2)).expand(), L, oo))
    size = power(leading.subs({chi: 1, x_0: 1}))[0] / 2
    (rate,) = solve(as_expression(only(power(share)[0])) - c + size, c)
    return FirstUpdate(rule, square, leading, at_half, rate)


def _moment(p: int, share: Expr) -> Expr:
    """``E |1 + share W|^p`` for a normal W."""
    a, w = Dummy("a", positive=True), Dummy("w", real=True)
    weight = exp(-(w**2) / 2) / sqrt(2 * pi)
    if p % 2 == 0:
        found = integrate(((1 + a * w) ** p * weight).expand(), (w, -oo, oo))
    else:
        found = integrate((1 + a * w) ** p * weight, (w, -1 / a, oo))
        found -= integrate((1 + a * w) ** p * weight, (w, -oo, -1 / a))
    return found.subs(a, share)
