"""Closure of a linear theory: equations between kernels, without random fields (linear2025 eq. 15, F.3, F.4).

In the linear form, the kernel in front of a past field is the entry of an operator. The operator equations
are solved for the fields in terms of the sources; covariances of the fields and coefficients of the sources
are the correlation and response functions. The ends of the network are members of the families of layers,
with their base cases (:mod:`derive.theory.families`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sympy import Add, Eq, Expr, Function, Integer, Mul, S, latex, sympify, transpose
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average, Response
from derive.calculus.sums import match, placed
from derive.calculus.symbols import IndexRange, ell, primed, s, t
from derive.errors import NotApplicable
from derive.linear.form import Row, linear_form
from derive.linear.operators import J, Kernel, coefficient, matrix, operator, operator_latex, size, solve_for
from derive.program import Program
from derive.show.summary import Summarised
from derive.theory import Equation, OrderParameter, Source, Theory
from derive.theory.conditioning import theory_of
from derive.theory.families import families

NAMES = {"h": "C", "h_y": "C", "p": "C_p", "g": "D"}
"""Name of the kernel through which a field depends on past fields, by the name of the field."""


@dataclass(frozen=True, repr=False)
class LinearClosure(Summarised):
    """Linear theory as equations between operators, written as noncommutative words.

    A word is a product of letters, each of which is an operator over samples and times
    (:mod:`derive.linear.operators`). :meth:`covariance`, :meth:`response` and :meth:`field` return matrix
    expressions for ``lambdify``. ``equations`` are the single-site equations, ``fields`` their solutions in
    terms of the sources, ``kernels`` the entries of the operators. ``covariances`` and ``responses`` give the
    correlation and response functions of a layer in terms of kernels and of covariances of its sources, which
    are correlations of neighbouring layers; ``base`` gives their values just beyond the ends of the network.
    ``outputs`` are the averages of two fields in the scalars, such as ``<h g>`` in the output. ``layers`` is
    the range of the layer index, None for a theory without families of layers.
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

    def __hash__(self) -> int:
        """Return the hash of the program: equal closures have equal programs."""
        return hash(self.theory.program)

    def kernel(self, name: str) -> Kernel:
        """Return the kernel whose entries have this name; raise KeyError for an unknown name."""
        for k in self.kernels:
            if k.name == name:
                return k
        raise KeyError(
            f"the closure has no kernel {name}; there are {', '.join(sorted({k.name for k in self.kernels}))}"
        )

    def covariance(self, name: str) -> Expr:
        """Return a correlation function, or one of the averages in ``outputs``, as a matrix expression.

        Raise KeyError for an unknown name. The average ``<h g>`` has the name ``C_hg``. The expression
        contains kernels and correlations of neighbouring layers.

        Its rows and columns are numbered by the ``T`` times and by the other indices, such as samples, of the
        field on that side.

        >>> from derive import P, gamma0, mean_field, mlp
        >>> import mpmath
        >>> from sympy import lambdify
        >>> from derive.linear.operators import Operator, T
        >>> closure = linear_closure(mean_field(mlp()))
        >>> value = closure.covariance("C_hg")
        >>> letters = sorted(value.atoms(Operator), key=str)
        >>> of = lambdify([T, P, gamma0, *letters], value, "mpmath")
        >>> print(of(1, 1, 0.5, *map(mpmath.matrix, ([[0]], [[2]], [[1]], [[3]]))))
        [3.0]
        """
        return self.matrix(_named((*self.covariances, *self.outputs), name))

    def response(self, name: str) -> Expr:
        """Return the response function ``name``, such as ``A``, as a matrix expression of kernels.

        Raises KeyError for an unknown name.
        """
        return self.matrix(_named(self.responses, name))

    def field(self, name: str) -> Expr:
        """Return a field in terms of the sources, as a matrix expression with one column.

        Raise KeyError for an unknown name.
        """
        return self.matrix(_named(self.fields, name))

    def matrix(self, word: Expr) -> Expr:
        """Return a word (or sum of words) in the operators of the closure as a matrix expression."""
        return matrix(word, self.shape)

    def shape(self, letter: Expr) -> tuple[Expr, Expr]:
        """Return the numbers of rows and columns of an operator or field, given by its symbol ``letter``.

        Each is the number of times, multiplied by the number of values of each index, such as samples, that
        the operator has on this side. A field has one column. Raise KeyError if the closure does not contain
        it.
        """
        name = str(letter.args[0] if letter.args else letter)
        if letter == J:
            return size(()), size(())
        for e in self.base:
            if e.rhs == letter:
                return self.shape(e.lhs)
        for k in self.kernels:
            if k.operator == letter or k.name == name:
                return size(k.rows), size(k.cols)
        for q in self.theory.order_parameters:
            if q.name == name:
                rows, cols = _spaces(q)
                return size(rows), size(cols)
        for e in self.theory.equations:
            if e.name == name or any(
                str(a.func) == name for x in e.terms for a in x.field.atoms(AppliedUndef)
            ):
                return size([r for r in e.ranges if r.index != ell]), S.One
        raise KeyError(f"the closure has no operator {letter}")

    def latex(self) -> str:
        """Return all equations of the closure, and its kernels by their entries, as a LaTeX ``align``."""
        lines = [operator_latex(e) for e in (*self.equations, *self.fields)]
        lines += [latex(Eq(k.entry, k.definition, evaluate=False)) for k in self.kernels]
        lines += [operator_latex(e) for e in (*self.covariances, *self.responses, *self.base, *self.outputs)]
        rows = " \\\\\n".join("  " + x.replace(" = ", " &= ", 1) for x in lines)
        return "\\begin{align}\n" + rows + "\n\\end{align}"

    def _repr_latex_(self) -> str:
        return self.latex()

    def __str__(self) -> str:
        entries = [Eq(k.entry, k.definition, evaluate=False) for k in self.kernels]
        results = (*self.covariances, *self.responses, *self.base, *self.outputs)
        return "\n".join(f"{e.lhs} = {e.rhs}" for e in (*self.equations, *self.fields, *entries, *results))


