"""Closed equations of a residual network at its first steps, and the powers of L in them.

Every function of the layers and of two times becomes one function of the layers for each pair of times:
``R_xu(ell, k, t, s)`` is ``R_xu_1_0(ell, k)`` at (1, 0). Sums over times are written out; a sum over the
layers k of a source becomes the factor ``over_layers``, whose body keeps its k. The right-hand side is then a
polynomial, from which :mod:`derive.depth.balance` takes powers of L (:func:`sizes`) and a solver takes
numbers.

With ``x_t = x_0 + dx_t`` for the forward field, its correlations are ``C(t, s) = C(0, 0) + E(t) + E(s) + D(t,
s)``, where ``E(t) = <(x_t - x_0) x_0>`` and ``D(t, s) = <(x_t - x_0)(x_s - x_0)>``. Substituted in the
equations (:func:`changes`), the initial values cancel exactly, and the remaining terms can be counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from sympy import Add, Eq, Expr, Function, Mul, S, Sum, Symbol, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.gaussian import GaussianAverage
from derive.calculus.symbols import s, t
from derive.depth.balance import (
    ONE,
    ORDER_ONE,
    STABLE,
    STEADY,
    CountedTerm,
    Domain,
    ExponentMaximum,
    Sizes,
    as_expression,
    balance,
    counted,
    only,
    over_layers,
    together,
)
from derive.depth.infinite import WIDTH_FIRST
from derive.depth.layers import layers_of, neighbour
from derive.errors import NotApplicable, require_integer
from derive.linear.propagators import CrossLayer, cross_layer, k
from derive.show.conditions import ConditionalResult
from derive.show.latex import aligned_latex
from derive.theory.data import Equation
from derive.theory.theory import Theory


@dataclass(frozen=True)
class StepRow:
    """Equation ``symbol = rhs`` of a correlation, response or scalar at integer times.

    The equation of a response is a recursion in the layer, or the value at the first or the last layer. The
    equation of a correlation is a sum over layers. A scalar, such as the output, has no layer.
    """

    symbol: AppliedUndef
    rhs: Expr

    @property
    def name(self) -> str:
        """Name of the function on the left-hand side, including its times, such as ``C_x_1_0``."""
        return str(self.symbol.func)

    @cached_property
    def neighbour(self) -> Expr:
        """The term of the right-hand side that is the same function at the layer below or above.

        It is 0 if the equation is not a recursion in the layer.
        """
        function = self.symbol.func, self.symbol.args[1:]
        return next((x for x in Add.make_args(self.rhs) if (x.func, x.args[1:]) == function), S.Zero)

    @cached_property
    def terms(self) -> tuple[Expr, ...]:
        """Terms of the right-hand side without the function's own value at the neighbouring layer."""
        remainder = (self.rhs - self.neighbour).expand()
        return tuple(sorted(Add.make_args(remainder), key=str)) if remainder != 0 else ()


@dataclass(frozen=True)
class Steps:
    """Equations of correlations, responses and scalars at the times ``0 .. last``.

    ``rows`` are the equations. ``times`` maps the name of a function with its times, such as ``C_x_1_0``, to
    its name without times and its times, ``("C_x", (1, 0))``.
    """

    theory: Theory
    rows: tuple[StepRow, ...]
    last: int
    times: Mapping[str, tuple[str, tuple[int, ...]]]

    def kind(self, name: str) -> str:
        """Return the name of a function without its times.

        It is ``C_x`` for ``C_x_1_0``, and ``C_x(t, t)`` for ``C_x_1_1``, because functions at equal times are
        counted separately.
        """
        head, times = self.times.get(name, (name, ()))
        return f"{head}(t, t)" if len(times) == 2 and times[0] == times[1] else head

    def row(self, name: str) -> StepRow:
        """Return the recursion of a function in the layer, or its first equation if it has no recursion.

        ``name`` includes the times, such as ``C_x_1_0``. Raises KeyError with the known names.
        """
        equations = sorted(self.named(name), key=lambda r: r.neighbour == 0)
        if not equations:
            raise KeyError(
                f"the steps have no equation of {name}; they have those of "
                f"{', '.join(sorted({r.name for r in self.rows}))}"
            )
        return equations[0]

    def named(self, name: str) -> list[StepRow]:
        """Return all equations of the function ``name``.

        A response has its recursion in the layer and its boundary values. The name includes the times, such
        as ``C_x_1_0``. The list is empty for a function without equations.
        """
        return [r for r in self.rows if r.name == name]


