"""A Program: one training step of a network, written down, with the memory of its weights.

A Program says which vectors are computed from which at every step (:class:`Definition`), which matrices are
Gaussian at first, and how weights accumulate updates.  It is checked when it is made; the mean-field limit
is taken elsewhere (:mod:`derive.theory`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from sympy import Dummy, Expr, Function, Symbol, preorder_traversal
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import IndexRange, L, expression, t
from derive.errors import NotApplicable
from derive.program.parts import Definition, Named, Parts, causal_order, check
from derive.program.training import Along, TrainedMatrix, TrainedVector, TrainingRule
from derive.program.words import GaussianMatrix, GaussianVector, Population, Product, layer_count


@dataclass(frozen=True)
class Program(Parts):
    """How a network is trained.

    ``attributes`` are numbers that each unit keeps (eigenvalues of modes).  ``scalars`` are deterministic
    numbers recomputed at each step (outputs, errors); ``constants`` functions known beforehand (targets,
    kernels of the data).  ``notation`` maps a vector, written at ``(ell, mu, t)``, to the name of its
    correlation function; what is not named there is called ``C_<vector>``.  ``scale`` is factored out of
    response functions (the papers use gamma0).

    Raises :class:`ProgramError` when a definition uses something undefined, a matrix is applied to a vector
    of another population, a field depends on itself within a step, or a rule has no linear memory.

    >>> from derive.program import mlp
    >>> [d.name for d in mlp(3).causal_order()]
    ['h', 'h', 'g', 'g', 'f', 'Delta']
    """

    def __post_init__(self) -> None:
        object.__setattr__(self, "notation", Named(self.notation))
        check(self)

    # -- other programs from this one --------------------------------

    def causal_order(self) -> tuple[Definition, ...]:
        """The definitions in an order in which one step can compute them."""
        return causal_order(self)

    def at_depth(self, depth: int) -> Program:
        """The same program with ``L`` replaced by an integer number of hidden layers."""
        layers = layer_count(depth)
        return self.map(lambda e: expression(e).subs(L, layers))

    def with_rule(self, rule: TrainingRule) -> Program:
        """The same program trained by another rule."""
        matrices = tuple(replace(m, rule=rule) if isinstance(m, TrainedMatrix) else m for m in self.matrices)
        vectors = tuple(replace(v, rule=rule) if isinstance(v, TrainedVector) else v for v in self.vectors)
        return replace(self, rule=rule, matrices=matrices, vectors=vectors)

    def map(self, fun: Any) -> Program:
        """Apply ``fun`` to every expression in the program."""

        def pop(p: Population) -> Population:
            site, formula = (None if x is None else fun(expression(x)) for x in (p.site, p.formula))
            return replace(p, ratio=fun(expression(p.ratio)), site=site, formula=formula)

        def ranges(rs: tuple[IndexRange, ...]) -> tuple[IndexRange, ...]:
            return tuple(IndexRange(r.index, fun(r.lower), fun(r.upper)) for r in rs)

        def gauss(m: GaussianMatrix) -> GaussianMatrix:
            index = ranges((m.index,))[0] if m.index else None
            variance, others = fun(expression(m.variance)), ranges(m.others)
            return replace(
                m, rows=pop(m.rows), cols=pop(m.cols), index=index, variance=variance, others=others
            )

        def matrix(m: GaussianMatrix | TrainedMatrix) -> GaussianMatrix | TrainedMatrix:
            if isinstance(m, GaussianMatrix):
                return gauss(m)
            return replace(m, initial=gauss(m.initial), update=m.update.map(fun))

        def start(v: GaussianVector) -> GaussianVector:
            variance = fun(expression(v.variance))
            return replace(v, population=pop(v.population), variance=variance, indices=ranges(v.indices))

        def vector(v: GaussianVector | TrainedVector) -> GaussianVector | TrainedVector:
            if isinstance(v, GaussianVector):
                return start(v)
            u = v.update
            moved = Along(fun(u.coefficient), fun(u.vector), ranges(u.over))
            return replace(v, initial=start(v.initial), update=moved)

        return replace(
            self,
            fields=tuple(replace(x, population=pop(x.population)) for x in self.fields),
            definitions=tuple(
                replace(d, lhs=fun(d.lhs), rhs=fun(d.rhs), ranges=ranges(d.ranges)) for d in self.definitions
            ),
            matrices=tuple(matrix(m) for m in self.matrices),
            vectors=tuple(vector(v) for v in self.vectors),
            notation={fun(k): v for k, v in self.notation.items()},
            depth=fun(self.depth),
        )

    def drop_idle_indices(self) -> Program:
        """The same program with every index removed from fields that do not depend on it.

        In a linear network this finds that the backward fields are the same for all samples.  The least set
        of dependences consistent with the definitions is kept: an index stays only if data carry it in.
        """
        kept = _needed_positions(self)

        def prune(e: Any) -> Any:
            e = expression(e)
            table = {
                a: Function(str(a.func))(*[x for i, x in enumerate(a.args) if i in kept[str(a.func)]])
                for a in e.atoms(AppliedUndef)
                if str(a.func) in kept
            }
            return e.xreplace(table)

        pruned = self.map(prune)
        slim = tuple(
            replace(d, ranges=tuple(r for r in d.ranges if d.lhs.has(r.index) or d.rhs.has(r.index)))
            for d in pruned.definitions
        )
        return replace(pruned, definitions=slim)


def _alone(e: Expr) -> Expr:
    """``e`` without its fields, functions and products: an index that is left stands for itself."""
    return e.replace(lambda x: isinstance(x, AppliedUndef | Product), lambda _: Dummy())


def used_once(program: Program, what: str) -> None:
    """Raise :class:`NotApplicable` in the name of ``what`` if several uses of a matrix train it.

    >>> from derive.program import mlp
    >>> used_once(mlp(2), "counting")
    """
    shared = [w.name for w in program.trained() if isinstance(w, TrainedMatrix) and w.update.more]
    if shared:
        raise NotApplicable(
            f"{what}: {shared[0]} is used in several places, and its update is a sum of outer products, of "
            "which one can be read; use a matrix of its own in each place"
        )


def _needed_positions(program: Program) -> dict[str, set[int]]:
    names = {x.name for x in program.fields} | set(program.scalars)
    kept: dict[str, set[int]] = {n: set() for n in names}
    for d in program.definitions:
        for i, arg in enumerate(d.lhs.args):
            layered = (x := program.field_of(d.name)) is not None and (x.layered or x.ordered) and i == 0
            if layered or arg == t:
                kept[d.name].add(i)
    changed = True
    while changed:
        changed = False
        for d in program.definitions:
            for i, arg in enumerate(d.lhs.args):
                if i in kept[d.name] or not isinstance(arg, Symbol):
                    continue
                if _alone(d.rhs).has(arg):
                    kept[d.name].add(i)
                    changed = True
                    continue
                for node in preorder_traversal(d.rhs):
                    if not isinstance(node, AppliedUndef) or not node.has(arg):
                        continue
                    name = str(node.func)
                    if name not in names or any(
                        node.args[j].has(arg) for j in kept[name] if node.args[j] != t
                    ):
                        kept[d.name].add(i)
                        changed = True
                        break
    return kept
