"""Depth parametrizations of residual networks: branches times ``L^-alpha``, updates of size ``L^-gamma``.

Follows depth2023 section 7, for exact numbers or symbols, and includes the learning rates. Powers of L are
linear forms in alpha and gamma, or maxima of such forms. They are counted in the derived theories: that of
linear layers, and that of layers ``MS(phi(W x))`` averaged over their own source. Stability, feature learning
and other properties of a parametrization are the signs of such forms. The first step of linear layers is also
solved for every depth: its equations are first-order recursions in the layer. Responses to a source are step
functions of the layer, correlations at the start grow by a factor q per layer, and all other functions are
driven by these, so that they are polynomials in the layer times ``q^layer``. As L grows, at the layer ``tau
L`` and at fixed ``z = L (q - 1)``, closed forms tend to a power of L times a function of tau and z; z is 1 at
alpha = 1/2 and tends to 0 above it.

Conventions: width to infinity, then L, at a fixed number of steps; frozen input and output vectors; smooth
phi. gamma is that of the *effective* rate (depth2023 Def. 6.1): updates enter the preactivation ``W x`` in
the branch of a layer with the factor ``L^-gamma``.
The rate ``eta L^-c`` that a rule needs follows from the power of L with which its updates enter the derived
equation of a layer. In a network of width one the mean square of the effect of the first update has a closed
form, to first order in the learning rate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import combinations_with_replacement
from typing import TypeAlias

from sympy import (
    Abs,
    Add,
    Dummy,
    Expr,
    Heaviside,
    KroneckerDelta,
    Matrix,
    Max,
    Mul,
    Poly,
    Pow,
    Rational,
    S,
    Symbol,
    SympifyError,
    exp,
    eye,
    factor,
    factor_terms,
    factorial,
    ff,
    limit,
    log,
    oo,
    powsimp,
    sign,
    simplify,
    solve,
    sqrt,
    summation,
    symbols,
    zeros,
)
from sympy.core.function import AppliedUndef

from derive.calculus.gaussian import GaussianAverage
from derive.calculus.sums import gathered, rewritten
from derive.calculus.symbols import L, ell, exact
from derive.depth.balance import (
    alpha,
    as_expression,
    gamma,
    only,
    over_layers,
    power,
)
from derive.depth.infinite import WIDTH_FIRST
from derive.errors import NotApplicable
from derive.linear.propagators import cross_layer, k
from derive.program.entrywise import Entrywise
from derive.program.language import Product
from derive.program.parts import gaussian
from derive.program.program import Program
from derive.program.training import Outer, TrainedMatrix
from derive.scale.depth_steps import DepthExponents, Shown, StepRow, at_steps, depth_exponents, ladder
from derive.scale.rule_degrees import rule_degrees
from derive.show.conditions import ConditionalResult
from derive.theory import mean_field
from derive.theory.theory import Theory

GivenNumber: TypeAlias = int | float | str | Fraction | Expr
DIGITS = 40
"""Largest number of characters of a number that is given as text."""
RULES: Mapping[str, Callable[[Expr], Expr]] = {"sgd": lambda g: g, "sign": sign}
"""Step of a rule as a function of the gradient: itself, or the sign of every entry (Adam without memory)."""
c = Symbol("c", real=True)
"""Exponent of the learning rate ``eta L^-c``."""
x_0, chi = Symbol("x_0", real=True), Symbol("chi", real=True, nonzero=True)
"""Input, and slope of the loss at the output, at width one."""
xi = Symbol("xi", real=True)
"""The input, the same at both steps."""
chi_0 = Symbol("chi_0", real=True)
"""The slope of the loss at the start."""
tau = Symbol("tau", positive=True)
"""Relative position of a layer, between 0 and 1."""
epsilon = Symbol("epsilon", positive=True)
"""Distance between two layers in units of the depth."""
q = Symbol("q", positive=True)
"""Factor by which initial correlations grow in a layer."""
z = Symbol("z", positive=True)
"""Depth times growth of correlations in a layer, ``L (q - 1)``."""

# -- first step in closed form -------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class DepthFirstStep(Shown, ConditionalResult):
    """First step of a linear residual network, as functions of the layer ``ell`` and the exponents.

    Attributes
    ----------
    gain
        q - 1, where q is the factor by which correlations before training grow in a layer.
    start, gradient
        ``<x_0 x_0>`` of the stream and ``<dx_0 dx_0>`` of its gradient before training.
    learnt
        Factor of the gradient dx_0 in the preactivation of the second forward pass, ``h_1 = u_1 +
        learnt dx_0`` with the Gaussian source u_1.
    moved
        ``<x_1 V>``, the part of the change of the stream that all layers share; V is the readout.
    output
        ``f_1 - f_0``, which is ``moved`` after the last layer.
    """

    gain: Expr
    start: Expr
    gradient: Expr
    learnt: Expr
    moved: Expr
    output: Expr

    def conditions(self) -> tuple[str, ...]:
        """Return the derived and the assumed statements about the first training step, as sentences."""
        return (
            WIDTH_FIRST,
            "derived: the first step of linear layers for every depth; correlations grow by the fraction "
            f"{self.gain} in a layer",
        )

    def large(self, value: Expr) -> Expr:
        """Return the leading term of a value at the layer ``tau L`` for large L, at fixed ``z = L (q - 1)``.

        ``value`` is an expression in ell, L and the exponents, such as ``start``; tau, between 0 and 1, is
        the relative position of the layer. The result is a power of L times a function of tau and z. Raises
        :class:`NotApplicable` for an expression without one leading power.
        """
        e = value.subs(ell, tau * L).xreplace({self.gain: z / L})
        # for large L, (1 + z/L)^(p L + r) tends to exp(p z)
        e = e.replace(
            lambda x: isinstance(x, Pow) and x.base == 1 + z / L, lambda x: exp(z * x.exp.expand().coeff(L))
        )
        coefficients = gathered(map(power, Add.make_args(e.expand(power_exp=False))))
        largest = [p for p in coefficients if all((p - r).is_nonnegative for r in coefficients)]
        if len(largest) != 1 or coefficients[largest[0]].has(L, alpha):
            raise NotApplicable(
                f"for large L at fixed z = {L * self.gain}, the expression {value} must be a power of L "
                "times a factor without L and alpha"
            )
        return L ** largest[0] * factor(coefficients[largest[0]])


def depth_first_step(theory: Theory) -> DepthFirstStep:
    """Return the first step of linear residual layers in closed form, for every depth.

    The equations are solved as recursions in the layer. Raises :class:`NotApplicable` if they are not such
    recursions.

    >>> from derive.program import depth_program
    >>> from derive.theory import mean_field
    >>> found = depth_first_step(mean_field(depth_program(alpha=alpha, gamma=gamma)))
    >>> found.start, found.output
    (xi**2*(1 + L**(-2*alpha))**ell, -L**(-alpha - gamma + 1)*chi_0*xi**2*(1 + L**(-2*alpha))**(L - 1))
    """
    return _First(theory).result()


class _First:
    """Equations of the first training step of a linear residual network, solved as functions of the layer.

    They are solved one after the other. ``known`` has the solutions by name, with the layers ``ell`` (of the
    field) and k (of the source) as arguments.
    """

    def __init__(self, theory: Theory) -> None:
        self.net = ladder(theory)
        self.steps = at_steps(cross_layer(theory), 1)
        self.row: Callable[[str], StepRow] = self.steps.row
        self.known: dict[str, Expr] = {}
        self.gain: Expr | None = None

    def result(self) -> DepthFirstStep:
        """Return the solution of the first step: each function of the layer in closed form.

        Raises NotApplicable if the response of the stream at equal times differs between the times 0 and 1.
        """
        net, stream = self.net, self.net.up.name
        forward_response, backward_response = f"R_{stream}{net.source}", f"R_{net.down.name}{net.back}"
        self.jump(f"{forward_response}_0_0")
        self.jump(f"{backward_response}_0_0")
        self.constants()
        if self.row(f"{forward_response}_1_1").terms != self.row(f"{forward_response}_0_0").terms:
            raise NotApplicable(
                f"the response {forward_response} at equal times must obey the same equation at the times 0 "
                "and 1"
            )
        self.known[f"{forward_response}_1_1"] = self.known[f"{forward_response}_0_0"]
        start, gradient, _ = map(
            self.grown, (f"{net.correlation}_0_0", f"{net.overlap}_0_0", f"{net.correlation}_1_0")
        )
        driver = f"R_{stream}{net.back}_1_0"
        learnt = self.bracket(driver)
        change = self.summed(f"R_{stream}{net.readout}_1", driver, learnt)
        assert self.gain is not None
        gain, values = self.gain, (start, gradient, learnt, change, change.subs(ell, L))
        return DepthFirstStep(
            gain, *[powsimp(simplify(x.subs(gain, q - 1)).subs(q, 1 + gain)) for x in values]
        )

    def substituted(self, e: Expr) -> Expr:
        """Return an expression with all solved functions of the layer replaced by their closed forms."""

        def value(x: AppliedUndef) -> Expr:
            if str(x.func) == chi_0.name:
                return chi_0
            return self.known[str(x.func)].subs(dict(zip((ell, k), x.args, strict=False)), simultaneous=True)

        return rewritten(e, {*self.known, chi_0.name}, value)

    def constants(self) -> None:
        """Solve the functions that are the same at all layers, and add them to ``known``.

        These obey ``y(ell) = y(ell - 1)`` or ``y(ell) = y(ell + 1)``: all other terms of their recursion
        vanish with the solutions found so far. They equal their value at the first or last layer.
        """
        solved_before = -1
        while solved_before != len(self.known):
            solved_before = len(self.known)
            for r in self.steps.rows:
                recursion = r.name not in self.known and r.symbol.args and r.neighbour != 0
                if recursion and all(self.substituted(x) == 0 for x in r.terms):
                    boundary = next(y for y in self.steps.named(r.name) if y.neighbour == 0)
                    self.known[r.name] = self.substituted(boundary.rhs)

    def jump(self, name: str) -> None:
        """Solve the equal-time response ``name`` of the field at layer ell to a source at layer k.

        It is a constant times a step function of ``ell - k`` (of ``k - ell`` for gradients), and is added to
        ``known``.
        """
        (term,) = self.row(name).terms
        (delta,) = term.atoms(KroneckerDelta)
        up = self.row(name).symbol.args[0] == ell
        self.known[name] = term / delta * Heaviside(ell - k if up else k - ell, 1)

    def grown(self, name: str) -> Expr:
        """Solve and return the correlation ``name``, which obeys a linear recursion in the layer.

        It is ``C(ell) = c + g * (sum of C over the layers below)``, with the solution ``c q^ell``, where the
        symbol q stands for ``1 + g``; for a gradient the sum is over the layers above, and the solution is
        ``c q^(L - ell)``. The solution is added to ``known``, and g is stored as ``gain``. Raises
        NotApplicable if the recursion has another form, or if g differs from that of another correlation.
        """
        terms = [self.substituted(x) for x in self.row(name).terms]
        sums = Add(*[x / over_layers for x in terms if x.has(over_layers)])
        constant = Add(*[x for x in terms if not x.has(over_layers)])
        own_values = [a for a in sums.atoms(AppliedUndef) if str(a.func) == name]
        if len(own_values) != 1 or sums.atoms(AppliedUndef) != set(own_values) or constant.has(ell):
            raise NotApplicable(
                f"the correlation {name} must be a constant plus a multiple of the sum of the same "
                f"correlation over layers; its terms are {terms}"
            )
        gain = sums.coeff(own_values[0]).replace(Heaviside, lambda *_: S.One)
        self.gain = gain if self.gain is None else self.gain
        if gain.has(ell, k) or (gain - self.gain).expand() != 0:
            raise NotApplicable(
                "all correlations must grow per layer by the same factor 1 + g, and g must not depend on the "
                f"layer; {name} has g = {gain}, and the first correlation has g = {self.gain}"
            )
        value = constant * q ** (ell if own_values[0].args[0] == k - 1 else L - ell)
        self.known[name] = value
        return value

    def bracket(self, name: str) -> Expr:
        """Return the factor of the gradient dx in the preactivation h of a layer after the first step.

        ``name`` is the response S of the stream after the step to the sources of gradients before it. Its
        recursion ``S(ell + 1) = (1 + f) S(ell) + g(ell)`` with ``S(1) = 0`` is solved, where f and g are read
        off its equation. The result is ``S + g/f``, because S grows in a layer by f times the factor of the
        gradient. Raises NotApplicable if S depends on the layer of the source.
        """
        partial_sum, m = Dummy("S"), Dummy("m", integer=True, positive=True)
        increase = Add(*[self.substituted(x) for x in self.row(name).terms]).replace(
            Heaviside, lambda *_: S.One
        )
        increase = rewritten(increase, [name], lambda _: partial_sum)
        if increase.has(k) or increase.atoms(AppliedUndef):
            raise NotApplicable(
                f"the increase of {name} from layer to layer must not contain an unsolved function, and must "
                f"not depend on the layer {k} of the source; the increase is {increase}, where {partial_sum} "
                f"is {name}"
            )
        rate, source_term = increase.coeff(partial_sum), increase.subs(partial_sum, 0)
        growth = q if (rate - self.gain).expand() == 0 else 1 + rate
        summand = powsimp((source_term.subs(ell, m) * growth ** (-m)).expand())
        value = growth ** (ell - 1) * simplify(summation(summand, (m, 1, ell - 1)))
        return simplify(value + source_term / rate)

    def summed(self, name: str, driver: str, bracket: Expr) -> Expr:
        """Return the response ``name``, such as of the stream to the readout, as a function of the layer.

        It is a sum over the layers up to ell. Its summand is ``bracket``, the result of :meth:`bracket` for
        the response ``driver``, times the coefficient of ``driver`` in the equation of ``name``.
        """
        terms = [self.substituted(x) for x in self.row(name).terms]
        (factor_,) = [x.coeff(a) for x in terms for a in x.atoms(AppliedUndef) if str(a.func) == driver]
        m = Dummy("m", integer=True)
        return simplify(summation(powsimp((bracket * factor_).expand().subs(ell, m)), (m, 1, ell)))


# -- statements ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Statement(Shown):
    """Statement about the size of one quantity of a residual network.

    Attributes
    ----------
    name, quantity
        Name of the quantity, and its formula in LaTeX, which is a mean square in some statements.
    exponent
        Power of L of the root mean square of the quantity.
    exact
        Value of the formula, or of a part of it that no other part can cancel, in the first step of a linear
        network of any depth. None if only the power is known.
    leading
        Leading term of ``exact`` for large L and ``alpha >= 1/2``. It contains the symbol ``z = L^(1 - 2
        alpha)``; a :class:`DepthClass` has the value of z for its alpha instead. None if only the power is
        known, or if ``alpha < 1/2``.
    how
        Justification as a sentence.
    """

    name: str
    quantity: str
    exponent: Expr
    exact: Expr | None
    leading: Expr | None
    how: str


def order_in(e: Expr, small: Symbol) -> int:
    """Return the lowest power of a small symbol in the series expansion of an expression.

    >>> order_in(exp(epsilon) - 1 - epsilon, epsilon)
    2
    """
    return int(e.leadterm(small)[1])


def statements(p: DepthExponents, first: DepthFirstStep) -> tuple[Statement, ...]:
    """Return eight statements about the sizes of quantities of a residual network.

    They are about the stream at the start, the output, the changes of the stream, the preactivation and the
    features, the random and the shared difference of layers, and the error of a linearisation. Each has the
    power of L from ``p`` (0 for the stream at the start), and the value in the first step of a linear network
    from ``first``. The value is None for features and for the linearisation, of which only the power is
    known.
    """
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
            f"{square}; a layer adds the fraction {first.gain} of its input, {powsimp(L * first.gain)} in "
            "all layers",
        ),
        ("output", "f_1 - f_0", p.output, first.output, power),
        (
            "stream",
            r"\langle (x_1^{\tau L} - x_0^{\tau L}) V\rangle",
            p.stream,
            first.moved,
            f"{power}; its square is a part of <(x_1 - x_0)^2>, whose other parts are squares as well",
        ),
        (
            "preactivation",
            r"h_1^{\tau L} - u_1^{\tau L} = (\cdot)\,\delta x_0^{\tau L}",
            p.bracket,
            first.learnt,
            f"{power}; independent of u_1, so that <h_1^2> is the sum of the squares of both",
        ),
        (
            "features",
            r"h_1^{\tau L} - h_0^{\tau L}",
            p.feature,
            None,
            "the larger of its two independent parts: the change of the stream, and the factor of the "
            "gradient",
        ),
        (
            "diversity, noise",
            r"\langle (x_0^{(\tau + \epsilon) L} - x_0^{\tau L})^2\rangle",
            p.noise,
            window,
            f"{square}; variances of independent layers add up, so that the root is proportional to "
            f"{sqrt(near[0])}",
        ),
        (
            "diversity, drift",
            r"\langle (x_1^{(\tau + \epsilon) L} - x_1^{\tau L}) V\rangle",
            p.drift,
            drift,
            f"{power}; all layers contribute with the same sign, so that it is proportional to {near[1]}",
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


# -- classification ------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class DepthClass(Shown, ConditionalResult):
    """Classification of one pair (alpha, gamma); names as in depth2023, Def. 7.2-7.7.

    Attributes
    ----------
    alpha, gamma
        Exponents: branches are multiplied by ``L^-alpha``, and updates enter the preactivation h of a layer
        with ``L^-gamma``.
    rule, rate
        Training rule, whose learning rate is ``eta L^-rate``.
    region
        Name of the regime: ``depth-muP``, ``redundant``, ``unfaithful``, ``trivial``, ``unstable in
        training`` or ``unstable at initialisation``.
    stable_at_init
        The stream stays bounded for large L before training.
    nontrivial
        The change of the output does not vanish for large L.
    faithful_at_init
        h is of order one before training.
    feature_learning
        The change of h is of order one.
    layerwise_linear
        Every layer may be linearised in the change of its weights for large L.
    stable_in_training
        Changes of the stream and the output stay bounded (Claim 7.2). Def. 7.2 also requires this for h.
    faithful_in_training
        h is of order one after a step of training.
    diversity
        kappa: layers at a relative distance epsilon differ by ``epsilon^(1 - kappa)`` after a step of
        training. None if the difference vanishes or grows with L, or if the output grows with L.
    exponents
        Powers of L of root mean squares by name; infinite for ``alpha < 1/2``, where they grow faster than
        powers.
    statements
        Statements about each quantity.
    basis
        Sentences of :meth:`conditions`.
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
    basis: tuple[str, ...]

    def conditions(self) -> tuple[str, ...]:
        """Return the derived and the assumed statements about the class, as sentences."""
        return self.basis

    @property
    def redundant(self) -> bool:
        """Whether close layers have nearly the same features: ``diversity``, the exponent kappa, is zero.

        False if ``diversity`` is None.
        """
        return self.diversity == 0

    def as_json(self) -> dict[str, object]:
        """Return the classification as a dictionary that can be written as JSON.

        Expressions are strings as SymPy prints them. The region is under ``regime``, and ``learning_rate`` is
        the power ``L^-rate`` itself. None stays None, in ``diversity`` and in values that a statement lacks.
        """
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
            "conditions": list(self.conditions()),
            "statements": [
                {n: None if v is None else str(v) for n, v in vars(x).items()} for x in self.statements
            ],
        }