def at_steps(cross: CrossLayer, steps: int, same: Iterable[str] = ("xi",)) -> Steps:
    """Return the closed equations of a theory, written out at the times ``0 .. steps``.

    ``cross`` has the equations for all times. Functions named in ``same`` (the input) are one number at all
    times, so that all changes come from training. Gaussian averages of an activation that is not given keep
    their names and have no equations. Raises :class:`NotApplicable` for equations in continuous time, and for
    equations with indices besides layers and times, such as samples; raises ValueError if ``steps`` is not an
    integer of at least 0.

    >>> from derive.theory import mean_field
    >>> from derive.program import depth_program
    >>> found = at_steps(cross_layer(mean_field(depth_program())), 1)
    >>> for x in found.row("R_xV_1").terms: print(x)
    -C_x_1_0(ell - 1)*R_dxV_0(ell)/L
    R_dxV_0(ell)*R_xr_1_0(ell - 1, ell - 1)/sqrt(L)
    """
    if not cross.theory.program.rule.discrete:
        raise NotApplicable("the network is trained in continuous time: there is no first step")
    steps = require_integer("steps", steps, 0)
    cross = cross.closed()
    write = _StepWriter(cross, frozenset(same))
    equations = (*cross.responses, *cross.correlations, *cross.scalars)
    arguments = (e.lhs.args[write.layers.get(str(e.lhs.func), 0) :] for e in equations)
    others = {x for xs in arguments for x in xs} - {t, s}
    if others:
        raise NotApplicable(
            f"the equations have the indices {', '.join(sorted(map(str, others)))} besides layers and times, "
            "and powers of the depth at the first steps are derived for one sample and one output: use a "
            "program without these indices, such as depth_program()"
        )
    rows = [
        write.row(e.lhs, e.rhs, now, past)
        for now in range(steps + 1)
        for e in equations
        if not e.rhs.has(GaussianAverage)
        for past in (range(now + 1) if s in e.lhs.args else (None,))
    ]
    return Steps(cross.theory, tuple(rows), steps, write.times)


class _StepWriter:
    """Writer of the equations at integer times, with one function of the layers for each pair of times.

    Functions named in ``same``, such as the input, are one number at all times.
    """

    def __init__(self, cross: CrossLayer, same: frozenset[str]) -> None:
        self.layers = layers_of(cross)
        self.same = same
        self.correlations = {
            str(e.lhs.func) for e in cross.correlations if s in e.lhs.args and not e.rhs.has(GaussianAverage)
        }
        self.responses = {str(e.lhs.func) for e in cross.responses}
        self.times: dict[str, tuple[str, tuple[int, ...]]] = {}

    def row(self, lhs: AppliedUndef, rhs: Expr, now: int, past: int | None) -> StepRow:
        """Return the equation ``lhs = rhs`` at the times ``t = now`` and ``s = past``, in the layers alone.

        ``past`` is None if the function has one time only.
        """
        times: dict[Expr, Expr] = {t: S(now)} | ({} if past is None else {s: S(past)})
        value = self.unrolled(rhs, times).replace(lambda x: isinstance(x, AppliedUndef), self.named)
        return StepRow(self.named(lhs.xreplace(times)), value.expand())

    def unrolled(self, e: Expr, times: dict[Expr, Expr]) -> Expr:
        """Return an expression with sums over times written out and numbers for the times.

        ``times`` has the number of each time symbol. A sum over the layers k of a source becomes a product
        with the symbol ``over_layers``.
        """
        if isinstance(e, Sum):
            *inner, (index, lower, upper) = e.limits  # the last limit is the outermost sum
            body = Sum(e.function, *inner) if inner else e.function
            if index == k:
                return over_layers * self.unrolled(body, times)
            first, last = int(lower.xreplace(times)), int(upper.xreplace(times))
            return Add(*[self.unrolled(body, times | {index: S(i)}) for i in range(first, last + 1)])
        if not e.has(Sum):
            return e.xreplace(times)
        return e.func(*[self.unrolled(x, times) for x in e.args])

    def named(self, x: AppliedUndef) -> Expr:
        """Return a function with its times in its name, the later time first for a correlation.

        A function named in ``same`` becomes a symbol. The result is 0 for an acausal response.
        """
        name, n = str(x.func), self.layers.get(str(x.func), 0)
        layers, times = x.args[:n], x.args[n:]
        if name in self.same:
            return Symbol(name, real=True)
        if not all(y.is_Integer for y in times):
            return x  # a given function of a scalar and not of time, such as the slope of the loss
        if name in self.correlations:
            times = tuple(sorted(times, reverse=True))
        elif name in self.responses and len(times) == 2 and times[0] < times[1]:
            return S.Zero
        full_name = "_".join([name, *map(str, times)])
        self.times[full_name] = name, tuple(map(int, times))
        return Function(full_name)(*layers)


