"""Lower a linear Theory at integer depth to a :class:`Table`.

Only reads what the engine derived: which kernel multiplies which past field, what the sources' covariances
are, how order parameters are defined.  Raises :class:`NotLinear` when a term is not linear in the fields.
"""

from __future__ import annotations

from collections.abc import Iterable

from sympy import Add, Expr, Mul, Pow, S, Sum, Symbol
from sympy.core.function import AppliedUndef

from derive.meanfield.averages import Average, Response
from derive.meanfield.theory import Equation, OrderParameter, Theory
from derive.program.expressions import ell, mu, s, t
from numerics.compile.table import (
    Coupling,
    Factor,
    FieldRow,
    Hoisted,
    Kernel,
    Monomial,
    Node,
    Request,
    ScalarRow,
    Table,
)


class NotLinear(ValueError):
    """The theory has a term that the linear march cannot take."""


def lower(theory: Theory) -> Table:
    """The rows of ``theory``, which must be linear, in discrete time and at integer depth.

    Raises :class:`NotLinear` otherwise, and ValueError for a family of layers that ``at_depth`` would unroll.

    >>> from derive.meanfield import mean_field
    >>> from derive.program import mlp
    >>> [row.field for row in lower(mean_field(mlp(2)).at_depth(2)).fields]
    [('h', 1), ('h', 2), ('g', 2), ('g', 1)]
    """
    return _Lowering(theory).table()


def node(atom: AppliedUndef) -> Node:
    """The name and layer of an applied function; layers are the integer first arguments."""
    first = atom.args[0] if atom.args else S.Zero
    return str(atom.func), int(first) if len(atom.args) > 1 and first.is_Integer else None


def _indices(atom: AppliedUndef) -> tuple[Symbol, ...]:
    return tuple(x for x in atom.args if isinstance(x, Symbol))


class _Lowering:
    def __init__(self, theory: Theory) -> None:
        self.theory = theory
        self.field_names = {e.name for e in theory.equations}
        self.source_names = {str(u.symbol.func) for u in theory.sources}
        self.hoisted: dict[str, Hoisted] = {}

    def table(self) -> Table:
        families = [e.lhs for e in self.theory.equations if ell in {r.index for r in e.ranges}]
        if families:
            raise ValueError(f"{families[0]} is a family of layers: lower theory.at_depth(n) instead")
        tensors = {node(q.symbol): self.request(q) for q in self.theory.order_parameters}
        fields = tuple(self.field(e) for e in self.theory.equations)
        covariances: dict[tuple[Node, Node], Kernel] = {}
        source_index: dict[Node, Symbol | None] = {}
        for u in self.theory.sources:
            row, col = _sample(u.symbol), _sample(u.partner)
            covariances[node(u.symbol), node(u.partner)] = self.kernel(u.covariance, row, col)
            source_index.setdefault(node(u.symbol), row)
        scalars = tuple(self.scalar(e) for e in self.theory.scalars)
        return Table(fields, covariances, source_index, tensors, scalars, tuple(self.hoisted.values()))

    # -- fields ----------------------------------------------------------------------------------------

    def field(self, e: Equation) -> FieldRow:
        source: Node | None = None
        gain: Expr = S.Zero
        couplings: list[Coupling] = []
        for x in e.terms:
            if x.kind == "source":
                atom = next(a for a in x.expr.atoms(AppliedUndef) if str(a.func) in self.source_names)
                source, gain = node(atom), x.expr / atom
            else:
                couplings += [self.coupling(e, part) for part in addends(x.expr)]
        return FieldRow(node(e.lhs), _sample(e.lhs), source, gain, _joined(couplings))

    def coupling(self, e: Equation, expr: Expr) -> Coupling:
        if not isinstance(expr, Sum):
            raise NotLinear(f"{e.lhs} has the term {expr}; the march takes sums over past steps")
        time = next((lim for lim in expr.limits if lim[0] == s), None)
        if time is None or time[1] != 0 or time[2] not in (t - 1, t):
            raise NotLinear(f"{e.lhs} has the term {expr}, which is no sum over the steps 0..t-1 or 0..t")
        past = [a for a in expr.function.atoms(AppliedUndef) if str(a.func) in self.field_names]
        if len(past) != 1:
            raise NotLinear(f"{expr.function} must contain one field at time s; it contains {past or 'none'}")
        atom = past[0]
        rest = expr.function / atom
        if rest.has(atom):
            raise NotLinear(f"{expr.function} is not linear in {atom}")
        col = _sample(atom)
        inner = [lim for lim in expr.limits if lim[0] not in (s, col)]
        body = Sum(rest, *inner) if inner else rest
        return Coupling(node(atom), self.kernel(body, _sample(e.lhs), col, inclusive=time[2] == t))

    # -- kernels ---------------------------------------------------------------------------------------

    def kernel(self, expr: Expr, row: Symbol | None, col: Symbol | None, inclusive: bool = False) -> Kernel:
        open_axes = {x for x in (row, col, s, t) if x is not None}
        monomials = tuple(self.monomial(c, fs, open_axes) for c, fs in products(expr))
        return Kernel(row, col, monomials, inclusive)

    def monomial(self, coefficient: Expr, factors: tuple[AppliedUndef, ...], axes: set[Symbol]) -> Monomial:
        for a in factors:
            if {t, s} <= set(a.args) and a.args[-2:] != (t, s):
                raise NotLinear(f"{a} is read with its times exchanged; a row at time t is all that is known")
        parts = [Factor(node(a), _indices(a)) for a in factors]
        summed = sorted({i for f in parts for i in f.indices} - axes, key=str)
        for index in summed:
            group = [f for f in parts if index in f.indices]
            others = {i for f in group for i in f.indices} - {index}
            if t in others or s not in others or len(others) != 2:
                continue  # depends on the present: a row operation of its own step
            row = next(i for i in others if i != s)
            name = " ".join(sorted(f"{f.tensor[0]}{f.tensor[1] or ''}{f.indices}" for f in group))
            key = self.hoisted.setdefault(
                name, Hoisted((f"hoisted{len(self.hoisted)}", None), row, tuple(group))
            )
            parts = [f for f in parts if f not in group] + [Factor(key.tensor, (s, row))]
        return Monomial(coefficient, tuple(parts))

    # -- what tensors and scalars mean -----------------------------------------------------------------

    @staticmethod
    def request(q: OrderParameter) -> Request:
        average = next(iter(q.definition.atoms(Average)))
        factor = q.definition / average
        if isinstance(average.body, Response):
            return Request("response", node(average.body.body), node(average.body.source), factor)
        pair = _pair(average.body)
        now = [a for a in pair if a.args[-1] == t]
        first = now[0] if len(now) == 1 else next((a for a in now if mu in a.args), now[0])
        second = next((a for a in pair if a is not first), first)
        return Request("correlation", node(first), node(second), factor)

    def scalar(self, e: Equation) -> ScalarRow:
        expr, averages, inputs = e.rhs, [], []
        for k, average in enumerate(sorted(expr.atoms(Average), key=str)):
            pair = _pair(average.body)
            stand_in = Symbol(f"average{k}")
            expr = expr.xreplace({average: stand_in})
            averages.append((stand_in, node(pair[0]), node(pair[-1])))
        for atom in sorted(expr.atoms(AppliedUndef), key=str):
            stand_in = Symbol(f"in_{atom.func}")
            expr = expr.xreplace({atom: stand_in})
            inputs.append((stand_in, str(atom.func)))
        return ScalarRow(e.name, _sample(e.lhs), expr, tuple(averages), tuple(inputs))


