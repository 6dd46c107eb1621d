"""Effect of weight decay and noise on the output, and kernel ridge regression (selfconsistent2023 J.1, K.3).

By Ito's rule the rate of the output is the tangent kernel times the errors, minus the decay rate times
``theta . grad f``, plus half the noise strength times the trace of the Hessian. By Euler's identity ``theta .
grad f = kappa f`` weight decay acts as decay of the output; an output at rest is then linear in the targets.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache

from sympy import (
    Derivative,
    Dummy,
    Eq,
    Expr,
    Function,
    MatrixSymbol,
    Mul,
    S,
    Sum,
    Symbol,
    factor,
    simplify,
    solve,
)
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average
from derive.calculus.sums import over
from derive.calculus.symbols import IndexRange, P, s, t
from derive.errors import NotApplicable
from derive.linear.operators import SymbolicIdentity
from derive.program.language import Product
from derive.program.parts import Definition, parameter
from derive.program.program import Program
from derive.program.rules import held_at_rest
from derive.program.training import TrainedMatrix, TrainedVector
from derive.reduce.homogeneous import network_degree, output
from derive.reduce.memoryless import exponential
from derive.reduce.moments import two_layer
from derive.show.conditions import ConditionalResult
from derive.show.latex import aligned_latex
from derive.show.summary import Summarised
from derive.theory import Equation, Theory
from derive.theory.applications import read
from derive.theory.conditioning import theory_of
from derive.theory.names import vector

TrainedWeight = TrainedMatrix | TrainedVector


@dataclass(frozen=True)
class Share:
    """Contribution of one weight, or of a family of weights, to the rate of change of the output.

    ``site`` is the layer of the field that the weight enters, None for a readout, and ``layers`` the range of
    the family, empty for a single weight. ``contraction`` is ``W . df/dW``, the sum over the entries of the
    weight, as an average over units. ``curvature`` is the sum of ``d^2 f/dW_ij^2`` over the entries, in units
    in which the initial variance of an entry is 1. Noise of strength D then adds ``D dt`` to the variance of
    an entry.
    """

    weight: str
    site: Expr | None
    contraction: Expr
    curvature: Expr
    layers: tuple[IndexRange, ...]

    def total(self, value: Expr) -> Expr:
        """Return ``value``, the contribution of one member of a family of weights, summed over the layers.

        A value of a single weight is returned unchanged.
        """
        return Sum(value, *[r.limits for r in self.layers]) if self.layers and value != 0 else value


@dataclass(frozen=True, repr=False)
class OutputRate(Summarised):
    """Rate of change of the output under gradient flow with weight decay and noise.

    It is ``df/dt = gain - decay sum contraction + diffusion/2 sum curvature``; ``gain`` is the tangent kernel
    times the errors, and the sums are over ``shares``, the contributions of the weights. ``slope(ell, mu,
    t)`` is the average of ``d g_i/d h_i``, the instantaneous response of a backward field to the forward
    field of its layer; ``slopes`` are its equations, from the last layer down.
    """

    output: AppliedUndef
    gain: Expr
    shares: tuple[Share, ...]
    decay: Expr
    diffusion: Expr
    slopes: tuple[Eq, ...]

    @property
    def eq(self) -> Eq:
        """The equation ``df/dt = gain - decay sum contraction + diffusion/2 sum curvature``."""
        lost = sum((x.total(x.contraction) for x in self.shares), S.Zero)
        curved = sum((x.total(x.curvature) for x in self.shares), S.Zero)
        rate = self.gain - self.decay * lost + self.diffusion / 2 * curved
        return Eq(Derivative(self.output, t), rate, evaluate=False)

    def _repr_latex_(self) -> str:
        return aligned_latex((self.eq, *self.slopes))


def output_rate(theory: Theory) -> OutputRate:
    """Return the rate of the output of a network under gradient flow with decay and noise, at any depth.

    Raises :class:`NotApplicable` for discrete steps, for memory that is not exponential, for updates that are
    not gradients, for weights with different rules, for populations whose ratio is not 1, for fields without
    an index of layers, for weights shared by positions, for a bias that is added to a product, and for noise
    with skip connections.

    >>> from derive import mean_field, mlp
    >>> lam, T = Symbol("lam", positive=True), Symbol("T", positive=True)
    >>> rate = output_rate(mean_field(mlp(1, Function("phi"), "flow", weight_decay=lam, temperature=T)))
    >>> for x in rate.shares: print(x.weight, x.contraction, x.curvature)
    W0 <g(1, mu, t)*h(1, mu, t)>/gamma0 K_x(mu, mu)*slope(1, mu, t)/gamma0
    w <phi(h(1, mu, t))*z(1, mu, t)>/gamma0 0
    >>> print(rate.slopes[0].rhs)
    <z(ell, mu, t)*Derivative(phi(h(ell, mu, t)), (h(ell, mu, t), 2))>
    """
    return _Rate(theory).rate()


class _Rate:
    """Derivation of the rate of change of the output of one network."""

    def __init__(self, theory: Theory) -> None:
        """Read products and backward fields off the program.

        Raises NotApplicable for populations whose ratio is not 1, for weights with a rule of their own, for
        fields without an index of layers, and without a tangent kernel.
        """
        self.program, self.kernel = theory.program, _tangent(theory)
        if own := [w for w in self.program.trained() if w.rule != self.program.rule]:
            raise NotApplicable(
                "the rate of the output needs one rule for all weights, with noise in units of their initial "
                f"variances, and the rule of {own[0].name}, {own[0].rule!r}, is not that of the program, "
                f"{self.program.rule!r}"
            )
        if flat := [x for x in self.program.fields if not x.layered]:
            raise NotApplicable(
                f"the rate of the output needs fields with an index of layers, and {flat[0].name} has none: "
                f"write {flat[0].name}(1, ...) in the program, and layered=True in its Field"
            )
        if any(x.population.ratio != 1 for x in self.program.fields):
            raise NotApplicable(
                "the rate of the output is derived only if all populations have the ratio 1 (one width)"
            )
        self.reading, self.output = read(self.program), output(self.program).lhs
        self.definitions = self.reading.definitions
        self.products = [(d, a) for d in self.definitions for a in self.reading.products[d]]
        trained = [w for w in self.program.trained() if isinstance(w, TrainedMatrix)]
        names = {a.func for w in trained for a in w.update.left.atoms(AppliedUndef)}
        self.backward = [d for d in self.definitions if d.lhs.func in names]

    def rate(self) -> OutputRate:
        """Return the rate of change of the output, with one contribution for each trained weight.

        Weights that do not contribute to the tangent kernel are left out. Raises NotApplicable with noise if
        a backward field contains that of the next layer directly, as with skip connections.
        """
        strength, decay, diffusion = exponential(self.program.rule)
        names = {x.matrix for x in self.kernel.terms}
        # A backward field inside of a product such as W.T @ g(ell + 1) does not count as a field that the
        # definition contains directly.
        direct = [(d, d.rhs.xreplace({x: Dummy() for x in d.rhs.atoms(Product)})) for d in self.backward]
        passed = (a for d, e in direct for a in e.atoms(AppliedUndef) - {d.lhs} if a.func == d.lhs.func)
        if diffusion != 0 and any(passed):
            raise NotApplicable(
                "the rate of the output with noise is not derived if a backward field contains the backward "
                "field of the next layer directly, as with skip connections"
            )
        shares = tuple(self.share(w) for w in self.program.trained() if w.name in names)
        error = self.error(next(iter(self.program.trained())))
        gain = _gain(self.kernel, self.output, error.func(*self.output.args), strength)
        return OutputRate(self.output, gain, shares, decay, diffusion, self.slopes)

    def error(self, w: TrainedWeight) -> AppliedUndef:
        """Return the error signal in the update of a weight: the only scalar in its coefficient.

        Raises NotApplicable if the coefficient contains no or several scalars.
        """
        atoms = w.update.coefficient.atoms(AppliedUndef)
        errors = [a for a in atoms if str(a.func) in self.program.scalars]
        if len(errors) != 1:
            raise NotApplicable(
                f"the coefficient of the update of {w.name} must contain one scalar, the error signal; it "
                f"contains {len(errors)}"
            )
        return errors[0]

    def speed(self, w: TrainedWeight) -> Expr:
        """Return the factor c in the update of a weight.

        The update is ``c scale^2 N`` times minus the gradient of the loss; c is the factor of the learning
        rate of this weight, for a matrix divided by its fan-in. It is 1 if ``program.descent`` is None.
        """
        if self.program.descent is None:
            return S.One
        rate = self.program.descent.rate_of(w.name)
        return rate / self.program.descent.fan_in_of(w.initial) if isinstance(w, TrainedMatrix) else rate

    def share(self, w: TrainedWeight) -> Share:
        """Return the contribution of one weight to the rate of change of the output.

        Raises NotApplicable if its update has a sum over an index that the output does not have, if the
        matrix does not multiply the vector in its update, or if a vector of weights is added to the product.
        """
        error = self.error(w)
        output_indices = dict(zip(error.args, self.output.args, strict=True))
        if any(r.index not in output_indices for r in w.update.over):
            raise NotApplicable(
                f"the rate of the output is not derived: the update of {w.name} has a sum over an index that "
                "the output does not have, such as one of positions"
            )
        factor = w.update.coefficient / (self.program.scale**2 * error * self.speed(w))
        if isinstance(w, TrainedVector):
            return self.vector_share(w, factor, output_indices)
        left, right = w.update.left.xreplace(output_indices), w.update.right.xreplace(output_indices)
        used = ((d, a) for d, a in self.products if a.matrix == w.initial and not a.transposed)
        uses = [(d, a.product) for d, a in used if a.product.vector == right and not a.summed]
        if not uses:
            raise NotApplicable(
                f"no definition contains the product of {w.name} with {right}, the vector in its update, "
                "outside of a sum"
            )
        # `product` is the product of the matrix with `right`, the vector in the update of this matrix; d is
        # the definition that contains the product.
        d, product = uses[0]
        coefficient = d.rhs.coeff(product)
        product_alone = ((d.lhs - (d.rhs - coefficient * product)) / coefficient).expand()
        if any(v.uses(product_alone) for v in map(parameter, self.program.vectors)):
            raise NotApplicable(
                f"the rate is not derived: the definition of {d.lhs} adds a vector of weights, such as a "
                f"bias, to the product with {w.name}"
            )
        curvature = S.Zero
        # The slopes are those of backward fields as functions of forward fields. In a linear network they are
        # all zero, and there is no curvature.
        if any(x.rhs != 0 for x in self.slopes):
            held = vector(self.program, right, d.ranges)
            squared = self.reading.registry.correlation(held, held, t, t)
            curvature = factor * w.initial.variance * coefficient * squared * _slope(*d.lhs.args)
        layers = (w.initial.index,) if w.initial.index else ()
        return Share(
            w.name, d.lhs.args[0], factor * Average(left * product_alone).linear(), curvature, layers
        )

    def vector_share(self, w: TrainedVector, factor: Expr, output_indices: dict[Expr, Expr]) -> Share:
        """Return the contribution of a readout, in which the output is linear.

        ``factor`` is the coefficient of its update over the error, and ``output_indices`` maps the indices of
        the update to those of the output. Raises NotApplicable if the readout is not a factor of a field of
        the last layer.
        """
        for d in self.definitions:
            for member in w.initial.uses(d.rhs):
                other_terms = d.rhs - d.rhs.coeff(member) * member
                if other_terms != 0 or d.lhs.args[0] != self.program.site_of(w.update.vector).site:
                    raise NotApplicable(
                        f"{d.lhs} must be a product with the readout {w.name} as a factor, in the last "
                        "layer: the rate of the output needs an output that is linear in its readout"
                    )
                body = w.update.vector.xreplace(output_indices) * d.lhs / d.rhs.coeff(member)
                return Share(w.name, None, factor * Average(body), S.Zero, ())
        raise NotApplicable(f"the readout {w.name} is not used in the definition of a field")

    # -- response of a backward field to its forward field ---------------------------------------------------

    @cached_property
    def slopes(self) -> tuple[Eq, ...]:
        """Equations of the slope ``<dg/dh>`` of each layer, the response of g to h within a layer.

        g contains h directly, and through the layer above, because the weights between the two act forwards
        and backwards. The slope is zero beyond the last layer, and in all layers if no layer contributes
        directly.
        """
        h = next(d.lhs for d, a in self.products if not a.transposed)
        slopes = {}
        for d in self.backward:
            point = h.func(d.lhs.args[0], *h.args[1:])
            direct = d.rhs.diff(point)
            direct_slope = Average(direct).linear() if direct != 0 else S.Zero
            slopes[_slope(*point.args)] = direct_slope + self.through(d, point)
        some = any(x.has(Average) for x in slopes.values())
        return tuple(Eq(x, value if some else S.Zero, evaluate=False) for x, value in slopes.items())

    def through(self, d: Definition, point: AppliedUndef) -> Expr:
        """Return the part ``<dg/dz dz/dh>`` of the slope ``<dg/dh>`` that passes through the layer above.

        The definition ``d`` gives the backward field g of a layer, and ``point`` is its forward field h. The
        weights that multiply the feature of h act backwards too: g contains z, their transpose times the
        backward field above.
        """
        total = S.Zero
        for e, a in self.products:
            used = [x for x in d.rhs.atoms(AppliedUndef) if x.func == e.lhs.func]
            if not a.transposed or not used or e == d or e.lhs.args[0] != d.lhs.args[0]:
                continue
            forward = (
                b.product.vector for _, b in self.products if not b.transposed and b.matrix == a.matrix
            )
            up = next(forward, S.Zero)
            inner = next((x for x in up.atoms(AppliedUndef) if x.func == point.func), None)
            if inner is not None:
                variance = simplify(a.matrix.variance * a.entries(t, t))
                slope = Average(d.rhs.diff(used[0]) * up.diff(inner)).linear()
                total += variance * slope * _slope(point.args[0] + 1, *point.args[1:])
        return total


def _slope(*args: Expr) -> Expr:
    """Return the symbol ``slope(...)`` of the response of a backward field to its forward field."""
    return Function("slope")(*args)


# -- ridge regression ----------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Representer(ConditionalResult):
    """Output at rest of a homogeneous network with weight decay, as kernel ridge regression.

    ``kappa`` is the degree of the network, and a weight at rest is ``held`` times its update. ``ridge`` is
    ``kappa/held``, and ``balance`` the equation ``ridge f = sum K Delta`` of the outputs f and errors Delta
    on the samples, with the final tangent kernel K. ``rate`` is the equation of ``df/dt`` if all weights
    follow one gradient flow, else None. ``trained`` is the output on the samples, and ``anywhere`` that at an
    input with the tangent kernel ``k`` (a column), as matrix expressions in ``K`` and the targets ``y``. Rows
    are pairs of sample and channel; weights of samples are a diagonal matrix.
    """

    kappa: Expr
    held: Expr
    ridge: Expr
    balance: Eq
    rate: Eq | None
    trained: Expr
    anywhere: Expr

    def conditions(self) -> tuple[str, ...]:
        """Return the derived and the assumed statements about the state at rest.

        Returns
        -------
        tuple of str
            One sentence per statement, which begins with "derived: " or "assumed: ".
        """
        return (
            f"derived: the output is homogeneous of degree {self.kappa} in the weights",
            f"derived: a weight at rest is {self.held} times its own update",
            "assumed: training comes to rest where the output is differentiable in the weights",
            "assumed: K and k are the tangent kernels of the trained network, which are not known beforehand",
        )

    def _repr_latex_(self) -> str:
        return aligned_latex(x for x in (self.balance, self.rate) if x is not None)


@lru_cache(maxsize=64)
def representer(theory: Theory) -> Representer:
    """Return kernel ridge regression as the state at rest of a homogeneous network with weight decay.

    Weights at rest are ``held`` times their updates, so ``theta . grad f`` is ``held`` times the tangent
    kernel times the errors; by Euler's identity it is ``kappa f``. This holds for steps and flows, with
    momentum, for a loss that is a sum or a mean over samples, any number of outputs and unequal widths. That
    the weights come to rest is assumed.

    Raises NotHomogeneous for a network that is not homogeneous, :class:`NotApplicable` for a rule without
    decay or with noise, for weights that decay differently, for updates that are not gradients, and for
    errors that are not linear in the output.

    >>> from derive import mean_field, mlp
    >>> lam = Symbol("lam", positive=True)
    >>> found = representer(mean_field(mlp(activation="relu", rule="flow", weight_decay=lam)))
    >>> print(found.rate.rhs)
    -lam*(L + 1)*f(mu, t) + Sum(Delta(alpha, t)*K(mu, alpha, t, t), (alpha, 1, P))
    >>> print(found.ridge, "|", found.anywhere)
    lam*(L + 1) | k.T*((lam*(L + 1))*I + K)**(-1)*y
    >>> print(representer(mean_field(mlp(2, "relu", "gd", "mean", weight_decay=lam))).ridge)
    3*P*lam
    """
    program = theory.program
    held, kappa = _ratio_at_rest(program), network_degree(program).kappa
    kernel, out = _tangent(theory), output(program)
    given = _error(program, out)
    gain = _gain(kernel, out.lhs, given.lhs)
    ridge = simplify(kappa / held)
    rate = None
    if all(w.rule == program.rule for w in program.trained()):
        with suppress(NotApplicable):
            strength, decay, _ = exponential(program.rule)
            rate = Eq(Derivative(out.lhs, t), strength * gain - decay * kappa * out.lhs, evaluate=False)
    size = Mul(*[r.upper - r.lower + 1 for r in out.ranges])
    balance = Eq(ridge * out.lhs, gain, evaluate=False)
    target = program.roles.target or "y"
    return Representer(kappa, held, ridge, balance, rate, *_at_rest(given, out.lhs, target, ridge, size))


def _ratio_at_rest(program: Program) -> Expr:
    """Return the ratio of a weight to its update when training has come to rest: rate/decay for a flow.

    Raises NotApplicable for noise, without weight decay, or if the weights have different ratios.
    """
    rules = [w.rule for w in program.trained()]
    if any(r.noise(t, s) != 0 for r in rules):
        raise NotApplicable(
            "ridge regression needs weight decay without noise, and a rule has noise: leave temperature or "
            "diffusion out"
        )
    held = {held_at_rest(r) for r in rules}
    if None in held:
        without = next(r for r in rules if held_at_rest(r) is None)
        raise NotApplicable(
            "ridge regression needs weight decay and an equation of motion with constant coefficients, and "
            f"the rule {without!r} does not have both: use GradientDescent(rate, decay=...) for steps, or "
            "GradientFlow(decay=...) for a flow"
        )
    if len(held) != 1:
        raise NotApplicable(
            "ridge regression needs weights that have the same ratio of weight to update when training has "
            f"come to rest; the ratios are {', '.join(sorted(map(str, held)))}: use one rule for all weights"
        )
    return held.pop()


def _error(program: Program, out: Definition) -> Definition:
    """Return the definition of the error signal: the only scalar that is defined by the output ``out``.

    Raises NotApplicable if there is not exactly one.
    """
    errors = [d for d in program.definitions if d.name in program.scalars and d.rhs.has(out.lhs)]
    if len(errors) != 1:
        raise NotApplicable(
            f"{program.name} must define exactly one error signal as a function of its output; it defines "
            f"{len(errors)}"
        )
    return errors[0]


def _tangent(theory: Theory) -> Equation:
    """Return the equation of the tangent kernel; raise NotApplicable if the theory has none."""
    if not theory.observables:
        raise NotApplicable(
            f"the theory of {theory.program.name} has no equation of the tangent kernel: each update must be "
            "the gradient of an output times its error on a sample, in one term, training rules must be "
            "linear, and a reduction such as theory_limit leaves this equation out"
        )
    return theory.observables[0]


def _gain(kernel: Equation, out: AppliedUndef, error: AppliedUndef, strength: Expr = S.One) -> Expr:
    """Return ``strength`` times the sum of tangent kernel times error at time t.

    The sum is over the second sample, and channel, of the ``kernel``. ``error`` is the error with the indices
    of the output ``out``.
    """
    inner = kernel.ranges[len(kernel.ranges) // 2 :]
    past = dict(zip(out.args[:-1], [r.index for r in inner], strict=True))
    now = kernel.lhs.func(*[t if x == s else x for x in kernel.lhs.args])
    return over(strength * now * error.xreplace(past), inner)


def _at_rest(given: Definition, out: AppliedUndef, target: str, ridge: Expr, size: Expr) -> tuple[Expr, Expr]:
    """Return the outputs on the samples and at another input, when training has come to rest.

    With the tangent kernel K between samples, the column k of its values at the other input, and errors
    ``error = a f + b y`` in terms of outputs and targets (read from the definition ``given``), they solve ``K
    error = ridge f`` and ``ridge f = k . error``. ``target`` is the name of the targets y, and ``size`` the
    number of pairs of sample and channel.
    Raises NotApplicable for an error that is not linear in the output.
    """
    y = Function(target)(*out.args[:-1])
    a, b = (given.rhs.expand().coeff(x) for x in (out, y))
    if (given.rhs - a * out - b * y).expand() != 0 or a.has(out.func) or b.has(out.func):
        raise NotApplicable(
            f"ridge regression needs an error a*{out} + b*{y} with factors a and b that do not contain {out} "
            f"or {y}, as with the square loss, and the error is {given.rhs}"
        )
    K, k, targets = (MatrixSymbol(n, size, m) for n, m in (("K", size), ("k", S.One), (target, S.One)))
    one = ridge * SymbolicIdentity(size)
    A, B = (_diagonal(x, size) for x in (a, b))
    trained = (one - K * A).inv() * K * B * targets
    return trained.doit(), (k.T * (one - A * K).inv() * B * targets).doit()


def _diagonal(e: Expr, size: Expr) -> Expr:
    """Return a number, or a weight for each sample, as a diagonal matrix of ``size`` rows.

    A number becomes that multiple of the identity. Raises NotApplicable for more than one function of the
    sample.
    """
    functions = e.atoms(AppliedUndef)
    if not functions:
        return e * SymbolicIdentity(size)
    if len(functions) > 1:
        raise NotApplicable(
            "in the error signal, the factor of the output and that of the target may each contain at most "
            f"one function of the sample, such as sample_weights; a factor is {e}"
        )
    weight = functions.pop()
    return e.coeff(weight) * MatrixSymbol(str(weight.func), size, size)


# -- fixed points of one hidden layer and one sample -------------------------------------------------------


def rest_points(theory: Theory | Program) -> tuple[tuple[Expr, Expr, Expr], ...]:
    """Return the fixed points of a linear network with one hidden layer and weight decay, for one sample.

    Each is a triple ``(<h^2>, <z^2>, f)``: the mean squares of preactivations and of readout weights, and the
    output, under gradient flow. Unstable fixed points are included; those whose mean squares are negative for
    all positive parameters are left out. Others exist only where their mean squares are not negative. K is
    the input kernel of the sample, y its target, both positive. Raises :class:`NotApplicable` for discrete
    steps, for several outputs or a number of samples other than P or 1, if the equations of these moments do
    not close, and if every point without an error is a fixed point, as without weight decay.

    >>> from derive import mean_field, mlp
    >>> lam = Symbol("lam", positive=True)
    >>> for x in rest_points(mean_field(mlp(1, rule="flow", weight_decay=lam))): print(x[2])
    0
    y - lam/(sqrt(K)*gamma0)
    """
    theory = theory_of(theory, "rest_points")
    layer_theory = two_layer(theory)
    if not layer_theory.closed:
        raise NotApplicable(
            "fixed points are not derived: the equations of the moments contain averages that are not "
            "moments; use a linear network with one output"
        )
    out = next(e for e in theory.scalars if e.rhs.has(Average)).lhs
    given = next(e for e in theory.scalars if e.rhs.has(out))
    if [r.upper for r in given.ranges] not in ([P], [S.One]):
        ends = ", ".join(f"{r.index} = {r.lower}..{r.upper}" for r in given.ranges) or "no samples"
        raise NotApplicable(
            f"fixed points are derived for one sample and one output, and the indices of {given.lhs} are "
            f"{ends}: write the program with one output and samples 1..P; the fixed points are those for P = "
            "1"
        )
    names = {e.lhs.args[0].func: Dummy(str(e.lhs.args[0].func), real=True) for e in layer_theory.closed}
    value = solve(given.rhs - given.lhs, out)[0]
    roles = theory.program.roles
    kernel, target = roles.kernel or "K_x", roles.target or "y"
    names |= {Function(kernel): Symbol("K", positive=True), Function(target): Symbol(target, positive=True)}

    def one(e: Expr) -> Expr:
        """Return an expression at P = 1, with a symbol in place of each moment, output, kernel and target."""
        e = e.subs(P, 1).doit()
        return e.xreplace({a: names[a.func] for a in e.atoms(AppliedUndef) if a.func in names})

    unknown = [names[e.lhs.args[0].func] for e in layer_theory.closed]
    rates = [one(e.rhs) for e in layer_theory.closed]
    error = names.get(given.lhs.func)
    if error is not None and all(rate.subs(error, 0).expand() == 0 for rate in rates):
        raise NotApplicable(
            f"fixed points are derived for networks with weight decay: here every network with {given.lhs} "
            "= 0 is at rest, so that fixed points are not isolated; give the rule a weight decay"
        )
    points = solve(rates, unknown, dict=True)
    moments = [names[m.lhs.func] for m in layer_theory.moments]
    # The moments are mean squares: a solution in which one of them is negative belongs to no network.
    possible = (x for x in points if not any(factor(x[m]).is_negative for m in moments))
    return tuple((*[x[m] for m in moments], simplify(one(value).subs(x))) for x in possible)
