"""One hidden linear layer and one sample: the network is a function of two independent chi-squared numbers.

The linear map of :mod:`derive.scale.fluctuations.gram` has two eigenvectors. A and B are the averages over
units of the squared components along them. Each step multiplies them by numbers that depend on the error
alone, the output and the tangent kernel are linear in them, and at the start each is a mean of independent
squares. In flow they have a closed form at every width, from which all orders in 1/N follow. In steps moments
are exact rational functions of N.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sympy import (
    Add,
    Eq,
    Expr,
    Function,
    ImmutableMatrix,
    Matrix,
    Mul,
    Poly,
    Pow,
    S,
    Symbol,
    apart,
    binomial,
    cancel,
    exp,
    eye,
    factor,
    factor_list,
    factorial,
    fraction,
    integrate,
    log,
    simplify,
    solve,
    sqrt,
    together,
)
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import t
from derive.errors import NotApplicable, require_integer
from derive.program.networks.random_data import N
from derive.program.program import Program
from derive.scale.fluctuations.gram import GramMatrices, GramRecursion, wishart_recursion
from derive.show.conditions import ConditionalResult
from derive.show.latex import aligned_latex

A, B = Symbol("A_0", positive=True), Symbol("B_0", positive=True)
"""Averages over units of the squares of the two components of a unit, before training."""
now, first = Symbol("f", real=True), Symbol("f_0", real=True)
"""The output at time t and at the start."""
growth = Symbol("z", positive=True)
"""Factor by which A has grown in a flow; B has been divided by it."""
last = Symbol("r", positive=True)
"""The value of ``growth`` at the end of training."""


@dataclass(frozen=True, repr=False)
class OneSample(ConditionalResult):
    """Linear network with one hidden layer and one sample, as two components.

    Parameters
    ----------
    recursion : GramRecursion
        Recursion of the Gram matrix from which it follows.
    rate : Expr
        ``rho``: in a step the mean square A of one component is multiplied by ``(1 + rho Delta)^2`` and that
        of the other, B, by ``(1 - rho Delta)^2``; in a flow ``dA/dt = 2 rho Delta A`` and ``dB/dt = -2 rho
        Delta B``.
    output : tuple[Expr, Expr]
        Coefficients of A and B in the output.
    kernel : tuple[Expr, Expr]
        Coefficients of A and B in the tangent kernel.
    error : Expr
        Error Delta as a function of the output f, the initial output f_0 and the target, by the symbols
        :data:`now`, :data:`first` and the name of the target.
    units : Expr
        Number of units over N. N times the initial variances of A and B are ``2/units``.
    """

    recursion: GramRecursion
    rate: Expr
    output: tuple[Expr, Expr]
    kernel: tuple[Expr, Expr]
    error: Expr
    units: Expr

    def conditions(self) -> tuple[str, ...]:
        """Return the derived and assumed statements about A and B.

        A and B are the mean squares of the two components of the weights at the start.

        Returns
        -------
        tuple[str, ...]
            Sentences that begin with "derived: " or "assumed: ".
        """
        return (
            "derived: at the start A and B are independent means of squares of independent standard normal "
            "numbers, one for each unit, so that moments are exact at every width",
            *self.recursion.conditions()[2:],
        )

    def _repr_latex_(self) -> str:
        a, b = Symbol("A"), Symbol("B")
        pairs = ((now, self.output), (Symbol("K"), self.kernel))
        return aligned_latex(Eq(x, c[0] * a + c[1] * b, evaluate=False) for x, c in pairs)

    def of_error(self, output: Expr, start: Expr) -> Expr:
        """Return the error of the sample for given values of the output now and at the start.

        Parameters
        ----------
        output : Expr
            Output now.
        start : Expr
            Initial output, which the error contains if outputs are centred.

        Returns
        -------
        Expr
            Error.
        """
        return self.error.xreplace({now: output, first: start})

    # -- in steps --------------------------------------------------------------------------------------------

    def after(self, steps: int) -> tuple[Expr, Expr]:
        """Return output and tangent kernel after a number of steps.

        Parameters
        ----------
        steps : int
            Number of steps.

        Returns
        -------
        tuple[Expr, Expr]
            Polynomials in the initial A and B, the mean squares of the two components of the weights.

        Raises
        ------
        NotApplicable
            For a flow.
        ValueError
            If ``steps`` is negative or not an integer.
        """
        if not self.recursion.discrete:
            raise NotApplicable(
                "values after a number of steps need a training rule in steps, and the rule is a flow"
            )
        steps = require_integer("steps", steps, 0)
        a, b = A, B
        (c, d), (k, m) = self.output, self.kernel
        for _ in range(steps):
            change = self.rate * self.of_error(c * a + d * b, c * A + d * B)
            a, b = (a * (1 + change) ** 2).expand(), (b * (1 - change) ** 2).expand()
        return (c * a + d * b).expand(), (k * a + m * b).expand()

    def mean(self, e: Expr) -> Expr:
        """Return the exact mean over networks of N units of a polynomial in A and B.

        A and B are the initial mean squares over units of the two components of the weights, independent
        chi-squared numbers over their degrees of freedom.

        Parameters
        ----------
        e : Expr
            Polynomial in A and B at the start.

        Returns
        -------
        Expr
            Mean.

        Examples
        --------
        >>> from derive.program import mlp
        >>> from derive.calculus.symbols import gamma0
        >>> one = one_sample(wishart_recursion(mlp(1)))
        >>> print(factor(one.mean(one.after(0)[0] ** 2)))
        K_x/(N*gamma0**2)
        """
        degrees = self.units * N
        total = S.Zero
        for (m, n), c in Poly(e, A, B).terms():
            total += c * _moment(m, degrees) * _moment(n, degrees)
        return total

    def leading(self, e: Expr, other: Expr | None = None) -> Expr:
        """Return N times the covariance of two functions of the initial A and B, to leading order in 1/N.

        A and B are independent chi-squared numbers over their degrees of freedom, which are proportional to
        N.

        Parameters
        ----------
        e : Expr
            Function of A and B at the start.
        other : Expr | None, optional
            Second function; the first by default.

        Returns
        -------
        Expr
            N times the covariance.
        """
        ones, second = {A: S.One, B: S.One}, e if other is None else other
        return Add(*[2 * (e.diff(x) * second.diff(x)).subs(ones) / self.units for x in (A, B)])

    def shift(self, e: Expr) -> Expr:
        """Return N times (mean of a function minus its value at infinite width), to leading order in 1/N.

        Parameters
        ----------
        e : Expr
            Function of A and B at the start, which are independent chi-squared numbers of mean 1.

        Returns
        -------
        Expr
            N times the shift.
        """
        return Add(*[(e.diff(x, 2) / self.units).subs({A: S.One, B: S.One}) for x in (A, B)])


def _moment(power: int, degrees: Expr) -> Expr:
    """Return the mean of ``(X/degrees)^power`` for a chi-squared X with ``degrees`` degrees of freedom."""
    return Mul(*[1 + 2 * S(k) / degrees for k in range(power)])


def one_sample(recursion: GramRecursion) -> OneSample:
    """Return a linear network with one hidden layer and one sample as a function of two numbers, A and B.

    A and B are averages over units of the squares of the two eigencomponents of a unit's fields.

    Parameters
    ----------
    recursion : GramRecursion
        Recursion of the Gram matrix, in steps or in flow. It is written out for one sample.

    Returns
    -------
    OneSample
        The network.

    Raises
    ------
    NotApplicable
        If weights decay, for several outputs, if the change of the fields per unit of error does not have two
        nonzero eigenvalues that differ in sign alone, if the two components are correlated at the start, or
        if the output or the tangent kernel contains their product.
    """
    matrices = _with_plain_names(recursion.matrices(1), recursion.program)
    if len(matrices.errors) != 1:
        raise NotApplicable(
            "the weights of a unit are reduced to two components for a network with one output only; this "
            f"network has {len(matrices.errors)} outputs"
        )
    ((delta, error),) = matrices.errors.items()
    without_error = matrices.motion.xreplace({delta: S.Zero})
    if without_error != (eye(len(matrices.fields)) if recursion.discrete else without_error * 0):
        raise NotApplicable(
            "weights must not decay: the components of a unit change even if the error is zero"
        )
    generator = (matrices.motion - without_error).applyfunc(lambda x: cancel(x / delta))
    if generator.has(delta):
        raise NotApplicable("the change of the fields of a unit must be linear in the error")
    (Q,), (kernel,) = matrices.outputs.values(), matrices.kernels.values()
    pairs = [(rate, v.T) for rate, _, vs in generator.T.eigenvects() for v in vs if rate != 0]
    if len(pairs) != 2 or cancel(pairs[0][0] + pairs[1][0]) != 0:
        raise NotApplicable(
            "the matrix that gives the change of the fields of a unit per unit of error must have exactly "
            f"two nonzero eigenvalues, which differ in sign alone; it has {[rate for rate, _ in pairs]}"
        )
    pairs.sort(key=lambda x: bool(x[0].could_extract_minus_sign()))
    rows = Matrix.vstack(*[v / sqrt((v * matrices.start * v.T)[0]) for _, v in pairs])
    if not _is_identity(rows * matrices.start * rows.T):
        raise NotApplicable(
            "the two components of a unit, along the eigenvectors of its change per unit of error, are "
            "correlated at the start, and must be independent"
        )
    output, tangent = _in_squares(Q, rows), _in_squares(kernel, rows)
    return OneSample(recursion, pairs[0][0], output, tangent, error, matrices.ratio)


def _with_plain_names(matrices: GramMatrices, program: Program) -> GramMatrices:
    """Return the matrices of one sample with plain symbols in place of functions of sample and time.

    The input kernel, the target, and the outputs now and at the start become symbols.
    """
    outputs = {f: now for f in matrices.outputs} | {f.xreplace({t: S.Zero}): first for f in matrices.outputs}
    kernels = {Function(x.kernel)(1, 1): Symbol(x.kernel, positive=True) for x in program.given}
    entries = [*matrices.motion, *matrices.start, *matrices.errors.values()]
    atoms = set[Expr]().union(*(e.atoms(AppliedUndef) for e in entries)) - set(matrices.errors)
    others = {a: Symbol(str(a.func), real=True) for a in atoms - set(outputs) - set(kernels)}
    names = {**others, **kernels, **outputs}

    def named(e: Any) -> Any:
        """Return an expression or matrix in which functions are replaced by the plain symbols."""
        return e.xreplace(names)

    return GramMatrices(
        matrices.fields,
        named(matrices.motion),
        named(matrices.start),
        named(matrices.ratio),
        {f: named(Q) for f, Q in matrices.outputs.items()},
        {d: named(e) for d, e in matrices.errors.items()},
        {k: named(Q) for k, Q in matrices.kernels.items()},
    )


def _is_identity(m: Matrix) -> bool:
    """Return whether a matrix is the identity."""
    return all(cancel(x) == 0 for x in m - eye(m.rows))


def _in_squares(Q: ImmutableMatrix, rows: Matrix) -> tuple[Expr, Expr]:
    """Return the two coefficients c of a quadratic form, ``Q = c_0 r_0^T r_0 + c_1 r_1^T r_1``.

    ``Q`` is the symmetric matrix of the form, and r_0 and r_1 are the two rows of ``rows``. Raises
    NotApplicable if Q has another form.
    """
    c = [Symbol(f"c{i}") for i in range(rows.rows)]
    difference = Q - rows.T * Matrix.diag(*c) * rows
    solutions = solve(list(difference), c, dict=True)
    if not solutions:
        raise NotApplicable(
            "output and tangent kernel must be linear combinations of the squares of the two components of a "
            "unit, without their product"
        )
    return cancel(solutions[0][c[0]]), cancel(solutions[0][c[1]])


# -- in flow -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class OneLayerFlow(ConditionalResult):
    """Linear network with one hidden layer and one sample in flow, at every width.

    A and B are the mean squares over units of the two components of the weights, with initial values A_0 and
    B_0. Then ``A = A_0 z`` and ``B = B_0/z``, where z moves from 1 to the value at which the error vanishes.

    Parameters
    ----------
    modes : OneSample
        Network by A and B.
    """

    modes: OneSample

    def conditions(self) -> tuple[str, ...]:
        """Return the derived and assumed statements about the exact flow.

        Returns
        -------
        tuple[str, ...]
            Sentences that begin with "derived: " or "assumed: ".
        """
        return (
            *self.modes.conditions(),
            "derived: N Cov and N times the shift of means to leading order in 1/N, from derivatives with "
            "respect to A_0 and B_0",
            "assumed: the width is large enough for the leading order in 1/N, which fails at late times",
        )

    def _repr_latex_(self) -> str:
        end = Function("K")(S.Infinity)
        names = ("Var", "shift")
        values = (self.kernel_variance_at_end, self.kernel_shift_at_end)
        equations = [
            Eq(Function(n)(end), N**-1 * v, evaluate=False) for n, v in zip(names, values, strict=True)
        ]
        return aligned_latex([Eq(end, self.kernel_at_end, evaluate=False), *equations])

    # -- exactly ---------------------------------------------------------------------------------------------

    @cached_property
    def output(self) -> Expr:
        """Output f as a function of z, A_0 and B_0.

        A_0 and B_0 are the initial mean squares of the two components of the weights; later they are ``A_0
        z`` and ``B_0/z``.
        """
        return self.modes.output[0] * A * growth + self.modes.output[1] * B / growth

    @cached_property
    def kernel(self) -> Expr:
        """Tangent kernel as a function of z, A_0 and B_0.

        A_0 and B_0 are the initial mean squares of the two components of the weights; later they are ``A_0
        z`` and ``B_0/z``.
        """
        return self.modes.kernel[0] * A * growth + self.modes.kernel[1] * B / growth

    @cached_property
    def error(self) -> Expr:
        """Error of the sample as a function of z, A_0 and B_0.

        A_0 and B_0 are the initial mean squares of the two components of the weights; later they are ``A_0
        z`` and ``B_0/z``.
        """
        return self.modes.of_error(self.output, self.output.subs(growth, 1))

    @cached_property
    def velocity(self) -> Expr:
        """Velocity ``dz/dt``, for the square loss a polynomial of second degree in z.

        z is the factor by which A, the mean square of the first component of the weights, has grown.
        Coefficients are functions of the initial mean squares A_0 and B_0.
        """
        return (2 * self.modes.rate * growth * self.error).expand()

    @cached_property
    def growth_at_end(self) -> Expr:
        """Value of z at the end of training, where the error vanishes.

        z is the factor by which the mean square of the first component of the weights, A, has grown. The
        value is a function of A_0 and B_0, the initial mean squares of both components.
        """
        return self._roots[0]

    @cached_property
    def _roots(self) -> tuple[Expr, Expr]:
        """The two zeros in z of the velocity ``dz/dt``, the positive one first.

        z is the factor by which the mean square of one component of the weights has grown.
        """
        a, b, c = Poly(self.velocity, growth).all_coeffs()
        a, b, c = (factor(x / -a) for x in (a, b, c))
        root = sqrt(factor(b**2 + 4 * c))
        return (b + root) / 2, (b - root) / 2

    def growth_at(self, time: Expr = t) -> Expr:
        """Return z at a time: the factor by which the mean square of the first component has grown.

        Parameters
        ----------
        time : Expr, optional
            Time.

        Returns
        -------
        Expr
            Value of z as a function of A_0 and B_0, the initial mean squares of both components.

        Notes
        -----
        The velocity is ``-k (z - p)(z - q)``, so that ``(z - p)/(z - q)`` decays as ``exp(-k (p - q) t)``.
        """
        p, q = self._roots
        k = -Poly(self.velocity, growth).LC()
        ratio = (1 - p) / (1 - q) * exp(-k * (p - q) * time)
        return (p - q * ratio) / (1 - ratio)

    def at(self, e: Expr, time: Expr = t) -> Expr:
        """Return a function of z at a time, exact at every width.

        Parameters
        ----------
        e : Expr
            Function of z, A_0 and B_0, such as :attr:`output`. The mean squares of the two components of the
            weights are ``A_0 z`` and ``B_0/z``.
        time : Expr, optional
            Time.

        Returns
        -------
        Expr
            Function of time, A_0 and B_0.
        """
        return e.subs(growth, self.growth_at(time))

    @cached_property
    def kernel_at_end(self) -> Expr:
        """Tangent kernel at the end of training, as a function of A_0 and B_0.

        A_0 and B_0 are the initial mean squares of the two components of the weights. The product of the mean
        squares does not change in training. So the squared kernel minus a constant times the squared output
        does not change either. With an output ``c A_0 + d B_0`` at the start, the initial kernel must be
        proportional to ``c A_0 - d B_0``; another kernel raises NotApplicable.
        """
        (c, d), (k, m) = self.modes.output, self.modes.kernel
        if cancel(k * d + m * c) != 0:
            raise NotApplicable(
                "the tangent kernel at the end of training has a closed form only if the kernel is "
                f"proportional to {c * A - d * B}, which is the output with one sign changed; with the mean "
                f"squares A_0 and B_0 of the two components of the weights the output is {c * A + d * B}, "
                f"and the kernel {k * A + m * B}"
            )
        (end,) = solve(self.modes.of_error(now, c * A + d * B), now)
        return sqrt(factor((k / c) ** 2 * end**2 + 4 * k * m * A * B))

    # -- to leading order ------------------------------------------------------------------------------------

    @cached_property
    def kernel_variance_at_end(self) -> Expr:
        """N times the variance of the tangent kernel at the end of training, to leading order in 1/N."""
        return factor(simplify(self.modes.leading(self.kernel_at_end)))

    @cached_property
    def kernel_shift_at_end(self) -> Expr:
        """N times (mean final tangent kernel minus its value at infinite width), to leading order in 1/N."""
        return factor(simplify(self.modes.shift(self.kernel_at_end)))

    def kernel_series(self, order: int) -> tuple[Expr, ...]:
        """Return the coefficients of powers of 1/N of the mean final tangent kernel.

        Parameters
        ----------
        order : int
            Highest power.

        Returns
        -------
        tuple[Expr, ...]
            Coefficients of ``1, 1/N, ...``. They follow from derivatives of the final kernel by the initial
            mean squares of both components of the weights, which are chi-squared numbers.
        """
        order = require_integer("order", order, 0)
        inverse = Symbol("epsilon", positive=True)
        moments = [_central_moment(m, self.modes.units / inverse) for m in range(2 * order + 1)]
        total = S.Zero
        for m in range(2 * order + 1):
            for n in range(2 * order + 1 - m):
                weight = (moments[m] * moments[n]).expand() / (factorial(m) * factorial(n))
                if weight != 0:
                    total += weight * self.kernel_at_end.diff(A, m).diff(B, n).subs({A: 1, B: 1})
        return tuple(factor(total.expand().coeff(inverse, k)) for k in range(order + 1))

    @cached_property
    def _in_growth(self) -> dict[Expr, Expr]:
        """Target of the sample in terms of the symbol ``last``, the final value of z, at infinite width.

        The dictionary has the symbol of the target as its only key. z is the factor by which the mean square
        of the first component of the weights has grown.
        """
        at_end = self.error.subs({growth: last, A: 1, B: 1})
        target = Symbol(str(self.modes.recursion.program.roles.target), real=True)
        return {target: solve(at_end, target)[0]}

    def speed(self) -> Expr:
        """Return the relative rate at which the error decays, ``-(d Delta/dt)/Delta``.

        Returns
        -------
        Expr
            Function of z, A_0 and B_0: the mean squares of the two components of the weights are ``A_0 z``
            and ``B_0/z``.
        """
        return -2 * self.modes.rate * growth * self.error.diff(growth)

    def _at_fixed_error(self, e: Expr, by: Symbol) -> Expr:
        """Return the derivative of a function of z, A_0 and B_0 by A_0 or B_0 at fixed error.

        ``by`` is the symbol of A_0 or of B_0, the initial mean squares of the two components of the weights.
        z, the growth of the first one, changes so that the error stays the same.
        """
        return e.diff(by) - self.error.diff(by) / self.error.diff(growth) * e.diff(growth)

    @cached_property
    def weights(self) -> dict[Symbol, Expr]:
        """Derivatives of :meth:`speed` by A_0 and B_0 at fixed error, divided by ``speed``.

        They are taken at infinite width. ``speed`` is the relative rate at which the error decays. A_0 and
        B_0, the keys, are the initial mean squares of the two components of the weights. Values are functions
        of z, by which A has grown and B has been divided.
        """
        speed = self.speed()
        derivatives = {x: self._at_fixed_error(speed, x) / speed for x in (A, B)}
        return {x: factor(e.subs({A: 1, B: 1})) for x, e in derivatives.items()}

    @cached_property
    def _integrals(self) -> dict[Symbol, Expr]:
        """Integrals over time, from the start, of the relative derivatives :attr:`weights`.

        Keys are A_0 and B_0, the initial mean squares of the two components of the weights. Values are
        functions of z, by which A has grown, and of its final value.
        """
        velocity = factor(self.velocity.subs({A: 1, B: 1}).xreplace(self._in_growth))
        return {x: _integral(e / velocity) for x, e in self.weights.items()}

    @cached_property
    def error_sensitivity(self) -> dict[Symbol, Expr]:
        """Derivatives of the error at a time by A_0 and B_0, at infinite width.

        A_0 and B_0, the keys, are the initial mean squares of the two components of the weights. Values are
        functions of z, by which A has grown, and of its final value. The error obeys ``d Delta/dt = -speed
        Delta``: a perturbation of its initial value decays as ``speed Delta``, and one of the speed is
        integrated over time.
        """
        front = (self.speed() * self.error).subs({A: 1, B: 1}).xreplace(self._in_growth)
        start = {x: self.error.diff(x).subs({A: 1, B: 1, growth: 1}) / front.subs(growth, 1) for x in (A, B)}
        return {x: front * (start[x] - self._integrals[x]) for x in (A, B)}

    @cached_property
    def kernel_sensitivity(self) -> dict[Symbol, Expr]:
        """Derivatives of the tangent kernel at a time by A_0 and B_0, at infinite width.

        A_0 and B_0, the keys, are the initial mean squares of the two components of the weights. Values are
        functions of z, by which A has grown and B has been divided, and of its final value.
        """
        sensitivities = {}
        for x, error_change in self.error_sensitivity.items():
            slope = self.kernel.diff(growth) / self.error.diff(growth)
            direct = self._at_fixed_error(self.kernel, x)
            sensitivities[x] = direct.subs({A: 1, B: 1}) + slope.subs({A: 1, B: 1}) * error_change
        return sensitivities

    def covariance(
        self, first: Mapping[Symbol, Expr], second: Mapping[Symbol, Expr], now: Expr, past: Expr
    ) -> Expr:
        """Return N times the covariance over networks of two quantities, such as error and tangent kernel.

        It is the leading order in 1/N.

        Parameters
        ----------
        first : Mapping[Symbol, Expr]
            Derivatives of the first quantity by the initial mean squares A_0 and B_0:
            :attr:`error_sensitivity` or :attr:`kernel_sensitivity`.
        second : Mapping[Symbol, Expr]
            The same for the second quantity.
        now : Expr
            Value of z, the growth of A, at the time of the first quantity and at infinite width, such as
            :meth:`growth_at` with ``A_0 = B_0 = 1``.
        past : Expr
            Value of z at the time of the second quantity and at infinite width.

        Returns
        -------
        Expr
            Function of both and of the final value of z.
        """
        parts = [first[x].subs(growth, now) * second[x].subs(growth, past) for x in (A, B)]
        return 2 * Add(*parts) / self.modes.units


def _central_moment(power: int, degrees: Expr) -> Expr:
    """Return the mean of ``(X/degrees - 1)^power`` for a chi-squared number X.

    ``degrees`` is its number of degrees of freedom.
    """
    terms = (binomial(power, k) * (-1) ** (power - k) * _moment(k, degrees) for k in range(power + 1))
    return Add(*terms).expand()


def _integral(e: Expr) -> Expr:
    """Return the integral of a rational function of z from 1 to z, with logarithms that vanish at z = 1.

    z is the factor by which one component of the weights has grown.
    """
    front, body = factor(e).as_independent(growth, as_Add=False)
    rational, logs = S.Zero, S.Zero
    for term in Add.make_args(apart(body, growth)):
        poles = [x for x in Mul.make_args(fraction(factor(term))[1]) if x.has(growth)]
        if len(poles) == 1 and poles[0].is_Add and Poly(poles[0], growth).degree() == 1:
            (x,) = poles
            logs += factor(term * x / x.diff(growth)) * log(factor(x / x.subs(growth, 1)))
        else:
            rational += term
    integral = _rational_integral(factor(rational))
    return front * (factor(integral - integral.subs(growth, 1)) + logs)


def _rational_integral(e: Expr) -> Expr:
    """Return an antiderivative in z of a rational function of z.

    If a rational function is an antiderivative, it is returned; its poles have an order one less than those
    of ``e``. Otherwise SymPy integrates, which may give logarithms.
    """
    denominator = fraction(e)[1].as_independent(growth, as_Add=False)[1]
    poles = Mul(*[Pow(x, n - 1) for x, n in factor_list(denominator, growth)[1]])
    c = [Symbol(f"c{k}") for k in range(Poly(poles, growth).degree())]
    ansatz = Add(*[x * growth**k for k, x in enumerate(c)]) / poles
    gap = Poly(fraction(together(ansatz.diff(growth) - e))[0], growth)
    values = solve(gap.all_coeffs(), c, dict=True)
    return ansatz.subs(values[0]) if values else integrate(e, growth)


def one_layer_flow(program: Program) -> OneLayerFlow:
    """Return the exact flow of a linear network with one hidden layer and one sample.

    Parameters
    ----------
    program : Program
        Linear network with one hidden layer and the square loss, in gradient flow. Another loss is not
        refused here, but values at a time and at the end of training are then not derived.

    Returns
    -------
    OneLayerFlow
        Flow at every width.

    Raises
    ------
    NotApplicable
        For steps, and for networks that are not functions of two independent numbers.

    Examples
    --------
    >>> from derive.program import mlp
    >>> found = one_layer_flow(mlp(1, rule="flow"))
    >>> print(found.kernel_variance_at_end, "|", found.kernel_shift_at_end)
    4*K_x**3/(K_x + gamma0**2*y**2) | -K_x**(5/2)/(K_x + gamma0**2*y**2)**(3/2)
    """
    modes = one_sample(wishart_recursion(program))
    if modes.recursion.discrete:
        raise NotApplicable(
            "the closed form is that of a flow: give rule='flow'; for a rule in steps use wishart_recursion"
        )
    return OneLayerFlow(modes)