def _named(equations: tuple[Eq, ...], name: str) -> Expr:
    """Return the right-hand side of the equation whose left-hand side is the operator ``name``, at any layer.

    Raise KeyError if no equation defines the operator.
    """
    for e in equations:
        label = e.lhs.args[0] if e.lhs.args else e.lhs
        if str(label) == name:
            return e.rhs
    raise KeyError(
        f"there is no equation of {name}; there are equations of {', '.join(str(e.lhs) for e in equations)}"
    )


def linear_closure(theory: Theory | Program) -> LinearClosure:
    """Eliminate the random fields of a linear theory.

    The depth may be symbolic or an integer; any training rule is allowed that is linear in the updates. The
    first argument of each field must be its layer, as in ``mlp``.

    Parameters
    ----------
    theory : Theory or Program
        A linear theory, or a program of a linear network.

    Returns
    -------
    LinearClosure
        The equations between operators.

    Raises
    ------
    NotApplicable
        If the equation of a field is not one Gaussian source with factor 1 plus memories of strictly earlier
        times (biases, for example, add a second source), if a field has no layer or remembers another layer,
        if a correlation contains a field at time 0 or is not a number times an average of two fields, if
        only some of the fields belong to the family of layers, if an equation is not linear in the fields,
        or if a training rule is not linear in the updates.

    Examples
    --------
    >>> from derive import mean_field, mlp
    >>> closure = linear_closure(mean_field(mlp()))
    >>> print(closure.response("A"))
    ((-gamma0**2)*C[ell]*D[ell] + I)**(-1)*C[ell]
    >>> print(*closure.base)
    Eq(H[0], K_x) Eq(G[L + 1], J) Eq(A[0], 0) Eq(B[L], 0)
    """
    return _Closure(theory_of(theory, "linear_closure")).closure()


