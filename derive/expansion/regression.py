"""Lazy wide networks on a full batch in closed form: linear regression in powers of 1/alpha.

At gamma0 = 0 the tangent kernel of wide layers is a number and the error vector obeys a linear recursion.
Responses then depend on differences of times only, and generating functions ``a(z) = sum_t z^t a(t)`` turn
sums over past steps into products: the expanded theory becomes linear equations between rational functions,
which are solved order by order. A coefficient is a sum of polynomials in t times powers such as ``q^t``, from
partial fractions.
"""

from __future__ import annotations

from typing import Any

from sympy import (
    QQ,
    Add,
    Dummy,
    Expr,
    Function,
    Mul,
    Poly,
    Pow,
    S,
    Sum,
    Symbol,
    apart,
    expand_func,
    expand_power_exp,
    factor,
    factor_list,
    factorial,
    ff,
    fraction,
    oo,
    powsimp,
    simplify,
    sympify,
    together,
)
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average, Response
from derive.calculus.series import PowerSeries
from derive.calculus.sums import factors, gathered
from derive.calculus.symbols import ell, s, t
from derive.errors import NotApplicable
from derive.expansion.orders import expand_sizes, named
from derive.linear.form import Row, SourceCombination, linear_form
from derive.linear.lazy import lazy
from derive.program import Program, isotropic, mlp
from derive.program.networks.random_data import alpha, nu
from derive.program.program import plain_steps
from derive.reduce.data import theory_limit
from derive.theory import Equation, Term, Theory, mean_field

remaining = Symbol("q", positive=True)
"""Remaining fraction of a common error after a step: 1 minus the rate times the tangent kernel."""
z, y = Symbol("z"), Symbol("y")
"""Arguments of generating functions in t and s."""


ON_DATA = ("v", "Delta", "h0")
"""Fields that remain when the layers are replaced by a number."""


def lazy_regression(theory: Theory, order: int, name: str = "C_v") -> PowerSeries:
    """Return a correlation at equal times for ``gamma0 -> 0`` and wide layers, in powers of 1/alpha.

    ``name`` is the correlation of one of the fields v, Delta and h0 with itself, such as ``C_v``, the test
    loss. Coefficients are functions of the step t, of ``q``, the fraction of the error that a step leaves
    (:func:`kept_share`), which stays a symbol, and of the size of label noise, if there is any. Raises
    :class:`NotApplicable` for a flow, for weights with decay, momentum or noise, for fresh batches, for
    centered or several outputs, for layers in NTK parametrisation or whose width is not the symbol nu, and
    for theories without a sample ratio; KeyError for another name, and ValueError for an order that is
    negative or not an integer.

    >>> from derive.program import isotropic
    >>> losses = lazy_regression(mean_field(isotropic()), 1)
    >>> for c in losses.coefficients: print(c)
    q**(2*t)
    q**(2*t - 2)*t*(q - 1)**2*(2*t - 1)
    """
    return _Regression(theory, order, name).at_equal_times(name)


def kept_share(theory: Theory) -> Expr:
    """Return ``q``, the fraction of the error that one step of the lazy network leaves, for unlimited data.

    It is that of a chain of the same depth with the same learning rate, on one sample with a data kernel of
    1: one minus the rate times the lazy tangent kernel. Raises :class:`NotApplicable` for a flow, for weights
    with decay, momentum or noise, for residual networks, and if the weights or layers are not those of
    ``isotropic`` with one output.

    >>> from derive.program import isotropic
    >>> kept_share(mean_field(isotropic()))
    -eta*(L + 1) + 1
    """
    plain_steps(theory.program)
    if any(x.layered and x.population.shared for x in theory.program.fields):
        raise NotApplicable(
            "the fraction q of the error that a step leaves is given for chains of layers, not residual "
            "networks"
        )
    _require_isotropic(theory.program)
    network = mean_field(mlp(theory.program.depth, rule=theory.program.rule, loss="sum"))
    step = lazy(network).error.rhs
    (total,) = step.atoms(Sum)
    return sympify(1 + factor(step / total))


def _require_isotropic(program: Program) -> None:
    """Raise :class:`NotApplicable` unless weights and layers are those of ``isotropic`` with one output.

    The kind of data, label noise and the subtraction of the initial output do not matter.
    """
    fields = {x.name: x for x in program.fields}
    if "v" in fields and "g" in fields:
        width = fields["g"].population.ratio
        fresh = any(getattr(x, "fresh", False) for x in program.matrices)
        data = "population" if "Delta" not in fields else "online" if fresh else "full-batch"
        for parametrization in ("mean-field", "ntk"):
            reference = isotropic(
                program.depth,
                data=data,
                center="xi" in fields,
                widths=lambda layer: width.subs(ell, layer),
                parametrization=parametrization,
                rule=program.rule,
            )
            if _chain(reference) == _chain(program):
                return
    raise NotApplicable(
        "the fraction q of the error that a step leaves is given for networks of isotropic() with one "
        f"output; {program.name} has other weights or layers"
    )