class DepthParametrization:
    """Powers of L of a residual network with branches times ``L^-alpha``, updates ``L^-gamma``.

    ``theory`` is that of linear layers, with the symbols alpha and gamma of :mod:`derive.depth.balance`.
    Exponents and the first step are derived when needed.

    >>> from derive.program import depth_program
    >>> found = DepthParametrization(mean_field(depth_program(alpha=alpha, gamma=gamma)))
    >>> best = found.classify("1/2", "1/2")
    >>> best.region, best.diversity, best.feature_learning, best.rate, best.exponents["output"]
    ('depth-muP', 1/2, True, 0, 0)
    """

    def __init__(self, theory: Theory) -> None:
        self.theory = theory

    def update_power(self, rule: str | Entrywise = "sgd") -> Expr:
        """Return the exponent gamma with which updates by a rule enter the preactivation h of a layer.

        Updates enter with ``L^-gamma`` at the depth L. ``rule`` is a name such as ``sgd``, or an entrywise
        rule; its learning rate is ``eta L^-c``, and gamma is a function of c and of the exponent alpha of the
        branches.
        """
        return update_power(self.theory.program, rule)

    @cached_property
    def exponents(self) -> DepthExponents:
        """Powers of L of the output, the stream, features and other quantities, in alpha and gamma.

        L is the depth; branches are multiplied by ``L^-alpha``, and updates enter a layer with ``L^-gamma``.
        """
        return depth_exponents(self.theory)

    @cached_property
    def first_step(self) -> DepthFirstStep:
        """First training step of the linear residual network in closed form, for every depth L.

        It has the exponents alpha of branches and gamma of updates as symbols.
        """
        return depth_first_step(self.theory)

    @cached_property
    def statements(self) -> tuple[Statement, ...]:
        """Statements about the size of output, stream and features, with alpha and gamma as symbols.

        alpha is the exponent of branches ``L^-alpha``, and gamma that of updates ``L^-gamma``.
        """
        _require_exponents(self.theory.program)
        return statements(self.exponents, self.first_step)

    def classify(self, alpha: GivenNumber, gamma: GivenNumber, rule: str = "sgd") -> DepthClass:
        """Return the class of a network with branches times ``L^-alpha`` and updates of size ``L^-gamma``.

        ``rule`` is ``sgd`` or ``sign``; it decides the learning rate ``eta L^-rate`` that gives these
        updates, and nothing else. Numbers are taken exactly (``"1/3"``, ``0.1`` is one tenth); symbols need
        assumptions that decide every sign, like ``1/2 + Symbol("e", positive=True)``. Raises
        :class:`NotApplicable` for anything else; the message has the value and the accepted forms. The
        program must have the exponents alpha and gamma as symbols.
        """
        _check(rule)
        _require_exponents(self.theory.program)
        p, point = self.exponents, _Point(_number("alpha", alpha), _number("gamma", gamma))
        gain = point.sign(p.gain)
        names = ("output", "stream", "bracket", "preactivation", "feature", "noise", "drift", "linearisation")
        # If the exponent p.gain is positive, the variance of the stream (in nonlinear networks, of its
        # gradient) before training grows like exp(L^p.gain), faster than every power of L. Infinity then
        # stands for the exponents in `names`.
        exponents = {n: point.at(getattr(p, n)) if gain <= 0 else S.Infinity for n in names}
        size = {n: point.sign(getattr(p, n)) if gain <= 0 else 1 for n in names}
        kappa: Expr | None = None
        if size["output"] <= 0 and 0 in (size["noise"], size["drift"]):
            kappa = self.kappas[0 if size["noise"] == 0 else 1]
        region = "depth-muP" if kappa else "redundant"
        if size["preactivation"] != 0:
            region = "unfaithful"
        if size["output"] != 0:
            region = "unstable in training" if size["output"] > 0 else "trivial"

        def leading(e: Expr) -> Expr:
            """Return the value for large L of an expression in ``z = L (q - 1)``.

            z is the growth of the stream's variance by all layers; it is 1 at alpha = 1/2 and 0 above it.
            Above alpha = 1/2, an expression that vanishes at z = 0 is replaced by its term linear in z, with
            z in terms of L and alpha.
            """
            limit_value = e.subs(z, 1 if gain == 0 else 0)
            if gain == 0 or limit_value != 0:
                return limit_value
            return (e.diff(z).subs(z, 0) * L * self.first_step.gain).expand()

        def stated(x: Statement) -> Statement:
            """Return a statement with the given alpha and gamma substituted in its exponent and formulas.

            For ``alpha < 1/2`` the exponent is infinite and ``leading`` is None.
            """
            value = None if x.exact is None else point.at(x.exact)
            if gain > 0:
                return replace(x, exponent=S.Infinity, exact=value, leading=None)
            top = None if x.leading is None else point.at(leading(x.leading))
            return replace(x, exponent=point.at(x.exponent), exact=value, leading=top)

        return DepthClass(
            alpha=point.alpha,
            gamma=point.gamma,
            rule=rule,
            rate=point.at(self.rate(rule)),
            region=region if gain <= 0 else "unstable at initialisation",
            stable_at_init=gain <= 0,
            stable_in_training=size["output"] <= 0,
            nontrivial=size["output"] >= 0,
            faithful_at_init=gain <= 0,
            faithful_in_training=size["preactivation"] == 0,
            feature_learning=size["feature"] == 0,
            diversity=kappa,
            # `linearisation` is the power of L of the error of the linearisation, summed over all layers; the
            # linearisation is exact for large L if the power is negative
            layerwise_linear=size["linearisation"] < 0,
            exponents=exponents,
            statements=tuple(map(stated, self.statements)),
            basis=tuple(dict.fromkeys((*p.conditions(), *self.first_step.conditions()))),
        )

    def rate(self, rule: str | Entrywise = "sgd") -> Expr:
        """Return the exponent c of the learning rate ``eta L^-c`` that gives updates of size ``L^-gamma``.

        L is the depth, ``rule`` the training rule, and gamma the exponent with which updates enter h of a
        layer.
        """
        (exponent,) = solve(self.update_power(rule) - gamma, c)
        return exponent

    def largest_rate(self, rule: str | Entrywise = "sgd") -> Expr:
        """Return the exponent c of the largest learning rate ``eta L^-c`` at which outputs stay of order one.

        L is the depth, and ``rule`` the training rule. The result holds for branches ``L^-alpha`` with alpha
        >= 1/2.
        """
        (exponent,) = solve(self.exponents.output.subs(gamma, self.update_power(rule)), c)
        return exponent

    @cached_property
    def kappas(self) -> tuple[Expr, Expr]:
        """Exponents kappa of the difference of the stream between close layers: (random part, shared part).

        The root mean square of a part is proportional to ``epsilon^(1 - kappa)`` for layers at the relative
        distance epsilon. The random part is that before training, a sum over independent layers; the shared
        part is the change in the first step, which has the same sign in all layers.
        """
        near = [x.leading for x in self.statements if x.leading is not None and x.leading.has(epsilon)]
        noise, drift = (order_in(x, epsilon) for x in near)
        return 1 - Rational(noise, 2), 1 - Rational(drift)


