"""Largest stable learning rate of a deep linear network, rich and lazy (linear2025 appendix B, eq. 70).

Rich regime: the power follows from dominant balance. For gamma0 -> oo the random initial weights are small
compared with their updates. In the derived equations this means, term by term: the updates of a weight
(memory) balance the field, and the terms of its initial value (sources, responses) must be smaller. The
balance is one linear system for the powers of gamma0, with symbolic layer and depth, and the learning rate is
one of its unknowns. The prefactor comes from the end of training, where balanced weights have the smallest
sharpness of all aligned weights of rank one. Weights are aligned if every matrix is a number times the outer
product of two directions, and neighbouring layers share a direction. Updates preserve this form at any width:
a matrix of rank one that acts on its own direction, with updates along it, is a number. The definitions and
updates of the program become equations between numbers, which give the minimum, its sharpness and the largest
stable rate.

Lazy regime: the kernel is constant, and the rate is 2 over its largest eigenvalue. The growth of the loss in
the first step gives the mean and the variance of the eigenvalues. Their distribution is assumed to be a
semicircle, as for wide layers; :func:`derive.scale.lazy.lazy_kernel` gives it at other widths.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce

from sympy import (
    Add,
    Eq,
    Expr,
    Function,
    Integer,
    Mul,
    Poly,
    Pow,
    S,
    Sum,
    Symbol,
    cancel,
    exp,
    expand_log,
    factor,
    fraction,
    limit,
    log,
    oo,
    powdenest,
    powsimp,
    sign,
    simplify,
    solve,
    sqrt,
    together,
)
from sympy import Product as Repeated
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average, Response
from derive.calculus.sums import match
from derive.calculus.symbols import L, ell, eta, gamma0
from derive.errors import NotApplicable
from derive.linear.form import linear_form
from derive.program.language import Product
from derive.program.networks.random_data import nu
from derive.program.nonlinear import require_linear_rules
from derive.program.parts import gaussian, parameter
from derive.program.program import Program, plain_steps, used_once
from derive.program.training import TrainedMatrix, TrainedVector
from derive.scale.first_steps import first_step, same_unit
from derive.scale.mellin import power_in
from derive.show.conditions import ConditionalResult
from derive.show.latex import aligned_latex
from derive.theory import Equation, OrderParameter, Term, Theory, mean_field

REGIMES = ("rich", "lazy")


@dataclass(frozen=True, repr=False)
class LargestRate(ConditionalResult):
    """Largest learning rate, ``prefactor * nu**exponent`` to leading order.

    nu is the width of the layers over the dimension of the inputs.

    Parameters
    ----------
    regime : str
        ``"rich"`` or ``"lazy"``.
    rate : Expr
        The rate. For lazy networks it is 2 over the largest eigenvalue of a semicircle at finite nu, of which
        ``prefactor`` and ``exponent`` give the limit nu -> oo.
    exponent : Expr
        Power of nu.
    prefactor : Expr
        Factor of the power.
    neglected : Expr
        Relative size of neglected terms: of those of the initial weights for rich networks; for lazy ones the
        standard deviation of the kernel's eigenvalues over their mean.
    crossover : Expr | None
        Width nu at which the leading orders of the rich and of the lazy rate are equal; None if their ratio
        does not depend on nu.
    basis : tuple[str, ...]
        Assumptions and derived statements behind the rate, as sentences.
    """

    regime: str
    rate: Expr
    exponent: Expr
    prefactor: Expr
    neglected: Expr
    crossover: Expr | None
    basis: tuple[str, ...]

    def conditions(self) -> tuple[str, ...]:
        """Return the derived and assumed statements about the largest learning rate.

        Returns
        -------
        tuple[str, ...]
            Sentences that begin with "derived: " or "assumed: ".
        """
        return self.basis

    def _repr_latex_(self) -> str:
        return aligned_latex([Eq(eta, self.rate, evaluate=False)])


def largest_rate(source: Theory | Program, regime: str = "rich") -> LargestRate:
    """Return the largest stable learning rate of a deep linear network.

    Parameters
    ----------
    source : Theory | Program
        Theory or program of a centred network on the population loss.
    regime : {"rich", "lazy"}
        ``"rich"`` (gamma0 -> oo) or ``"lazy"`` (gamma0 -> 0, wide layers; for other widths see
        :func:`.lazy_kernel`).

    Returns
    -------
    LargestRate
        For ``"rich"`` the rate above which no aligned network that has learnt the target is stable. For
        ``"lazy"`` 2 over the largest eigenvalue of the constant kernel, under the assumption that the
        eigenvalues have a semicircle distribution.

    Raises
    ------
    NotApplicable
        If the rich or the lazy rate cannot be derived. Both are needed, because ``crossover`` is the width
        at which they are equal.
    ValueError
        If ``regime`` is neither ``"rich"`` nor ``"lazy"``.

    Notes
    -----
    The power of nu is the same for every criterion that does not depend on the initial weights, because
    gamma0 and nu drop out of the balanced equations.

    Examples
    --------
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
    require_linear_rules(theory.program, "the largest learning rate")
    rich, lazy = _rich(theory), _lazy(theory)
    chosen, other = (rich, lazy) if regime == "rich" else (lazy, rich)
    wide = simplify(limit(lazy.rate, nu, oo))
    leading = rich.rate if regime == "rich" else wide
    power, ratio_power = power_in(leading, nu), power_in(rich.rate / wide, nu)
    crossover, basis = None, chosen.basis
    if ratio_power != 0:
        (log_width,) = solve(expand_log(log(rich.rate / wide), force=True), log(nu))
        crossover = _plain(exp(log_width))
        basis += (
            "derived: the crossover, where the leading orders of the rich and of the lazy rate are equal",
            *other.basis,
        )
    prefactor = _plain(leading / nu**power)
    return LargestRate(regime, chosen.rate, power, prefactor, chosen.neglected, crossover, basis)