def _chain(program: Program) -> tuple[object, ...]:
    """Return the parts of a program that decide the fraction q of the error that a step leaves.

    They are the trained weights, and a dictionary from the left-hand sides of all definitions but that of
    ``Delta``, as text, to the right-hand sides.
    """
    lines = {str(d.lhs): d.rhs for d in program.definitions if str(d.lhs.func) != "Delta"}
    return tuple(program.trained()), lines


class _Regression:
    """Solution of a lazy network's equations, order by order in 1/alpha, by generating functions of time.

    A function a(t) of the step t becomes ``a(z) = sum_t z^t a(t)``. Every field is a combination of sources
    with rational functions of z as coefficients.
    """

    def __init__(self, theory: Theory, order: int, name: str) -> None:
        """Solve the theory to ``order`` in 1/alpha; raise KeyError unless it has the correlation ``name``.

        Raises NotApplicable unless the rule is plain gradient descent in steps, every step uses the same
        samples, and the equations can be solved one after another.
        """
        if not theory.program.rule.discrete:
            raise NotApplicable(
                "the training rule is a flow; the series in 1/alpha is for gradient descent steps"
            )
        plain_steps(theory.program)
        wide = theory_limit(theory, {nu: oo}) if any(e.rhs.has(nu) for e in theory.equations) else theory
        if not any(e.name == "Delta" and e.rhs.has(Sum) for e in wide.equations):
            raise NotApplicable(
                "the theory must have the errors Delta of random samples, and the samples must be used again "
                "at every step: give a theory of isotropic(data='full-batch') for a series in 1/alpha"
            )
        regression = _regression(wide)
        names = [q.name for q in regression.correlations()]
        if name not in names:
            raise KeyError(f"no correlation {name!r} of the lazy regression; there are {', '.join(names)}")
        self.series = expand_sizes(regression, alpha, order)
        self.theory = self.series.expanded
        self.responses = {q.name: q for q in self.theory.responses()}
        rows = linear_form(self.theory).rows
        symbols = {x for r in rows for x in r.rhs.free_symbols if x not in (t, s)}
        self.numbers = QQ.frac_field(z, y, *sorted(symbols | {remaining}, key=str))
        self.response_functions: dict[str, Expr] = {}
        self.forms: dict[AppliedUndef, SourceCombination] = {}
        self.found: dict[str, Any] = {}
        while rows:  # solve those equations that contain only known responses and fields, then the next ones
            ready = [
                r for r in rows if all(self.response_function(x) is not None for x in self.response_names(r))
            ]
            while late := [r for r in ready if _fields(r) & {x.lhs for x in rows if x not in ready}]:
                ready = [r for r in ready if r not in late]
            if not ready:
                names_left = ", ".join(str(r.lhs) for r in rows)
                raise NotApplicable(
                    f"the equations of {names_left} depend on each other by their responses or fields, so "
                    "that they cannot be solved one after another"
                )
            self.eliminate(ready)
            rows = tuple(r for r in rows if r not in ready)

    # -- fields ----------------------------------------------------------------------------------------

    def response_names(self, row: Row) -> set[str]:
        """Return the names of the responses in a field's equation, given as a row of the linear theory."""
        return {str(a.func) for x in row.actions for a in x.weight.atoms(AppliedUndef)} & set(self.responses)

    def response_function(self, name: str) -> Expr | None:
        """Return the generating function ``sum_t z^t R(t)``; R is the response to a source t steps earlier.

        Returns None if the equation of the field that responds is not yet solved.
        """
        if name not in self.response_functions:
            node = next(iter(self.responses[name].definition.atoms(Response)))
            form = self.forms.get(node.body)
            if form is None:
                return None
            average = next(iter(self.responses[name].definition.atoms(Average)))
            front = self.responses[name].definition / average
            source = node.source.xreplace({s: t})
            self.response_functions[name] = front * self.numbers.to_sympy(form.get(source, self.numbers.zero))
        return self.response_functions[name]

    def eliminate(self, rows: list[Row]) -> None:
        """Solve coupled linear equations of several fields, ``rows``, by elimination.

        Each solution, a combination of sources, is stored in the dictionary ``forms`` under its field.
        """
        forms = {r.lhs: self.form(r) for r in rows}
        for a in list(forms):
            diagonal = forms[a].pop(a, self.numbers.zero)
            forms[a] = {x: c / (1 - diagonal) for x, c in forms[a].items()}
            for b in forms:
                if b != a and a in forms[b]:
                    forms[b] = _added(forms[b], forms[a], forms[b].pop(a))
        self.forms |= forms

    def form(self, row: Row) -> SourceCombination:
        """Return the equation of a field as a combination of sources and of fields that are not yet solved.

        The combination maps each of them to its coefficient, a generating function in z: ``sum_(s<t) R(t - s)
        a(s)`` becomes ``R(z) a(z)``, and ``sum_(s<t) a(s)`` becomes ``z/(1 - z) a(z)``. ``row`` is the
        equation as a row of the linear theory.
        """
        combination: SourceCombination = {}
        for x in (*row.sources, *row.actions):
            known = {a: self.response_function(str(a.func)) for a in x.weight.atoms(AppliedUndef)}
            gain = x.weight.xreplace(known) * (1 if known or not x.reach else z / (1 - z))
            a = x.field.xreplace({s: t})
            combination = _added(
                combination, self.forms.get(a, {a: self.numbers.one}), self.numbers.from_sympy(gain)
            )
        return combination

    # -- correlations ----------------------------------------------------------------------------------

    def correlation(self, a: AppliedUndef) -> Any:
        """Return the generating function ``sum_(t,s) z^t y^s C(t, s)`` of a correlation C of two fields."""
        name = str(a.func)
        if name not in self.found:
            q = self.theory.order_parameter(name)
            average = next(iter(q.definition.atoms(Average)))
            first, second = sorted(factors(average.body), key=lambda x: bool(x.args[-1] != t))
            one, two = self.forms[first.func(t)], self.forms[second.func(t)]
            total = self.numbers.zero
            for u in self.theory.sources:
                left, right = one.get(u.symbol), two.get(u.partner.xreplace({s: t}))
                if left is not None and right is not None:
                    later = self.numbers.to_sympy(right).xreplace({z: y})
                    total += left * self.numbers.from_sympy(later) * self.covariance(u.covariance)
            self.found[name] = self.numbers.from_sympy(q.definition / average) * total
        return self.found[name]

    def covariance(self, e: Expr) -> Any:
        """Return the generating function ``sum_(t,s) z^t y^s S(t, s)`` of a covariance S of a source.

        S, the expression ``e``, is a sum of numbers and of numbers times correlations. A number c in it gives
        ``c/((1 - z) (1 - y))``.
        """
        total = self.numbers.zero
        for part in Add.make_args(e.expand()):
            number, rest = part.as_independent(AppliedUndef)
            series = self.correlation(rest) if rest != 1 else self.numbers.from_sympy(1 / (1 - z) / (1 - y))
            total += self.numbers.from_sympy(number) * series
        return total

    def at_equal_times(self, name: str) -> PowerSeries:
        """Return the correlation ``name`` at s = t as a series in 1/alpha with functions of t."""
        coefficients = []
        for terms in self.series.parts(name):
            parts = [self.correlation(Function(named(name, *k))(t, s)) for _, k in terms]
            numbers = [self.numbers.from_sympy(c) for c, _ in terms]
            whole = sum((c * x for c, x in zip(numbers, parts, strict=True)), self.numbers.zero)
            coefficients.append(_tidy(_inverted(self.numbers.to_sympy(whole))))
        return PowerSeries(tuple(coefficients), self.series.variable)