@dataclass(frozen=True)
class _Point:
    """Values of alpha and gamma, the exponents of branches ``L^-alpha`` and of updates ``L^-gamma``.

    Expressions in both are evaluated at these values.
    """

    alpha: Expr
    gamma: Expr

    def at(self, e: Expr) -> Expr:
        """Return an expression in the exponents alpha and gamma at the values of this point."""
        return e.xreplace({alpha: self.alpha, gamma: self.gamma})

    def sign(self, e: Expr) -> int:
        """Return the sign -1, 0 or 1 of an exponent of L at the point's values of alpha and gamma.

        The sign of a maximum is the largest sign of its arguments. Raises NotApplicable for an undecided
        sign.
        """
        e = self.at(e).expand()
        if isinstance(e, Max):
            return max(self.sign(x) for x in e.args)
        if e.is_zero or e.is_positive or e.is_negative:
            return int(bool(e.is_positive)) - int(bool(e.is_negative))
        where = ", ".join(f"{n} = {v}" for n, v in vars(self).items() if v.free_symbols & e.free_symbols)
        raise NotApplicable(
            f"the powers of the depth depend on the sign of {e} ({where}), which is not known: give exact "
            "numbers, or symbols with assumptions that decide it"
        )


def _number(name: str, value: GivenNumber) -> Expr:
    """Return the exponent ``name`` as a rational number, or as a real expression in symbols other than L.

    Raises NotApplicable for any other value.
    """
    try:
        text = str(value)
        plain = len(text) <= DIGITS and set(text) <= set("0123456789+-./ ")
        if isinstance(value, bool) or not (plain or isinstance(value, Expr | float)):
            raise ValueError
        exponent = exact(name, value)
        if exponent.has(L) or exponent.is_real is False or (exponent.is_number and not exponent.is_Rational):
            raise ValueError
        return exponent
    except (ValueError, TypeError, SympifyError):
        wanted = (
            f"a rational number of at most {DIGITS} characters, the digits and + - . /, such as 2, 1/2 or "
            f"0.5, or a real SymPy expression with symbols other than {L}"
        )
        raise NotApplicable(f"{name} = {value!r}: an exponent must be {wanted}") from None