class _Closure:
    """Construction of the closure of a linear theory: equations between kernels, without random fields.

    Layers are families, and the values just beyond the first and the last layer are base cases.
    """

    def __init__(self, theory: Theory) -> None:
        """Read the linear form of a theory, with the first and the last layer joined to the families.

        Raises NotApplicable if a field has no layer, if a correlation contains a field at time 0, or if an
        equation does not have the form that a closure takes (:meth:`kernels_of`).
        """
        self.theory = theory
        self.scale = theory.program.scale
        self.names = {e.name for e in theory.equations}
        self.require_layers()
        self.require_present()
        joined = families(theory)
        self.sources = joined.sources
        self.rows = linear_form(theory, map(_at_ell, joined.equations)).rows
        self.gains = {id(r): self.kernels_of(r) for r in self.rows}
        self.index = {r.name: r.indices for r in self.rows}
        self.matrices = {q.name: q for q in theory.order_parameters}
        self.known = [(e.lhs, e.rhs) for e in joined.base_cases]

    def require_layers(self) -> None:
        """Raise NotApplicable if a field has no layer as its first argument.

        Fields of the program say whether they have layers. A field that a reduction adds has one if its first
        argument is neither the time nor another index than that of layers.
        """
        for e in self.theory.equations:
            field, place = self.theory.program.field_of(e.name), e.symbol.args[0]
            if field is None:
                others = {t} | {r.index for r in e.ranges if r.index != ell}
                layered = not place.free_symbols & others
            else:
                layered = field.layered
            if not layered:
                reason = (
                    "has no layer"
                    if field is None or not field.ordered
                    else "is computed step after step by the same matrices, not layer by layer"
                )
                raise NotApplicable(
                    f"the field {e.symbol} {reason}; a closure takes fields whose first argument is their "
                    "layer, as in "
                    'mlp: Field("h", ..., layered=True), written h(1, ...) in the first layer'
                )

    def require_present(self) -> None:
        """Raise NotApplicable if a correlation contains a field at time zero, which a closure lacks."""
        for q in self.theory.correlations():
            for x in sorted(q.definition.atoms(AppliedUndef), key=str):
                if str(x.func) in self.names and x.args[-1] == 0:
                    raise NotApplicable(
                        f"the correlation {q.symbol} = {q.definition} contains {x}, a field at time 0; the "
                        "operators of a closure take correlations of fields at the times t and s only"
                    )

    def kernels_of(self, row: Row) -> dict[str, Expr]:
        """Return the kernels by which an equation depends on past fields, by name of the field.

        ``row`` is the equation in linear form. Each kernel is divided by the scale (gamma0) of the program.
        Raises NotApplicable unless the equation is one Gaussian source with factor 1 plus memories of
        strictly earlier times of fields of the same layer.
        """
        kernels: dict[str, Expr] = {}
        if row.source is not None and row.given != 0:
            raise NotApplicable(
                f"the equation of {row.lhs} has the term {row.given}, which is neither a Gaussian source nor "
                "a field at past times; a closure takes equations with these two kinds of terms only"
            )
        for x in row.actions:
            if x.reach not in ("strict", "flow"):
                raise NotApplicable(
                    f"the term {x.expr} in the equation of {row.lhs} must be a sum over the steps 0..t-1 "
                    "or an integral from 0 to t of past fields, because a closure takes only Gaussian "
                    "sources and such terms"
                )
            if x.field.args[0] != row.field.args[0]:
                raise NotApplicable(
                    f"the term {x.expr} in the equation of {row.lhs} is a memory of a field of another "
                    "layer; a closure takes memories of fields of the same layer only"
                )
            entry = x.times(1 / self.scale).entry
            kernels[x.name] = kernels.get(x.name, S.Zero) + entry
        return kernels

    # -- putting the layers together ------------------------------------------------

    def closure(self) -> LinearClosure:
        """Return the equations between kernels that the theory implies, layer by layer.

        Raises NotApplicable if only some of the fields have an equation for each layer.
        """
        family_rows = [r for r in self.rows if r.layers is not None]
        layers = family_rows[0].layers if family_rows else None
        if family_rows and len(family_rows) < len(self.rows):
            outside = ", ".join(str(r.lhs) for r in self.rows if r.layers is None)
            raise NotApplicable(
                f"the equations of these fields do not belong to the family of layers: {outside}; a closure "
                "takes theories in which all equations of fields belong to it, or theories without such a "
                "family"
            )
        sites = sorted({_site(r) for r in self.rows}, key=lambda x: (not x.is_Integer, str(x)))
        blocks = [(site, [r for r in self.rows if _site(r) == site]) for site in sites]
        parts = [_Block(self, site, rows) for site, rows in blocks]
        return LinearClosure(
            theory=self.theory,
            equations=tuple(_eq(k, v) for b in parts for k, v in b.system.items()),
            fields=tuple(_eq(k, v) for b in parts for k, v in b.solution.items()),
            kernels=(*(k for b in parts for k in b.kernels()), *self.known_kernels()),
            covariances=tuple(e for b in parts for e in b.covariances()),
            responses=tuple(e for b in parts for e in b.responses()),
            base=tuple(self.base_cases()),
            outputs=tuple(e for b in parts for e in b.outputs()),
            layers=layers,
        )

    def base_cases(self) -> Iterator[Eq]:
        """Yield equations for operators just beyond the first and the last layer, such as ``H[0] = K_x``.

        These are the values with which the recursions over layers begin. A value is left out unless it is 0,
        1 (the operator J), an order parameter or a data kernel.
        """
        for symbol, value in self.known:
            word = S.Zero if value == 0 else self.operator(value)
            if word is not None:
                yield _eq(operator(str(symbol.func), symbol.args[0]), word)

    def known_kernels(self) -> list[Kernel]:
        """Return the operators just beyond the first and the last layer, given by their entries.

        An example is ``H[0]``, the kernel of the inputs.
        """
        kernels: dict[Expr, Kernel] = {}
        for symbol, value in self.known:
            q = self.matrices[str(symbol.func)]
            at = q.symbol.func(symbol.args[0], *q.symbol.args[1:])
            word = operator(q.name, symbol.args[0])
            kernels[word] = Kernel(word, at, placed(value, symbol, at), *_spaces(q), q.causal)
        return list(kernels.values())

    # -- sources and operators ------------------------------------------------

    def sources_of(self, symbol: AppliedUndef) -> Iterator[Source]:
        """Yield the covariances of the source ``symbol`` with itself and with other sources.

        They are those at the layer ``ell`` if the source is in a family of layers.
        """
        for u in self.sources:
            indices = match(u.symbol, symbol, u.ranges)
            if indices is not None and u.symbol.args[0].has(ell) == symbol.args[0].has(ell):
                move = {ell: indices.get(ell, ell)}
                yield replace(
                    u,
                    symbol=symbol,
                    partner=u.partner.xreplace(move),
                    covariance=sympify(u.covariance).xreplace(move),
                )

    def operator(self, kernel: Expr) -> Expr | None:
        """Return the noncommutative symbol of the operator with the entries ``kernel``, such as ``C[ell]``.

        It is named after the order parameter or the data that give the entries. The number 1 gives ``J``, the
        operator with all entries 1. The result is None for any other expression.
        """
        if kernel == 1:
            return J
        if isinstance(kernel, AppliedUndef):
            name = str(kernel.func)
            return operator(name, kernel.args[0]) if name in self.matrices else operator(name)
        return None


