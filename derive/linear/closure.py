"""The closure of a linear theory: kernels that determine each other, with no random field left (eq. 15,
F.3, F.4).

Each single-site equation is read term by term: the kernel that multiplies a past field is an operator
entry.  Solving the operator equations for the sources gives the fields; their covariances and the
coefficients of the sources are the correlation and response functions.  The ends of the network are the
family's equations with the base cases that make them so, and these are found by comparing the two.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sympy import Eq, Expr, Integral, Mul, S, Sum, latex, solve
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import IndexRange, ell, s, t
from derive.errors import NotApplicable
from derive.linear.layer_block import Block, Row, pair_of, same, to_ell
from derive.linear.operators import J, Kernel, operator, operator_latex
from derive.theory import Equation, OrderParameter, Source, Theory


@dataclass(frozen=True)
class LinearClosure:
    """A linear theory as equations between operators.

    ``equations`` are the single-site equations, ``fields`` the same solved for the sources, ``kernels`` the
    entries of the operators in them, ``covariances`` and ``responses`` the correlation and response
    functions in closed form, ``base`` their values beyond the ends of the network, ``outputs`` the averages
    that the scalars are made of. ``layers`` is the range over which the layer index runs; None when the
    layers are written out one by one.
    """

    theory: Theory
    equations: tuple[Eq, ...]
    fields: tuple[Eq, ...]
    kernels: tuple[Kernel, ...]
    covariances: tuple[Eq, ...]
    responses: tuple[Eq, ...]
    base: tuple[Eq, ...]
    outputs: tuple[Eq, ...]
    layers: IndexRange | None = None

    def kernel(self, name: str) -> Kernel:
        """The kernel whose entries are called ``name``.  Raises KeyError if there is none."""
        for k in self.kernels:
            if k.name == name:
                return k
        raise KeyError(f"no kernel {name}; there are {', '.join(sorted({k.name for k in self.kernels}))}")

    def covariance(self, name: str) -> Expr:
        """The closed form of a correlation function, by name.  Raises KeyError if there is none."""
        return _named((*self.covariances, *self.outputs), name)

    def response(self, name: str) -> Expr:
        """The closed form of a response function, by name.  Raises KeyError if there is none."""
        return _named(self.responses, name)

    def field(self, name: str) -> Expr:
        """The field called ``name`` in terms of the sources.  Raises KeyError if there is none."""
        return _named(self.fields, name)

    def latex(self) -> str:
        """All equations, one a line."""
        lines = [operator_latex(e) for e in (*self.equations, *self.fields)]
        lines += [latex(Eq(k.entry, k.definition, evaluate=False)) for k in self.kernels]
        lines += [operator_latex(e) for e in (*self.covariances, *self.responses, *self.base, *self.outputs)]
        rows = " \\\\\n".join("  " + x.replace(" = ", " &= ", 1) for x in lines)
        return "\\begin{align}\n" + rows + "\n\\end{align}"

    def __str__(self) -> str:
        entries = [Eq(k.entry, k.definition, evaluate=False) for k in self.kernels]
        groups = (
            self.equations,
            self.fields,
            entries,
            self.covariances,
            self.responses,
            self.base,
            self.outputs,
        )
        return "\n".join(f"{e.lhs} = {e.rhs}" for group in groups for e in group)


def _named(equations: tuple[Eq, ...], name: str) -> Expr:
    for e in equations:
        label = e.lhs.args[0] if e.lhs.args else e.lhs
        if str(label) == name:
            return e.rhs
    raise KeyError(f"no operator {name} here; there are {', '.join(str(e.lhs) for e in equations)}")


def linear_closure(theory: Theory) -> LinearClosure:
    """Eliminate the random fields of a linear theory.

    Works for symbolic depth, integer depth and any training rule.  Raises :class:`NotApplicable` when an
    equation is not linear in the fields.

    >>> from derive.theory import mean_field
    >>> from derive.program import mlp
    >>> closure = linear_closure(mean_field(mlp()))
    >>> print(closure.response("A"))
    (-gamma0**2*C[ell]*D[ell] + 1)**(-1)*C[ell]
    >>> print(*closure.base)
    Eq(H[0], K_x) Eq(A[0], 0) Eq(G[L + 1], J) Eq(B[L], 0)
    """
    return _Closure(theory).closure()


class _Closure:
    def __init__(self, theory: Theory) -> None:
        self.theory = theory
        self.scale = theory.program.scale
        self.names = {e.name for e in theory.equations}
        self.rows = [self.read(e) for e in theory.equations]
        self.index = {r.name: r.indices for r in self.rows}
        self.matrices = {q.name: q for q in theory.order_parameters}
        self.base: list[Eq] = []
        self.known: list[tuple[AppliedUndef, Expr]] = []

    # -- reading ------------------------------------------------

    def read(self, e: Equation) -> Row:
        """Which kernel multiplies which past field.  A family is moved so that its layer is called
        ``ell``."""
        if not isinstance(e.lhs, AppliedUndef):
            raise NotApplicable(f"{e.lhs} is not given by its past, but by its rate of change")
        layers = next((r for r in e.ranges if r.index == ell), None)
        move = to_ell(e.lhs.args[0]) if layers else same
        indices = tuple(r for r in e.ranges if r.index != ell)
        source = S.Zero
        kernels: dict[str, Expr] = {}
        for x in e.terms:
            if x.kind == "source":
                source = move(x.expr)
            else:
                field, kernel = self.kernel(move(x.expr))
                kernels[field] = kernels.get(field, S.Zero) + kernel
        if not isinstance(source, AppliedUndef):
            raise NotApplicable(f"{e.lhs} must have one Gaussian source with factor 1; it has {source}")
        if layers is not None:
            shift = e.lhs.args[0] - ell
            layers = IndexRange(ell, layers.lower + shift, layers.upper + shift)
        return Row(e.name, move(e.lhs).args[0], indices, source, kernels, layers)

    def kernel(self, term: Expr) -> tuple[str, Expr]:
        """Split ``sum K(t, s) X(s)`` into the name of the field X and ``K / scale``."""
        limits, body = _integrand(term)
        past = [a for a in body.atoms(AppliedUndef) if str(a.func) in self.names]
        if len(past) != 1 or past[0].args[-1] != s or (rest := body / past[0]).has(past[0]):
            raise NotApplicable(f"{term} is not linear in a past field: the closure is for linear networks")
        if not any(lim[0] == s and lim[1] == 0 and lim[2] in (t, t - 1) for lim in limits) or (
            isinstance(term, Sum) and not any(lim[2] == t - 1 for lim in limits)
        ):
            raise NotApplicable(f"{term} must be a memory of strictly earlier times")
        inner = [lim for lim in limits if lim[0] != s and not past[0].has(lim[0])]
        factors = Mul.make_args(rest / self.scale)
        fixed = Mul(*[x for x in factors if not any(x.has(lim[0]) for lim in inner)])
        moving = Mul(*[x for x in factors if any(x.has(lim[0]) for lim in inner)])
        return str(past[0].func), fixed * Sum(moving, *inner) if inner else fixed

    # -- putting the layers together ------------------------------------------------

    def closure(self) -> LinearClosure:
        family = [r for r in self.rows if r.layers is not None]
        if family:
            for end in (r for r in self.rows if r.layers is None):
                inside = next(r for r in family if r.name == end.name)
                self.match(inside, end)
            first = min((r.site for r in self.rows if r.layers is None), key=lambda x: not x.is_Integer)
            blocks = [(ell, family)]
            layers: IndexRange | None = IndexRange(ell, first, self.theory.program.depth)
        else:
            sites = sorted({r.site for r in self.rows}, key=lambda x: (not x.is_Integer, str(x)))
            blocks = [(site, [r for r in self.rows if r.site == site]) for site in sites]
            layers = None
        parts = [Block(self, site, rows) for site, rows in blocks]
        return LinearClosure(
            theory=self.theory,
            equations=tuple(e for b in parts for e in b.equations()),
            fields=tuple(e for b in parts for e in b.solved()),
            kernels=(*(k for b in parts for k in b.kernels()), *self.known_kernels()),
            covariances=tuple(e for b in parts for e in b.covariances()),
            responses=tuple(e for b in parts for e in b.responses()),
            base=tuple(self.base),
            outputs=tuple(e for b in parts for e in b.outputs()),
            layers=layers,
        )

    def match(self, family: Row, end: Row) -> None:
        """The base cases that make the family's equation at the end's layer equal to the end's own."""
        here = {ell: end.site}
        for found in self.sources_of(family.source):
            inside = found.covariance.xreplace(here)
            twin = self.source_at(end, found)
            if isinstance(inside, AppliedUndef) and inside != twin.covariance:
                self.note(inside, twin.covariance)
            elif self.with_base(inside) != twin.covariance:
                raise NotApplicable(f"the source {twin.symbol} of the end does not continue its family")
        if extra := set(end.kernels) - set(family.kernels):
            raise NotApplicable(f"{end.name}({end.site}) depends on {sorted(extra)}, unlike its family")
        for field in family.kernels:
            gap = self.with_base(family.kernels[field].xreplace(here)) - end.kernels.get(field, S.Zero)
            gap = gap.expand()
            if gap == 0:
                continue
            unknown = [
                a
                for a in gap.atoms(AppliedUndef)
                if str(a.func) in self.matrices and a.has(*self.sites(end, a))
            ]
            if len(unknown) != 1 or len(values := solve(gap, unknown[0])) != 1:
                raise NotApplicable(
                    f"the last member {end.name}({end.site}) does not continue its family: {gap} is left"
                )
            self.note(unknown[0], values[0])

    def sites(self, end: Row, a: AppliedUndef) -> list[Expr]:
        """The layer of ``a`` if it is the end's or next to it: where a base case may be."""
        return [a.args[0]] if (a.args[0] - end.site) in (0, 1, -1) else []

    def note(self, symbol: AppliedUndef, value: Expr) -> None:
        self.known.append((symbol, value))
        vector = operator(str(symbol.func), symbol.args[0])
        matrix = S.Zero if value == 0 else self.matrix(value)
        if matrix is not None:
            self.base.append(Eq(vector, matrix, evaluate=False))

    def with_base(self, e: Expr) -> Expr:
        """Put the base cases found so far into ``e``."""
        for symbol, value in self.known:
            n, place = symbol.func, symbol.args[0]

            def hit(x: Expr, n: object = n, place: Expr = place) -> bool:
                return isinstance(x, AppliedUndef) and x.func == n and x.args[0] == place

            def put(x: Expr, symbol: AppliedUndef = symbol, value: Expr = value) -> Expr:
                return value.xreplace(dict(zip(symbol.args[1:], x.args[1:], strict=True)))

            e = e.replace(hit, put)
        return e.replace(lambda x: isinstance(x, Sum | Integral) and x.function == 0, lambda _: S.Zero)

    def known_kernels(self) -> list[Kernel]:
        """Entries of the base cases and of operators that are data."""
        found: dict[Expr, Kernel] = {}
        for symbol, value in self.known:
            q = self.matrices[str(symbol.func)]
            rows, cols = self.spaces(q)
            at = q.symbol.func(symbol.args[0], *q.symbol.args[1:])
            renamed = value.xreplace(dict(zip(symbol.args[1:], at.args[1:], strict=True)))
            vector = operator(q.name, symbol.args[0])
            found[vector] = Kernel(vector, at, renamed, rows, cols, q.causal)
        return list(found.values())

    # -- sources and operators ------------------------------------------------

    def sources_of(self, symbol: AppliedUndef) -> list[Source]:
        """Covariances of a source, moved to its layer ``ell`` if it belongs to a family."""
        found = []
        for u in self.theory.sources:
            if u.symbol.func != symbol.func or bool(u.symbol.args[0].has(ell)) != bool(
                symbol.args[0].has(ell)
            ):
                continue
            if not symbol.args[0].has(ell) and u.symbol.args[0] != symbol.args[0]:
                continue
            move = to_ell(u.symbol.args[0]) if symbol.args[0].has(ell) else same
            found.append(
                replace(u, symbol=move(u.symbol), partner=move(u.partner), covariance=move(u.covariance))
            )
        return found

    def source_at(self, end: Row, like: Source) -> Source:
        for u in self.theory.sources:
            same = u.symbol.func == like.symbol.func and u.partner.func == like.partner.func
            if same and u.symbol.args[0] == end.site:
                return u
        raise NotApplicable(f"{end.name}({end.site}) has no source like {like.symbol}")

    def matrix(self, kernel: Expr) -> Expr | None:
        """The operator with these entries (order parameter, data, the kernel 1); None if it has no name."""
        if kernel == 1:
            return J
        if isinstance(kernel, AppliedUndef):
            name = str(kernel.func)
            return operator(name, kernel.args[0]) if name in self.matrices else operator(name)
        return None

    def spaces(self, q: OrderParameter) -> tuple[tuple[IndexRange, ...], tuple[IndexRange, ...]]:
        """The sample-like indices of an order parameter, first and second vector's."""
        ranges = tuple(r for r in q.ranges if r.index != ell)
        atoms = pair_of(q, self.names)
        if len(atoms) != 2:
            return ranges, ()
        now, past = atoms
        return tuple(r for r in ranges if now.has(r.index)), tuple(r for r in ranges if past.has(r.index))


def _integrand(e: Expr) -> tuple[list[tuple[Expr, Expr, Expr]], Expr]:
    """Limits and integrand of nested sums and integrals with constant factors."""
    limits = []
    while isinstance(e, Sum | Integral):
        limits += list(e.limits)
        e = e.function
    return limits, e