# -- learning rates ------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def update_power(program: Program, rule: str | Entrywise = "sgd") -> Expr:
    """Return the exponent gamma of a rule with rate ``eta L^-c``.

    Updates by the rule enter the preactivation ``W x`` in the branch of a layer with the factor ``L^-gamma``.
    gamma is read off the theory of ``program``, a network of linear residual layers, trained by the rule with
    the rate ``L^-c`` in place of its own rate, in which the exponent gamma must be a symbol. The gradient of
    a weight contains the factor ``L^-alpha`` of its branch: gradient descent keeps it, the sign removes it,
    and an entrywise rule raises it to the degree of the rule. Raises :class:`NotApplicable` for another rule
    or program.

    >>> from derive.program import depth_program
    >>> program = depth_program(alpha=alpha, gamma=gamma)
    >>> update_power(program, "sgd"), update_power(program, "sign")
    (alpha + c, c)
    >>> from derive.program import lion
    >>> update_power(program, lion(Symbol("eta")))
    c
    """
    theory = mean_field(trained_by(program, rule))
    name = _residual(program)[0]
    (memory,) = [x for x in theory.equation(name, ell).terms if x.kind == "memory"]
    return -power(memory.kernel)[0]


def trained_by(program: Program, rule: str | Entrywise) -> Program:
    """Return a linear residual network trained by a rule with learning rate ``L^-c``.

    The learning rate of ``program`` must contain ``L^-gamma`` with the symbol gamma, which is replaced by c;
    its other factors stay. ``sgd`` and ``sign`` are exact. For an :class:`Entrywise` rule only the power of L
    is correct: its step is replaced by the gradient itself, an outer product, with the power of L that the
    step of the rule has. Raises NotApplicable for another rule or program.

    >>> from derive.program import depth_program
    >>> (W,) = trained_by(depth_program(alpha=alpha, gamma=gamma), "sign").matrices
    >>> W.update.coefficient, W.update.left
    (-1/L**c, sign(dx(ell, t)))
    """
    _check(rule)
    factor_ = _residual(program)[1]
    W, update = _outer_update(program)
    _require_symbol(gamma, f"factor of the update of {W.name}", update.coefficient)
    rate = W.update.coefficient.subs(gamma, c)
    if isinstance(rule, Entrywise):
        update = replace(W.update, coefficient=rate * factor_ ** rule_degrees(rule).degree)
        return replace(program, matrices=(replace(W, update=update),), descent=None)
    # For one sample the gradient is a multiple of an outer product, c a b^T. Its sign, entry by entry, is
    # sign(c) sign(a) sign(b)^T, so that `step`, the identity or the sign, is applied to c, a and b.
    step = RULES[rule]
    update = replace(
        W.update, coefficient=rate * step(factor_), left=step(W.update.left), right=step(W.update.right)
    )
    return replace(program, matrices=(replace(W, update=update),), descent=None)


