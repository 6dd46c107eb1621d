"""Depth parametrisations: what residual networks do with branches times ``L^-alpha`` and updates of size
``L^-gamma`` (depth2023 section 7), for exact numbers or symbols.

Every flag is the sign of an exponent that is derived from the network's program (:mod:`.depth_exponents`);
the first step in closed form stands beside it (:mod:`.depth_statements`).

Conventions.  Width to infinity, then L, at a fixed number of steps; frozen input and output vectors; smooth
phi.  gamma is that of the *effective* rate (depth2023 Def. 6.1): updates enter a layer's h with ``L^-gamma``.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TypeAlias

from sympy import Expr, Max, Rational, S, solve

from derive.errors import NotApplicable
from derive.program.words import L
from derive.scale.depth_counting import alpha as alpha_
from derive.scale.depth_counting import gamma as gamma_
from derive.scale.depth_exponents import depth_exponents
from derive.scale.depth_rates import RULES, c, update_power
from derive.scale.depth_statements import Statement, statements, z

Number: TypeAlias = int | float | str | Fraction | Expr
DIGITS = 40
"""The longest number that is read from text."""


@dataclass(frozen=True)
class DepthClass:
    """The classification of one (alpha, gamma); names as in depth2023, Def. 7.2-7.7.

    ``stable_in_training``: changes of the stream and the output stay bounded (Claim 7.2); Def. 7.2 asks for
    those of h too, which is ``faithful_in_training``: h is then of order one.  ``diversity`` is kappa: layers
    that are a share epsilon of the depth apart differ by ``epsilon^(1 - kappa)`` after a step of training, or
    None, if the difference vanishes or grows with L.  ``exponents`` are powers of L of root mean squares;
    infinite where they grow faster.  The learning rate of ``rule`` is ``eta L^-rate``.
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
            "diversity": None if self.diversity is None else str(self.diversity),
            "exponents": {n: str(e) for n, e in self.exponents.items()},
            "statements": [
                {
                    "name": x.name,
                    "quantity": x.quantity,
                    "exponent": str(x.exponent),
                    "exact": None if x.exact is None else str(x.exact),
                    "leading": None if x.leading is None else str(x.leading),
                    "how": x.how,
                }
                for x in self.statements
            ],
        }


def classify(alpha: Number, gamma: Number, rule: str = "sgd") -> DepthClass:
    """Classify branches times ``L^-alpha`` and updates of size ``L^-gamma``.

    Numbers are taken exactly (``"1/3"``, ``0.1`` is one tenth); symbols need assumptions that decide every
    sign, like ``1/2 + Symbol("e", positive=True)``.  Raises :class:`NotApplicable`, naming the value and what
    would do, for anything else.

    >>> found = classify("1/2", "1/2")
    >>> found.region, found.diversity, found.feature_learning, found.rate, found.exponents["output"]
    ('depth-muP', 1/2, True, 0, 0)
    >>> from sympy import Symbol
    >>> e = Symbol("e", positive=True)
    >>> classify(Rational(1, 2) + e, Rational(1, 2) - e)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    derive.errors.NotApplicable: alpha = e + 1/2, gamma = 1/2 - e: is e - 1/2 ...
    >>> classify(1 + e, -e).region, classify(1, 0).region, classify("3/4", "1/2", "sign").region
    ('unfaithful', 'redundant', 'trivial')
    """
    if rule not in RULES:
        raise NotApplicable(f"rule = {rule!r} is not known; {' and '.join(map(repr, RULES))} are")
    return _classified(_number("alpha", alpha), _number("gamma", gamma), rule)


def optimal(rule: str = "sgd") -> tuple[Expr, Expr, Expr]:
    """(alpha, gamma, power of the learning rate's L) of the one class that is stable, nontrivial, faithful,
    learns features and keeps layers different: ``noise`` and ``output`` of order one.

    >>> optimal("sgd"), optimal("sign")
    ((1/2, 1/2, 0), (1/2, 1/2, -1/2))
    """
    p = depth_exponents()
    (found,) = solve([p.noise, p.output], [alpha_, gamma_], dict=True)
    rate = _rate(found[alpha_], found[gamma_], rule)
    return found[alpha_], found[gamma_], -rate


@lru_cache(maxsize=256)
def _classified(a: Expr, g: Expr, rule: str) -> DepthClass:
    return _Classifier(a, g, rule).result()


