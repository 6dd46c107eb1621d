"""Laplace transforms of linear theories whose kernels depend on differences of times only.

The training is a flow with constant rates, and no correlation function enters as a kernel, as when only the
readout of random features is trained. Every kernel of the linear form is then a response, a number, or a
function of ``t - s``. Responses are then functions of time differences too. With the rates z and z' of the
two times of a correlation,

    R(z) = int_0^oo exp(-z tau) R(tau) dtau,   C(z, z') = int int exp(-z t - z' s) C(t, s) dt ds,

the single-site equations are linear equations between numbers, solved here for each population: responses
obey algebraic equations (with sums over modes), and correlations linear ones. The solver ``transform`` and
:mod:`derive.scale.random_features` use them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from sympy import (
    Add,
    Dummy,
    Eq,
    Expr,
    Function,
    Integral,
    Mul,
    S,
    Sum,
    Symbol,
    exp,
    eye,
    factor,
    integrate,
    oo,
    simplify,
    sympify,
)
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average, Response
from derive.calculus.symbols import IndexRange, s, t
from derive.errors import NotApplicable
from derive.linear.form import LinearTerm, Row, linear_form
from derive.show.latex import aligned_latex
from derive.show.summary import Summarised
from derive.theory import OrderParameter, Source, Theory

z, z_ = Symbol("z", positive=True), Symbol("zprime", positive=True)
"""The rates (Laplace variables) of the two times."""

_age = Dummy("tau", positive=True)


@dataclass(frozen=True)
class PairTerm:
    """Term of the Laplace transform of a correlation in two times, with the rates z and z'.

    It is ``factor * correlation * sum over units of left(z) * right(z')``. The covariance of a source is a
    number in ``factor`` times a correlation, whose transform is ``correlation``. For a source that is
    constant in time, and for the deterministic part of the field, ``correlation`` is 1.
    """

    factor: Expr
    left: Expr
    right: Expr
    correlation: Expr = S.One


@dataclass(frozen=True)
class PairEquation:
    """Equation ``symbol = sum of terms`` for the Laplace transform of a correlation, ``symbol = C(z, z')``.

    Each term is summed over ``units``, the range of the index of units, if the correlation is a sum over
    units with different attributes; otherwise ``units`` is None.
    """

    symbol: Expr
    terms: tuple[PairTerm, ...]
    units: IndexRange | None = None

    def expr(self, term: PairTerm) -> Expr:
        """Return a term of the equation as an expression, with its sum over units."""
        body = term.left * term.right
        return term.factor * term.correlation * (body if self.units is None else Sum(body, self.units.limits))

    @property
    def eq(self) -> Eq:
        """The equation ``symbol = sum of terms`` as a SymPy equation, with sums over units."""
        return Eq(self.symbol, Add(*[self.expr(x) for x in self.terms]), evaluate=False)


@dataclass(frozen=True, repr=False)
class Transforms(Summarised):
    """Laplace transforms of a linear theory at the rates z and z'.

    ``responses`` are equations for the transforms ``R(z)`` of responses, whose right-hand sides contain other
    such transforms; ``correlations`` are those for the ``C(z, z')``.
    """

    theory: Theory
    responses: tuple[Eq, ...]
    correlations: tuple[PairEquation, ...]

    def _repr_latex_(self) -> str:
        return aligned_latex((*self.responses, *[x.eq for x in self.correlations]), self.theory)

    def response(self, name: str) -> Eq:
        """Return the equation of the response ``name``, such as ``R_a_u_A``; raise KeyError if unknown."""
        return {str(e.lhs.func): e for e in self.responses}[name]

    def correlation(self, name: str) -> PairEquation:
        """Return the equation of the correlation ``name``, such as ``C_v``; raise KeyError if unknown."""
        return {str(e.symbol.func): e for e in self.correlations}[name]


def transforms(theory: Theory) -> Transforms:
    """Return the Laplace transforms of a linear theory of a flow.

    Parameters
    ----------
    theory : Theory
        A flow with constant rates, in which no kernel is a correlation.

    Returns
    -------
    Transforms
        The equations of responses and correlations.

    Raises
    ------
    NotApplicable
        For theories that are not linear, discrete steps, layers and other indices than that of the unit,
        scalars beside fields, sources that are correlated with each other, correlations of two different
        fields or of several averages, responses that are defined by an integral over times, responses to a
        source that is constant in time, equations between fields of different units,
        kernels that are not functions of time differences, covariances that depend on time and are not a
        number times a correlation, and functions of time whose transform is not found in closed form.

    Examples
    --------
    >>> from derive import mean_field
    >>> from derive.program.networks import random_features
    >>> from derive.reduce.data import mode_sums
    >>> found = transforms(mode_sums(mean_field(random_features())))
    >>> print(found.response("R_Delta_u_Z"))
    Eq(R_Delta_u_Z(z), -1/(R_lamda_v_r_Z(z) - 1))
    >>> print(found.response("R_a_u_A"))
    Eq(R_a_u_A(z), 1/(z - R_h0_r_A(z)))
    """
    return _Transforms(theory).result()


class _Transforms:
    """Derivation of the Laplace-transformed equations of a theory, with rates z and z' of two times."""

    def __init__(self, theory: Theory) -> None:
        """Read the linear form; raise NotApplicable for steps, scalars and mutually correlated sources."""
        program = theory.program
        if program.rule.discrete:
            raise NotApplicable(
                "Laplace transforms need a training rule in continuous time, such as GradientFlow; the "
                "rule of this theory has discrete steps"
            )
        if theory.scalars:
            names = ", ".join(str(e.lhs) for e in theory.scalars)
            raise NotApplicable(
                "Laplace transforms need a theory without scalars (outputs, errors and other numbers that "
                f"depend on time), because kernels may depend on them; this theory has {names}"
            )
        self.theory, self.form = theory, linear_form(theory)
        self.responses = {q.name: Function(q.name)(z) for q in theory.responses()}
        self.pairs = {q.name: Function(q.name)(z, z_) for q in theory.correlations()}
        self.place = {x.name: x.population for x in program.fields}
        self.units = frozenset(program.unit_indices)
        self.source = {str(u.symbol.func): u for u in theory.sources}
        for u in theory.sources:
            if u.symbol.func != u.partner.func:
                raise NotApplicable(
                    f"the sources {u.symbol} and {u.partner} are correlated; Laplace transforms need "
                    "independent sources"
                )

    def result(self) -> Transforms:
        """Return the Laplace-transformed equations of all responses and correlations."""
        responses = tuple(
            Eq(self.responses[q.name], self.of_response(q), evaluate=False) for q in self.theory.responses()
        )
        return Transforms(self.theory, responses, tuple(map(self.of_pair, self.theory.correlations())))

    # -- equations of a population -----------------------------------------------------------------------

    @cached_property
    def answers(self) -> Mapping[str, Mapping[str, Expr]]:
        """Laplace transforms ``answers[field][source]`` of the responses of fields to sources, by names.

        For a source that is constant in time it is the transform of the time course that it causes. The
        source ``""`` stands for the deterministic part of the equations. Raises NotApplicable if a field has
        several equations, or an equation contains a field of other units.
        """
        answers: dict[str, dict[str, Expr]] = {}
        for place in dict.fromkeys(self.place[r.name].name for r in self.rows()):
            rows = [r for r in self.rows() if self.place[r.name].name == place]
            at = {r.name: n for n, r in enumerate(rows)}
            if len(at) < len(rows):
                raise NotApplicable(
                    "a field has several equations, for layers or values of an index, among "
                    f"{', '.join(str(r.lhs) for r in rows)}; Laplace transforms need one equation for each "
                    "field"
                )
            left, right = eye(len(rows)), [dict[str, Expr]() for _ in rows]
            for n, r in enumerate(rows):
                for x in r.actions:
                    if x.name not in at:
                        raise NotApplicable(
                            f"the equation of {r.lhs} contains {x.field}, a field of other units; Laplace "
                            "transforms take equations between fields of the same units"
                        )
                    left[n, at[x.name]] -= self.kernel(r, x)
                for x in r.sources:
                    name = str(x.field.func)
                    right[n][name] = right[n].get(name, S.Zero) + self.entry(r, x)
                right[n][""] = _in_time(sympify(r.given))
            names = dict.fromkeys(name for row in right for name in row)
            inverse = left.adjugate() / left.det()
            for r in rows:
                by_source = {name: [row.get(name, S.Zero) for row in right] for name in names}
                solved = {name: inverse.row(at[r.name]).dot(column) for name, column in by_source.items()}
                answers[r.name] = {name: factor(e) for name, e in solved.items() if e != 0}
        return answers

    def rows(self) -> tuple[Row, ...]:
        """Return the equations of the fields of the theory.

        Raises NotApplicable for a range of another index than that of the unit, such as a layer, and for a
        field that the program does not have.
        """
        for r in self.form.rows:
            if any(x.index not in self.units for x in r.ranges) or r.name not in self.place:
                raise NotApplicable(
                    f"{r.lhs} must be a field of the program that has no index beside that of its units: "
                    "Laplace transforms are not derived for fields with layers, samples or other indices"
                )
        return self.form.rows

    def kernel(self, r: Row, x: LinearTerm) -> Expr:
        """Return the Laplace transform of the memory kernel of the term ``x`` in the equation ``r``.

        The term is a convolution over past times of this kernel with a field, or a number times the field at
        time t; the number is then returned. Raises NotApplicable for any other term.
        """
        if x.over or (x.field.args[-1] != (s if x.reach else t)):
            raise NotApplicable(
                f"the equation of {r.lhs} contains {x.expr}; a term with a field must be a convolution in "
                "time of a kernel and the field, or a factor times the field at time t, without a sum "
                "over an index"
            )
        return self.number(r, x.weight) if not x.reach else self.convolved(r, x.weight)

    def convolved(self, r: Row, weight: Expr) -> Expr:
        """Return the Laplace transform of a kernel ``weight`` in the equation ``r``.

        The kernel is a number times a response ``R(t, s)``, or a function of ``t - s``. Raises NotApplicable
        for any other kernel.
        """
        responses = [a for a in weight.atoms(AppliedUndef) if str(a.func) in self.responses]
        if not responses:
            aged = simplify(weight.xreplace({s: t - _age}))
            return _of_age(self.number(r, aged))
        if len(responses) > 1 or responses[0].args[-2:] != (t, s):
            raise NotApplicable(
                f"the kernel {weight} in the equation of {r.lhs} contains responses, and must then be a "
                "number times one response R(t, s)"
            )
        return self.number(r, weight / responses[0]) * self.responses[str(responses[0].func)]

    def number(self, r: Row, e: Expr) -> Expr:
        """Return the factor ``e`` of a term of the equation ``r`` unchanged, after a check.

        Raises NotApplicable if it contains a time or an order parameter.
        """
        order = {*self.responses, *self.pairs}
        if e.has(t, s) or any(str(a.func) in order for a in e.atoms(AppliedUndef)):
            raise NotApplicable(
                f"the kernel or factor {e.xreplace({_age: t - s})} in the equation of {r.lhs} is not "
                "supported: a factor must not contain a time or an order parameter, and a kernel must be "
                "a function of t - s, or a number times one response R(t, s)"
            )
        return e

    def entry(self, r: Row, x: LinearTerm) -> Expr:
        """Return the Laplace transform of the factor or kernel of a source in the equation ``r``.

        The term ``x`` is a factor times the source, or a convolution of a kernel with it. For a source that
        is constant in time the result includes the transform 1/z of its time course; for another source a
        factor must be a number, which is returned. Raises NotApplicable for a source in a sum over an index,
        and for another factor or kernel.
        """
        u = self.source[str(x.field.func)]
        if x.over:
            raise NotApplicable(
                f"the equation of {r.lhs} contains {x.expr}, a source in a sum over an index; Laplace "
                "transforms take a factor times a source or a convolution in time of a kernel and a "
                "source, without such a sum"
            )
        steady = not sympify(u.covariance).has(t, s)
        if x.reach:
            return self.convolved(r, x.weight) * (1 / z if steady else 1)
        return _in_time(x.weight) if steady else self.number(r, x.weight)

    # -- order parameters --------------------------------------------------------------------------------

    def of_response(self, q: OrderParameter) -> Expr:
        """Return the Laplace transform of a response in terms of transforms of responses.

        It is the right-hand side of the equation of ``R(z)``. Raises NotApplicable if the definition of the
        response integrates over times, or for a source that is constant in time.
        """
        if q.definition.has(Integral):
            raise NotApplicable(
                f"the definition of the response {q.name} contains an integral over times; Laplace "
                "transforms need a definition by an average alone"
            )

        def value(x: Expr) -> Expr:
            """Return the Laplace transform of an average ``x`` of a response, as ``<d h / d u>``.

            It follows from the transform of the response of the field h to the source u. Raises NotApplicable
            for the response to a source that is constant in time.
            """
            (node,) = x.atoms(Response)
            (field,) = (a for a in node.body.atoms(AppliedUndef) if str(a.func) in self.answers)
            source = str(node.source.func)
            if not sympify(self.source[source].covariance).has(t, s):
                raise NotApplicable(
                    f"{q.name} is the response to the source {source}, which is constant in time: Laplace "
                    "transforms take responses to sources that vary in time"
                )
            outside = x.body / node * node.body / field
            return outside * self.answers[str(field.func)].get(source, S.Zero)

        value_of_average = q.definition.replace(lambda x: isinstance(x, Average), value)
        return value_of_average if value_of_average.has(Sum) else factor(value_of_average)

    def of_pair(self, q: OrderParameter) -> PairEquation:
        """Return the transformed equation of a correlation of one field with itself.

        The correlation may be a sum over units with different attributes. Raises NotApplicable for the
        correlation of two different fields, and for several averages or sums.
        """
        averages = list(q.definition.atoms(Average))
        sums = list(q.definition.atoms(Sum))
        if len(averages) != 1 or len(sums) > 1:
            raise NotApplicable(
                f"the correlation {q.name} = {q.definition} must contain exactly one average, and at most "
                "one sum"
            )
        (average,) = averages
        outside = q.definition.xreplace({sums[0]: S.One} if sums else {average: S.One})
        fields = [a for a in average.body.atoms(AppliedUndef) if str(a.func) in self.answers]
        if len(fields) != 2 or fields[0].func != fields[1].func:
            raise NotApplicable(
                f"the correlation {q.name} = {q.definition} must be that of one field at two times; other "
                "correlations have no Laplace transform here"
            )
        weight = average.body / Mul(*fields)
        inside, number = S.One, outside * weight
        if sums:
            inside, number = weight * sums[0].function / average, outside
        terms = tuple(self.terms(str(fields[0].func), number, inside))
        return PairEquation(self.pairs[q.name], terms, IndexRange(*sums[0].limits[0]) if sums else None)

    def terms(self, field: str, number: Expr, weight: Expr) -> Iterator[PairTerm]:
        """Yield the terms of the transformed correlation of ``field`` with itself.

        There is one for the deterministic part of the field and one for each source to which the field
        responds; terms that are zero are left out. ``number`` multiplies each term, and ``weight`` the
        contribution of each unit.
        """
        for source, answer in self.answers[field].items():
            factor, pair = (S.One, S.One) if not source else self.covariance(self.source[source])
            if factor != 0:
                yield PairTerm(number * factor, weight * answer, answer.subs(z, z_), pair)

    def covariance(self, u: Source) -> tuple[Expr, Expr]:
        """Return the covariance of a source as a product of a number and the transform of a correlation.

        The second factor is 1 for a source that is constant in time. Raises NotApplicable for a covariance
        that depends on time and is not a number times a correlation at the times t and s.
        """
        e = sympify(u.covariance)
        if not e.has(t, s):
            return e, S.One
        correlations = [a for a in e.atoms(AppliedUndef) if str(a.func) in self.pairs]
        if (
            len(correlations) != 1
            or {*correlations[0].args[-2:]} != {t, s}
            or (e / correlations[0]).has(t, s)
        ):
            raise NotApplicable(
                f"the covariance {e} of the source {u.symbol} depends on time, and must then be a number "
                "times one correlation function at the times t and s"
            )
        return e / correlations[0], self.pairs[str(correlations[0].func)]


def _in_time(e: Expr) -> Expr:
    """Return the Laplace transform, at the rate z, of a function of the time t."""
    return _of_age(e.xreplace({t: _age}))


def _of_age(e: Expr) -> Expr:
    """Return the Laplace transform, at the rate z, of a function of the time difference.

    The dummy ``_age`` stands for the difference. Raises NotApplicable if ``e`` contains t or s, or if SymPy
    does not find the transform in closed form.
    """
    if e.has(s, t):
        raise NotApplicable(f"the function {e} must depend on time only through the time difference {_age}")
    transform = integrate((e * exp(-z * _age)).expand(), (_age, 0, oo), conds="none")
    if transform.has(Integral):
        raise NotApplicable(
            f"the Laplace transform of {e}, a function of the time {_age}, is not found in closed form"
        )
    return transform