def _outer_update(program: Program) -> tuple[TrainedMatrix, Outer]:
    """Return the trained matrix of a program and its update, an outer product of fields.

    Raises NotApplicable if it is trained otherwise, or if the program has several matrices or none.
    """
    if len(program.matrices) != 1:
        raise NotApplicable(
            f"the power of an update is derived for one matrix of all layers, and the program has "
            f"{', '.join(str(gaussian(m).name) for m in program.matrices) or 'none'}"
        )
    (W,) = program.matrices
    if not isinstance(W, TrainedMatrix) or not isinstance(W.update, Outer):
        raise NotApplicable(f"the matrix {W.name} must be trained by outer products of fields")
    return W, W.update


def _require_symbol(symbol: Symbol, what: str, e: Expr) -> None:
    """Raise NotApplicable unless ``e`` contains the symbol, alpha or gamma, of an exponent.

    ``e`` is a factor of a program, such as that of the branches, and ``what`` is its name in the message.
    """
    if not e.has(symbol):
        raise NotApplicable(
            f"the {what} is {e}, without the symbol {symbol}: give a program with symbols as exponents, such "
            "as depth_program(alpha=alpha, gamma=gamma) with alpha and gamma of derive.depth.balance"
        )


def _require_exponents(program: Program) -> None:
    """Raise NotApplicable unless the branches and the learning rate have the exponents alpha and gamma."""
    _require_symbol(alpha, "factor of the branches", branch_factor(program))
    W, update = _outer_update(program)
    _require_symbol(gamma, f"factor of the update of {W.name}", update.coefficient)


