"""Whitened data: the theory of P samples reduces to that of one sample (eq. F.8-F.16).

With the identity as input kernel, all feedback is along the target direction n, at any depth: in a basis of
the samples whose first vector is n, only one sample moves; that the others do not move is checked. With one
hidden layer, conserved quantities then leave one separable equation, whose limits in gamma0 are taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from sympy import (
    Abs,
    Add,
    Derivative,
    Dummy,
    Eq,
    Expr,
    Function,
    Integer,
    KroneckerDelta,
    Mul,
    Poly,
    Pow,
    Rational,
    S,
    Symbol,
    exp,
    factor,
    fraction,
    limit,
    log,
    oo,
    roots,
    simplify,
    solve,
    sympify,
)
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average
from derive.calculus.sums import factors, rewritten
from derive.calculus.symbols import IndexRange, P, alpha, gamma0, mu, t
from derive.errors import NotApplicable, require_type
from derive.linear.form import linear_form
from derive.program import Program
from derive.program.networks.options import has_sample_weights
from derive.reduce.closed_forms import Separable, conserved, separable
from derive.reduce.moments import MomentSteps, TwoLayer, moment_steps, two_layer
from derive.show.latex import aligned_latex
from derive.show.summary import Summarised
from derive.theory import Equation, Term, Theory

n = Function("n")
"""The unit vector along the targets."""
norm = Symbol("y", positive=True)
"""The length of the target vector."""
output = Symbol("f", positive=True)
"""The output along the targets."""


# -- reduction to one sample ---------------------------------------------------------------------------------


def whitened_deep(theory: Theory) -> Theory:
    """Return the theory of one sample, the component along the targets, of a linear network with ``K_x = 1``.

    The input kernel between samples is the identity. ``h_y``, ``u_y``, ``H_y``, ``A_y``, ``B_y`` are
    projections on n, the direction of the targets; the scalars ``Delta(t)`` and ``f(t)`` keep their names,
    and the constant ``y`` is the length of the target vector. Raises :class:`NotApplicable` for nonlinear
    networks, theories without an input kernel or targets of samples, weights of samples, targets of several
    outputs and theories that are reduced already, if something moves in a direction orthogonal to the
    targets, and for errors that are not linear in the outputs.

    >>> from derive import mean_field, mlp
    >>> from derive.program import ell
    >>> reduced = whitened_deep(mean_field(mlp(rule="flow")))
    >>> print(reduced.equation("h_y", ell + 1).terms[2].expr)
    Integral(gamma0*Delta(s)*H_y(ell, t, s)*g(ell + 1, s), (s, 0, t))
    """
    return _Whitened(theory).reduce()


class _Whitened:
    """Theory in a basis of the samples whose first vector is n, the direction of the targets.

    With the identity as input kernel all bases of the samples are equivalent, if samples are indices of
    vectors: in each term a free sample occurs once, and a sample that is summed over twice. Sample 1 is the
    direction of the targets; sample 2 stands for all directions orthogonal to it. Deterministic functions of
    one sample vanish at sample 2, and those of two samples at the pair 1 and 2.
    """

    def __init__(self, theory: Theory) -> None:
        """Find which arguments of the functions of a theory are samples.

        Raises NotApplicable for theories in which samples cannot be rotated into the direction of the
        targets.
        """
        if theory.reduction:
            raise NotApplicable(f"whitened data: the theory has been rewritten already ({theory.reduction})")
        if has_sample_weights(theory.program):
            raise NotApplicable(
                "whitened data: the reduction needs a loss without weights of samples; leave sample_weights "
                "out"
            )
        roles = theory.program.roles
        if roles.kernel is None or roles.target is None:
            raise NotApplicable(
                "whitened data: the theory needs samples with an input kernel and targets, as those of mlp; "
                "random data have neither"
            )
        self.kernel, self.target = roles.kernel, roles.target
        if any(len(a.args) > 1 for e in theory.scalars for a in e.rhs.atoms(Function(self.target))):
            raise NotApplicable(
                "whitened data: the program has several outputs, whose targets have several directions; use "
                "one output"
            )
        linear_form(theory)
        self.theory = theory
        self.random = {e.name for e in theory.equations} | {str(u.symbol.func) for u in theory.sources}
        # positions of the sample indices among the arguments of each function
        self.places: dict[str, tuple[int, ...]] = {self.kernel: (0, 1), self.target: (0,)}
        symbols = [e.lhs for e in (*theory.equations, *theory.scalars, *theory.observables)]
        symbols += [u.symbol for u in theory.sources] + [q.symbol for q in theory.order_parameters]
        for x in symbols:
            if places := tuple(i for i, a in enumerate(x.args) if a in (mu, alpha)):
                self.places[str(x.func)] = places
        scalars = {e.name for e in theory.scalars}
        self.names = {x: x if x in scalars else f"{x}_y" for x in self.places}

    def reduce(self) -> Theory:
        """Return the theory with one sample in place of all: the component along the vector of targets.

        Raises NotApplicable unless directions orthogonal to the targets stand still.
        """
        self.require_no_orthogonal_motion()
        return replace(self.theory.each(self.projected), reduction="whitened data")

    # -- along the targets: sample 1 alone -------------------------------------------------------------------

    def projected(self, x: Any) -> Iterator[Any]:
        """Yield an equation, source or order parameter projected on n, the direction of the targets.

        Exactly one item is yielded, without indices of samples.
        """
        kept = tuple(r for r in x.ranges if r.upper != P)
        if not isinstance(x, Equation):
            yield replace(x.map(self.along), ranges=kept)
            return
        terms = (replace(y.map(self.along), over=tuple(r for r in y.over if r.upper != P)) for y in x.terms)
        yield Equation(self.along(x.lhs), tuple(terms), kept)

    def along(self, e: Expr) -> Expr:
        """Return an expression with each function of samples replaced by its component along the targets.

        The input kernel becomes 1, and the targets become their length ``y``. Any other function loses its
        indices of samples: a scalar ``f(mu, t)`` becomes ``f(t)``, a field ``h(mu, t)`` becomes ``h_y(t)``.
        """

        def projection(x: AppliedUndef) -> Expr:
            name = str(x.func)
            if name in (self.kernel, self.target):
                return S.One if name == self.kernel else norm
            return Function(self.names[name])(
                *[a for i, a in enumerate(x.args) if i not in self.places[name]]
            )

        return rewritten(e, self.places, projection)

    # -- orthogonal to the targets: sample 2 -----------------------------------------------------------------

    def across(self, e: Expr, at: Mapping[Expr, Expr]) -> Expr:
        """Return ``e`` at samples 1 or 2, with deterministic functions that vanish there set to zero.

        Samples are counted in a basis whose first vector is along the targets; 2 stands for any direction
        orthogonal to them. ``at`` maps the sample indices of e to 1 or 2. Functions of one sample vanish at
        2, those of two samples at the pair 1 and 2, and the input kernel is a Kronecker delta.
        """

        def value(x: AppliedUndef) -> Expr:
            samples = [x.args[i] for i in self.places[str(x.func)]]
            if str(x.func) == self.kernel:
                return KroneckerDelta(*samples)
            return S.Zero if samples in ([TWO], [S.One, TWO], [TWO, S.One]) else x

        return rewritten(e.xreplace(dict(at)), {*self.places} - self.random, value)

    def summed(self, x: Term, at: Mapping[Expr, Expr]) -> Expr:
        """Return a term of an equation with its sums over samples taken along and across the targets.

        These are samples 1 and 2 of a basis whose first vector is along the targets; terms that vanish there
        are left out. ``at`` gives the values, 1 or 2, of the samples that are not summed.
        """
        samples = [r.index for r in x.over if r.upper == P]
        values = (
            dict(zip(samples, choice, strict=True)) for choice in product((S.One, TWO), repeat=len(samples))
        )
        return Add(*[self.across(x.coefficient * x.kernel * x.field, {**at, **v}) for v in values])

    def require_no_orthogonal_motion(self) -> None:
        """Raise NotApplicable unless directions orthogonal to the targets stand still and act on nothing.

        Fields of sample 2, which stands for these directions, must be independent sources without feedback.
        """
        for e in self.theory.equations:
            for x in (y for y in e.terms if y.kind != "source"):
                if mu in e.lhs.args and (moved := self.summed(x, {mu: TWO})) != 0:
                    raise NotApplicable(
                        "whitened data: for samples orthogonal to the targets, the equation of the field "
                        f"{e.lhs} must contain sources only, and it contains {moved}"
                    )
                feedback = self.summed(x, {mu: S.One})
                if any(TWO in self.samples(a) for a in feedback.atoms(AppliedUndef)):
                    raise NotApplicable(
                        f"whitened data: the equation of {e.lhs} contains directions orthogonal to the "
                        f"targets: {feedback}"
                    )
        for u in self.theory.sources:
            self.vector_indices(u.symbol, u.covariance, u.ranges, ())
            if {mu, alpha} <= {*u.symbol.args, *u.partner.args}:
                mixed = self.across(u.covariance, {mu: S.One, alpha: TWO})
                if mixed != 0:
                    raise NotApplicable(
                        f"whitened data: the source {u.symbol} along the targets is correlated with "
                        f"orthogonal directions: {mixed}"
                    )
        for e in (*self.theory.equations, *self.theory.scalars, *self.theory.observables):
            for x in e.terms:
                self.vector_indices(e.lhs, x.coefficient * x.kernel * x.field, e.ranges, x.over)

    def vector_indices(
        self, lhs: Expr, body: Expr, free: tuple[IndexRange, ...], over: tuple[IndexRange, ...]
    ) -> None:
        """Raise NotApplicable unless samples are indices of vectors in the equation ``lhs = body + ...``.

        Each free sample (in ``free``) must occur once in each product, and each summed one (in ``over``)
        twice.
        """
        wanted = Counter({r.index: n for n, rs in ((1, free), (2, over)) for r in rs if r.upper == P})
        for part in Add.make_args(body.expand()):
            if Counter(i for x in factors(part) for i in self.samples(x)) != wanted:
                raise NotApplicable(
                    f"whitened data: in the term {part} of the equation or covariance of {lhs}, each index "
                    "of a sample must occur once in fields and kernels, or twice if it is summed, as with "
                    "the square loss"
                )

    def samples(self, x: Expr) -> list[Expr]:
        """Return the sample indices of a factor of a product, with repetition.

        They are arguments of fields and kernels. A sample index in any other expression is returned three
        times, so that a check which allows one or two occurrences of each index refuses it.
        """
        if isinstance(x, Average):
            return [i for y in factors(x.body) for i in self.samples(y)]
        if isinstance(x, AppliedUndef):
            return [x.args[i] for i in self.places.get(str(x.func), ())]
        # The check of the equations allows each sample index once or twice. A sample index that is not an
        # argument of a field or kernel is listed three times, so that the check refuses the equation.
        return sorted(x.free_symbols & {mu, alpha}, key=str) * 3


TWO = Integer(2)


def from_projections(samples: Sequence[Expr], along: Expr, across: Expr) -> Expr:
    """Return a function of one or two samples, given its components along n and orthogonal to n.

    ``samples`` are the indices, a and b, of the function, and n is the unit vector along the targets. The
    result is ``along n_a`` for one sample, and for two samples ``along n_a n_b + across (delta_ab - n_a
    n_b)``.
    """
    if len(samples) < 2:
        return along * Mul(*map(n, samples))
    return across * KroneckerDelta(*samples) + (along - across) * Mul(*map(n, samples))


def whitened_steps(steps: MomentSteps) -> MomentSteps:
    """Return the map by one training step of the moments of a linear network on whitened data, ``K_x = 1``.

    The moments are those of one sample, the component along the vector of targets. Raises
    :class:`NotApplicable` if the theory does not reduce to this component (see :func:`whitened_deep`).

    >>> from derive import mean_field, mlp
    >>> plain = whitened_steps(moment_steps(mean_field(mlp(1, loss="sum"))))
    >>> print(*plain.step)
    H_y(t) G(t) Delta(t)
    """
    return moment_steps(whitened_deep(steps.theory))


@dataclass(frozen=True, repr=False)
class Whitened(Summarised):
    """Theory of one hidden layer for ``K_x = 1``, reduced to one equation and solved.

    ``tensors`` are the functions of samples in terms of their projections on the targets, ``scalar`` the
    equations of these (F.8) and ``initial`` their values at 0; ``invariants`` are conserved (F.10),
    ``eliminated`` gives the other unknowns as functions of the error, ``error`` and ``output`` are the
    remaining equation written for Delta and for f (F.11), and ``motion`` its solution f(t).
    """

    theory: TwoLayer
    tensors: tuple[Eq, ...]
    scalar: tuple[Eq, ...]
    initial: tuple[Eq, ...]
    invariants: tuple[Expr, ...]
    eliminated: tuple[Eq, ...]
    error: Eq
    output: Eq
    motion: Separable

    @property
    def time(self) -> Eq:
        """The equation ``t = elapsed(f)`` for the time until the output f is reached (F.12)."""
        return Eq(t, self.motion.elapsed, evaluate=False)

    @property
    def solution(self) -> Eq:
        """The equation ``Delta(t) = ...`` for the error at time t in closed form: F.12 solved for f."""
        top, bottom = fraction(self.motion.solution)
        return Eq(self.error.lhs.args[0], factor((norm * bottom - top).expand()) / bottom, evaluate=False)

    def _repr_latex_(self) -> str:
        return aligned_latex((*self.scalar, self.output, self.solution), self.theory.theory)


def whitened(theory: TwoLayer | Theory | Program, degree: int = 2) -> Whitened:
    """Reduce the two-layer equations on whitened data to one equation, and solve it.

    Parameters
    ----------
    theory : TwoLayer, Theory or Program
        A linear network with one hidden layer under gradient flow.
    degree : int
        The highest degree of the conserved quantities, polynomials in the moments, that are searched for: an
        integer of at least 1.

    Returns
    -------
    Whitened
        The reduced equations and their solution.

    Raises
    ------
    NotApplicable
        If ``degree`` is not an integer of at least 1, if the equations do not close, or if the conserved
        quantities do not leave one separable equation, as with ``degree`` below 2.

    Examples
    --------
    >>> from derive import mean_field, mlp
    >>> print(whitened(two_layer(mean_field(mlp(1, rule="flow")))).output.rhs)
    2*(-f + y)*sqrt(f**2*gamma0**2 + 1)
    """
    if isinstance(theory, Theory | Program):
        theory = two_layer(theory)
    require_type(
        theory, TwoLayer, "whitened", "a theory or program of one hidden layer, or the result of two_layer"
    )
    if isinstance(degree, bool) or not (isinstance(degree, int | Integer) and degree >= 1):
        raise NotApplicable(f"whitened(degree={degree!r}): the degree must be an integer >= 1, such as 2")
    if not theory.closed:
        raise NotApplicable(
            "whitened data: the moment equations contain averages that are not moments; use a linear network "
            "with one output"
        )
    basis = _Whitened(theory.theory)
    reduced = two_layer(basis.reduce())
    scalar = tuple(Eq(e.lhs, factor(e.rhs), evaluate=False) for e in reduced.closed)
    initial = {e.lhs.args[0]: start.rhs for e, start in zip(scalar, reduced.initial, strict=True)}
    begun = zip(theory.closed, theory.initial, strict=True)
    invariants = conserved(scalar, degree)
    error_signal = theory.theory.program.roles.error
    delta = (Function("Delta") if error_signal is None else error_signal.func)(t)
    eliminated = eliminate(invariants, initial, delta)
    error = next(Eq(e.lhs, e.rhs.subs(eliminated), evaluate=False) for e in scalar if e.lhs.args[0] == delta)
    # The rate of the output f is minus that of the error Delta = y - f. `norm` is y, the norm of the vector
    # of targets.
    rate = simplify(factor(-error.rhs.subs(delta, norm - output)))
    moved = Eq(Derivative(Function("f")(t), t), rate, evaluate=False)
    tensors = (_tensor(basis, e.lhs.args[0], start.rhs) for e, start in begun)
    return Whitened(
        theory,
        # Functions without a sample index give the equation x = x, which is left out.
        tuple(e for e in tensors if e.lhs != e.rhs),
        scalar,
        tuple(Eq(k.subs(t, 0), v, evaluate=False) for k, v in initial.items()),
        invariants,
        tuple(Eq(k, v, evaluate=False) for k, v in eliminated.items()),
        error,
        moved,
        separable(moved.rhs, output, norm - initial[delta], t),
    )


def _tensor(one: _Whitened, x: AppliedUndef, start: Expr) -> Eq:
    """Return the equation of a function of samples ``x`` in terms of its component along the targets.

    ``one`` is the theory of this component. Orthogonal to the targets x keeps its initial value ``start``.
    """
    samples, name = x.args[:-1], str(x.func)
    across = one.across(start, dict.fromkeys(samples, TWO))
    return Eq(x, from_projections(samples, Function(one.names.get(name, name))(t), across), evaluate=False)


def eliminate(invariants: tuple[Expr, ...], initial: dict[Expr, Expr], keep: Expr) -> dict[Expr, Expr]:
    """Return all unknowns but ``keep`` as functions of ``keep``, from conserved quantities.

    ``initial`` maps all unknowns to their initial values, which select the branch. Raises
    :class:`NotApplicable` unless exactly one branch contains them.
    """
    others = [x for x in initial if x != keep]
    slots = {x: Symbol(f"_{k}") for k, x in enumerate(others)}
    level = [(i - i.subs(initial)).subs(slots) for i in invariants]

    def begins(b: dict[Expr, Expr]) -> bool:
        gaps = (b[s].subs(keep, initial[keep]) - initial[x] for x, s in slots.items())
        return len(b) == len(others) and all(simplify(gap) == 0 for gap in gaps)

    right = [b for b in solve(level, list(slots.values()), dict=True) if begins(b)]
    if len(right) != 1:
        raise NotApplicable(
            f"the conserved quantities {invariants} do not determine {others} as functions of {keep}, or "
            "have several solutions with the initial values; a larger degree may give more conserved "
            "quantities"
        )
    return {x: _readable(right[0][s], keep, initial[keep]) for x, s in slots.items()}


def _readable(e: Expr, x: Expr, start: Expr) -> Expr:
    """Return an expression with square roots of the form ``sqrt(a + b)``, where a is the initial value.

    ``a`` is the value of the radicand at ``x = start``, and ``b`` the factored difference from it. Other
    powers, such as inverse square roots, are unchanged.
    """
    half = sympify(1) / 2

    def rewritten_root(p: Expr) -> Expr:
        first = p.base.subs(x, start)
        return (simplify(first) + factor(p.base - first)) ** p.exp

    return e.replace(lambda p: p.is_Pow and p.exp == half, rewritten_root)


@dataclass(frozen=True, repr=False)
class Limits(Summarised):
    """Limits of the whitened two-layer dynamics at small and large gamma0.

    ``lazy`` is the equation of the error at gamma0 = 0 and ``lazy_solution`` its solution (F.13). At large
    gamma0 the rate grows like ``gamma0^power``; ``rich`` is the equation to leading order (F.14),
    ``unstable`` and ``stable`` its fixed points for the output. ``learning_time`` is the time to reach f to
    leading order in large gamma0, and ``effective_start`` the output from which the limiting equation takes
    the same time.
    """

    lazy: Eq
    lazy_solution: Eq
    power: Expr
    rich: Eq
    unstable: tuple[Expr, ...]
    stable: tuple[Expr, ...]
    learning_time: Expr
    effective_start: Expr

    def _repr_latex_(self) -> str:
        return aligned_latex((self.lazy, self.lazy_solution, self.rich))


def whitened_limits(w: Whitened) -> Limits:
    """Return the dynamics of a linear network with one hidden layer at small and at large gamma0.

    ``w`` is the solution on whitened data, from which the limits are taken. Raises NotApplicable if the
    equation of the output does not contain the symbol gamma0.

    >>> from derive import mean_field, mlp
    >>> ends = whitened_limits(whitened(two_layer(mean_field(mlp(1, rule="flow")))))
    >>> print(ends.rich.rhs, "|", ends.learning_time, "|", ends.effective_start)
    -2*gamma0*(y - Delta(t))*Delta(t) | log(2*f*gamma0*y/(-f + y))/(2*gamma0*y) | 1/(2*gamma0)
    """
    _require_gamma0(w, "the limits of small and large gamma0 are")
    rate, delta = w.output.rhs, w.error.lhs.args[0]
    power = simplify(limit(gamma0 * rate.diff(gamma0) / rate, gamma0, oo))
    leading = factor(limit(rate / gamma0**power, gamma0, oo))
    rests = {p: leading.diff(output).subs(output, p) for p in sorted(roots(Poly(leading, output)), key=str)}
    weight, grown = _leading(w.motion.weight), factor(_leading(w.motion.growth))
    start = Dummy("start", positive=True)
    limiting = _approach(leading, rests, start)
    begins = solve(limit(limiting * start, start, 0) / start - grown, start)
    return Limits(
        lazy=Eq(w.error.lhs, w.error.rhs.subs(gamma0, 0), evaluate=False),
        lazy_solution=Eq(delta, simplify(w.solution.rhs.subs(gamma0, 0).rewrite(exp)), evaluate=False),
        power=power,
        rich=Eq(Derivative(delta, t), (-leading * gamma0**power).subs(output, norm - delta), evaluate=False),
        unstable=tuple(p for p, slope in rests.items() if slope.is_positive),
        stable=tuple(p for p, slope in rests.items() if slope.is_negative),
        learning_time=weight * log(grown),
        effective_start=begins[0],
    )


def _require_gamma0(w: Whitened, what: str) -> None:
    """Raise NotApplicable, for a result named ``what``, if the equation of the output contains no gamma0."""
    if not w.output.rhs.has(gamma0):
        raise NotApplicable(
            f"{what} not derived: df/dt = {w.output.rhs} does not contain the symbol gamma0; use a program "
            "whose scale is gamma0, and not a number"
        )


def _leading(e: Expr) -> Expr:
    """Return the leading term of ``e`` in large gamma0."""
    small = Dummy("epsilon", positive=True)
    inside = e.subs(gamma0, 1 / small)
    return simplify(inside.as_leading_term(small)).subs(small, 1 / gamma0)


def _approach(rate: Expr, rests: dict[Expr, Expr], start: Expr) -> Expr:
    """Return ``exp(slope * time)`` for the time that ``df/dt = rate`` takes from ``start`` to the output f.

    The rate has simple zeros; ``rests`` maps each zero to the slope of the rate there, and ``slope`` is
    the slope at the first zero in ``rests``. The time is the integral of ``1/rate`` in partial fractions.
    """
    first = next(iter(rests.values()))
    value: Expr = Rational(1)
    for p, slope in rests.items():
        value *= ((output - p) / (start - p)) ** simplify(first / slope)
    return value


# -- radius of convergence in gamma0 -----------------------------------------------------


@dataclass(frozen=True)
class SingularStrength:
    """Singularities in complex gamma0 of the time until the output f is reached.

    ``singular`` are the values of gamma0, functions of f, at which the time is singular, and ``removable``
    those at which only its formula is. ``radius`` is the radius of convergence of the series about gamma0 = 0
    for fixed f, and ``uniform`` its limit as f goes to the target, where a radius that falls with f is
    smallest.
    """

    singular: tuple[Expr, ...]
    removable: tuple[Expr, ...]
    radius: Expr
    uniform: Expr


def series_radius(w: Whitened) -> SingularStrength:
    """Return the radius of convergence in gamma0 of the exact time until the output f is reached.

    ``w`` is the solution on whitened data. The singularities are the values of gamma0 at which a square root
    in the formula of the time vanishes, unless the formula is even in this root. Raises NotApplicable if an
    output at rest depends on gamma0, because the time would have more singularities, and if the equation of
    the output does not contain the symbol gamma0.

    >>> from derive import mean_field, mlp
    >>> print(series_radius(whitened(two_layer(mean_field(mlp(1, rule="flow"))))).radius)
    1/f
    """
    _require_gamma0(w, "the radius of convergence in gamma0 is")
    elapsed, coupling = w.motion.elapsed, Symbol("_gamma")
    if any(p.has(gamma0) for p in solve(w.output.rhs, output)):
        raise NotApplicable(
            f"the radius of convergence is not derived: an output f at which df/dt = {w.output.rhs} is zero "
            "depends on gamma0"
        )
    singular: set[Expr] = set()
    removable: set[Expr] = set()
    for radicand in {p.base for p in elapsed.atoms(Pow) if abs(p.exp) == Rational(1, 2)}:
        at = solve(radicand.subs(gamma0, coupling), coupling)
        root = Dummy("root")
        elapsed_of_root = elapsed.xreplace({radicand ** Rational(k, 2): root**k for k in (1, -1)})
        odd = simplify(elapsed_of_root - elapsed_of_root.subs(root, -root))
        (removable if odd == 0 else singular).update(at)
    radius = min((simplify(Abs(p)) for p in singular), key=lambda r: r.subs({output: 1, norm: 2}))
    at, only = (tuple(sorted(x, key=str)) for x in (singular, removable))
    return SingularStrength(at, only, radius, limit(radius, output, norm, "-"))