def _fields(row: Row) -> set[Expr]:
    """Return the fields on the right-hand side of an equation of the linear theory, written at time t."""
    return {x.field.xreplace({s: t}) for x in row.actions}


def _added(form: SourceCombination, other: SourceCombination, factor_: Any) -> SourceCombination:
    """Return ``form + factor_ * other`` for fields that are linear combinations of sources.

    Both are dictionaries from sources (or fields not yet solved) to coefficients.
    """
    return gathered((*form.items(), *((x, factor_ * c) for x, c in other.items())))


def _inverted(e: Expr) -> Expr:
    """Return the coefficient of ``z^t y^t`` in a rational function of z and y, as a function of t."""
    above, below = fraction(e)
    number, poles = factor_list(below)
    if all(len(base.free_symbols & {z, y}) < 2 for base, _ in poles):
        once = [(base, m) for base, m in poles if base.has(z, y)]
        plain = number * Mul(*[base**m for base, m in poles if not base.has(z, y)])
        if len(once) == 2 and all(Poly(above, *(b.free_symbols & {z, y})).degree() < m for b, m in once):
            return Add(*[c / plain * _shifted(once, i, j) for (i, j), c in Poly(above, z, y).terms()])
    total = S.Zero
    for part in Add.make_args(apart(e, z)):
        for x in Add.make_args(apart(part, y).expand()):
            front, rest = factor(x).as_independent(z, y, as_Add=False)
            powers = rest.as_powers_dict()
            total += front * Mul(*[_at(base, -int(m), t) for base, m in powers.items()])
    return total