def branch_factor(program: Program) -> Expr:
    """Return the factor of the branches of a residual network, such as ``L^-alpha``.

    Raises NotApplicable if no definition at the layer ell is a sum with a matrix product in a term.

    >>> from derive.program import depth_program
    >>> branch_factor(depth_program(alpha=alpha, gamma=gamma))
    L**(-alpha)
    """
    return _residual(program)[1]


def _residual(program: Program) -> tuple[str, Expr]:
    """Return (name of the field x, factor c) of the residual layer ``x(ell) = x(ell-1) + c W(ell) x(ell-1)``.

    It is the first definition at the layer ell that is a sum with a term of one matrix product; other terms
    are not compared. Raises NotApplicable if the program has no such definition.
    """
    for d in program.definitions:
        for x in Add.make_args(d.rhs):
            products = [y for y in Mul.make_args(x) if isinstance(y, Product)]
            if d.lhs.args and d.lhs.args[0] == ell and len(products) == 1 and len(Add.make_args(d.rhs)) > 1:
                return str(d.lhs.func), x / products[0]
    raise NotApplicable(
        "the program has no residual layer of the form x(ell) = x(ell - 1) + c * (W(ell) @ x(ell - 1))"
    )


def _check(rule: str | Entrywise) -> None:
    """Raise NotApplicable for a rule that is neither entrywise nor a name in ``RULES``."""
    if not isinstance(rule, Entrywise) and rule not in RULES:
        raise NotApplicable(
            f"rule = {rule!r} is not known: the names of rules are {' and '.join(map(repr, RULES))}"
        )