# -- sizes ---------------------------------------------------------------------------------------------------


def sizes(
    steps: Steps,
    domain: Domain = STEADY,
    of: Iterable[str] = (),
    like: Mapping[str, tuple[str, ...]] | None = None,
    named: Callable[[str], str] = str,
) -> Sizes:
    """Return the power of L of every function of ``steps``, or of those in ``of`` and their inputs.

    The powers hold in ``domain``, a region of alpha and gamma. Functions without an equation (the slope of
    the loss, averages of an activation) are of order one. A function that is a key of ``like`` is as large as
    the largest of the functions listed there for it. Functions for which ``named`` returns the same name are
    counted as one. Raises :class:`NotApplicable` if in ``domain`` a function increases itself from layer to
    layer by a positive power of L.

    >>> from derive.depth.balance import alpha, as_expression, gamma
    >>> from derive.theory import mean_field
    >>> from derive.program import depth_program
    >>> steps = at_steps(cross_layer(mean_field(depth_program(alpha=alpha, gamma=gamma))), 1)
    >>> found = sizes(steps)
    >>> found.exponent("f_1"), as_expression(found.gains["C_x_0_0"])
    (-alpha - gamma + 1, 1 - 2*alpha)
    """
    terms: dict[str, list[CountedTerm]] = {}
    for r in steps.rows:
        counted_terms = (counted(x, r.neighbour != 0) for x in r.terms)
        renamed = (CountedTerm(x.power, tuple(map(named, x.functions))) for x in counted_terms)
        terms.setdefault(named(r.name), []).extend(renamed)
    largest = {n: [CountedTerm(ORDER_ONE, (x,)) for x in others] for n, others in (like or {}).items()}
    return balance(terms | largest, domain, of)


def at_all_steps(steps: Steps, domain: Domain) -> Sizes:
    """Return powers of the depth L of correlations and responses that hold at all times of training.

    ``domain`` is a region of the exponents alpha and gamma. Functions that differ only in their times count
    as one, except those at equal times (``R_xu(t, t)``, which jumps). ``steps`` must have the times 0, 1, 2,
    where every order of the three times in a term occurs. Raises :class:`NotApplicable` for fewer, and as
    :func:`sizes` does.
    """
    if steps.last < 2:
        raise NotApplicable(
            "exponents at all times need the times 0, 1 and 2, because terms contain up to three times in "
            f"any order; the steps end at the time {steps.last}: derive them up to the time 2"
        )
    return sizes(steps, domain, named=steps.kind)


# -- changes -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ladder:
    """Fields of a residual network: the stream (forward) and its gradient (backward), with related names.

    Attributes
    ----------
    up, down
        Equations of the stream and of its gradient.
    correlation, overlap
        Names of the correlation functions of the stream and of the gradient.
    source, back
        Names of the Gaussian sources in the equations of the stream and of the gradient.
    readout
        Name of the random output vector, which is not trained.
    output
        Name of the output of the network.
    """

    up: Equation
    down: Equation
    correlation: str
    overlap: str
    source: str
    back: str
    readout: str
    output: str