class _Block:
    """Operator equations of one layer (``site``): their solution, correlation functions and responses."""

    def __init__(self, closure: _Closure, site: Expr, rows: list[Row]) -> None:
        """Write and solve ``field = source + scale * sum of kernel * past field`` of one layer."""
        self.c, self.site, self.rows = closure, site, rows
        self.system: dict[Expr, Expr] = {}
        for r in rows:
            pairs = [(operator(self.label(r, x), site), operator(x, site)) for x in closure.gains[id(r)]]
            past = [closure.scale * kernel * field for kernel, field in pairs]
            self.system[operator(r.name, site)] = Add(operator(str(r.source.func), site), *past)
        self.solution = {x: solve_for(self.system, x) for x in self.system}
        self.sources = {operator(str(r.source.func), site): r.source for r in rows}
        self.extra: dict[Expr, Kernel] = {}

    def label(self, row: Row, past: str) -> str:
        """Return the name of the kernel by which the field of ``row`` depends on the past of ``past``.

        Both are fields. The kernel has the name that ``NAMES`` gives for the field of ``row``, such as C for
        h, if this field depends on the past of one field only and nothing else has this name. Otherwise its
        name is made of both fields, such as ``M_hg``.
        """
        name, made = NAMES.get(row.name), f"M_{row.name}{past}"
        alone = [r.name for r in self.rows if NAMES.get(r.name) == name] == [row.name]
        free = alone and name not in self.c.matrices and len(self.c.gains[id(row)]) == 1
        return name if name is not None and free else made

    def kernels(self) -> list[Kernel]:
        """Return the operators of the layer that have formulas for their entries.

        They are the kernels in its equations, and those covariances of its sources that are not order
        parameters.
        """
        self.covariances()
        kernels = list(self.extra.values())
        for r in self.rows:
            for x, definition in self.c.gains[id(r)].items():
                # The kernel is summed over the indices of the past field x. These indices are primed, because
                # the indices of the row r may have the same names.
                cols = tuple(IndexRange(primed(i.index), i.lower, i.upper) for i in self.c.index[x])
                name = self.label(r, x)
                symbol = Function(name)(self.site, *[i.index for i in (*r.indices, *cols)], t, s)
                kernels.append(
                    Kernel(operator(name, self.site), symbol, definition, r.indices, cols, "strict")
                )
        return kernels

    def source_covariance(self, a: Expr, b: Expr) -> Expr:
        """Return the operator of the covariance of two Gaussian sources; zero if they are independent.

        ``a`` and ``b`` are the noncommutative symbols of the sources.
        """
        for x, y, turned in ((a, b, False), (b, a, True)):
            for u in self.c.sources_of(self.sources[x]):
                if u.partner.func == self.sources[y].func:
                    return transpose(self.covariance_operator(u)) if turned else self.covariance_operator(u)
        return S.Zero

    def covariance_operator(self, u: Source) -> Expr:
        """Return the operator of a source's covariance, as a noncommutative symbol.

        It is named after the order parameter or data kernel that the covariance equals. For any other
        covariance it has a new name; its entries, and those of a data kernel, are stored in ``extra``.
        """
        word, ranges = self.c.operator(u.covariance), [r for r in u.ranges if r.index != ell]
        rows = tuple(r for r in ranges if u.symbol.has(r.index))
        cols = tuple(r for r in ranges if u.partner.has(r.index) and r not in rows)
        if word is None:
            name = f"S_{u.symbol.func}{u.partner.func}"
            word = operator(name, self.site)
            symbol = Function(name)(self.site, *[r.index for r in (*rows, *cols)], t, s)
            self.extra[word] = Kernel(word, symbol, u.covariance, rows, cols)
        elif word.is_Symbol:
            symbol = Function(word.name)(t, s) if word == J else u.covariance
            self.extra[word] = Kernel(word, symbol, u.covariance, rows, cols)
        return word

    def covariance(self, x: str, y: str) -> Expr:
        """Return the operator ``<x y^T>`` of two fields of the layer, given by name.

        Each field is an inverse operator times a sum of sources. The covariance of the sums is computed from
        those of the sources, and the inverses multiply it from the left and the right.
        """
        left, right = self.solution[operator(x, self.site)], self.solution[operator(y, self.site)]
        (a, inner_x), (b, inner_y) = _head(left), _head(right)
        middle = S.Zero
        for u in self.sources:
            for v in self.sources:
                sigma = self.source_covariance(u, v)
                if sigma != 0:
                    middle += coefficient(inner_x, u) * sigma * transpose(coefficient(inner_y, v))
        return a * middle * transpose(b)

    def covariances(self) -> list[Eq]:
        """Return, for each correlation function of the layer, an equation with a sum of operator words."""
        equations = []
        for q in self.c.theory.correlations():
            place = q.symbol.args[0]
            if place.has(ell) or place == self.site:
                fields = _pair(q, self.c.names)
                factor, (now, past) = _factor(q, fields), fields
                value = self.covariance(str(now.func), str(past.func))
                equations.append(_eq(operator(q.name, self.site), factor * value))
        return equations

    def responses(self) -> list[Eq]:
        """Return for each response function that is needed the equation that gives it as a sum of words."""
        equations = []
        for q in self.c.theory.responses():
            response = next(iter(q.definition.atoms(Response)))
            field, source = response.body, response.source
            at = {ell: self.site - (field.args[0] - ell)} if field.args[0].has(ell) else {}
            if field.args[0].xreplace(at) != self.site or str(field.func) not in self.c.names:
                continue
            factor = q.definition / Average(response)
            solved = self.solution[operator(str(field.func), self.site)]
            response_operator = coefficient(solved, operator(str(source.func), self.site))
            place = q.symbol.args[0].xreplace(at)
            if self.inside(q, place):
                equations.append(_eq(operator(q.name, place), factor * response_operator))
        return equations

    def inside(self, q: OrderParameter, place: Expr) -> bool:
        """Return whether an equation of this layer needs the order parameter ``q`` at the layer ``place``.

        Order parameters of the family of layers are always needed, those of a single layer only if a kernel
        contains them. The response of the last layer, for example, is not needed.
        """
        gains = (k for r in self.rows for k in self.c.gains[id(r)].values())
        return place.has(ell) or any(k.has(q.symbol.func) for k in gains)

    def outputs(self) -> list[Eq]:
        """Return equations for those averages in the scalars that are of a product of two fields.

        Such an average, like ``<h g>`` in the output of the network, is named ``C_hg`` and given as an
        operator.
        """
        equations = []
        order = [r.name for r in self.rows]
        for e in self.c.theory.scalars:
            for x in sorted(e.rhs.atoms(Average), key=str):
                fields = [a for a in x.atoms(AppliedUndef) if str(a.func) in order]
                fields.sort(key=lambda a: (-len(a.args), order.index(str(a.func))))
                if len(fields) != 2 or Mul(*fields) != x.body:
                    continue
                site = fields[0].args[0]
                if self.site in (ell, site):
                    value = self.covariance(str(fields[0].func), str(fields[1].func))
                    name = f"C_{fields[0].func}{fields[1].func}"
                    equations.append(_eq(operator(name, site), value.subs(ell, site)))
        return equations