@dataclass(frozen=True)
class _Regime:
    """Largest learning rate in the rich or the lazy regime, with its error and its conditions.

    ``neglected`` is the relative size of neglected terms, as in :class:`LargestRate`, and ``basis`` has the
    conditions as sentences.
    """

    rate: Expr
    neglected: Expr
    basis: tuple[str, ...]


def _rich(theory: Theory) -> _Regime:
    """Return the largest stable learning rate as gamma0 -> oo.

    Its powers of gamma0 and other parameters follow from dominant balance of updates, and its prefactor from
    the sharpness of aligned weights of rank one. Raises NotApplicable if the powers of both derivations
    differ.
    """
    end, balance = aligned(theory.program), dominant_balance(theory)
    ratio = _plain(end.rate / balance.rate)
    compared = balance.rate.free_symbols - theory.program.depth.free_symbols
    if any(power_in(ratio, x) != 0 for x in compared):
        raise NotApplicable(
            "the two derivations of the largest rate have different powers of a parameter, such as gamma0: "
            f"the balance of updates gives {balance.rate}, the end of training {end.rate}"
        )
    basis = (
        *balance.conditions(),
        *end.conditions(),
        f"derived: both rates have the same powers of {', '.join(sorted(map(str, compared)))}",
        "assumed: at the end of training the weights are aligned and balanced, up to parts of the relative "
        f"size {balance.neglected}",
        "assumed: there are enough steps to leave the initial plateau of the loss, which is longer for "
        "larger gamma0",
    )
    return _Regime(ratio * balance.rate, balance.neglected, basis)


def _lazy(theory: Theory) -> _Regime:
    """Return the largest stable learning rate as gamma0 -> 0: 2 over the largest eigenvalue of the kernel.

    The loss after the first step over that before is the mean of ``(1 - eta lambda)^2`` over the eigenvalues
    lambda, which gives their mean and variance. Their distribution is assumed to be a semicircle with this
    mean and variance, which ends at the mean plus twice the standard deviation. Raises NotApplicable if the
    ratio of the losses is not of degree two in the rate, as for a network that is not centred.
    """
    step = first_step(theory)
    if step.degree != 2:
        raise NotApplicable(
            "the network is not centred, so that its first step does not depend on the kernel alone: give "
            "center=True"
        )
    growth = Poly(step.growth_factor, eta)
    mean, square = -growth.nth(1) / 2, growth.nth(2)
    spread = factor(square - mean**2)
    basis = (
        *step.conditions(),
        f"derived: mean {factor(mean)} and variance {spread} of the kernel's eigenvalues, from this step",
        "assumed: the eigenvalues have a semicircle distribution with this mean and variance, as for wide "
        "layers",
        "assumed: the kernel is constant: gamma0 -> 0 before the number of steps grows",
    )
    return _Regime(2 / (factor(mean) + 2 * sqrt(spread)), sqrt(spread) / mean, basis)