def ladder(theory: Theory) -> Ladder:
    """Return the stream of a residual network, its gradient, and the names of sources and correlations.

    Raises NotApplicable unless the theory has a stream and a gradient, each with a source and a correlation,
    an output that contains the stream, and a source without indices outside of the equation of the stream.
    The last such source is taken as that of the untrained output vector. Of several streams the last one is
    taken.
    """
    families = [e for e in theory.equations if e.layers]
    by_direction = {e.lhs.args[0] - near.args[0]: e for e in families if (near := neighbour(e)) is not None}
    if set(by_direction) != {1, -1}:
        raise NotApplicable(
            "the theory must have a residual stream, a field whose equation contains the same field at the "
            "layer below, and a gradient, whose equation contains the same field at the layer above"
        )
    up, down = by_direction[1], by_direction[-1]
    source = {e.name: str(x.field.func) for e in (up, down) for x in e.terms if x.kind == "source"}
    correlations: dict[str, str] = {}
    for q in theory.correlations():
        fields = {str(x.func) for x in q.definition.atoms(AppliedUndef)}
        if len(fields) == 1:
            correlations[fields.pop()] = q.name
    outputs = [e.name for e in theory.scalars if e.rhs.has(up.lhs.func)]
    stream_sources = {str(x.field.func) for e in theory.equations if e.name == up.name for x in e.terms}
    frozen = [n for u in theory.sources if not u.ranges and (n := str(u.symbol.func)) not in stream_sources]
    if not ({up.name, down.name} <= {*source} & {*correlations} and outputs and frozen):
        raise NotApplicable(
            "the stream and the gradient of the theory must each have a source and a correlation, and an "
            "output must contain the stream. The theory also needs a Gaussian source without indices that "
            "is not in the equation of the stream, such as that of an untrained output vector"
        )
    a, b = up.name, down.name
    return Ladder(up, down, correlations[a], correlations[b], source[a], source[b], frozen[-1], outputs[0])


def changes(steps: Steps, field: str | None = None) -> Steps:
    """Return the equations of the changes of a field by training in place of those of its correlations.

    The field is named by ``field``, by default the stream x. With ``x_t = x_0 + dx_t``, the changes of its
    correlations are ``E_x_t(ell) = <(x_t - x_0) x_0>`` and ``D_x_t_s(ell) = <(x_t - x_0)(x_s - x_0)>``, and
    ``d_R_xU_t(ell)`` is the change of a response to a frozen source. A response at (t, t) that obeys the same
    equations as at (0, 0) is replaced by that at (0, 0). Nonlinear layers have the covariance ``K`` of their
    branch's output in place of C: its parts are ``K_0_0``, ``KE_t``, ``KD_t_s``. Raises
    :class:`NotApplicable` if the equations do not have that of ``C_x_0_0``, with the name of the field for x.

    >>> from derive.theory import mean_field
    >>> from derive.program import depth_program
    >>> moved = changes(at_steps(cross_layer(mean_field(depth_program())), 1))
    >>> for x in moved.row("D_x_1_1").terms: print(x)
    2*over_layers*E_x_1(k - 1)*R_xu_0_0(ell, k)*R_xu_1_0(ell, k)
    d_R_xU_1(ell)**2
    d_R_xV_1(ell)**2
    over_layers*C_dx_0_0(k + 1)*R_xr_1_0(ell, k)**2
    over_layers*C_x_0_0(k - 1)*R_xu_1_0(ell, k)**2
    over_layers*D_x_1_1(k - 1)*R_xu_0_0(ell, k)**2
    """
    return _Changes(steps, field or ladder(steps.theory).up.name).result()