class _Classifier:
    def __init__(self, a: Expr, g: Expr, rule: str) -> None:
        self.a, self.g, self.rule = a, g, rule
        self.p = depth_exponents()

    def at(self, e: Expr) -> Expr:
        return e.subs({alpha_: self.a, gamma_: self.g}, simultaneous=True)

    def sign(self, e: Expr) -> int:
        """-1, 0 or 1."""
        parts = [_sign(x, self.a, self.g) for x in (e.args if isinstance(e, Max) else (e,))]
        return max(parts)

    def result(self) -> DepthClass:
        names = ("output", "stream", "bracket", "preactivation", "feature", "noise", "drift", "linearisation")
        found = {n: self.at(getattr(self.p, n)) for n in names}
        if self.sign(self.at(self.p.gain)) > 0:
            # the closed form of f_1 has the factor (1 + L^(-2 alpha))^(L - 1), which exceeds every power
            found = {n: S.Infinity for n in names}
            return self.built(
                found, "unstable at initialisation", stable=False, flags=(False, True) + (False,) * 4
            )
        output = self.sign(found["output"])
        h = self.sign(found["preactivation"]) == 0
        feature = self.sign(found["feature"]) == 0
        # ``o(1/L)`` in each layer is a sum over layers that vanishes
        linear = self.sign(found["linearisation"]) < 0
        kappa: Expr | None = None
        if output <= 0 and self.sign(found["noise"]) == 0:
            kappa = Rational(1, 2)
        elif output <= 0 and self.sign(found["drift"]) == 0:
            kappa = S.Zero
        region = "depth-muP" if kappa else "redundant"
        if not h:
            region = "unfaithful"
        if output:
            region = "unstable in training" if output > 0 else "trivial"
        flags = (output <= 0, output >= 0, True, h, feature, linear)
        return self.built(found, region, True, flags, kappa)

    def built(
        self,
        found: dict[str, Expr],
        region: str,
        stable: bool,
        flags: tuple[bool, ...],
        kappa: Expr | None = None,
    ) -> DepthClass:
        training, nontrivial, faithful, faithful_in_training, feature, linear = flags
        return DepthClass(
            alpha=self.a,
            gamma=self.g,
            rule=self.rule,
            rate=_rate(self.a, self.g, self.rule),
            region=region,
            stable_at_init=stable,
            stable_in_training=training,
            nontrivial=nontrivial,
            faithful_at_init=faithful,
            faithful_in_training=faithful_in_training,
            feature_learning=feature,
            diversity=kappa,
            layerwise_linear=linear,
            exponents=found,
            statements=tuple(map(self.stated, statements())),
        )

    def stated(self, x: Statement) -> Statement:
        """A statement at these exponents, with z = L^(1 - 2 alpha) replaced by its limit."""
        exact = None if x.exact is None else self.at(x.exact)
        gain = self.sign(self.at(self.p.gain))
        if gain > 0:  # what grows faster than a power: its logarithm at the last layer
            return Statement(x.name, x.quantity, S.Infinity, exact, None, x.how)
        leading = x.leading
        if leading is not None:
            leading = self.at(leading.subs(z, 1) if gain == 0 else _small(leading))
        return Statement(x.name, x.quantity, self.at(x.exponent), exact, leading, x.how)


def _small(e: Expr) -> Expr:
    """The first term of an expression in a small z, z being ``L^(1 - 2 alpha)``."""
    found = e.subs(z, 0)
    if found == 0:
        found = (e.diff(z).subs(z, 0) * L ** (1 - 2 * alpha_)).expand()
    return found


def _rate(a: Expr, g: Expr, rule: str) -> Expr:
    """The power c of a learning rate ``eta L^-c`` with which updates enter h with ``L^-g``."""
    found = gamma_ - (update_power(rule) - c)
    return found.subs({alpha_: a, gamma_: g}, simultaneous=True)


def _sign(e: Expr, a: Expr, g: Expr) -> int:
    e = e.expand()
    if e.is_zero:
        return 0
    if e.is_positive:
        return 1
    if e.is_negative:
        return -1
    where = ", ".join(
        f"{n} = {v}" for n, v in (("alpha", a), ("gamma", g)) if v.free_symbols & e.free_symbols
    )
    raise NotApplicable(
        f"{where}: is {e} negative, zero or positive?  Give exact numbers, or symbols with assumptions that "
        "decide it"
    )


def _number(name: str, value: Number) -> Expr:
    wanted = "an integer, a fraction like 1/2, a decimal number, or a real SymPy expression"
    problem = f"{name} = {value!r} is no exponent: {wanted} is"
    if isinstance(value, bool):
        raise NotApplicable(problem)
    if isinstance(value, Expr):
        if (
            value.has(L)
            or value.is_finite is False
            or value.is_real is False
            or (value.is_number and not value.is_Rational)
        ):
            raise NotApplicable(problem)
        return value
    text = str(value)
    if (
        not isinstance(value, int | float | str | Fraction)
        or len(text) > DIGITS
        or not set(text) <= set("0123456789+-./ ")
    ):
        raise NotApplicable(problem)
    try:
        exact = Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise NotApplicable(problem) from None
    return Rational(exact.numerator, exact.denominator)


__all__ = ["DepthClass", "classify", "optimal"]