def _plain(e: Expr) -> Expr:
    """Return a product of powers of positive numbers, simplified so that each base occurs once."""
    return simplify(powsimp(powdenest(e, force=True), force=True))


# -- aligned weights ----------------------------------------------------------------------------------------

size = Symbol("S", positive=True)
"""Squared singular value over :attr:`Aligned.strengths`, equal for all weights of a balanced network."""


@dataclass(frozen=True, repr=False)
class Aligned(ConditionalResult):
    """Deep linear network with aligned weights of rank one.

    Each weight M is a singular value ``s_M`` times a matrix of rank one along directions that neighbouring
    weights share. In small steps ``s_M ds_M/dt = strengths[M] xi v``, where xi is the function that the
    network has learnt and v its error. So ``s_M^2/strengths[M]`` of any two weights differ by a constant; in
    a balanced network they all equal the symbol ``size``.

    Parameters
    ----------
    program : Program
        Program of the network.
    strengths : Mapping[str, Expr]
        Factor of each weight in the equation above, by name.
    output : Expr
        Function that the balanced network has learnt, in terms of ``size``.
    end : Expr
        Value of ``size`` at which the output is the target.
    sharpness : Expr
        Curvature of the loss at the end of training: a step multiplies a small error by ``1 - rate *
        sharpness``.
    basis : tuple[str, ...]
        Conditions of the derivation.
    """

    program: Program
    strengths: Mapping[str, Expr]
    output: Expr
    end: Expr
    sharpness: Expr
    basis: tuple[str, ...]

    def conditions(self) -> tuple[str, ...]:
        """Return the statements derived about trained matrices of rank one.

        Returns
        -------
        tuple[str, ...]
            Sentences that begin with "derived: ".
        """
        return self.basis

    @property
    def rate(self) -> Expr:
        """Learning rate at which a step overshoots by the error itself: ``|1 - rate sharpness| = 1``.

        No other aligned network that has learnt the target is stable at a larger rate. The sharpness is the
        sum of ``strengths[M]/s_M^2``. The target fixes the product of these terms, so that their sum is
        smallest if all are equal.
        """
        return 2 / self.sharpness

    def _repr_latex_(self) -> str:
        return aligned_latex([Eq(size, self.end, evaluate=False), Eq(eta, self.rate, evaluate=False)])


def aligned(program: Program) -> Aligned:
    """Return the rank-one reduction of a deep linear network on the population loss.

    Parameters
    ----------
    program : Program
        Program; its depth may be ``L``.

    Returns
    -------
    Aligned
        The reduced network.

    Raises
    ------
    NotApplicable
        For data of finitely many samples, several outputs, a branch, layers of different widths, a flow, and
        weights with decay, memory, noise or different rules.

    Examples
    --------
    >>> from derive.program import isotropic
    >>> found = aligned(isotropic(data="population", center=True))
    >>> print(found.sharpness, found.strengths["W"])
    gamma0**(2*L/(L + 1))*(L + 1) gamma0**2/nu**2
    """
    return _Aligned(program).reduced()


