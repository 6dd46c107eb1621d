"""Gradient independence: the same training with backward matrices drawn independently of the forward ones
(eq. O.1).

This is not a change to the theory but to the program; that the responses vanish and every product is its
Gaussian source plus its memory then comes out of the conditioning rule.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sympy import Expr, Function, Symbol

from derive.program.program import Definition, Program, gaussian
from derive.program.training import TrainedMatrix
from derive.program.words import Product
from derive.theory import OrderParameter, Term, Theory
from derive.theory.conditioning import mean_field


def independent_backward(program: Program, names: dict[str, str] | None = None) -> Program:
    """The program in which a matrix used both forwards and transposed is two matrices.

    Each such matrix keeps its forward uses; a copy, called ``<name>_back`` unless ``names`` says otherwise,
    with the same statistics, the same training and a start of its own, takes the transposed ones.  Programs
    without such a matrix are returned as they are.  Raises KeyError when ``names`` has a matrix that the
    program does not use both ways.

    >>> from derive.program import ell, mlp
    >>> theory = mean_field(independent_backward(mlp(3)))
    >>> [x.kind for x in theory.equation("g", ell).terms]
    ['source', 'memory']
    """
    doubled = both_ways(program)
    for given in names or {}:
        if given not in doubled:
            raise KeyError(
                f"{given} is not used both forwards and transposed; these are: {', '.join(doubled) or 'none'}"
            )
    copies = {x: (names or {}).get(x, f"{x}_back") for x in doubled}

    def rewired(e: Expr) -> Expr:
        return e.replace(
            lambda x: isinstance(x, Product) and x.transposed and _name(x) in copies,
            lambda x: Product(_renamed(x.matrix, copies[_name(x)]), True, x.vector),
        )

    definitions = tuple(replace(d, rhs=rewired(d.rhs)) for d in program.definitions)
    matrices = [*program.matrices]
    for w in program.matrices:
        if (start := gaussian(w)).name in copies:
            twin = replace(start, name=copies[start.name], responses=None)
            matrices.append(replace(w, initial=twin) if isinstance(w, TrainedMatrix) else twin)
    return replace(program, definitions=definitions, matrices=tuple(matrices))


def both_ways(program: Program) -> tuple[str, ...]:
    """The matrices that are applied both forwards and transposed."""
    uses: dict[str, set[bool]] = {}
    for d in program.definitions:
        for x in () if _no_members(d) else d.products():
            uses.setdefault(_name(x), set()).add(x.transposed)
    return tuple(gaussian(w).name for w in program.matrices if len(uses.get(gaussian(w).name, ())) == 2)


def _no_members(d: Definition) -> bool:
    """A family of layers without members: the interior of a network with one hidden layer."""
    return any((r.upper - r.lower).is_negative for r in d.ranges)


def _name(x: Product) -> str:
    return str(x.matrix.func) if x.matrix.args else str(x.matrix)


def _renamed(matrix: Expr, name: str) -> Expr:
    return Function(name)(*matrix.args) if matrix.args else Symbol(name)


@dataclass(frozen=True)
class Comparison:
    """Two theories of the same fields: of a program, and of the one with an independent backward pass.

    ``lost`` are the terms, by left-hand side, that only the first has, ``gained`` those that only the
    second has; ``vanished`` the order parameters that are no longer there.  ``gaussian`` says whether every
    matrix product of the second is a Gaussian source plus memory, and ``same_sources`` whether the
    covariances are the same functions of the kernels in both.
    """

    tied: Theory
    untied: Theory
    lost: tuple[tuple[Expr, Term], ...]
    gained: tuple[tuple[Expr, Term], ...]
    vanished: tuple[OrderParameter, ...]
    gaussian: bool
    same_sources: bool

    def __str__(self) -> str:
        lines = [f"- {lhs}: {x}" for lhs, x in self.lost] + [f"+ {lhs}: {x}" for lhs, x in self.gained]
        lines += [f"{q.symbol} = 0" for q in self.vanished]
        return "\n".join(lines)


def compare(program: Program) -> Comparison:
    """What gradient independence takes away from the theory of ``program``.

    >>> from derive.program import mlp
    >>> found = compare(mlp())
    >>> print([str(q.symbol) for q in found.vanished], {x.kind for _, x in found.lost}, found.gained)
    ['A(ell, mu, t, s)', 'B(ell, alpha, t, s)'] {'response'} ()
    """
    tied, untied = mean_field(program), mean_field(independent_backward(program))
    names = {q.name for q in untied.order_parameters}
    return Comparison(
        tied=tied,
        untied=untied,
        lost=_missing(tied, untied),
        gained=_missing(untied, tied),
        vanished=tuple(q for q in tied.order_parameters if q.name not in names),
        gaussian=not any(x.kind == "response" for e in untied.equations for x in e.terms),
        same_sources=_covariances(tied) == _covariances(untied),
    )


def _missing(first: Theory, second: Theory) -> tuple[tuple[Expr, Term], ...]:
    """Terms of ``first`` that the equation of the same field in ``second`` does not have."""
    there = {(e.lhs, x.expr) for e in (*second.equations, *second.scalars) for x in e.terms}
    return tuple(
        (e.lhs, x)
        for e in (*first.equations, *first.scalars)
        for x in e.terms
        if (e.lhs, x.expr) not in there
    )


def _covariances(theory: Theory) -> set[tuple[Expr, Expr, Expr]]:
    return {(u.symbol, u.partner, u.covariance) for u in theory.sources}