@dataclass(frozen=True, repr=False)
class FirstUpdate(Shown, ConditionalResult):
    """First step at width one and rate eta: ``x_1^L = x_0^L - eta L^-alpha A_L + O(eta^2)``.

    x_0^L and x_1^L are the stream after the last layer before and after the step, and A_L sums the effects of
    the updates of all layers. E is the average over the initial weights.

    Attributes
    ----------
    rule
        Name of the training rule.
    square
        ``E A_L^2`` for every L.
    leading
        Leading term of ``square`` for large L and alpha > 1/2.
    at_half
        Factor by which ``leading`` must be multiplied at alpha = 1/2.
    rate
        The exponent c for which the learning rate ``eta L^-c`` changes the stream by order one.
    """

    rule: str
    square: Expr
    leading: Expr
    at_half: Expr
    rate: Expr

    def conditions(self) -> tuple[str, ...]:
        """Return the derived and the assumed statements about the first update, as sentences."""
        return (
            f"assumed: width one, one step of the rule {self.rule}, to first order in the learning rate",
            "assumed: the slope chi of the loss is fixed",
            "derived: the average over independent normal weights, for every depth",
            f"derived: the leading power of the depth for alpha > 1/2, times {self.at_half} at alpha = 1/2",
        )


def first_update(program: Program, rule: str | Entrywise = "sgd") -> FirstUpdate:
    """Return the first step at width one, with ``E A_L^2`` at fixed slope chi of the loss.

    A_L is defined in :class:`FirstUpdate`. At width one the definitions and the update of ``program`` are
    equations between numbers: ``x(ell) = y x(ell - 1)`` and ``dx(ell - 1) = y dx(ell)`` with a factor y that
    is random and independent in each layer. A further layer multiplies the effect of the updates below it by
    y, because the stream passes it, and by ``rule(y)``, because their gradients pass it; ``y rule(y) =
    |y|^p``, where p is one more than the degree of the rule. It adds the effect of its own update, a multiple
    of ``P = x rule(x)``, which also grows by ``|y|^p``. So ``(P, A)`` is multiplied in each layer by a random
    triangular matrix, and ``(E P^2, E P A, E A^2)`` by the matrix of its second moments. ``rule`` is ``sgd``
    or ``sign``. Raises :class:`NotApplicable` for another rule or program, also for exponents that are
    numbers instead of alpha and gamma.

    >>> from derive.program import depth_program
    >>> program = depth_program(alpha=alpha, gamma=gamma)
    >>> found = first_update(program, "sgd")
    >>> found.leading, found.at_half, found.rate
    (L**(2 - 2*alpha)*chi**2*x_0**4, exp(6), 1 - 2*alpha)
    >>> signs = first_update(program, "sign")
    >>> signs.leading, signs.at_half, signs.rate
    (L**2*x_0**2, E, 1 - alpha)
    """
    _check(rule)
    if isinstance(rule, Entrywise):
        raise NotApplicable(
            f"rule = {rule.name}: the first update at width one is derived for the rules "
            f"{' and '.join(map(repr, RULES))} only"
        )
    _require_exponents(program)
    factor_, step_function = _residual(program)[1], RULES[rule]
    y, change = _width_one(program, rule)
    degree = 1 + int(log(step_function(S(2)) / step_function(S.One), 2))
    layer = Matrix([[layer_factor, 0], [layer_increase, layer_factor]])
    moment_step, power_of_factor = _second_moments(layer)
    moments = {m: _moment(degree * n, y) for n, m in power_of_factor.items()}
    start = Matrix([x_0 ** (2 * degree) * step_function(S.One) ** 2, 0, 0])
    square = factor_terms((_repeated(moment_step, L) * start)[2]).subs(
        layer_increase, powsimp(change / (factor_ * L**-c))
    )
    # `moments` are averages of powers of the factor of one layer. `square` contains them with exponents that
    # grow like L. These powers of `moments` tend to one as L grows, for alpha > 1/2.
    leading = powsimp(square.subs(dict.fromkeys(moments, 1)).expand())
    growth = moments[power_of_factor[2]]
    at_half = exp(limit((L * (growth - 1)).subs(alpha, Rational(1, 2)).expand(), L, oo))
    size = power(leading.subs({chi: 1, x_0: 1}))[0] / 2
    (rate,) = solve(as_expression(only(power(factor_)[0])) - c + size, c)
    return FirstUpdate(rule, square.subs(moments), leading, at_half, rate)


