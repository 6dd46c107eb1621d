"""Linear networks with one hidden layer, exactly at every width: the Gram matrix of a unit's fields.

From the fluctuations of a program (`derive.fluctuations`) the module derives the linear map of the fields
``V`` of one unit in a step, which depends on errors alone. The matrix M, the average of ``V V^T`` over the n
units of a network, obeys ``M(t + 1) = U M U^T`` with a matrix U that depends on errors alone, and errors are
functions of M. The width enters only through ``M(0)``: ``n M(0)`` is a Wishart matrix with n degrees of
freedom. Moments at all orders in 1/N follow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product

from sympy import Add, Derivative, Eq, Expr, ImmutableMatrix, Integer, S, Sum, eye, simplify
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average
from derive.calculus.sums import match, over, substitute
from derive.calculus.symbols import IndexRange, s, t
from derive.errors import NotApplicable, require_integer, require_type
from derive.program.program import Program
from derive.scale.fluctuations.initial_unit import START
from derive.show.conditions import ConditionalResult
from derive.show.latex import aligned_latex
from derive.theory.data import Equation
from derive.theory.fluctuations import FluctuatingParameter, Fluctuations, fluctuations


@dataclass(frozen=True)
class GramMatrices:
    """Matrices of a :class:`GramRecursion` for a number of samples.

    Parameters
    ----------
    fields : tuple of Expr
        Fields V of a unit at time t, in the order of rows and columns.
    motion : ImmutableMatrix, shape (fields, fields)
        ``U`` of a step, ``M(t + 1) = U M(t) U^T``; for a flow ``dM/dt = motion M + M motion^T``.
    start : ImmutableMatrix, shape (fields, fields)
        Covariance of V at time 0. ``n M(0)`` is a Wishart matrix with this covariance and n degrees of
        freedom.
    ratio : Expr
        Number n of units over N.
    outputs : dict of Expr to ImmutableMatrix
        Matrix Q of each output ``sum_ij Q_ij M_ij``.
    errors : dict of Expr to Expr
        Errors in terms of outputs and targets.
    kernels : dict of Expr to ImmutableMatrix
        Matrix Q of each entry ``sum_ij Q_ij M_ij`` of the tangent kernel at equal times.
    """

    fields: tuple[Expr, ...]
    motion: ImmutableMatrix
    start: ImmutableMatrix
    ratio: Expr
    outputs: Mapping[Expr, ImmutableMatrix]
    errors: Mapping[Expr, Expr]
    kernels: Mapping[Expr, ImmutableMatrix]


@dataclass(frozen=True, repr=False)
class GramRecursion(ConditionalResult):
    """Linear networks with one hidden layer, exactly at every width N.

    Parameters
    ----------
    theory : Fluctuations
        Fluctuations of the network.
    steps : tuple[Eq, ...]
        Fields of one unit after a step, or their rates in a flow, in terms of fields and errors at time t.
    start : tuple[Eq, ...]
        Covariance of the fields of one unit at time 0.
    outputs : tuple[Eq, ...]
        Outputs as averages over units, and errors.
    """

    theory: Fluctuations
    steps: tuple[Eq, ...]
    start: tuple[Eq, ...]
    outputs: tuple[Eq, ...]

    @property
    def program(self) -> Program:
        """Network and its training, from which the recursion is derived."""
        return self.theory.program

    @property
    def discrete(self) -> bool:
        """Whether the network is trained in discrete steps; False for a gradient flow."""
        return bool(self.program.rule.discrete)

    def conditions(self) -> tuple[str, ...]:
        """Return the derived and assumed statements about the Gram matrix.

        Returns
        -------
        tuple[str, ...]
            Sentences that begin with "derived: " or "assumed: ".
        """
        return (
            "derived: a step acts on the fields of a unit by a linear map that is the same for all units and "
            "depends on errors alone, so that the recursion is exact at every width N",
            "derived: n M(0) is a Wishart matrix with n degrees of freedom, where n is the number of units",
            "assumed: inputs and targets are fixed, and initial weights are Gaussian and independent",
        )

    def _repr_latex_(self) -> str:
        return aligned_latex((*self.steps, *self.start, *self.outputs))

    def matrices(self, samples: int) -> GramMatrices:
        """Return the recursion written out for a number of samples.

        Parameters
        ----------
        samples : int
            Number of samples P.

        Returns
        -------
        GramMatrices
            Matrices.

        Raises
        ------
        NotApplicable
            If an output is not a quadratic form in the fields of a unit, or if the program has no samples.
        ValueError
            If ``samples`` is below 1 or not an integer.

        Examples
        --------
        >>> from derive.program import mlp
        >>> one = wishart_recursion(mlp(1)).matrices(1)
        >>> one.fields
        (chi(1, 1, t), xi(1, t))
        >>> one.motion[0, 1], one.motion[1, 0]
        (eta*gamma0*Delta(1, t)*K_x(1, 1), eta*gamma0*Delta(1, t))
        """
        return _SampleRecursion(self, require_integer("samples", samples, 1)).matrices()


def wishart_recursion(program: Program) -> GramRecursion:
    """Return the exact recursion of the Gram matrix of the fields of a unit.

    Parameters
    ----------
    program : Program
        Linear network with one hidden layer, trained on fixed data in steps or in flow; weights may decay.

    Returns
    -------
    GramRecursion
        Recursion.

    Raises
    ------
    NotApplicable
        If the equations of a unit contain an order parameter that is not a function of outputs (deeper
        networks), if a field is not a polynomial in the products of a weight and a vector (nonlinear
        activations), if the rule has further memory (momentum) or noise, or if initial weights and their
        updates decay at different rates.

    Examples
    --------
    >>> from derive.program import mlp
    >>> for e in wishart_recursion(mlp(1)).steps: print(e.lhs, "=", e.rhs)
    chi(1, mu, t + 1) = chi(1, mu, t) + Sum(eta*gamma0*Delta(alpha, t)*K_x(mu, alpha)*g(1, t), (alpha, 1, P))
    xi(1, t + 1) = xi(1, t) + Sum(eta*gamma0*Delta(alpha, t)*h(1, alpha, t), (alpha, 1, P))
    """
    require_type(program, Program, "wishart_recursion", "a program")
    theory = fluctuations(program)
    _require_closed(theory)
    steps = tuple(_step(theory, e) for e in theory.products)
    start = tuple(
        Eq(Average(u.symbol * u.partner).xreplace(START), S(u.covariance).xreplace(START), evaluate=False)
        for u in theory.sources
    )
    means = [Eq(q.symbol, Average(q.unit), evaluate=False) for q in theory.parameters if q.kind == "mean"]
    numbers = [Eq(q.symbol, q.function, evaluate=False) for q in theory.parameters if q.kind == "number"]
    return GramRecursion(theory, steps, start, (*means, *numbers))


def _require_closed(theory: Fluctuations) -> None:
    """Raise NotApplicable unless the Gram matrix of the fields of a unit has a closed recursion.

    Every order parameter in the equations of a unit must be a function of outputs, such as an error. Every
    field must be a polynomial in the products of a weight and a vector; :meth:`_SampleRecursion.matrix`
    refuses outputs that are not quadratic in these.
    """
    names = {str(q.symbol.func): q for q in theory.parameters}
    for x in theory.terms:
        for a in x.addend.expr.atoms(AppliedUndef):
            q = names.get(str(a.func))
            if q is None:
                continue
            arguments = [names.get(str(b.func)) for b in q.function.atoms(AppliedUndef)]
            if q.kind != "number" or any(b is not None and b.kind != "mean" for b in arguments):
                raise NotApplicable(
                    f"the equations of a unit contain {q.symbol}, which is not a function of outputs; the "
                    "recursion of the Gram matrix closes only for one hidden linear layer on fixed samples"
                )
    if any(not e.rhs.is_polynomial(*e.rhs.atoms(AppliedUndef)) for e in theory.definitions):
        raise NotApplicable(
            "a field is not a polynomial in the products of a weight and a vector, so that the recursion of "
            "the Gram matrix does not close; use a network with one hidden linear layer"
        )


def _step(theory: Fluctuations, e: Equation) -> Eq:
    """Return the equation of one field of a unit after a step, or of its rate in a flow.

    The field is a product of a weight and a vector, and ``e`` is its equation with sums over the past. The
    result contains fields and errors at time t only. Raises NotApplicable if the update contains fields
    of the same step, or if its updates and initial weights decay at different rates.
    """
    discrete = theory.program.rule.discrete
    memory = [x for x in e.terms if x.kind != "source"]
    if any(x.reach != ("strict" if discrete else "flow") for x in memory):
        raise NotApplicable(f"the update of {e.symbol} must not contain fields of the same step")
    fractions = {_remains(x.coefficient * x.kernel, discrete) for x in memory}
    fractions |= {
        _initial_remains(S(u.covariance), discrete) for u in theory.sources if _is_source_of(u.symbol, e)
    }
    if len(fractions) != 1:
        raise NotApplicable(f"the initial weights and the updates in {e.symbol} must decay at the same rate")
    (remains,) = fractions
    times = {s: t, t: t + 1} if discrete else {s: t}
    gains = [
        over((x.coefficient * x.kernel).xreplace(times) * x.field.xreplace({s: t}), x.over) for x in memory
    ]
    if discrete:
        return Eq(e.symbol.xreplace({t: t + 1}), remains * e.symbol + Add(*gains), evaluate=False)
    return Eq(Derivative(e.symbol, t), remains * e.symbol + Add(*gains), evaluate=False)


def _is_source_of(symbol: Expr, e: Equation) -> bool:
    """Return whether ``symbol`` is the Gaussian source, from the initial weights, in the equation ``e``."""
    return any(x.kind == "source" and x.field.func == symbol.func for x in e.terms)


def _remains(kernel: Expr, discrete: bool) -> Expr:
    """Return the fraction of earlier updates that remains after a step, or its rate of change in a flow.

    ``discrete`` is True for steps, and ``kernel`` is the factor of updates of time s at time t. Without decay
    the result is 1 in steps and 0 in a flow. Raises NotApplicable if the fraction depends on time.
    """
    fraction = simplify(kernel.subs(t, t + 1) / kernel if discrete else kernel.diff(t) / kernel)
    if fraction.has(s, t):
        raise NotApplicable(
            "earlier updates and initial weights must decay at a constant rate, which excludes momentum, "
            "noise and multistep rules; the factor of earlier updates, or the covariance of the source, is "
            f"{kernel}"
        )
    return fraction


def _initial_remains(covariance: Expr, discrete: bool) -> Expr:
    """Return the fraction of the initial weights that remains after a step, or its rate of change in a flow.

    ``covariance`` is that of the source between t and s, and ``discrete`` is True for steps. Raises
    NotApplicable if the covariance is that of noise.
    """
    fraction = _remains(covariance, discrete)
    if simplify(_remains(covariance.subs({t: s, s: t}, simultaneous=True), discrete) - fraction) != 0:
        raise NotApplicable(
            f"the weights must be trained without noise (diffusion 0); their random part has the covariance "
            f"{covariance}"
        )
    return fraction


# -- a given number of samples -------------------------------------------------------------------------------


class _SampleRecursion:
    """Evaluation of the recursion of the Gram matrix for a given number of samples.

    Every index of samples and outputs becomes a number, so that the fields of a unit are a finite list.
    """

    def __init__(self, recursion: GramRecursion, samples: int) -> None:
        self.recursion, self.theory = recursion, recursion.theory
        roles = self.theory.program.roles
        if roles.samples is None:
            raise NotApplicable(
                "the program must have an output on samples: give a program on fixed samples, such as mlp(1)"
            )
        self.sizes = {S(roles.samples): Integer(samples)}
        self.products = {str(e.symbol.func) for e in self.theory.products}

    def number(self, e: Expr) -> Expr:
        """Return an expression with the given number of samples in place of its symbol P."""
        return S(e).subs(self.sizes)

    def values(self, ranges: tuple[IndexRange, ...]) -> list[dict[Expr, Expr]]:
        """Return all combinations of values of the indices of ``ranges``, as mappings by index."""
        counts = [range(int(self.number(r.lower)), int(self.number(r.upper)) + 1) for r in ranges]
        indices = [r.index for r in ranges]
        return [dict(zip(indices, map(Integer, x), strict=True)) for x in product(*counts)]

    @cached_property
    def fields(self) -> list[Expr]:
        """Independent fields V of one unit: its products of a weight and a vector, for all samples.

        Their order is that of rows and columns of all matrices.
        """
        return [substitute(e.symbol, at) for e in self.theory.products for at in self.values(e.ranges)]

    def in_products(self, e: Expr) -> Expr:
        """Return an expression with all fields of a unit replaced by their definitions.

        The definitions are in terms of products of a weight and a vector; sums over samples are written out.
        """
        e = self.number(e)
        e = e.doit() if e.has(Sum) else e
        products = {}
        for a in e.atoms(AppliedUndef):
            for d in self.theory.definitions:
                binding = match(d.symbol, a, d.ranges)
                if binding is not None:
                    products[a] = self.in_products(substitute(d.rhs, binding))
                    break
        return e.xreplace(products)

    def matrix(self, unit: Expr) -> ImmutableMatrix:
        """Return the symmetric matrix Q of ``unit``, a quadratic form ``V^T Q V`` in the fields V of a unit.

        Raises NotApplicable if ``unit`` has a constant term or terms above the second power.
        """
        body = self.in_products(unit).expand()
        matrix = ImmutableMatrix(
            len(self.fields), len(self.fields), lambda i, j: body.diff(self.fields[i], self.fields[j]) / 2
        )
        if matrix.atoms(AppliedUndef) & set(self.fields) or body.subs(dict.fromkeys(self.fields, 0)) != 0:
            raise NotApplicable(
                "the contribution of one unit to an output or order parameter must be a quadratic form in "
                f"the fields of the unit; it is {unit}"
            )
        return matrix

    def matrices(self) -> GramMatrices:
        """Return the matrices of the Gram matrix's recursion for this number of samples.

        They are the map of a step, the initial covariance, and the quadratic forms of outputs and tangent
        kernels.
        """
        return GramMatrices(
            tuple(self.fields),
            self.motion(),
            self.start(),
            S(self.theory.homes[0].ratio),
            {a: self.matrix(substitute(q.unit, at)) for a, q, at in self.members("mean")},
            {a: self.number(substitute(q.function, at)).doit() for a, q, at in self.members("number")},
            {a: self.matrix(self.observable(q, at)) for a, q, at in self.members("observable")},
        )

    def members(self, kind: str) -> Iterator[tuple[Expr, FluctuatingParameter, dict[Expr, Expr]]]:
        """Yield every order parameter of a kind, for all samples at equal times.

        ``kind`` is ``mean`` (outputs), ``number`` (errors) or ``observable`` (tangent kernels). Items are
        (its symbol, its family with symbolic indices, the numbers of these indices).
        """
        for q in self.theory.parameters:
            for at in self.values(q.ranges) if q.kind == kind else []:
                yield substitute(q.symbol, at).xreplace({s: t}), q, at

    def motion(self) -> ImmutableMatrix:
        """Return the matrix that maps the fields V of a unit to those after a step.

        For a flow it maps V to its rate of change. Entries depend on errors alone.
        """
        rows = []
        for e, step in zip(self.theory.products, self.recursion.steps, strict=True):
            for at in self.values(e.ranges):
                body = self.in_products(substitute(step.rhs, at)).expand()
                rows.append([body.coeff(x) for x in self.fields])
        return ImmutableMatrix(rows)

    def start(self) -> ImmutableMatrix:
        """Return the covariance matrix of the fields V of a unit at time 0, from random initial weights."""
        covariance = eye(len(self.fields)) * 0
        for x in self.theory.terms:
            if len(x.hats) != 2:
                continue
            for at in self.values(x.addend.over):
                i, j = (self.fields.index(substitute(y.field, at).xreplace({s: t})) for y in x.hats)
                value = substitute(x.addend.expr, at).xreplace(START)
                covariance[i, j] = covariance[j, i] = value
        return ImmutableMatrix(covariance)

    def observable(self, q: FluctuatingParameter, at: dict[Expr, Expr]) -> Expr:
        """Return the function of one unit's fields whose average over units is the observable ``q``.

        ``at`` maps each index of ``q`` to its number. The two times of ``q`` are set equal.
        """
        body = self.number(substitute(q.function, at)).doit().xreplace({s: t})
        units = {}
        for a in body.atoms(AppliedUndef):
            for parameter in self.theory.parameters:
                binding = match(parameter.symbol, a, parameter.ranges)
                if binding is not None and parameter.unit != 0:
                    units[a] = substitute(parameter.unit, {**binding, s: t})
        return body.xreplace(units)
