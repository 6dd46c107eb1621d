"""The largest learning rate that a deep linear network bears, rich and lazy (linear2025 appendix B, eq. 70).

Rich: the power comes from the dominant balance of the theory, the number in front from the end of training,
where aligned weights of rank one have the sharpness that every other minimum has at least.  If every weight
is one number times the outer product of two directions that neighbours share, it stays so under the
program's updates, at any width: a matrix of rank one that acts on its own direction, with updates along it,
is a number.  The definitions and updates of the program become equations between numbers, from which the
minimum, its sharpness and the rate that it bears are read.

Lazy: the kernel does not move, and the law of its eigenvalues follows from the responses
(:mod:`derive.scale.lazy`); its first two moments are those of the first step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sympy import (
    Eq,
    Expr,
    Function,
    Integer,
    Mul,
    Poly,
    S,
    Sum,
    Symbol,
    cancel,
    exp,
    expand_log,
    factor,
    limit,
    log,
    oo,
    powdenest,
    powsimp,
    simplify,
    solve,
    sqrt,
)
from sympy import Product as Repeated
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import ell, eta, t
from derive.errors import NotApplicable
from derive.program.networks.random_data import nu
from derive.program.program import Program, gaussian, parameter, used_once
from derive.program.training import TrainedMatrix, TrainedVector
from derive.program.words import Product
from derive.scale.balance import dominant_balance
from derive.scale.first_steps import first_step
from derive.show.latex import aligned_latex
from derive.theory import Theory, mean_field

REGIMES = ("rich", "lazy")

RICH = (
    "derived: at this rate updates balance every field; what the random start gives is smaller, term by term",
    "derived: aligned weights of rank one stay so, and s^2/strength of any two weights keep their distance",
    "derived: of all aligned networks that have learnt the target the balanced one has the least sharpness",
    "assumed: training ends aligned and balanced, the more so the smaller `neglected` is",
    "assumed: there are steps enough to leave the start, where the loss rests longer for larger gamma0",
)
LAZY = (
    "derived: as gamma0 -> 0 the error follows a kernel that does not move; its first two moments",
    "assumed: eigenvalues of the kernel of wide layers form a semicircle (it has their mean and variance)",
    "assumed: gamma0 -> 0 before the number of steps grows, so that no catapult moves the kernel",
)


@dataclass(frozen=True)
class LargestRate:
    """The largest learning rate, ``prefactor * nu**exponent`` to leading order.

    ``rate`` may hold more: of lazy networks also the first correction of limited width.  ``neglected`` is the
    size of what was left out, beside one.  ``crossover`` is the width nu at which the leading orders of rich
    and lazy training meet; None where they do not depend on it.
    """

    regime: str
    rate: Expr
    exponent: Expr
    prefactor: Expr
    neglected: Expr
    crossover: Expr | None

    def conditions(self) -> tuple[str, ...]:
        """What the rate rests on, in words, and of each whether it is derived or assumed."""
        return RICH if self.regime == "rich" else LAZY

    def _repr_latex_(self) -> str:
        return aligned_latex([Eq(eta, self.rate, evaluate=False)])


def largest_rate(source: Theory | Program, regime: str = "rich") -> LargestRate:
    """The largest learning rate of a deep linear network on the loss of the population, in closed form.

    ``regime`` is ``"rich"`` (gamma0 -> oo) or ``"lazy"`` (gamma0 -> 0, wide layers; for other widths see
    :func:`.lazy_kernel`).  The rate is the one above which nothing that has learnt the target is stable; the
    power of nu is the same for any criterion that does not look at the start, as gamma0 and nu drop out of
    the balanced equations.  Raises :class:`NotApplicable` for what the two reductions refuse, and ValueError
    for another regime.

    >>> from derive.program import isotropic
    >>> ntk = isotropic(data="population", center=True, parametrization="ntk")
    >>> found = largest_rate(ntk)
    >>> found.exponent, found.prefactor, found.crossover
    (L/(L + 1), 2/(gamma0**(2*L/(L + 1))*(L + 1)), gamma0**2)
    >>> largest_rate(ntk, "lazy").prefactor
    2/(L + 1)
    """
    if regime not in REGIMES:
        raise ValueError(f"regime = {regime!r}: must be one of {', '.join(REGIMES)}")
    theory = source if isinstance(source, Theory) else mean_field(source)
    rich, lazy = _rich(theory), _lazy(theory)
    rate, neglected = rich if regime == "rich" else lazy
    wide = simplify(limit(lazy[0], nu, oo))
    leading = rich[0] if regime == "rich" else wide
    power = _power(leading, nu)
    return LargestRate(
        regime=regime,
        rate=rate,
        exponent=power,
        prefactor=_plain(leading / nu**power),
        neglected=neglected,
        crossover=_meeting(rich[0], wide),
    )


def _rich(theory: Theory) -> tuple[Expr, Expr]:
    end, balance = aligned(theory.program), dominant_balance(theory)
    rest = _plain(end.rate / balance.rate)
    if any(_power(rest, x) != 0 for x in balance.rate.free_symbols - theory.program.depth.free_symbols):
        raise NotApplicable(f"the balance gives the rate {balance.rate}, the end of training {end.rate}")
    return rest * balance.rate, balance.neglected


def _lazy(theory: Theory) -> tuple[Expr, Expr]:
    """Two over the end of a semicircle with the moments of the kernel; the sizes of its two parts."""
    step = first_step(theory)
    if step.degree != 2:
        raise NotApplicable("the first step of a network that is not centred is not its kernel alone")
    growth = Poly(step.growth_factor, eta)
    mean, square = -growth.nth(1) / 2, growth.nth(2)
    spread = factor(square - mean**2)
    return 2 / (factor(mean) + 2 * sqrt(spread)), sqrt(spread) / mean


def _plain(e: Expr) -> Expr:
    """A product of powers of positive numbers, each base once."""
    return simplify(powsimp(powdenest(e, force=True), force=True))


def _power(e: Expr, x: Symbol) -> Expr:
    """The power of ``x`` in a product of powers."""
    return simplify(expand_log(log(e), force=True).diff(x) * x)


def _meeting(one: Expr, other: Expr) -> Expr | None:
    """The width at which two products of powers are equal."""
    power = _power(one / other, nu)
    if power == 0:
        return None
    (at,) = solve(expand_log(log(one / other), force=True), log(nu))
    return _plain(exp(at))


# -- aligned weights ----------------------------------------------------------------------------------------

size = Symbol("S", positive=True)
"""The square of every weight over its strength, in a balanced network."""


@dataclass(frozen=True)
class Aligned:
    """A deep linear network with aligned weights of rank one, ``s_M`` their singular values.

    Under small steps ``s_M ds_M/dt = strengths[M] xi v``, so that ``s_M^2/strengths[M]`` of any two weights
    differ by a constant: in a balanced network they are all ``size``.  ``output`` is what the network has
    learnt then, as a function of ``size``; ``end`` the size at which that is the target.  There an error
    decays at ``sharpness`` times the learning rate in a step.
    """

    program: Program
    strengths: Mapping[str, Expr]
    output: Expr
    end: Expr
    sharpness: Expr

    @property
    def rate(self) -> Expr:
        """The rate above which the step overshoots by more than the error: ``|1 - rate sharpness| = 1``.

        No other aligned network that has learnt the target bears a larger one.  The sharpness is the sum of
        ``strengths[M]/s_M^2``, whose product the target fixes: it is smallest where all are equal.
        """
        return 2 / self.sharpness

    def _repr_latex_(self) -> str:
        return aligned_latex([Eq(size, self.end, evaluate=False), Eq(eta, self.rate, evaluate=False)])


def aligned(program: Program) -> Aligned:
    """The rank-one reduction of a deep linear network on the population's loss; its depth may be ``L``.

    Raises :class:`NotApplicable` for data of finitely many samples, several outputs, a branch, layers of
    different widths, and weights that decay or remember.

    >>> from derive.program import isotropic
    >>> found = aligned(isotropic(data="population", center=True))
    >>> print(found.sharpness, found.strengths["W"])
    gamma0**(2*L/(L + 1))*(L + 1) gamma0**2/nu**2
    """
    return _Aligned(program).found()


class _Aligned:
    def __init__(self, program: Program) -> None:
        used_once(program, "aligned weights")
        self.program = program
        weights = tuple(program.trained())
        self.matrices = [w for w in weights if isinstance(w, TrainedMatrix)]
        self.readouts = [w for w in weights if isinstance(w, TrainedVector)]
        memories = {w.rule.memory(t, S.Zero) for w in weights}
        if (
            not program.rule.discrete
            or len(memories) != 1
            or memories.pop() != (1, program.rule.memory(t, t - 1)[1])
        ):
            raise NotApplicable("the weights must move by plain steps, without decay or memory")
        trained = {w.name for w in weights}
        if fixed := [gaussian(m).name for m in program.matrices if gaussian(m).name not in trained]:
            raise NotApplicable(f"{', '.join(fixed)} is not trained: give the loss of the population")
        if any(w.update.over for w in weights) or len(self.readouts) != 1:
            raise NotApplicable("a network of several outputs does not become one of rank one")
        self.known = {self.amplitude(d.lhs): self.number(d.rhs) for d in program.definitions}

    def found(self) -> Aligned:
        (readout,) = self.readouts
        families = [(w, w.initial.index) for w in self.matrices if w.initial.index]
        singles = [w for w in self.matrices if not w.initial.index]
        if len(families) > 1 or len(singles) != 1:
            raise NotApplicable("not a chain of one first matrix, a family of matrices, and a readout")
        (first,) = singles
        h, g = (self.amplitude(x).func for x in (readout.update.vector, first.update.left))
        depth = self.program.depth
        error, target = self.target()
        learnt = self.put(target - self.known[error], error)
        unit = self.put(g(1) * self.known[h(1)], error)
        pushes = {first.name: (self.push(first), unit)}
        output = learnt / g(1) * self.known[g(depth)]
        for w, layers in families:
            below, above = self.known[g(ell)] * h(ell), g(ell + 1) * self.known[h(ell + 1)]
            if self.same(below / above) != 1:
                raise NotApplicable("weights do not learn in step: give layers of one width in a chain")
            pushes[w.name] = self.push(w), above
            output *= Repeated(self.known[g(ell)] / g(ell + 1), layers.limits)
        pushes[readout.name] = self.push(readout), self.known[g(depth)] * h(depth)
        per = learnt * error / unit
        strengths = {name: self.same(self.put(a, error) / b / per) for name, (a, b) in pushes.items()}
        output = self.balanced(output, strengths)
        inner = [Sum(S.One, layers.limits).doit() for _, layers in families]
        count = sum(inner, Integer(len(singles) + 1))
        factor = simplify(output / size ** (count / 2))
        if factor.has(size):
            raise NotApplicable(f"what a balanced network has learnt is {output}, no power of the weights")
        end = _plain(factor ** (-2 / count))
        return Aligned(self.program, strengths, output, end, _plain(count / end))

    # -- the program between numbers -----------------------------------------------------------------------

    def amplitude(self, a: Expr) -> Expr:
        """The amplitude of a field along its direction."""
        assert isinstance(a, AppliedUndef)
        if a.args[-1] == 0:
            return S.Zero
        return a.func(*a.args[:-1]) if len(a.args) > 1 else Symbol(str(a.func))

    def number(self, e: Expr) -> Expr:
        """A vector expression along the shared directions."""
        if isinstance(e, Product):
            matrix = gaussian(self.program.matrix_of(e))
            other = (matrix.rows if e.transposed else matrix.cols).ratio
            place = {ell: e.matrix.args[0]} if e.matrix.args else {}
            return _value(matrix.name, *place.values()) * other.xreplace(place) * self.number(e.vector)
        if isinstance(e, AppliedUndef):
            return self.amplitude(e)
        for v in self.program.vectors:
            if e == parameter(v).symbol:
                return _value(v.name) if isinstance(v, TrainedVector) else sqrt(v.variance)
        return e.func(*map(self.number, e.args)) if e.args else e

    def target(self) -> tuple[Expr, Expr]:
        """The amplitude of the error, and that of the target in it."""
        fixed = [v for v in self.program.vectors if not isinstance(v, TrainedVector)]
        for d in self.program.definitions:
            if len(fixed) == 1 and d.rhs.has(fixed[0].symbol):
                return self.amplitude(d.lhs), sqrt(fixed[0].variance)
        raise NotApplicable("there must be one target")

    def push(self, w: TrainedMatrix | TrainedVector) -> Expr:
        """A weight times its update."""
        if isinstance(w, TrainedVector):
            return _value(w.name) * w.update.coefficient * self.number(w.update.vector)
        u, place = w.update, (ell,) if w.initial.index else ()
        return _value(w.name, *place) * u.coefficient * self.number(u.left) * self.number(u.right)

    def put(self, e: Expr, error: Expr) -> Expr:
        """``e`` with the amplitudes on features in terms of the error."""
        names = {a for a in self.known if a.is_Symbol and a != error}
        for _ in names:
            e = e.xreplace({a: self.known[a] for a in names})
        return e

    def same(self, e: Expr) -> Expr:
        """``e``, which must depend neither on weights nor on fields."""
        e = cancel(e)
        if e.atoms(AppliedUndef) or e.free_symbols & {a for a in self.known if a.is_Symbol}:
            raise NotApplicable(f"weights do not learn in step: {e}; give layers of one width in a chain")
        return e

    def balanced(self, output: Expr, strengths: Mapping[str, Expr]) -> Expr:
        for name, strength in strengths.items():
            output = output.replace(Function(f"s_{name}"), lambda *_, k=strength: sqrt(k * size))
        return Mul(*[x.doit() for x in Mul.make_args(output)])


def _value(name: str, *place: Expr) -> Expr:
    return Function(f"s_{name}")(*(place or (S.Zero,)))