def addends(expr: Expr) -> Iterable[Expr]:
    """``sum (a + b)`` as ``sum a`` and ``sum b``."""
    if not isinstance(expr, Sum):
        return (expr,)
    return tuple(Sum(x, *expr.limits) for x in Add.make_args(expr.function.expand(deep=False)))


def _sample(atom: Expr) -> Symbol | None:
    """The sample-like index of a field."""
    found = [x for x in atom.args if isinstance(x, Symbol) and x not in (t, s, ell)]
    if len(found) > 1:
        raise NotLinear(f"{atom} has several indices; the march takes at most one")
    return found[0] if found else None


def _pair(body: Expr) -> list[AppliedUndef]:
    """The two fields of ``<x y>`` (``<x x>`` once as a square)."""
    atoms: list[AppliedUndef] = []
    for x in Mul.make_args(body):
        base, times = (x.base, int(x.exp)) if isinstance(x, Pow) else (x, 1)
        if not isinstance(base, AppliedUndef):
            raise NotLinear(f"<{body}> is not an average of two fields")
        atoms += [base] * times
    if len(atoms) != 2:
        raise NotLinear(f"<{body}> is not an average of two fields")
    return atoms


def products(expr: Expr) -> Iterable[tuple[Expr, tuple[AppliedUndef, ...]]]:
    """``expr`` as a sum of coefficient times tensors, with inner sums flattened into the index names."""
    expr = expr.expand()
    if isinstance(expr, Add):
        for x in expr.args:
            yield from products(x)
        return
    coefficient: Expr = S.One
    factors: list[AppliedUndef] = []
    sums: list[Sum] = []
    for x in Mul.make_args(expr):
        if isinstance(x, AppliedUndef):
            factors.append(x)
        elif isinstance(x, Sum):
            sums.append(x)
        elif x.atoms(AppliedUndef):
            raise NotLinear(f"the kernel {expr} has the factor {x}; only products of tensors are known")
        else:
            coefficient *= x
    if not sums:
        yield coefficient, tuple(factors)
        return
    for c, inner in products(sums[0].function):
        rest = Mul(*sums[1:])
        for c2, more in products(rest) if sums[1:] else [(S.One, ())]:
            yield coefficient * c * c2, (*factors, *inner, *more)


def _joined(couplings: list[Coupling]) -> tuple[Coupling, ...]:
    """Couplings to the same field with the same reach are one kernel."""
    found: dict[tuple[Node, bool], Coupling] = {}
    for c in couplings:
        key = (c.field, c.kernel.inclusive)
        if key in found:
            old = found[key].kernel
            k = Kernel(old.row, old.col, old.monomials + c.kernel.monomials, old.inclusive)
            found[key] = Coupling(c.field, k)
        else:
            found[key] = c
    return tuple(found.values())
