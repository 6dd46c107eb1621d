"""Gradient independence: training with backward matrices independent of the forward ones (eq. O.1).

The change is made in the program, not in the theory: conditioning then yields vanishing responses, and every
product as its Gaussian source plus its memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sympy import Expr, Function, Symbol

from derive.program.language import Product
from derive.program.parts import gaussian
from derive.program.program import Program
from derive.program.training import TrainedMatrix
from derive.theory import OrderParameter, Term, Theory
from derive.theory.applications import nonempty
from derive.theory.conditioning import mean_field


def independent_backward(program: Program, names: dict[str, str] | None = None) -> Program:
    """Return the program in which a matrix used both forwards and transposed is replaced by two matrices.

    The matrix keeps its forward uses. A copy with the same statistics and training, but independent initial
    weights, has the transposed uses; it is called ``<name>_back`` unless ``names`` gives another name.
    Programs without such a matrix are returned unchanged. Raises KeyError if ``names`` contains another
    matrix.

    >>> from derive import mlp
    >>> from derive.program import ell
    >>> theory = mean_field(independent_backward(mlp(3)))
    >>> [x.kind for x in theory.equation("g", ell).terms]
    ['source', 'memory']
    """
    doubled = both_ways(program)
    for given in names or {}:
        if given not in doubled:
            raise KeyError(
                f"the program has no matrix {given} that is used both forwards and transposed; its matrices "
                f"that are used in both ways: {', '.join(doubled) or 'none'}"
            )
    copies = {x: (names or {}).get(x, f"{x}_back") for x in doubled}

    def own(x: Product) -> Expr:
        """Return a product ``M^T v`` with the independent copy of the matrix M in place of M."""
        name, args = copies[_name(x)], x.matrix.args
        return Product(Function(name)(*args) if args else Symbol(name), True, x.vector)

    def backward(x: Expr) -> bool:
        """Return whether an expression is a transposed product with a matrix that has a copy."""
        return isinstance(x, Product) and x.transposed and _name(x) in copies

    definitions = tuple(replace(d, rhs=d.rhs.replace(backward, own)) for d in program.definitions)
    matrices = [*program.matrices]
    for w in program.matrices:
        if (start := gaussian(w)).name in copies:
            twin = replace(start, name=copies[start.name], responses=None)
            matrices.append(replace(w, initial=twin) if isinstance(w, TrainedMatrix) else twin)
    descent = None if copies else program.descent
    return replace(program, definitions=definitions, matrices=tuple(matrices), descent=descent)


def both_ways(program: Program) -> tuple[str, ...]:
    """Return the names of the matrices that are applied both forwards and transposed."""
    uses: dict[str, set[bool]] = {}
    for d in nonempty(program.definitions):
        for x in d.products():
            uses.setdefault(_name(x), set()).add(x.transposed)
    names = (gaussian(w).name for w in program.matrices)
    return tuple(x for x in names if len(uses.get(x, ())) == 2)


def _name(x: Product) -> str:
    """Return the name of the matrix of a product."""
    return str(x.matrix.func) if x.matrix.args else str(x.matrix)


@dataclass(frozen=True)
class Independence:
    """Difference between the theory of a program and that of the program with an independent backward pass.

    ``lost`` are (left-hand side, term) of terms that only the first theory has, and ``gained`` those that
    only the second one has. ``vanished`` are the order parameters that the second one lacks. ``gaussian`` is
    true if every matrix product of the second is a Gaussian source plus memory, and ``same_sources`` if both
    have the same covariances as functions of the kernels.
    """

    lost: tuple[tuple[Expr, Term], ...]
    gained: tuple[tuple[Expr, Term], ...]
    vanished: tuple[OrderParameter, ...]
    gaussian: bool
    same_sources: bool

    def __str__(self) -> str:
        lines = [f"- {lhs}: {x}" for lhs, x in self.lost] + [f"+ {lhs}: {x}" for lhs, x in self.gained]
        return "\n".join([*lines, *[f"{q.symbol} = 0" for q in self.vanished]])


def gradient_independence(theory: Theory) -> Independence:
    """Return the difference between a theory and that with independent backward matrices.

    >>> from derive import mlp
    >>> found = gradient_independence(mean_field(mlp()))
    >>> print([str(q.symbol) for q in found.vanished], {x.kind for _, x in found.lost}, found.gained)
    ['A(ell, mu, t, s)', 'B(ell, alpha, t, s)'] {'response'} ()
    """
    both = tied, untied = theory, mean_field(independent_backward(theory.program))
    terms = [[(e.lhs, x) for e in (*y.equations, *y.scalars) for x in e.terms] for y in both]
    expressions = [{(lhs, x.expr) for lhs, x in y} for y in terms]
    lost, gained = (
        tuple((lhs, x) for lhs, x in terms[k] if (lhs, x.expr) not in expressions[1 - k]) for k in (0, 1)
    )
    names = {q.name for q in untied.order_parameters}
    covariances = [{(u.symbol, u.partner, u.covariance) for u in y.sources} for y in both]
    return Independence(
        lost=lost,
        gained=gained,
        vanished=tuple(q for q in tied.order_parameters if q.name not in names),
        gaussian=not any(x.kind == "response" for _, x in terms[1]),
        same_sources=covariances[0] == covariances[1],
    )