class _Changes:
    """Rewriting of the equations at integer times in the changes of correlations by training.

    The correlations of one field are replaced by their initial values plus changes, so that changes can be
    counted separately.
    """

    def __init__(self, steps: Steps, field: str) -> None:
        self.steps, self.field, self.c = steps, field, f"C_{field}"
        if not steps.named(f"{self.c}_0_0"):
            raise NotApplicable(
                f"the steps have no equation of C_{field}_0_0, the correlation of the field {field} at time 0"
            )
        self.times = range(1, steps.last + 1)
        sources = {str(x.func) for u in steps.theory.sources for x in (u.symbol, u.partner)}
        timed = [(r, *steps.times[r.name]) for r in steps.rows if r.name in steps.times]
        responses = [x for x in timed if x[1] in {f"R_{field}{n}" for n in sources}]
        self.frozen = sorted({head for r, head, times in responses if len(times) == 1 and r.symbol.args})
        self.same = {
            r.name: f"{head}_0_0"
            for r, head, times in responses
            if times[1:] == times[:1] != (0,) and self.alike(r, head)
        }
        self.parts = dict(self.split())
        self.added: dict[str, tuple[str, tuple[int, ...]]] = {}
        self.covariance = self.branch()

    def alike(self, r: StepRow, head: str) -> bool:
        """Return whether a response at equal times obeys the same equations as it does at the times (0, 0).

        ``r`` is one equation of the response at equal times, and ``head`` is the name of the response without
        times. All equations of both, the recursion in the layer and the boundary values, are compared.
        """
        first, now = self.steps.named(f"{head}_0_0"), self.steps.named(r.name)
        return all(a.terms == b.terms for a, b in zip(first, now, strict=True))

    def split(self) -> Iterable[tuple[str, tuple[str, ...]]]:
        """Yield each correlation or response of the field that is an initial value plus changes.

        Items are pairs: the name of the function, such as ``C_x_1_0``, and the names of the terms that add up
        to it, such as ``(C_x_0_0, E_x_1)``.
        """
        for now in self.times:
            for x in self.frozen:
                yield f"{x}_{now}", (f"{x}_0", f"d_{x}_{now}")
            for c, d, e in ((self.c, f"D_{self.field}", f"E_{self.field}"), ("K", "KD", "KE")):
                yield f"{c}_{now}_0", (f"{c}_0_0", f"{e}_{now}")
                for past in range(1, now + 1):
                    yield (
                        f"{c}_{now}_{past}",
                        (f"{c}_0_0", f"{e}_{now}", f"{e}_{past}", f"{d}_{now}_{past}"),
                    )

    def branch(self) -> dict[str, str]:
        """Return, by name, the second moments V and means M of the outputs of nonlinear branches.

        V and M are the functions in the covariance ``V(t, s) - M(t) M(s)`` of a Gaussian source. Keys are
        names of V, and values are names of M.
        """
        means_by_moment = {}
        for u in self.steps.theory.sources:
            covariance = sympify(u.covariance)
            both = [x for x in covariance.atoms(AppliedUndef) if {t, s} <= set(x.args)]
            means = [x for x in covariance.atoms(AppliedUndef) if t in x.args and s not in x.args]
            if len(both) == len(means) == 1 and covariance == both[0] - means[0] * means[0].xreplace({t: s}):
                means_by_moment[str(both[0].func)] = str(means[0].func)
        return means_by_moment

    def result(self) -> Steps:
        """Return the rewritten equations: those of the changes, and of functions that were not replaced."""
        rows = [replace(r, rhs=self.in_parts(r.rhs)) for r in self.steps.rows]
        by_name = {r.name: r for r in rows}
        replaced = {*self.parts, *self.same}
        before = {r.symbol: r.rhs for r in rows}
        added = [
            self.row(f"d_{x}_{now}", r, r.rhs - before[Function(f"{x}_0")(*r.symbol.args)])
            for x in self.frozen
            for now in self.times
            for r in rows
            if r.name == f"{x}_{now}"
        ]
        start = by_name[f"{self.c}_0_0"].rhs
        for now in self.times:
            r = by_name[f"{self.c}_{now}_0"]
            added.append(self.row(f"E_{self.field}_{now}", r, r.rhs - start))
            for past in range(1, now + 1):
                r = by_name[f"{self.c}_{now}_{past}"]
                initial = by_name[f"{self.c}_{now}_0"].rhs + by_name[f"{self.c}_{past}_0"].rhs - start
                added.append(self.row(f"D_{self.field}_{now}_{past}", r, r.rhs - initial))
        kept = (r for r in rows if r.name not in replaced)
        return replace(self.steps, rows=(*kept, *added), times={**self.steps.times, **self.added})

    def row(self, name: str, like: StepRow, rhs: Expr) -> StepRow:
        """Return the equation ``name(layers) = rhs`` of the change of a function, and register its name.

        The layers and times are those of the equation ``like`` of the function that changes.
        """
        self.added[name] = name, self.steps.times[like.name][1]
        return StepRow(Function(name)(*like.symbol.args), rhs.expand())

    def in_parts(self, e: Expr) -> Expr:
        """Return an expression with each function replaced by its initial value plus its changes.

        Second moments of outputs of branches are first written as ``K + (product of the means)``.
        """
        branch_parts: dict[Expr, Expr] = {}
        for x in e.atoms(AppliedUndef):
            head, times = self.steps.times.get(str(x.func), ("", ()))
            if head in self.covariance:
                later, earlier = max(times), min(times)
                means = [Function(f"{self.covariance[head]}_{i}")(*x.args) for i in (later, earlier)]
                branch_parts[x] = Function(f"K_{later}_{earlier}")(*x.args) + Mul(*means)
        e = e.xreplace(branch_parts).expand()
        parts = self.parts | {a: (b,) for a, b in self.same.items()}
        functions = [x for x in e.atoms(AppliedUndef) if str(x.func) in parts]
        return e.xreplace(
            {x: Add(*[Function(p)(*x.args) for p in parts[str(x.func)]]) for x in functions}
        ).expand()


