"""Equilibrium of Langevin dynamics: weights of the Gibbs density (selfconsistent2023 K.17-K.23).

The Gibbs density, for which no current flows, is a Gaussian prior times a likelihood. Integrating out the
weights layer by layer, with the covariance that the theory gives the source of each product, leaves an action
of kernels, outputs and their conjugates, N times a function of order one; its saddle point is found by
differentiation. The updates of the weights give the energy; of the theory only the equations of the forward
pass are used. That long Langevin dynamics reaches this equilibrium is assumed, and has to be checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from sympy import (
    Dummy,
    Eq,
    Expr,
    Function,
    I,
    Matrix,
    MatrixSymbol,
    Poly,
    S,
    Sum,
    Symbol,
    cancel,
    log,
    numer,
    simplify,
    solve,
    together,
)
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average
from derive.calculus.functional import functional_derivative
from derive.calculus.sums import rewritten
from derive.calculus.symbols import IndexRange, P, alpha, ell, mu, s, t
from derive.errors import NotApplicable
from derive.linear.operators import SymbolicIdentity
from derive.linear.projection import tidy_sums
from derive.program.gradient_check import check_gradients
from derive.program.networks.options import has_sample_weights
from derive.program.nonlinear import require_linear_rules
from derive.program.program import Program
from derive.program.rules import entry_covariance
from derive.program.training import TrainedMatrix, TrainedVector
from derive.reduce.homogeneous import Chain
from derive.reduce.memoryless import exponential
from derive.reduce.single_site import require_samples
from derive.reduce.stationary import timeless
from derive.show.conditions import ConditionalResult
from derive.show.latex import aligned_latex
from derive.theory import Source, Theory
from derive.theory.path_integral.action import Partition

Phi, Phihat, f, fhat, hhat = (Function(n) for n in ("Phi", "Phihat", "f", "fhat", "hhat"))
loss, Delta, y = (Function(n) for n in ("loss", "Delta", "y"))
_HALF = S.Half
_PAIR = ((mu, 1, P), (alpha, 1, P))


@dataclass(frozen=True, repr=False)
class Equilibrium(ConditionalResult):
    """Action per unit of width and its saddle point, for a chain of ``depth`` hidden layers.

    ``scale`` is gamma0, ``inverse_temperature`` the factor of the energy in the Gibbs density, and ``prior``
    the variance of a weight without data (in units of the initial variance). ``algebra`` is the action
    without the integrals over fields, and ``exponent`` the exponent of the integral over the fields of one
    unit of layer ell. ``fhat``, ``Phihat`` and ``hhat`` are conjugate variables: ``hhat`` is real, and the
    other two are integrated along the imaginary axis.
    ``Phi(0, mu, alpha)`` is the kernel of the inputs, ``error`` minus the derivative of the loss, ``field``
    the preactivation ``h`` and ``phi`` its activation.
    """

    depth: Expr
    scale: Expr
    inverse_temperature: Expr
    prior: Expr
    field: AppliedUndef
    phi: Expr
    error: Expr
    exponent: Expr
    algebra: Expr

    @property
    def action(self) -> Expr:
        """The action per N, with the logarithms of the single-site integrals of all layers."""
        return self.algebra + Sum(log(Partition("ell", self.exponent)), (ell, 1, self.depth))

    # -- the saddle point ------------------------------------------------------------------------------------

    def variation(self, target: AppliedUndef, ranges: tuple[IndexRange, ...] = ()) -> Expr:
        """Return the derivative ``dS / d target`` of the action by an order parameter or its conjugate.

        ``ranges`` are those of the target's indices besides the samples mu and alpha. The derivative of a
        single-site integral is an average.
        """
        both = (IndexRange(mu, S.One, P), IndexRange(alpha, S.One, P), *ranges)
        algebra = functional_derivative(self.algebra, target, both)
        inner = functional_derivative(Sum(self.exponent, (ell, 1, self.depth)), target, both)
        sites = Average(inner).linear(frozenset({"hhat", str(self.field.func)})) if inner != 0 else S.Zero
        return _symmetric(algebra + sites)

    def conditions(self) -> tuple[str, ...]:
        """Return the assumptions of the equilibrium, and the density that is derived from them.

        Returns
        -------
        tuple of str
            Three sentences that begin with "assumed:", and one that begins with "derived:". The latter states
            the variance of the prior and the inverse temperature of the likelihood.
        """
        return (
            "assumed: the width goes to infinity at a fixed number of samples and layers",
            "assumed: long Langevin dynamics reaches the density of weights for which no current flows",
            f"derived: this density, a Gaussian prior of variance {self.prior} in units of the initial "
            f"variance times a likelihood of inverse temperature {self.inverse_temperature}",
            "assumed: one saddle point of the action dominates the integral",
        )

    @cached_property
    def variations(self) -> dict[str, Expr]:
        """Derivatives of the action by each variable, which are zero at the saddle point (K.19).

        Keys are the names of the variables. The value of ``Phihat`` holds at the layers ell = 1..L, that of
        ``Phi`` at ell = 1..L-1, and that of ``Phi_last`` is the derivative by ``Phi`` at layer L.
        """
        every = (IndexRange(ell, S.One, self.depth),)
        inside = (IndexRange(ell, S.One, self.depth - 1),)
        return {
            "f": self.variation(f(mu)),
            "fhat": self.variation(fhat(mu)),
            "Phihat": self.variation(Phihat(ell, mu, alpha), every),
            "Phi": self.variation(Phi(ell, mu, alpha), inside),
            "Phi_last": self.variation(Phi(self.depth, mu, alpha)),
        }

    @cached_property
    def solved(self) -> dict[str, Eq]:
        """Saddle-point equations for conjugate output, output, kernels and their conjugates (K.20-K.22).

        Keys are ``fhat``, ``f``, ``Phi``, ``Phihat_last`` and, unless the depth is 1, ``Phihat``. The error
        is ``Delta = -loss'``.
        """
        slope = loss(f(mu), y(mu)).diff(f(mu))
        c = {k: v.xreplace({slope: -Delta(mu)}) for k, v in self.variations.items()}
        hat = _isolate(c["f"], fhat(mu))
        conjugate_outputs = {fhat(mu): hat, fhat(alpha): hat.xreplace({mu: alpha})}
        last = Phihat(self.depth, mu, alpha)
        solutions = {
            fhat(mu): hat,
            f(mu): tidy_sums(_isolate(c["fhat"], f(mu)).xreplace(conjugate_outputs)),
            Phi(ell, mu, alpha): _isolate(c["Phihat"], Phi(ell, mu, alpha)),
            last: _isolate(c["Phi_last"], last).xreplace(conjugate_outputs),
        }
        if not (self.depth - 2).is_negative:
            solutions[Phihat(ell, mu, alpha)] = _isolate(c["Phi"], Phihat(ell, mu, alpha))
        names = ("fhat", "f", "Phi", "Phihat_last", "Phihat")
        return {n: Eq(k, v, evaluate=False) for n, (k, v) in zip(names, solutions.items(), strict=False)}

    # -- conjugate fields integrated out ---------------------------------------------------------------------

    @cached_property
    def correlator(self) -> Expr:
        """The matrix ``<hhat hhat^T>`` of a layer in terms of the kernel ``Phi`` below and ``C = <h h^T>``.

        A total derivative in hhat integrates to zero: with E = d exponent/d hhat, ``1 + <hhat E> = 0`` and
        ``<h E> = 0`` for any activation. These linear equations give the correlator.
        """
        slope = _symmetric(functional_derivative(self.exponent, hhat(ell, mu), (IndexRange(mu, S.One, P),)))
        K, C = MatrixSymbol("Phi", P, P), MatrixSymbol("C", P, P)
        (weighted,) = slope.atoms(Sum)
        if weighted.function != Phi(ell - 1, mu, alpha) * hhat(ell, alpha):
            raise NotApplicable(
                "the conjugate fields hhat are not integrated out: the derivative of the exponent of the "
                f"path integral by hhat, {slope}, must contain hhat only in the sum over samples of Phi*hhat"
            )
        # The derivative of the exponent by hhat is E = A hhat + pull h with a number `pull`. `weighted` is
        # the sum over samples of Phi hhat. As a matrix, the kernel Phi in this sum is K, so that A is K times
        # the coefficient of the sum.
        A, pull = slope.coeff(weighted) * K, slope.coeff(self.field.func(ell, mu))
        mixed = -pull * A.inv() * C  # <hhat h^T>, from <E h^T> = 0 with C = <h h^T>
        symmetric = {K.T: K, C.T: C}
        return (-A.inv() * (SymbolicIdentity(P) + pull * mixed.T)).doit().xreplace(symmetric).doit()

    @cached_property
    def conjugate_kernel(self) -> Expr:
        """The conjugate ``Phihat`` of a layer below the last, as a matrix, from the correlator (K.22, K.23).

        Raises NotApplicable for one hidden layer, where there is no such layer.
        """
        if "Phihat" not in self.solved:
            raise NotApplicable(
                "the conjugate kernel of a layer below the last exists only with two or more layers, and "
                f"the depth is {self.depth}"
            )
        rhs = self.solved["Phihat"].rhs
        (average,) = rhs.atoms(Average)
        return (rhs.coeff(average) * self.correlator).doit()

    def density(self, samples: int) -> Expr:
        """Return the logarithm of the unnormalised density of the fields ``h1, .., hP`` of a unit in a layer.

        ``samples`` is the number P of samples, an integer of at least 1. Conjugate fields are integrated out.
        The kernel of the layer below is ``Phi11, Phi12, ..``, and the conjugate kernel ``Phihat11, ..``.
        """
        require_samples(samples, "density")
        hats = [Symbol(f"hhat{i}") for i in range(1, samples + 1)]
        numbers: dict[Expr, Expr] = {}
        for i, hat in enumerate(hats, start=1):
            numbers |= {hhat(ell, i): hat, self.field.func(ell, i): Symbol(f"h{i}", real=True)}
            for j in range(1, samples + 1):
                low, high = sorted((i, j))
                numbers[Phi(ell - 1, i, j)] = Symbol(f"Phi{low}{high}", real=True)
                numbers[Phihat(ell, i, j)] = Symbol(f"Phihat{low}{high}", real=True)
        e = self.exponent.subs(P, samples).doit().subs(numbers)
        (top,) = solve([e.diff(x) for x in hats], hats, dict=True)
        # Up to a factor without h, the Gaussian integral over the conjugate fields is the exponential of the
        # exponent at its extremum.
        return simplify(e.subs(top))

    def linear_saddle(self) -> tuple[Eq, ...]:
        """Return closed equations for a linear network of integer depth and one sample.

        Unknowns are ``f`` and ``Phi1 .. PhiL``; the kernel of the input is ``K``, the target ``y``. Each
        layer is Gaussian; its variance is the inverse of minus the second derivative of its log density.
        Raises NotApplicable for a nonlinear network or a symbolic depth.
        """
        if self.phi != self.field or not self.depth.is_Integer:
            raise NotApplicable("closed equations need a linear network and an integer number of layers")
        depth = int(self.depth)
        out, h1 = Symbol("f", real=True), Symbol("h1", real=True)
        kernels = [Symbol("K", positive=True)]
        kernels += [Symbol(f"Phi{n}", positive=True) for n in range(1, depth + 1)]
        error = self.error.xreplace({f(mu): out, y(mu): Symbol("y", real=True)})
        errors = {Delta(i): error for i in (mu, alpha, S.One)}
        value = self.solved["f"].rhs.subs(P, 1).doit().xreplace({mu: S.One}).xreplace(errors)
        equations = [Eq(out, value.subs(Phi(depth, 1, 1), kernels[-1]), evaluate=False)]
        precision = -self.density(1).diff(h1, 2)
        for n in range(1, depth + 1):
            if n == depth:
                conjugate = self.solved["Phihat_last"].rhs.xreplace(errors)
            else:
                sized, sizes = self.conjugate_kernel.subs(P, 1), {"Phi": kernels[n], "C": kernels[n + 1]}
                numbers_of_matrices = {x: Matrix([[sizes[x.name]]]) for x in sized.atoms(MatrixSymbol)}
                conjugate = Matrix(sized.subs(numbers_of_matrices).doit())[0, 0]
            names = {Symbol("Phi11", real=True): kernels[n - 1], Symbol("Phihat11", real=True): conjugate}
            equations.append(Eq(kernels[n], simplify(1 / precision.subs(names)), evaluate=False))
        return tuple(equations)

    def linear_output(self, numbers: Mapping[str, Expr] | None = None) -> tuple[Expr, dict[Symbol, Expr]]:
        """Eliminate the kernels from the equations of :meth:`linear_saddle`.

        The equation of the output is linear in the last kernel, and that of each kernel in the kernel of the
        layer below, so that they are solved in this order. The last one gives the kernel of the input, which
        is known.

        Parameters
        ----------
        numbers : mapping of str to Expr, optional
            Exact values for symbols of the equations, by name. None: no values.

        Returns
        -------
        tuple of (Expr, dict)
            A polynomial in the output ``f``, which vanishes at every stationary point, and the kernels as
            functions of ``f``.

        Raises
        ------
        NotApplicable
            If :meth:`linear_saddle` raises it, if ``numbers`` has a key that is not a name of a symbol of the
            equations, or an equation is not linear in the kernel for which it is solved; if the equation of
            the output is not polynomial, as for a logistic loss.

        Examples
        --------
        >>> from derive import mean_field, mlp
        >>> lam, T = Symbol("lam", positive=True), Symbol("T", positive=True)
        >>> rest = equilibrium(mean_field(mlp(1, rule="flow", weight_decay=lam, temperature=T)))
        >>> one = {"lam": S.One, "T": S.One, "gamma0": S.One, "K": S.One, "y": S(2)}
        >>> rest.linear_output(one)
        (-f**3 + 4*f**2 - 2*f - 2, {Phi1: -f/(f - 2)})
        """
        known = numbers or {}
        (out, value), *layers = [(e.lhs, e.rhs) for e in self.linear_saddle()]
        given = Symbol("K", positive=True)
        free = {x.name for e in (value, *[right for _, right in layers], given) for x in e.free_symbols}
        free -= {x.name for x in (out, *[kernel for kernel, _ in layers])}
        if unknown := [x for x in known if x not in free]:
            raise NotApplicable(
                f"numbers = {{{unknown[0]!r}: {known[unknown[0]]}}}: the keys must be names of symbols of "
                f"the equations, {', '.join(sorted(free))}"
            )
        names = [given, *[kernel for kernel, _ in layers]]

        def with_numbers(e: Expr) -> Expr:
            """Return an expression with the exact ``numbers`` for symbols, except for the input kernel."""
            return e.subs({x: known[x.name] for x in e.free_symbols if x.name in known and x != given})

        kernels: dict[Symbol, Expr] = {}
        rows = [
            with_numbers(out - value),
            *[with_numbers(kernel - right) for kernel, right in reversed(layers)],
        ]
        for row, below in zip(rows, reversed(names), strict=True):
            kernels[below] = _linear_root(row.subs(kernels), below)
        top = numer(together(kernels.pop(given) - known.get(given.name, given)))
        if not top.is_polynomial(out):
            raise NotApplicable(
                f"with the error {self.error}, the equation of the output is not polynomial in {out}: use "
                "a loss that is polynomial in the output, such as the square loss, or solve the equations of "
                "linear_saddle() numerically"
            )
        return Poly(top, out).as_expr(), dict(reversed(kernels.items()))

    def _repr_latex_(self) -> str:
        return aligned_latex(self.solved.values())


def equilibrium(theory: Theory) -> Equilibrium:
    """Return the equilibrium of Langevin dynamics on a chain of layers, of symbolic or integer depth.

    The forward pass and its Gaussian products are those of the theory. Raises :class:`NotApplicable` for
    discrete steps, for momentum, without noise or without decay, for weights with different rules or learning
    rates, or an initial variance other than 1, for updates that are not minus the gradient of the loss
    (feedback alignment), for networks that are not chains, for several outputs, and for samples with weights.

    >>> from derive import mean_field, mlp
    >>> lam, beta = Symbol("lam", positive=True), Symbol("beta", positive=True)
    >>> rule = {"rule": "flow", "weight_decay": lam / beta, "temperature": 1 / beta}
    >>> rest = equilibrium(mean_field(mlp(activation=Function("phi"), **rule)))
    >>> print(rest.prior, rest.inverse_temperature, "|", rest.solved["f"].rhs)
    1/lam beta | beta*Sum(Delta(alpha)*Phi(L, mu, alpha), (alpha, 1, P))/lam
    >>> print(rest.solved["Phihat_last"].rhs, "|", rest.conjugate_kernel)
    -beta**2*gamma0**2*Delta(alpha)*Delta(mu)/lam | Phi**(-1)*((-lam)*C*Phi**(-1) + I)
    """
    program = theory.program
    require_linear_rules(theory.program, "the equilibrium")
    strength, decay, diffusion = exponential(program.rule)
    if decay == 0 or diffusion == 0:
        raise NotApplicable(
            "the equilibrium needs weights that decay and that have noise: give a rule with weight decay "
            "and diffusion"
        )
    if any(w.rule != program.rule for w in program.trained()):
        raise NotApplicable(
            "the equilibrium needs one rule for all weights, and the diffusion over the initial variance "
            "must be the same for all weights: leave rules of single weights out, and give all weights "
            "the initial variance 1"
        )
    if has_sample_weights(program):
        raise NotApplicable(
            "the equilibrium needs a loss without weights of samples: leave sample_weights out"
        )
    _require_gradients(program)
    inverse_temperature, prior = _gibbs(decay, diffusion)
    return _Measure(theory, strength, inverse_temperature, prior).action()


def _require_gradients(program: Program) -> None:
    """Raise NotApplicable unless all updates are minus the gradient of one loss, with one learning rate.

    Without such a gradient, as with feedback alignment, a current flows in the stationary state of the
    weights, whose density is not the exponential of an energy. With several rates the noise has several
    temperatures.
    """
    try:
        wrong = [x.weight for x in check_gradients(program)]
    except NotApplicable as reason:
        raise NotApplicable(f"the equilibrium is not derived: {reason}") from reason
    if wrong:
        raise NotApplicable(
            f"the equilibrium is not derived: the update of {wrong[0]} is not minus the gradient of the "
            "loss, so that the stationary density of the weights is not an exponential of an energy"
        )
    speeds = {w.name: _speed(program, w) for w in program.trained()}
    first, *others = speeds
    different = [x for x in others if simplify(speeds[x] - speeds[first]) != 0]
    if different or speeds[first].has(*[r.index for w in program.trained() for r in _family(w)]):
        shown = ", ".join(f"{x}: {value}" for x, value in speeds.items())
        raise NotApplicable(
            "the equilibrium needs one learning rate for all weights, because their noise has one "
            f"temperature, and the factors of the rates are {{{shown}}}: give one factor, "
            "Parametrization(rate=...)"
        )


def _speed(program: Program, w: TrainedMatrix | TrainedVector) -> Expr:
    """Return the factor by which the learning rate of a weight differs from that of the training rule.

    It is the factor ``rate_of`` of the parametrization; for a matrix, times the number of columns over the
    stated fan-in. It is 1 for a program without a parametrization.
    """
    descent = program.descent
    if descent is None:
        return S.One
    rate = descent.rate_of(w.name)
    if isinstance(w, TrainedVector):
        return rate
    return rate * replace(descent, fan_in=()).fan_in_of(w.initial) / descent.fan_in_of(w.initial)


def _family(w: TrainedMatrix | TrainedVector) -> tuple[IndexRange, ...]:
    """Return the ranges of the indices of a family of weights; an empty tuple for a single weight."""
    if isinstance(w, TrainedVector):
        return w.initial.indices
    return ((w.initial.index,) if w.initial.index else ()) + w.initial.others


def _gibbs(decay: Expr, diffusion: Expr) -> tuple[Expr, Expr]:
    """Return inverse temperature b and prior variance v of weights in equilibrium with their noise.

    The weights theta move with the velocity ``U - decay theta``, where U, the update, is minus the gradient
    of an energy, and with noise of variance ``diffusion`` per unit of time. Without current, ``velocity * p =
    (diffusion/2) dp/dtheta``, so that the density is ``p ~ exp(-b energy - theta^2/(2 v))``.
    """
    theta, push, density, slope = (Dummy(n) for n in ("theta", "push", "p", "dp"))
    current = (push - decay * theta) * density - diffusion / 2 * slope
    (rise,) = solve(current, slope)
    log_slope = (rise / density).expand()
    return simplify(log_slope.coeff(push)), simplify(-1 / log_slope.coeff(theta))


class _Measure:
    """Measure of outputs and fields for weights of the Gibbs density, averaged over the weights.

    A definition ``h = u`` with a Gaussian product u is a delta function, ``int dhhat exp(i hhat (h - u))``,
    and ``<exp(c sum_mu hhat_mu u_mu)> = exp(c^2/2 sum hhat_mu hhat_alpha <u_mu u_alpha>)``. Inner products of
    a layer are kernels. A conjugate multiplies half of the constraint of each kernel, because a pair of
    samples is counted twice. The conjugate of an output is in units of ``scale``.
    """

    def __init__(self, theory: Theory, strength: Expr, inverse_temperature: Expr, prior: Expr) -> None:
        """Read the chain of layers and its correlation of features off the program and the theory.

        ``strength`` is the factor of updates in the velocity of the weights (the learning rate),
        ``inverse_temperature`` and ``prior`` belong to the Gibbs density. Raises NotApplicable if the theory
        has no correlation of features.
        """
        self.theory, self.program, self.prior = theory, theory.program, prior
        self.chain = Chain(self.program)
        self.depth, self.scale = self.program.depth, self.program.scale
        self.strength, self.inverse_temperature = strength, inverse_temperature
        body = self.feature(ell, mu) * self.feature(ell, alpha)
        kernels = [q for q in theory.correlations() if timeless(q.definition.args[0]) == body]
        if len(kernels) != 1:
            raise NotApplicable(
                f"the equilibrium is not derived: the average <{body}> is not an order parameter of the "
                "theory"
            )
        self.kernel, self.known = Phi(ell, mu, alpha), timeless(kernels[0].symbol)

    def action(self) -> Equilibrium:
        """Return the equilibrium with its action, before the saddle point is solved."""
        error = timeless(next(e.rhs for e in self.theory.scalars if not e.rhs.has(Average)))
        roles, standard = self.program.roles, {}  # the equilibrium calls the output f and the target y
        if roles.output is not None and roles.target is not None:
            standard = {roles.output.func: f, Function(roles.target): y}
        calls = [x for x in error.atoms(AppliedUndef) if x.func in standard]
        error = error.xreplace({x: standard[x.func](*x.args) for x in calls})
        given = self.depth, self.scale, self.inverse_temperature, self.prior, self.chain.h, self.chain.phi
        return Equilibrium(*given, error, self.exponent(), self.algebra())

    def feature(self, site: Expr, sample: Expr) -> Expr:
        """Return the feature ``phi(h)`` of the layer number ``site`` at a ``sample``, without a time."""
        return self.chain.phi.xreplace({self.chain.h: self.chain.h.func(site, sample)})

    def covariance(self, u: Source) -> Expr:
        """Return ``<u_mu u_alpha>`` of a product with weights of the prior: its variance times a kernel.

        Raises NotApplicable unless the covariance is that of a weight of initial variance 1 times a kernel.
        """
        entries = entry_covariance(self.program.rule, t, s)
        number, kernel = simplify(u.covariance / entries).as_independent(AppliedUndef, as_Add=False)
        if number != 1:
            raise NotApplicable(
                f"the covariance {u.covariance} of a product with {u.matrix} must be one kernel times the "
                "covariance of a weight of initial variance 1 at the times t and s: use the initial "
                "variance 1 and one output"
            )
        return self.prior * timeless(kernel)

    def sources(self, name: str) -> list[Source]:
        """Return the Gaussian sources in the equations of the field ``name``."""
        terms = (x for e in self.theory.equations if e.name == name for x in e.terms)
        products = [x.field for x in terms if x.kind == "source"]
        return [u for u in self.theory.sources if u.symbol in products]

    def exponent(self) -> Expr:
        """Return the exponent of the integral over one unit of layer ell.

        The preactivation is ``h = u`` with a Gaussian product u. The terms are ``i hhat h``; the exponent of
        the average of ``exp(-i hhat u)`` over the weights, quadratic in hhat; and minus ``phi phi Phihat/2``.
        Raises NotApplicable if the covariance of u in a layer above the first is not a kernel of the layer
        below.
        """
        for u in self.sources(str(self.chain.h.func)):
            value, layer = self.covariance(u), u.symbol.args[0] - 1
            if layer != 0 and value != self.prior * self.known.xreplace({ell: layer}):
                raise NotApplicable(
                    f"the equilibrium is not derived: the covariance <{u.symbol} {u.partner}> is not a "
                    "kernel of the layer below"
                )
        below = self.prior * self.kernel.xreplace({ell: ell - 1})
        constraint = I * Sum(hhat(ell, mu) * self.chain.h.func(ell, mu), _PAIR[0])
        conjugate = self.conjugate(self.feature(ell, mu) * self.feature(ell, alpha))
        return constraint + _cumulant(-I, lambda i: hhat(ell, i), below) - Sum(conjugate, *_PAIR)

    def conjugate(self, e: Expr) -> Expr:
        """Return ``e Phihat(ell, mu, alpha)/2``: an expression times half of the conjugate of the kernel.

        Half, because a sum over mu and alpha counts each pair of samples twice.
        """
        return _HALF * e * Phihat(*self.kernel.args)

    def algebra(self) -> Expr:
        """Return the part of the action outside of single-site integrals: likelihood, outputs, kernels."""
        output = next(e for e in self.theory.scalars if e.rhs.has(Average))
        (average,) = output.rhs.atoms(Average)
        z = self.chain.z
        (u,) = [x for x in self.sources(str(z.func)) if x.symbol.args[0] == z.args[0]]
        # The exponent that fixes an output f is -N (scale f - weight <z phi>) fhat, because f is weight/scale
        # times the average <z phi>. The Gaussian average over the readout z gives a term quadratic in fhat,
        # with the prior variance of z and the kernel <phi phi> of the last layer as factors.
        weight = self.scale * output.rhs / average
        overlap = self.covariance(u) * self.kernel.xreplace({ell: self.depth})
        heated = -self.inverse_temperature * self.energy(weight / self.scale)
        kernels = Sum(self.conjugate(self.kernel), *_PAIR, (ell, 1, self.depth))
        outputs = -self.scale * Sum(fhat(mu) * f(mu), _PAIR[0])
        return heated + outputs + _cumulant(weight, fhat, overlap) + kernels

    def energy(self, slope: Expr) -> Expr:
        """Return the energy of the weights per N, whose negative gradient is their update.

        It is the loss times a number, read from the readout: the ratio of its update to minus the gradient of
        the loss. ``slope`` times the feature of the last layer is N times the derivative of the output by a
        readout weight. Raises NotApplicable if update and gradient are not proportional.
        """
        (w,) = [x for x in self.program.trained() if isinstance(x, TrainedVector)]
        error = next(e for e in self.theory.scalars if not e.rhs.has(Average))
        gradient = slope * self.chain.phi * error.lhs
        (old,) = [r.index for r in w.update.over]
        update = (w.update.coefficient * w.update.vector).xreplace({old: mu})
        ratio = simplify(update / gradient)
        if ratio.atoms(AppliedUndef):
            raise NotApplicable(
                f"the equilibrium is not derived: the update {update} of the readout {w.name} is not a "
                "number times the gradient of the loss"
            )
        return self.strength * ratio * Sum(loss(f(mu), y(mu)), _PAIR[0])


def _cumulant(factor: Expr, hat: Callable[[Expr], Expr], covariance: Expr) -> Expr:
    """Return the exponent of ``<exp(factor sum_mu hat_mu u_mu)>`` for Gaussian u with ``covariance``.

    ``hat(mu)`` is the conjugate variable of the sample mu, and ``covariance`` is ``<u_mu u_alpha>``.
    """
    return factor**2 * _HALF * Sum(hat(mu) * hat(alpha) * covariance, *_PAIR)


def _isolate(condition: Expr, unknown: AppliedUndef) -> Expr:
    """Solve ``condition = 0`` for ``unknown``; raise NotApplicable unless the condition is linear in it."""
    slope = condition.coeff(unknown)
    constant = condition - slope * unknown
    if slope == 0 or constant.expand().has(unknown):
        raise NotApplicable(f"the saddle-point equation {condition} = 0 is not linear in {unknown}")
    return (-constant / slope).expand()


def _linear_root(e: Expr, x: Symbol) -> Expr:
    """Return the zero of a rational function of ``x`` whose numerator is linear in x.

    The zero at ``x = 0`` of a numerator ``x (a x + b)`` is left out. Raises NotApplicable for other
    numerators.
    """
    p = Poly(numer(together(e)), x)
    p = p.exquo(Poly(x, x)) if p.degree() > 1 and p.nth(0) == 0 else p
    if p.degree() != 1:
        raise NotApplicable(
            f"the kernel {x} is not eliminated: in the equation {e} = 0 the numerator must be linear in "
            f"{x}, apart from a factor {x}"
        )
    return cancel(-p.nth(0) / p.nth(1))


def _symmetric(e: Expr) -> Expr:
    """Return an expression with the symmetric kernels ``Phi`` and ``Phihat`` written with mu before alpha."""

    def turned(x: AppliedUndef) -> Expr:
        site, a, b = x.args
        return x.func(site, b, a) if b == mu else x

    return tidy_sums(rewritten(e, ("Phi", "Phihat"), turned).expand())