class _Aligned:
    """Reduction of a deep linear network to numbers, for aligned weights of rank one.

    Each weight matrix is a singular value times the outer product of two directions that neighbours share.
    The equations of the program become equations between these values and the amplitudes of fields along the
    directions.
    """

    def __init__(self, program: Program) -> None:
        used_once(program, "aligned weights")
        self.program = program
        weights = tuple(program.trained())
        self.matrices = [w for w in weights if isinstance(w, TrainedMatrix)]
        self.readouts = [w for w in weights if isinstance(w, TrainedVector)]
        plain_steps(program)
        trained = {w.name for w in weights}
        if fixed := [gaussian(m).name for m in program.matrices if gaussian(m).name not in trained]:
            raise NotApplicable(
                "the largest rate is not derived for programs with untrained random matrices, such as that "
                f"of samples ({', '.join(fixed)}): in place of samples give the population loss, "
                "data='population'"
            )
        if summed := next((w for w in weights if w.update.over), None):
            indices = ", ".join(str(r.index) for r in summed.update.over)
            raise NotApplicable(
                f"the update of {summed.name} is a sum over {indices}, and the largest rate is derived from "
                "weights of rank one, for the population loss of one output: give a program such as "
                "isotropic(data='population', center=True)"
            )
        if len(self.readouts) != 1:
            names = ", ".join(w.name for w in self.readouts) or "none"
            raise NotApplicable(
                "the largest rate is derived from weights of rank one, which needs exactly one trained "
                f"vector, the readout; the trained vectors of the program are {names}"
            )
        self.known = {self.amplitude(d.lhs): self.number(d.rhs) for d in program.definitions}
        self.basis = [
            "derived: weights of rank one, along directions that neighbouring weights share, keep this form "
            f"under the updates of {', '.join(w.name for w in weights)}"
        ]

    def reduced(self) -> Aligned:
        """Return the network of rank-one weights, its balanced minimum, and the sharpness there.

        Raises NotApplicable unless the network is a chain of one first matrix, at most one family of matrices
        and a readout.
        """
        (readout,) = self.readouts
        families = [(w, w.initial.index) for w in self.matrices if w.initial.index]
        singles = [w for w in self.matrices if not w.initial.index]
        if len(families) > 1 or len(singles) != 1:
            raise NotApplicable(
                "the network must be a chain of one first matrix, at most one family of matrices of the "
                "other layers, and a readout"
            )
        (first,) = singles
        h, g = (self.amplitude(x).func for x in (readout.update.vector, first.update.left))
        depth = self.program.depth
        error, target = self.target()
        learnt = self.in_terms_of_error(target - self.known[error], error)
        output_update = self.in_terms_of_error(g(1) * self.known[h(1)], error)
        squared_updates = {first.name: (self.weight_times_update(first), output_update)}
        output = learnt / g(1) * self.known[g(depth)]
        for w, layers in families:
            below, above = self.known[g(ell)] * h(ell), g(ell + 1) * self.known[h(ell + 1)]
            if self.constant(below / above) != 1:
                raise NotApplicable(
                    "singular values grow at different rates: give layers of one width in a chain"
                )
            squared_updates[w.name] = self.weight_times_update(w), above
            output *= Repeated(self.known[g(ell)] / g(ell + 1), layers.limits)
        squared_updates[readout.name] = self.weight_times_update(readout), self.known[g(depth)] * h(depth)
        common_rate = learnt * error / output_update
        strengths = {
            name: self.constant(self.in_terms_of_error(a, error) / b / common_rate)
            for name, (a, b) in squared_updates.items()
        }
        scaled = ", ".join(f"s_{name}^2/({strength})" for name, strength in strengths.items())
        self.basis.append(
            f"derived: in small steps the differences of {scaled} are constant (s_M: singular value of M)"
        )
        for name, strength in strengths.items():
            output = output.replace(Function(f"s_{name}"), lambda *_, k=strength: sqrt(k * size))
        output = Mul(*[x.doit() for x in Mul.make_args(output)])
        inner = [Sum(S.One, layers.limits).doit() for _, layers in families]
        count = sum(inner, Integer(len(singles) + 1))
        factor = simplify(output / size ** (count / 2))
        if factor.has(size):
            raise NotApplicable(
                f"the output of a balanced network is {output}, and must be a constant times "
                f"{size}**({count / 2}), where {size} is the common size of the squared singular values of "
                "the weights"
            )
        end = _plain(factor ** (-2 / count))
        sharpness = _plain(count / end)
        self.basis.append(
            f"derived: the balanced network, in which these are equal, has learnt the target with sharpness "
            f"{sharpness}, the smallest of all aligned networks (inequality of arithmetic and geometric mean)"
        )
        return Aligned(self.program, strengths, output, end, sharpness, tuple(self.basis))

    def amplitude(self, a: Expr) -> Expr:
        """Return the symbol of the amplitude of a field along the shared direction of its layer.

        It is 0 for a field at time 0, because initial weights are neglected.
        """
        assert isinstance(a, AppliedUndef)
        if a.args[-1] == 0:
            return S.Zero
        return a.func(*a.args[:-1]) if len(a.args) > 1 else Symbol(str(a.func))

    def number(self, e: Expr) -> Expr:
        """Return a vector as a number: its component along the direction that vectors of its layer share.

        A product of a matrix and a vector becomes the singular value times the number of summed units over N
        times the number for the vector. A field becomes its amplitude (0 at time 0), a readout its singular
        value, and a vector that is not trained the root of its variance.
        """
        if isinstance(e, Product):
            matrix = gaussian(self.program.matrix_of(e))
            ratio = (matrix.rows if e.transposed else matrix.cols).ratio
            layer = {ell: e.matrix.args[0]} if e.matrix.args else {}
            return _value(matrix.name, *layer.values()) * ratio.xreplace(layer) * self.number(e.vector)
        if isinstance(e, AppliedUndef):
            return self.amplitude(e)
        for v in self.program.vectors:
            if e == parameter(v).symbol:
                return _value(v.name) if isinstance(v, TrainedVector) else sqrt(v.variance)
        return e.func(*map(self.number, e.args)) if e.args else e

    def target(self) -> tuple[Expr, Expr]:
        """Return (symbol of the error's amplitude, amplitude of the target vector).

        The target is the only vector of the program that is not trained. Raises NotApplicable if there is not
        exactly one.
        """
        fixed = [v for v in self.program.vectors if not isinstance(v, TrainedVector)]
        for d in self.program.definitions:
            if len(fixed) == 1 and d.rhs.has(fixed[0].symbol):
                return self.amplitude(d.lhs), sqrt(fixed[0].variance)
        raise NotApplicable(
            "the program must have exactly one vector that is not trained, the target, and a field whose "
            "definition contains this vector"
        )

    def weight_times_update(self, w: TrainedMatrix | TrainedVector) -> Expr:
        """Return the singular value of a weight times the update of this value in a small step.

        It is an expression in singular values and amplitudes of fields along the shared directions.
        """
        if isinstance(w, TrainedVector):
            return _value(w.name) * w.update.coefficient * self.number(w.update.vector)
        update, layer = w.update, (ell,) if w.initial.index else ()
        return (
            _value(w.name, *layer) * update.coefficient * self.number(update.left) * self.number(update.right)
        )

    def in_terms_of_error(self, e: Expr, error: Expr) -> Expr:
        """Return an expression with amplitudes of scalars, such as the output, in terms of the error.

        ``error`` is the symbol of the error's amplitude, which stays.
        """
        names = {a for a in self.known if a.is_Symbol and a != error}
        for _ in names:
            e = e.xreplace({a: self.known[a] for a in names})
        return e

    def constant(self, e: Expr) -> Expr:
        """Return an expression in lowest terms; raise NotApplicable if it contains weights or fields."""
        e = cancel(e)
        if e.atoms(AppliedUndef) or e.free_symbols & {a for a in self.known if a.is_Symbol}:
            raise NotApplicable(
                f"singular values grow at different rates, with the ratio {e}; give layers of one width in a "
                "chain"
            )
        return e