# -- exponents -----------------------------------------------------------------------------------------------

REMAINDER = 2
"""Order of the Taylor remainder of a smooth phi, which a linearised layer neglects."""


class Shown:
    """Base class of results that a notebook shows as a list of their expressions, by attribute name."""

    def _repr_latex_(self) -> str:
        named = {**vars(self), **vars(self).get("exponents", {})}
        return aligned_latex(
            Eq(Symbol(rf"\mathrm{{{n.replace('_', ' ')}}}"), e, evaluate=False)
            for n, e in named.items()
            if isinstance(e, Expr)
        )


@dataclass(frozen=True, repr=False)
class DepthExponents(Shown, ConditionalResult):
    """Powers of the depth L in the first step, for ``alpha >= 1/2``, and in ``later`` at all steps.

    Attributes other than ``gain``, ``later`` and ``averaged`` are powers of root mean squares. x is the
    stream, ``h = W x`` the preactivation of a layer with the weights W, and f the output, each at step t = 1.

    Attributes
    ----------
    gain
        Power of L of the relative growth of the stream's variance before training by all layers together; if
        it is positive the variance grows like ``exp(L^gain)``.
    output, stream
        f_t - f_0, and x_t - x_0.
    bracket
        Factor with which the initial gradient of the stream enters h_t.
    update
        (W_t - W_0) x_t.
    preactivation, feature
        h_t, and h_t - h_0.
    noise, drift
        Difference of x between layers at a fixed relative distance: the random part before training, from
        independent layers, and the part along the readout, which all layers share.
    linearisation
        Error in x if every layer is linearised in the change of its weights.
    later
        Powers of the correlations, responses and output at all steps, by name, for ``alpha + gamma >= 1``.
        The power of a correlation is that of a mean square.
    averaged
        True if the theory has nonlinear layers, averaged over their own sources.
    """

    gain: Expr
    output: Expr
    stream: Expr
    bracket: Expr
    update: Expr
    preactivation: Expr
    feature: Expr
    noise: Expr
    drift: Expr
    linearisation: Expr
    later: Mapping[str, Expr]
    averaged: bool

    def conditions(self) -> tuple[str, ...]:
        """Return the derived and the assumed statements about the powers of the depth L, as sentences."""
        return (
            WIDTH_FIRST,
            "derived: powers of L that are upper bounds, and exact in the first step of linear layers",
            "assumed: phi is smooth, so that a linearised layer neglects a Taylor remainder of order "
            f"{REMAINDER}",
            *(
                [
                    "assumed: each layer may be averaged over its own source (gamma > 0), and these averages "
                    "are bounded"
                ]
                * self.averaged
            ),
        )