def _tidy(e: Expr) -> Expr:
    """Return ``e`` factored, with the powers of q, such as ``q**t``, in one factor where possible.

    q is the fraction of the error that a step leaves.
    """
    X = Dummy("X", positive=True)  # for q**t, so that all powers of q are factored together
    split = expand_power_exp(e).replace(
        lambda p: isinstance(p, Pow) and p.exp.has(t),
        lambda p: X ** (p.exp / t) if p.base == remaining else p,
    )
    if split.has(Pow) and any(p.exp.has(t) for p in split.atoms(Pow)):
        return factor(e)
    return powsimp(factor(together(split)).xreplace({X: remaining**t}))


def _shifted(poles: list[tuple[Expr, int]], i: int, j: int) -> Expr:
    """Return the coefficient of ``z^t y^t`` in ``z^i y^j / (a(z)^m b(y)^n)``, where a and b are linear.

    ``poles`` are the two pairs (a, m) and (b, n).
    """
    return Mul(*[_at(base, m, t - (i if base.has(z) else j)) for base, m in poles])


def _at(base: Expr, m: int, time: Expr) -> Expr:
    """Return the coefficient of ``z^time`` in the power series of ``base^-m``.

    ``base`` is linear in z (or in y). Raises NotApplicable if it vanishes at 0 or m is not positive.
    """
    (argument,) = base.free_symbols & {z, y}
    slope, start = Poly(base, argument).all_coeffs()
    if m < 1 or start == 0:
        raise NotApplicable(
            "the expansion is not derived: each factor of a generating function must have a negative power "
            f"and a base that does not vanish at zero; one factor is ({base})**{-m}"
        )
    paths = ff(time + m - 1, m - 1) / factorial(m - 1)
    return start**-m * simplify(-slope / start) ** time * expand_func(paths)


def _regression(theory: Theory) -> Theory:
    """Return the theory of linear regression with the lazy kernel, without the fields of the layers.

    Only the equations of v, Delta and h0 remain. In the equation of v, the residual, the terms with responses
    and memories are replaced by ``(q - 1) sum_(s<t) h0(s)``, where q is the fraction of the error that a step
    leaves. Raises NotApplicable if v has no such terms or if one of them does not contain h0, if a field has
    other indices than the time, if the program has attributes, or if the remaining equations or covariances
    contain quantities of the layers, as they do at finite width.
    """
    if theory.program.attributes:
        raise NotApplicable(
            f"the lazy regression is for isotropic data; the data of {theory.program.name} have the "
            f"attributes {', '.join(x.name for x in theory.program.attributes)}"
        )
    equations = [e for e in theory.equations if e.name in ON_DATA]
    channels = next((e.symbol for e in equations if e.symbol.args != (t,)), None)
    if channels is not None:
        raise NotApplicable(
            f"the lazy regression is derived for one output; {channels} has an index of outputs: leave out "
            "the option outputs"
        )
    kernel = Term("memory", Function("h0")(s), kernel=remaining - 1, reach="strict")

    def equation(e: Equation) -> Equation:
        if e.name != "v":
            return e
        past = [x for x in e.terms if x.kind in ("memory", "response")]
        if not past or not all(x.expr.has(Function("h0")) for x in past):
            raise NotApplicable(
                f"the equation {e.lhs} = {e.rhs} must have a memory or response, and each of its memories "
                "and responses must contain h0; for wide layers of isotropic() give center=False"
            )
        return Equation(e.lhs, (*[x for x in e.terms if x not in past], kernel), e.ranges)

    left = {str(a.func) for e in equations for a in e.rhs.atoms(AppliedUndef)} | set(ON_DATA)
    sources = tuple(u for u in theory.sources if str(u.symbol.func) in left)
    known = {e.name for e in equations} | {str(u.symbol.func) for u in sources}
    reduced = Theory(
        program=theory.program,
        sources=sources,
        equations=tuple(map(equation, equations)),
        order_parameters=tuple(
            q
            for q in theory.order_parameters
            if {str(a.func) for a in q.definition.atoms(AppliedUndef)} <= known
        ),
        scalars=(),
        reduction="lazy, wide",
    )
    layers = {
        str(a.func)
        for e in (*(x.rhs for x in reduced.equations), *(u.covariance for u in sources))
        for a in e.atoms(AppliedUndef)
    } - {*known, *(q.name for q in reduced.order_parameters)}
    if layers:
        raise NotApplicable(
            "the lazy regression is for wide layers, whose width divided by the number of features is the "
            f"symbol {nu}; with the given widths the equations of {', '.join(x.name for x in equations)} "
            f"contain {', '.join(sorted(layers))}, quantities of the layers"
        )
    return reduced