def _value(name: str, *place: Expr) -> Expr:
    """Return the symbol ``s_name(layer)`` of the singular value of a weight.

    ``place`` is the layer of a weight that belongs to a family of layers. It is empty for a single weight,
    whose symbol is ``s_name(0)``.
    """
    return Function(f"s_{name}")(*(place or (S.Zero,)))


# -- dominant balance ----------------------------------------------------------------------------------------

i, j = Symbol("i", nonnegative=True), Symbol("j", nonnegative=True)
"""Distances of a layer from the first and from the last one."""


@dataclass(frozen=True, repr=False)
class Balance(ConditionalResult):
    """Sizes of the fields and of the learning rate of a linear theory as gamma0 -> oo.

    All sizes are products of powers of gamma0 and other parameters, without numerical factors.

    Parameters
    ----------
    theory : Theory
        Theory whose terms are balanced.
    rate : Expr
        Size of the learning rate at which the number of training steps does not grow with gamma0.
    sizes : Mapping[Expr, Expr]
        Sizes of the fields.
    dropped : Mapping[Expr, Expr]
        Terms of the random initial weights, with their size relative to the field of their equation, at the
        layer where it is largest.
    neglected : Expr
        Largest of the relative sizes in ``dropped``.
    """

    theory: Theory
    rate: Expr
    sizes: Mapping[Expr, Expr]
    dropped: Mapping[Expr, Expr]
    neglected: Expr

    def conditions(self) -> tuple[str, ...]:
        """Return the derived and assumed statements about the balance of updates.

        Returns
        -------
        tuple[str, ...]
            Sentences that begin with "derived: " or "assumed: ".
        """
        affine = "assumed: powers of gamma0 are affine in the layer"
        return (
            "assumed: gamma0 -> oo, and in every equation the term of the updates of a weight is as large as "
            "the field",
            *([affine] * (not self.theory.program.depth.is_Integer)),
            f"derived: the powers of gamma0 of {len(self.sizes)} fields and of the rate, {self.rate}",
            f"derived: each of the {len(self.dropped)} terms of the random initial weights is at most "
            f"{self.neglected} times the field of its equation",
        )

    def _repr_latex_(self) -> str:
        sizes = ((eta, self.rate), *self.sizes.items())
        return aligned_latex((Eq(x, e, evaluate=False) for x, e in sizes), self.theory)