def depth_exponents(theory: Theory) -> DepthExponents:
    """Return the powers of L of a residual network with branches times ``L^-alpha`` and rates ``L^-gamma``.

    Both are symbols of :mod:`derive.depth.balance`. A theory of nonlinear layers must be a result of
    :func:`~derive.depth.nonlinear.effective`; its ``gain`` is that of the gradient, and ``stream`` holds for
    ``alpha + gamma >= 1``. Linear layers need no linearisation: their ``linearisation`` is that of
    ``phi(h)`` in place of h. Raises :class:`NotApplicable` for a theory without residual layers or with
    several samples, or if the change of a linear stream in the second step has a larger power than in the
    first.

    >>> from derive.depth.balance import alpha, gamma
    >>> from derive.program import depth_program
    >>> from derive.theory import mean_field
    >>> found = depth_exponents(mean_field(depth_program(alpha=alpha, gamma=gamma)))
    >>> found.gain, found.output, found.feature, found.linearisation
    (1 - 2*alpha, -alpha - gamma + 1, Max(-gamma, -alpha - gamma + 1), -alpha - 2*gamma + 1)
    >>> found.later["f"], found.later["C_x"]
    (-alpha - gamma + 1, 0)
    """
    net, cross = ladder(theory), cross_layer(theory)
    steps, two = at_steps(cross, 1), at_steps(cross, 2)
    averaged = any(x.definition.has(GaussianAverage) for x in theory.order_parameters)
    correlation, up = net.correlation, net.up.name
    stream, output, readout_response = f"D_{up}_1_1", f"{net.output}_1", f"R_{up}{net.readout}_1"
    start, gradients = f"{correlation}_0_0", f"{net.overlap}_0_0"
    forward = sizes(steps, STEADY, of=(output, readout_response, start, f"{correlation}_1_1", gradients))
    # `smooth` maps the change of each average of a smooth activation to the changes of the correlations on
    # which the average depends. The power of L of the change of an average is the largest power of these
    # changes.
    smooth = {"KE_1": (f"E_{up}_1", stream), "KD_1_1": (stream,)}
    change_sizes = sizes(changes(steps), STABLE if averaged else STEADY, of=(stream, output), like=smooth)
    later = at_all_steps(two, STABLE)
    if not averaged:  # with averages of phi the second step has too many terms to be written out
        second_step = sizes(changes(two), STABLE)
        for name in (f"D_{up}_2_1", f"D_{up}_2_2"):
            _require(second_step, name, change_sizes.exponents[stream])

    def kernels(*kinds: str) -> ExponentMaximum:
        """Return the power of L of the factor with which the initial gradient enters h after the first step.

        ``kinds`` are the kinds of terms in the equation of the stream that count, ``memory`` or ``response``;
        the result is the largest power of their kernels.
        """
        powers: list[ExponentMaximum] = []
        for y in (counted(x.kernel) for x in net.up.terms if x.kind in kinds):
            exponents_ = [forward.exponents.get(f"{n}_1_0", ONE) for n in y.functions]
            powers.append(together(frozenset({y.power}), *exponents_))
        return largest(*powers)

    def largest(*parts: ExponentMaximum) -> ExponentMaximum:
        """Return the maximum of several exponents, each of which is a maximum of linear forms."""
        return STEADY.largest(p for x in parts for p in x)

    (branch,) = [frozenset({counted(x.coefficient).power}) for x in net.up.terms if x.kind == "source"]
    gradient, moves = _root(forward.exponents[gradients]), _root(change_sizes.exponents[stream])
    bracket, update = kernels("response", "memory"), together(kernels("memory"), gradient)
    learnt = together(bracket, gradient)
    layers = [_root(forward.size(x)) for x in steps.row(start).terms if x.has(over_layers)]
    maxima = {
        "gain": forward.gains.get(start, forward.gains[gradients]),
        "output": forward.exponents[output],
        "stream": moves,
        "bracket": bracket,
        "update": update,
        "preactivation": largest(_root(forward.exponents[f"{correlation}_1_1"]), learnt),
        "feature": largest(moves, learnt),
        "noise": largest(*layers),
        "drift": forward.exponents[readout_response],
        "linearisation": together(branch, only(S.One), *[update] * REMAINDER),
    }
    at_all_times = {n: as_expression(f) for n, f in later.exponents.items() if f}
    exponents = {n: as_expression(largest(f)) for n, f in maxima.items()}
    return DepthExponents(**exponents, later=at_all_times, averaged=averaged)


def _require(sizes_: Sizes, name: str, like: ExponentMaximum) -> None:
    """Raise NotApplicable if a function grows with a larger power of the depth L than expected.

    ``name`` is the function, ``sizes_`` has the powers of all functions, and ``like`` is the expected power.
    """
    if not all(any(STABLE.below(p, r) for r in like) for p in sizes_.exponents[name]):
        raise NotApplicable(
            f"{name}, a change up to the second step, grows with a larger power of the depth L than the "
            f"change of the stream in the first step: {name} grows as L**({sizes_.exponent(name)})"
        )


def _root(forms: ExponentMaximum) -> ExponentMaximum:
    """Return the exponent of a root mean square, half of that of the mean square.

    Exponents are maxima of linear forms.
    """
    return frozenset((a / 2, b / 2, c / 2) for a, b, c in forms)