def _eq(lhs: Expr, rhs: Expr) -> Eq:
    """Return an unevaluated equation."""
    return Eq(lhs, rhs, evaluate=False)


def _at_ell(e: Equation) -> Equation:
    """Return the equation of a family written for ``h(ell + 1)`` as one for ``h(ell)``.

    The range of ell is shifted likewise. Other equations are returned unchanged.
    """
    shift = e.symbol.args[0] - ell if e.layers else S.Zero
    ranges = (IndexRange(ell, r.lower + shift, r.upper + shift) if r.index == ell else r for r in e.ranges)
    return replace(e.subs(ell, ell - shift), ranges=tuple(ranges)) if shift != 0 else e


def _site(row: Row) -> Expr:
    """Return the layer of the field on the left-hand side of a row: the first argument of the field."""
    return row.field.args[0]


def _head(e: Expr) -> tuple[Expr, Expr]:
    """Split ``(1 - M)^-1 (u + ...)`` into the inverse and the vector that it acts on.

    Without an inverse the result is 1 and ``e``.
    """
    args = e.args if isinstance(e, Mul) else (e,)
    if len(args) > 1 and isinstance(args[-1], Add):
        return Mul(*args[:-1]), args[-1]
    return Integer(1), e


def _factor(q: OrderParameter, fields: list[AppliedUndef]) -> Expr:
    """Return the number c of a correlation that is defined as c times the average of a product of ``fields``.

    Raises NotApplicable for another definition.
    """
    factor = q.definition / Average(Mul(*fields))
    if len(fields) != 2 or factor.has(Average, AppliedUndef, t, s):
        raise NotApplicable(
            f"the correlation {q.symbol} = {q.definition} is not a number times the average of a product of "
            "two fields, as a closure needs"
        )
    return factor


def _pair(q: OrderParameter, names: set[str]) -> list[AppliedUndef]:
    """Return the two vectors of an order parameter: two fields, or for a response the field and the source.

    The field at time t comes first. ``names`` are the names of fields.
    """
    if responses := q.definition.atoms(Response):
        response = next(iter(responses))
        return [response.body, response.source]
    fields = [a for a in q.definition.atoms(AppliedUndef) if str(a.func) in names]
    return sorted(fields, key=lambda a: (a.args[-1] != t, str(a)))


def _spaces(q: OrderParameter) -> tuple[tuple[IndexRange, ...], tuple[IndexRange, ...]]:
    """Return the ranges of the indices of the two vectors of an order parameter, without the layer.

    The vectors are those whose product is averaged, or the field and the source of a response.
    """
    ranges = tuple(r for r in q.ranges if r.index != ell)
    atoms = _pair(q, {str(a.func) for a in q.definition.atoms(AppliedUndef)})
    if len(atoms) != 2:
        return ranges, ()
    now, past = atoms
    return tuple(r for r in ranges if now.has(r.index)), tuple(r for r in ranges if past.has(r.index))