def dominant_balance(theory: Theory) -> Balance:
    """Return the balance of a linear theory in exact steps as gamma0 -> oo.

    In every equation the terms of the updates of a weight are assumed to be as large as the field, and terms
    of the random initial weights to be smaller.

    Parameters
    ----------
    theory : Theory
        Linear theory; its depth is ``L`` or a number.

    Returns
    -------
    Balance
        The balance.

    Raises
    ------
    NotApplicable
        If the powers are not affine in the layer, if several balances are possible, if terms of the random
        initial weights are not small, for a flow, and for weights with decay, memory, noise or different
        rules.

    Examples
    --------
    >>> from derive import isotropic, mean_field
    >>> found = dominant_balance(mean_field(isotropic(data="population", center=True)))
    >>> print(found.rate, found.neglected)
    gamma0**(-2*L/(L + 1)) gamma0**(-1/(L + 1))
    """
    plain_steps(theory.program)
    return _Balance(theory).balance()


class _Balance:
    """Linear system for the powers of gamma0 and other parameters in the fields of one theory.

    The size of a field is a product of powers. It is represented by its logarithm, which is linear in
    logarithms of parameters. Unknown logarithms are symbols.
    """

    def __init__(self, theory: Theory) -> None:
        depth = theory.program.depth
        self.fixed = bool(depth.is_Integer)
        self.theory = theory.at_depth(int(depth)) if self.fixed else theory
        self.form = linear_form(self.theory)
        self.trained = {w.name for w in theory.program.trained()}
        self.unknown: dict[Expr, Symbol] = {}
        self.solved: dict[Symbol, Expr] = {}
        self.rate = self.named(eta)

    def balance(self) -> Balance:
        """Solve the linear system and return the sizes of all fields and the learning rate.

        Raises NotApplicable unless there is exactly one solution.
        """
        equations = self.theory.equations
        rows = [row for e in equations for row in self.rows(e)]
        unknown = list(self.unknown.values())
        solutions = solve(rows, unknown, dict=True)
        if len(solutions) != 1 or set(solutions[0]) != set(unknown):
            raise NotApplicable(
                "the largest learning rate is not derived: the equations of the fields do not determine the "
                "powers of gamma0 and the other parameters in the sizes of the fields uniquely; at a "
                "symbolic depth these powers must be affine in the layer"
            )
        self.solved = solutions[0]
        neglected = {x.expr: self.largest(x, e) for e in equations for x in e.terms if x not in self.kept(e)}
        return Balance(
            theory=self.theory,
            rate=_monomial(self.value(self.rate)),
            sizes={e.lhs: _monomial(self.value(self.size(e.lhs))) for e in equations},
            dropped={x: _monomial(e) for x, e in neglected.items()},
            neglected=_monomial(_greatest(neglected.values())),
        )

    def rows(self, e: Equation) -> Iterator[Expr]:
        """Yield the conditions of the linear system from one equation, as expressions that must vanish.

        Each is the logarithm of the size of a kept term minus that of the field of the equation. If this is a
        polynomial in the layer, each of its coefficients must vanish.
        """
        for x in self.kept(e):
            for part in Add.make_args(x.coefficient * x.kernel * x.field):
                gap = (self.size(part) - self.size(e.lhs)).expand()
                yield from Poly(gap, ell).coeffs() if gap.has(ell) else [gap]

    def kept(self, e: Equation) -> tuple[Term, ...]:
        """Return the terms of an equation that must be as large as its field.

        These are the memory, which is the effect of the updates of weights, and all terms that do not come
        from a trained weight. All terms are returned if the equation has no memory.
        """
        if not any(x.kind == "memory" for x in e.terms):
            return e.terms
        return tuple(x for x in e.terms if x.kind == "memory" or x.matrix not in self.trained)

    def value(self, e: Expr) -> Expr:
        """Return an expression with the unknown logarithms of sizes replaced by the solution."""
        return e.xreplace(self.solved).expand()

    # -- sizes -------------------------------------------------------------------------------------------

    def named(self, key: Expr) -> Symbol:
        """Return the symbol of the unknown logarithm of ``key``.

        ``key`` is a field, its slope in the layer, or the learning rate. A new key gets a new symbol.
        """
        return self.unknown.setdefault(key, Symbol(f"_{len(self.unknown)}"))

    def size(self, e: Expr) -> Expr:
        """Return the logarithm of the size of a product of fields, order parameters and numbers.

        It is linear in logarithms of parameters, such as ``log(gamma0)``, and in the unknown logarithms of
        fields and of the learning rate. Raises NotApplicable for a sum and for any other function.
        """
        if e.is_Number:
            return S.Zero
        if isinstance(e, Mul):
            return Add(*[self.size(x) for x in e.args])
        if isinstance(e, Pow):
            return e.exp * self.size(e.base)
        if e == eta:
            return self.rate
        if isinstance(e, Symbol):
            return log(e)
        if isinstance(e, AppliedUndef):
            return self.of_name(e)
        raise NotApplicable(
            f"the largest learning rate is not derived: the term {e} must be a product of fields, order "
            "parameters and numbers"
        )

    def of_name(self, a: AppliedUndef) -> Expr:
        """Return the logarithm of the size of one field, source or order parameter.

        For a layered field it is ``unknown + unknown * layer``, or one unknown for each layer if the depth is
        a number. For a source it is half the logarithm of the variance. Raises NotApplicable for any other
        quantity, such as a given array.
        """
        name = str(a.func)
        field = self.theory.program.field_of(name)
        if field is not None:
            if not field.layered:
                return self.named(a.func())
            if a.args[0].is_Integer and self.fixed:
                return self.named(a.func(a.args[0]))
            return self.named(a.func(S.Zero)) + self.named(a.func(S.One)) * a.args[0]
        for u in self.theory.sources:
            for symbol in (u.symbol, u.partner):
                if (place := _layer(symbol, a)) is not None:
                    return self.size(u.covariance.xreplace(place)) / 2
        for q in self.theory.order_parameters:
            if (place := _layer(q.symbol, a)) is not None:
                return self.average(q, place)
        raise NotApplicable(
            f"the theory has no equation, source or average that determines the quantity {a}; give a network "
            "on isotropic data, whose theory contains no given arrays"
        )

    def average(self, q: OrderParameter, place: Mapping[Expr, Expr]) -> Expr:
        """Return the logarithm of the size of an order parameter, from the fields in its definition.

        ``place`` is ``{ell: layer}``, or empty for an order parameter without a layer.
        """
        (average,) = q.definition.atoms(Average)
        factor_, body = q.definition / average, average.args[0].xreplace(place)
        if isinstance(body, Response):
            return self.size(factor_) + self.response_size(body.body, body.source, ())
        return self.size(factor_) + self.size(body)

    def response_size(self, field: AppliedUndef, source: AppliedUndef, met: tuple[Expr, ...]) -> Expr:
        """Return the logarithm of the size of the response of a field to a source of the same unit.

        It is the largest over all paths from source to field along terms of the equations, except sums with
        responses. ``met`` are the fields that a path has passed already; it does not pass them again. Raises
        _NoResponse if there is no path.
        """
        matching = ((r, place) for r in self.form.rows if (place := _layer(r.lhs, field)) is not None)
        row, place = next(matching, (None, {}))
        if row is None:
            raise NotApplicable(
                f"the theory has no equation of {field}, so that its response to {source} is not known; give "
                "the theory as mean_field returns it"
            )
        paths = []
        for x in row.sources:
            u = x.field.xreplace(place)
            if u.func == source.func and u.args[:-1] == source.args[:-1]:
                paths.append(self.size(x.weight.xreplace(place)))
        for x in row.actions:
            a = x.field.xreplace(place)
            excluded = x.kind == "response" or a.func in (field.func, *met)
            if excluded or not same_unit(self.theory, a, field):
                continue
            try:
                further = self.response_size(a, source, (*met, field.func))
            except _NoResponse:
                continue
            paths.append(self.size(x.weight.xreplace(place)) + further)
        if not paths:
            raise _NoResponse(f"{field} does not respond to {source}")
        return paths[0] if len({self.value(x) for x in paths}) == 1 else _greatest(map(self.value, paths))

    def largest(self, x: Term, e: Equation) -> Expr:
        """Return the logarithm of a ratio: size of the term ``x`` over that of the field of ``e``.

        ``x`` is a neglected term of the equation ``e``. The ratio is taken at the first or last layer, where
        it is largest. Raises NotApplicable unless the term is small as gamma0 -> oo.
        """
        gap = self.value(self.size(x.coefficient * x.kernel * x.field) - self.size(e.lhs))
        layers = [r for r in e.ranges if r.index == ell]
        values = [gap.xreplace({ell: end}).expand() for r in layers for end in (r.lower, r.upper)] or [gap]
        largest = _greatest(values)
        if _sign(largest.coeff(log(gamma0))) != -1:
            raise NotApplicable(
                f"the term {x.expr} of the initial weights is not small compared with {e.lhs} as gamma0 -> oo"
            )
        return largest


