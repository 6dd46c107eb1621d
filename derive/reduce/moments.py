"""Moments of one hidden layer: differential equations of a flow, or a map in exact steps (E.1, F.5-F.7).

Without memory (:mod:`.memoryless`) the change of a field depends on the fields at the same time. In a flow
the moments evolve by the product rule; in a linear network they close, because the average of g h is the
output. In steps the second moments are polynomials in those before the step and in the learning rate: an
exact closed map.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from sympy import Derivative, Eq, Expr, Function, S, latex, solve
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average
from derive.calculus.sums import binding, factors
from derive.calculus.symbols import alpha, ell, mu, s, t
from derive.errors import NotApplicable
from derive.linear.projection import tidy_sums
from derive.program import Program
from derive.program.networks.options import has_sample_weights
from derive.program.nonlinear import require_linear_rules
from derive.reduce.memoryless import Motion
from derive.reduce.single_site import SingleSite, every_index, require_flow
from derive.show.latex import aligned_latex
from derive.show.summary import Summarised
from derive.theory import Equation, OrderParameter, Theory
from derive.theory.conditioning import theory_of


@dataclass(frozen=True, repr=False)
class TwoLayer(Summarised):
    """Theory of one hidden layer under gradient flow, as differential equations.

    ``fields`` are the equations of the fields (F.5, E.1; with noise their drift), ``start`` the covariances
    of the fields at time 0, ``moments`` the definitions of moments at one time, such as ``H(mu, alpha, t)``,
    and ``rates`` the equations of the moments with averages (F.6). ``closed`` are these and the equation of
    the error without averages (F.7; empty if averages remain), ``error`` is the equation of the error in
    either case, and ``initial`` are the values at time 0 (only that of the error if averages remain). With
    weights of samples, ``closed`` and ``initial`` also contain the output, before the error.
    """

    theory: Theory
    fields: tuple[Eq, ...]
    start: tuple[Eq, ...]
    moments: tuple[Eq, ...]
    rates: tuple[Eq, ...]
    closed: tuple[Eq, ...]
    error: Eq
    initial: tuple[Eq, ...]

    def rate(self, name: str) -> Expr:
        """Return the time derivative of a moment or the error, without averages if the moments close.

        If they do not, only the rate of the error is known, and contains averages. If they do, ``name`` may
        also be the output with weights of samples. Raises KeyError for a ``name`` without an equation.
        """
        for e in (*self.closed, self.error):
            if str(e.lhs.args[0].func) == name:
                return e.rhs
        known = ", ".join(str(e.lhs.args[0].func) for e in (*self.closed, self.error))
        raise KeyError(f"there is no closed equation for {name}; there are equations for {known}")

    def latex(self) -> str:
        """Return the equations of fields, moments and error, and their initial values, in LaTeX.

        Each equation is on a line of its own.
        """
        equations = (*self.fields, *self.start, *self.moments, *self.rates)
        rows = [*equations, *(self.closed or (self.error,)), *self.initial]
        body = " \\\\\n  ".join(latex(e).replace(" = ", " &= ", 1) for e in rows)
        return "\\begin{align}\n  " + body + "\n\\end{align}"

    def _repr_latex_(self) -> str:
        return aligned_latex((*self.fields, *(self.closed or (*self.rates, self.error))), self.theory)


def two_layer(theory: Theory | Program) -> TwoLayer:
    """Return the differential equations of one hidden layer; weights may decay and diffuse.

    Parameters
    ----------
    theory : Theory or Program
        A theory or program of one hidden layer under gradient flow. The output must be an average over units
        times a constant.

    Returns
    -------
    TwoLayer
        Equations of the fields, of their moments and of the error.

    Raises
    ------
    NotApplicable
        If time is discrete, the rule has momentum, a source changes with the fields (deeper networks), or the
        output is not a constant times one average over units.

    Examples
    --------
    >>> from derive import mean_field, mlp
    >>> print(two_layer(mean_field(mlp(1, rule="flow"))).rate("Delta"))
    -G(t)*Sum(Delta(alpha, t)*K_x(mu, alpha), (alpha, 1, P)) - Sum(Delta(alpha, t)*H(mu, alpha, t), ...)
    """
    theory = theory_of(theory, "two_layer")
    require_linear_rules(theory.program, "the theory of two layers in moments")
    site = every_index(require_flow(theory))
    functions = _Moments(theory, site)
    rates = tuple(Eq(Derivative(m.lhs, t), site.moment_rate(m.rhs.body)) for m in functions.moments)
    closed = [Eq(e.lhs, functions.named(e.rhs)) for e in rates]
    f, given = functions.output, functions.error
    moved = functions.weight * site.moment_rate(functions.average.body)
    if has_sample_weights(theory.program):
        closed.append(Eq(Derivative(f.lhs, t), functions.named(tidy_sums(moved.expand()))))
    slope = tidy_sums((given.rhs.diff(f.lhs) * moved).expand())
    error = Eq(Derivative(given.lhs, t), functions.named(slope))
    complete = not any(e.has(Average) for e in (*closed, error))
    initial = [Eq(m.lhs.subs(t, 0), functions.at_start(m.rhs)) for m in functions.moments]
    value = functions.at_start(f.rhs)
    if has_sample_weights(theory.program):
        initial.append(Eq(f.lhs.subs(t, 0), value))
    begin = Eq(given.lhs.subs(t, 0), given.rhs.xreplace({f.lhs: value}))
    pairs = [(Average(x.field.subs(t, 0) * x.partner.subs(t, 0)), x.start) for x in site.flows]
    return TwoLayer(
        theory=theory,
        fields=tuple(Eq(Derivative(x.field, t), tidy_sums(x.velocity.expand())) for x in site.flows),
        start=tuple(Eq(*x, evaluate=False) for x in pairs),
        moments=tuple(functions.moments),
        rates=rates,
        closed=(*closed, error) if complete else (),
        error=error,
        initial=(*initial, begin) if complete else (begin,),
    )


# -- moments in exact steps ----------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class MomentSteps(Summarised):
    """Map of moments at one time: ``step[x]`` is x after one step, and ``initial[x]`` is x at time 0."""

    theory: Theory
    step: dict[Expr, Expr]
    initial: dict[Expr, Expr]

    def _repr_latex_(self) -> str:
        return aligned_latex(
            (Eq(x.subs(t, t + 1), e, evaluate=False) for x, e in self.step.items()), self.theory
        )


def moment_steps(theory: Theory) -> MomentSteps:
    """Return the exact map of the moments of a linear network with one hidden layer by one step.

    The moments are the correlation functions at equal times, and the error. Weights may decay and
    diffuse. Raises :class:`NotApplicable` for a flow, for a theory with memory, for an output that is not a
    constant times one average over units, and if the moments do not close.

    >>> from derive import mean_field, mlp
    >>> steps = moment_steps(mean_field(mlp(1, loss="sum")))
    >>> print(*steps.step)
    H(mu, alpha, t) G(t) Delta(mu, t)
    """
    if not theory.program.rule.discrete:
        raise NotApplicable(
            "the theory is a flow, and the map from one step to the next needs a training rule in steps"
        )
    site = every_index(theory)
    functions = _Moments(theory, site)
    f, given = functions.output, functions.error
    step = {m.lhs: functions.named(site.moment_rate(m.rhs.body)) for m in functions.moments}
    step[given.lhs] = given.rhs.xreplace(
        {f.lhs: functions.named(functions.weight * site.moment_rate(functions.average.body))}
    )
    if averages := [x for e in step.values() for x in e.atoms(Average)]:
        raise NotApplicable(
            f"the moments do not close, because {averages[0]} is neither a correlation function nor the "
            "output; use a linear network with one output and a linear rule, such as mlp(1)"
        )
    initial = {m.lhs: functions.at_start(m.rhs) for m in functions.moments}
    initial[given.lhs] = given.rhs.xreplace({f.lhs: functions.at_start(f.rhs)})
    return MomentSteps(theory, step, initial)


class _Moments:
    """Moments at one time of a theory without memory, and averages in terms of them."""

    def __init__(self, theory: Theory, site: SingleSite) -> None:
        """Define the moments: the correlation functions of the theory at equal times.

        ``site`` has the equations of motion of the fields.

        The output, its error and the average over units in the output are found too. Raises NotApplicable
        unless the output is a constant times one such average.
        """
        # `unfolded` rewrites an expression in terms of the fields that have equations of motion.
        self.theory, self.unfolded = theory, site.unfolded
        self.motions = {str(x.field.func): x for x in site.flows}
        self.moments = [self.moment(q) for q in theory.correlations()]
        self.output = next(e for e in theory.scalars if e.rhs.has(Average))
        self.error: Equation = next(e for e in theory.scalars if e.name != self.output.name)
        averages = sorted(self.output.rhs.atoms(Average), key=str)
        self.average: Average = averages[0]
        self.weight: Expr = self.output.rhs.expand().coeff(self.average)
        remainder = (self.output.rhs - self.weight * self.average).expand()
        if len(averages) > 1 or remainder != 0 or self.weight.has(t, *[e.lhs.func for e in theory.scalars]):
            raise NotApplicable(
                "moments of one hidden layer need an output that is a constant times one average over "
                f"units, and {self.output.lhs} is {self.output.rhs}: leave out other terms and factors"
            )

    def moment(self, q: OrderParameter) -> Eq:
        """Return the moment at equal times of a correlation function, as ``symbol = average``."""
        body = q.definition.args[0].subs(ell, 1).xreplace({s: t})
        indices = [x for x in q.symbol.args if x not in (ell, t, s) and x != 1]
        return Eq(Function(q.name)(*indices, t), Average(body), evaluate=False)

    @cached_property
    def value(self) -> Expr:
        """The average over units in the definition of the output, expressed by the error of the output.

        With weights of samples, where some errors may be zero, it is expressed by the output itself.
        """
        f, given = self.output, self.error
        if has_sample_weights(self.theory.program):
            return solve(f.lhs - f.rhs, self.average)[0]
        return solve(given.lhs - given.rhs.xreplace({f.lhs: f.rhs}), self.average)[0]

    def named(self, e: Expr) -> Expr:
        """Return an expression with averages over units replaced by symbols of moments.

        The average in the output is replaced by an expression in the error. Other averages stay.
        """
        known = [(self.average.body, self.value)]
        known += [(self.unfolded(m.rhs.body), m.lhs) for m in self.moments]

        def name(average: Expr) -> Expr:
            """Return the moment, or the expression in the error or output, for one average over units.

            Any average that is neither a moment nor part of the output is returned unchanged.
            """
            for body, value in known:
                if (samples := _match(body, average.body)) is not None:
                    return value.xreplace(samples)
            return average

        return tidy_sums(e.replace(lambda x: isinstance(x, Average), name).expand())

    def at_start(self, e: Expr) -> Expr:
        """Return an expression at time 0, where second moments of fields are covariances of sources."""

        def value(average: Expr) -> Expr:
            """Return an average at time 0: the covariance of two fields, or else the average at t = 0."""
            fields = factors(self.unfolded(average.body))
            if len(fields) == 2 and all(isinstance(x, AppliedUndef) for x in fields):
                x, y = sorted(fields, key=lambda a: mu not in a.args)
                return self.covariance(x, y, "start")
            return average.xreplace({t: S.Zero})

        return e.replace(lambda x: isinstance(x, Average), value).subs(t, 0)

    def covariance(self, x: AppliedUndef, y: AppliedUndef, which: str) -> Expr:
        """Return the covariance of the fields x and y at time 0, or that of their noise.

        ``which`` selects the attribute of `Motion` that is read: ``start`` (time 0) or ``diffusion`` (noise).
        The result is zero for fields of different names and for a field without an equation of motion.
        """
        motion: Motion | None = self.motions.get(str(x.func))
        if motion is None or x.func != y.func:
            return S.Zero
        names = binding(motion.field.func(*motion.field.args[:-1]), x.func(*x.args[:-1]))
        names |= binding(motion.partner.func(*motion.partner.args[:-1]), y.func(*y.args[:-1]))
        value: Expr = getattr(motion, which)
        return value.xreplace(names)


def _match(pattern: Expr, body: Expr) -> dict[Expr, Expr] | None:
    """Return the samples for which an expression ``pattern`` in the indices mu and alpha equals ``body``.

    The result maps mu and alpha to symbols in body, such as ``{mu: alpha, alpha: mu}``; None if no choice
    fits.
    """
    free = [x for x in (mu, alpha) if pattern.has(x)]
    indices = sorted({x for a in body.atoms(AppliedUndef) for x in a.args if x.is_Symbol and x != t}, key=str)
    choices: list[dict[Expr, Expr]] = [{}]
    for x in free:
        choices = [c | {x: y} for c in choices for y in indices]
    return next((c for c in reversed(choices) if pattern.xreplace(c) == body), None)