weight = Dummy("W", real=True)
"""The matrix of a layer at width one."""
layer_factor, layer_increase = Dummy("own", positive=True), Dummy("added", real=True)
"""The factor by which a layer multiplies P and A, and the multiple of P that it adds to A."""


def _width_one(program: Program, rule: str) -> tuple[Expr, Expr]:
    """Return the factor y of a layer at width one, and the change of x(ell) over ``x rule(x)``.

    The change is that by the update of the layer ell itself, at the learning rate ``L^-c``, and x is the
    stream below the layer. The slope of the loss at x(ell) is chi. The rule must be odd and homogeneous, so
    that ``y rule(y)`` is a power of ``|y|``. NotApplicable is raised if its values at 1 and -1 are not
    opposite, if initial weights do not have the variance 1, or if the stream and its gradient do not each
    have one product with the matrix and the same factor y.
    """
    step, (W,) = RULES[rule], trained_by(program, rule).matrices
    if step(-S.One) != -step(S.One) or gaussian(W).variance != 1:
        raise NotApplicable(
            f"rule = {rule!r} must be odd in the gradient, and the initial entries of {W.name} must have the "
            f"variance 1; their variance is {gaussian(W).variance}"
        )
    update = _outer_update(trained_by(program, rule))[1]
    lines = [(d.rhs, m) for d in program.definitions for m in d.rhs.atoms(Product)]
    numbers = {m.transposed: (e.xreplace({m: weight * m.vector}), m.vector) for e, m in lines}
    (above, x), (below, dx) = numbers[False], numbers[True]
    y = (above / x).expand()
    if len(lines) != 2 or y.atoms(AppliedUndef) or (below / dx - y).expand() != 0:
        raise NotApplicable(
            "the equations of the stream and of its gradient must each contain one product with the matrix "
            f"{W.name}, and at width one a layer must multiply the stream and the gradient by the same number"
        )
    at = {x: Dummy("x", positive=True), dx: chi}
    change = above.diff(weight) * update.coefficient * update.left * update.right
    return y, simplify((change / (x * step(x))).xreplace(at))


def _second_moments(step: Matrix) -> tuple[Matrix, dict[int, Dummy]]:
    """Return the matrix of second moments of a random linear map of (P, A), and symbols for averages in it.

    ``step`` is the 2x2 matrix that multiplies ``(P, A)`` in a layer; its entries are polynomials of the
    random number a = ``layer_factor``. The returned 3x3 matrix multiplies ``(E P^2, E P A, E A^2)``. The
    dictionary has, by n = 1 and 2, the symbol ``m_n`` for ``E a^n``.
    """
    names = symbols("P A", cls=Dummy)
    pairs = list(combinations_with_replacement(range(2), 2))
    after = step * Matrix(names)
    moments = {n: Dummy(f"m_{n}", positive=True) for n in (1, 2)}

    def averaged(e: Expr) -> Expr:
        """Return a polynomial in ``layer_factor``, the random number a, with ``m_n`` in place of ``a^n``."""
        return Add(*[k * moments.get(n, S.One) for (n,), k in Poly(e, layer_factor).terms()])

    grown = [Poly(after[i] * after[j], *names) for i, j in pairs]
    products = [names[i] * names[j] for i, j in pairs]
    return Matrix([[averaged(e.coeff_monomial(m)) for m in products] for e in grown]), moments


def _repeated(step: Matrix, count: Expr) -> Matrix:
    """Return ``step**count`` of a triangular matrix with equal diagonal entries, as a binomial sum.

    ``count`` may be a symbol. Raises NotApplicable for another matrix.
    """
    size, number = step.shape[0], step[0, 0]
    nilpotent = step - number * eye(size)
    if nilpotent**size != zeros(size, size):
        raise NotApplicable(
            f"all eigenvalues of the matrix {step}, by which a layer multiplies second moments at width one, "
            f"must be equal to its first entry {number}"
        )
    terms = [ff(count, j) / factorial(j) * number ** (count - j) * nilpotent**j for j in range(size)]
    return sum(terms, zeros(size, size))


def _moment(p: int, y: Expr) -> Expr:
    """Return ``E |y|^p``, where the factor y of a layer is linear in its standard normal weight."""
    a, slope = Dummy("a", positive=True), y.coeff(weight, 1)
    value = Abs(y.coeff(weight, 0) + a * weight) ** p
    return GaussianAverage(value, {(weight, weight): S.One}).doit().subs(a, slope)