class _NoResponse(NotApplicable):
    """Exception for a field that does not respond to the given source along any path."""


def _layer(head: Expr, a: AppliedUndef) -> dict[Expr, Expr] | None:
    """Return ``{ell: value}`` if the function ``head(ell, ...)`` at this layer is ``a``; None if it is not.

    Times may differ. The dictionary is empty for functions without a layer.
    """
    binding = match(head, a, ())
    return None if binding is None else {x: v for x, v in binding.items() if x == ell}


def _monomial(e: Expr) -> Expr:
    """Return the product of powers of parameters whose logarithm is ``e``, a linear form in logarithms."""
    logs = sorted(e.atoms(log), key=str)
    return Mul(*[x.args[0] ** together(e.coeff(x)).factor() for x in logs])


def _greatest(logarithms: Iterable[Expr]) -> Expr:
    """Return the logarithm that is largest as gamma0 -> oo, by its coefficient of ``log(gamma0)``.

    The first one wins if coefficients are equal.
    """
    return reduce(lambda best, x: x if _sign((x - best).coeff(log(gamma0))) == 1 else best, logarithms)


def _sign(e: Expr) -> int:
    """Return the sign, -1, 0 or 1, of a rational function of depth L and layer ell, for ``1 <= ell <= L``.

    Raises NotApplicable if the numerator or the denominator, as a polynomial in ``ell - 1`` and ``L - ell``,
    has coefficients of different signs: the sign may then depend on L or ell.
    """
    product = 1
    for x in fraction(together(e.xreplace({L: 1 + i + j, ell: 1 + i}))):
        signs = {int(sign(c)) for c in Poly(x, i, j).coeffs()}
        if len(signs) > 1:
            raise NotApplicable(
                f"the largest learning rate is not derived: the sign of the exponent {e} may depend on the "
                "depth or the layer"
            )
        product *= signs.pop()
    return product
